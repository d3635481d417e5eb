# Tests: test/passes/plan/tree/test_deal.py
"""Which classes of axes clusters may deal among each other: each makes its range of it, of all layers that have it."""

from __future__ import annotations

import math

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class, classes_apart, why_not
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.axes.recurrence import AxisRecurrence, is_at_own_position, recurrences_of
from frustum.dialects.target import Target
from frustum.passes.plan.tree.spans import Dealt


def classes_to_deal(network: AxisNetwork, clusters: int) -> list[Class]:
    """Classes with an axis of at least as many positions as there are clusters, over which no product is summed: those
    that the most layers have, since every cluster makes what has none.  No cluster waits for the steps of others."""
    recurrences = recurrences_of(network.layers)
    summed: set[Axis] = {axis for layer in network.layers for axis in layer.combine if layer.macs}
    found = {
        group: sum(not group.isdisjoint(layer.axes) for layer in network.layers)
        for group in classes_apart(network.layers)
        if min(axis.extent for axis in group) >= clusters and group.isdisjoint(summed)
        and not any(_cuts(group, recurrence) for recurrence in recurrences)
    }  # fmt: skip
    return [group for group, layers in found.items() if layers == max(found.values())]


def _cuts(group: Class, recurrence: AxisRecurrence) -> bool:
    """Whether ranges of a class need states of each other."""
    if not any(group & set(layer.axes) for layer in recurrence.layers):
        return False
    if recurrence.axis in group or why_not(group, recurrence.layers):
        return True
    reads = ((layer, tensor) for layer in recurrence.layers for tensor in recurrence.carried)
    return not all(is_at_own_position(layer, tensor, group) for layer, tensor in reads)


def in_short_runs(network: AxisNetwork, dealt: Dealt, target: Target) -> float:
    """How much longer than their bytes inputs, weights and outputs take at the port of DRAM, where each cluster has its
    share: runs that are shorter than the port's shortest take as long as that."""
    least, moved, taken = 8 * target.chip.dram.minimum_run_bytes, 0.0, 0.0
    for tensor in network.tensors:
        if tensor.is_output or tensor not in network.maker:
            places = [k for k, axis in enumerate(tensor.axes) if axis in dealt.axes]
            inner = tensor.axes[places[-1] :] if places else ()
            run = math.prod(dealt.share(axis) for axis in inner) * tensor.element_bits
            moved += tensor.size_bytes
            taken += tensor.size_bytes * (max(1.0, least / run) if places else 1.0)
    return taken / moved if moved else 1.0
