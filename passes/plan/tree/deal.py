# Tests: test/passes/plan/tree/test_deal.py
"""Which classes of axes clusters may deal among each other: each makes its range of it, of all layers that have it."""

from __future__ import annotations

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class, classes_apart
from frustum.dialects.axes.network import AxisNetwork


def classes_to_deal(network: AxisNetwork, clusters: int) -> list[Class]:
    """Classes with an axis of at least as many positions as there are clusters, over which no product is summed: those
    that the most layers have, since every cluster makes what has none."""
    summed: set[Axis] = {axis for layer in network.layers for axis in layer.combine if layer.macs}
    found = {
        group: sum(not group.isdisjoint(layer.axes) for layer in network.layers)
        for group in classes_apart(network.layers)
        if min(axis.extent for axis in group) >= clusters and group.isdisjoint(summed)
    }
    return [group for group, layers in found.items() if layers == max(found.values())]
