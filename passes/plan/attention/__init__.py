"""How attention is cut: into pieces of its blocks, and with keys that stream past."""
