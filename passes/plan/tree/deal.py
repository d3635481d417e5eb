# Tests: test/passes/plan/tree/test_deal.py
"""Which classes of axes clusters may deal among each other: each makes its range of it, of all layers that have it."""

from __future__ import annotations

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class, classes_apart, why_not
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.axes.recurrence import AxisCycle, cycles_of, is_at_own_position


def classes_to_deal(network: AxisNetwork, clusters: int) -> list[Class]:
    """Classes with an axis of at least as many positions as there are clusters, over which no product is summed: those
    that the most layers have, since every cluster makes what has none.  No cluster waits for the steps of others."""
    cycles = cycles_of(network.layers)
    summed: set[Axis] = {axis for layer in network.layers for axis in layer.combine if layer.macs}
    found = {
        group: sum(not group.isdisjoint(layer.axes) for layer in network.layers)
        for group in classes_apart(network.layers)
        if min(axis.extent for axis in group) >= clusters and group.isdisjoint(summed)
        and not any(_cuts(group, cycle) for cycle in cycles)
    }  # fmt: skip
    return [group for group, layers in found.items() if layers == max(found.values())]


def _cuts(group: Class, cycle: AxisCycle) -> bool:
    """Whether ranges of a class need states of each other."""
    if not any(group & set(layer.axes) for layer in cycle.layers):
        return False
    is_apart = (is_at_own_position(layer, tensor, group) for layer in cycle.layers for tensor in cycle.carried)
    return cycle.axis in group or bool(why_not(group, cycle.layers)) or not all(is_apart)
