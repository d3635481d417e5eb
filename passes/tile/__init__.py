"""Passes that cut units into tiles and give every tile a place and an order."""
