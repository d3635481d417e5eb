"""What the checked mode watches: accesses outside buffers, unwritten bytes, races."""
