"""Memory: where each buffer lies, how deep it is buffered, what is loaded early."""
