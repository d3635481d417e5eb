"""Passes on the text of plans: one that takes a plan from a file, one that checks plans against networks."""
