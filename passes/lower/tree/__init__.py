"""A plan as a tree, written as instructions."""
