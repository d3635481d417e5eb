"""The shipped machines: one YAML file each, every number with its source."""
