"""The rewrites of the canonical form."""
