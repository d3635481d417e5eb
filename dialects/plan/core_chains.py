# Tests: test/dialects/plan/test_core_chains.py
"""What layers of a compute take that follow each other in the cores, piece by piece.

What they hand each other stays in a core.  The engines work at the same time but for the first piece, and each
instruction waits for its memories.  So many pieces count as take the fewest cycles.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.layer_cycles import LayerCycles
from frustum.dialects.target import Cluster

LONGEST = 8
"""Layers that follow each other in the cores at most. 2026-11-28."""


@dataclass(frozen=True)
class ChainCycles:
    """Cycles of each engine, and of all together."""

    engines: LayerCycles
    cycles: float

    @staticmethod
    def of(cluster: Cluster, layers: Sequence[LayerCycles]) -> ChainCycles:
        """Of layers without what they hand each other."""
        found = np.array([(float(each.matrix), float(each.vector), float(each.copies)) for each in layers])
        latency = np.array([cluster.core.nram.latency_cycles] * 2 + [cluster.sram.latency_cycles])
        total, waits = found.sum(axis=0), (found > 0).sum(axis=0) * latency
        one_by_one = sum(float(each.alone) for each in layers)
        pieces = np.maximum(1.0, np.sqrt(one_by_one / waits[waits > 0]))
        """For which an engine's waits are as long as the first piece: hardly any other number takes fewer cycles."""
        cycles = (total + pieces[:, None] * waits).max(axis=1) + one_by_one / pieces
        return ChainCycles(LayerCycles(*total.tolist()), float(cycles.min()))


def handed_on(network: AxisNetwork, layers: Sequence[Layer], own: Collection[Tensor]) -> frozenset[Tensor] | None:
    """What layers of a chain hand each other, of tensors that a compute alone has (`own`); None where they are no
    chain: one of them hands nothing on."""
    made = [layer.result for layer in layers[:-1]]
    read = {piece.tensor for layer in layers for operand in layer.operands for piece in operand.pieces}
    if not read.issuperset(made):
        return None
    return frozenset(t for t in made if t in own and {*network.readers.get(t, ())} <= {*layers})
