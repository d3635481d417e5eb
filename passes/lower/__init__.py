"""Passes that turn tiles into instructions."""
