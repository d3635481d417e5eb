"""What is decided: every choice the compiler makes, one pass per file."""
