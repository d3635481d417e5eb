"""Passes that gather layers into units."""
