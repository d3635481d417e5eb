"""Layers in parts, on trial: what the search then finds decides whether they stay so."""
