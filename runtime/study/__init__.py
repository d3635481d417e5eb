"""Runs beside each other: what changed between two, published figures, sweeps over machines."""
