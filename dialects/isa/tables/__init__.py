"""Compiled address tables: their entries, their stored form, the cache that holds them."""
