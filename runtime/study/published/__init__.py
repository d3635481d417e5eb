"""Figures that others publish, with all that it takes to count ours beside them."""
