"""Passes over the graph level, before anything is fused."""
