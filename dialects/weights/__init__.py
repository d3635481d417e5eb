"""Compressed weights: the codec and its loops."""
