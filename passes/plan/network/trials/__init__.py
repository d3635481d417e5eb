"""Changes of a network that are planned on trial."""
