# Tests: test/passes/plan/tree/test_deal.py
"""Which class of axes the clusters deal among each other: each makes its range of it, of all layers that have it."""

from __future__ import annotations

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class, classes_apart
from frustum.dialects.axes.network import AxisNetwork

MOST_LAYERS = 0.6
"""A class that fewer layers have leaves the others to every cluster alike. 2026-11-28."""


def classes_to_deal(network: AxisNetwork, clusters: int) -> list[Class]:
    """Classes with an axis of at least as many positions as there are clusters in most layers, over which nothing is
    summed."""
    summed: set[Axis] = {axis for layer in network.layers for axis in layer.combine if layer.macs}
    least = MOST_LAYERS * len(network.layers)
    return [
        group for group in classes_apart(network.layers)
        if sum(not group.isdisjoint(layer.axes) for layer in network.layers) >= least
        and min(axis.extent for axis in group) >= clusters and group.isdisjoint(summed)
    ]  # fmt: skip
