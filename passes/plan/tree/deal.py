# Tests: test/passes/plan/tree/test_deal.py
"""Which classes of axes clusters may deal among each other: each makes its range of it, of all layers that have it."""

from __future__ import annotations

from collections import Counter

from frustum.dialects.axes.classes import Class, classes_apart
from frustum.dialects.axes.network import AxisNetwork
from frustum.passes.plan.tree.spans import Dealt, Reads
from frustum.passes.plan.tree.wishes import Wishes
from frustum.passes.plan.tree.zone_choice import ZoneChoice, may_be_dealt
from frustum.passes.plan.tree.zones import Dealing


def dealings(network: AxisNetwork, clusters: int, wishes: Wishes) -> list[Dealing]:
    """What clusters may deal: one class of all layers; and, where time or energy counts and no units are given, of each
    layer that with which it takes the least."""
    layers = network.layers
    if clusters == Dealt().clusters:
        return [Dealing.of_one(layers)]
    found = [Dealing.of_one(layers, group, clusters) for group in classes_to_deal(network, clusters)]
    if wishes.optimise != "bytes" and wishes.cuts is None and wishes.target is not None:
        found.append(ZoneChoice(Reads(network), clusters, wishes.target).best())
    return found or [Dealing.of_one(layers)]


def classes_to_deal(network: AxisNetwork, clusters: int) -> list[Class]:
    """Classes with an axis of at least as many positions as there are clusters, over which no product is summed: those
    that the most layers have, since every cluster makes what has none.  No cluster waits for the steps of others."""
    reads, having = Reads(network), Counter(axis for layer in network.layers for axis in layer.axes)
    layers = {group: sum(having[axis] for axis in group) for group in classes_apart(network.layers)}
    found = list[Class]()
    for group in sorted(layers, key=layers.__getitem__, reverse=True):
        if found and layers[group] < layers[found[0]]:
            break
        if may_be_dealt(group, network.layers, reads, clusters):
            found.append(group)
    return found
