"""The executable file: writing, reading, checking and listing it."""
