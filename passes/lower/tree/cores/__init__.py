"""What the cores of a cluster make of parts of a plan."""
