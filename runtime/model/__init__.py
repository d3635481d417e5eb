"""From MODEL and options to a chain of executables, and its run."""
