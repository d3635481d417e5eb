"""Waits: what depends on what, and the counters that hold it back."""
