"""What happens: the emulated machine, its report, and the commands people type."""
