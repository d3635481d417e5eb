# Tests: test/passes/graph/composites/test_expand_normalise.py
"""Plain layers instead of a composite one, as they are made one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from xdsl.dialects.builtin import AnyFloat, f32
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.target import Target
from frustum.passes.analysis.module import node_name, value_bytes
from frustum.passes.weights import WeightStore, numpy_of

TOGETHER_SHARE = 0.5
"""Of the SRAM of all clusters, which a part of a tensor takes that stays there until all of it has been read again:
the units that read it need the rest.  Of two groups of 0.59 in f16 on `default` the second is read twice, and what
takes 0.88 goes through DRAM between all layers."""
ALONE_SHARE = 0.9
"""The same of a part that is one row or group, if its parts come and go in turns: of eight groups of 0.88 in f32 on
`default` each is read once then (1.27 million cycles; 1.77 where all of them are read twice)."""
MOST_TURNS = 16
"""Parts of a tensor that are taken one after another at most: each is planned by itself (eight groups of 64 channels
of 360 x 640 take 7 s)."""


def together_bytes(target: Target) -> int:
    """What a part of a tensor may take that is to stay in SRAM, each cluster holding its share."""
    return int(TOGETHER_SHARE * target.chip.clusters * target.cluster.sram.capacity_bytes)


def is_alone(row_bytes: int, target: Target) -> bool:
    """Whether a row or group of so many bytes leaves units that read it again little room, but may stay."""
    chip_bytes = target.chip.clusters * target.cluster.sram.capacity_bytes
    return together_bytes(target) < row_bytes <= ALONE_SHARE * chip_bytes


@dataclass
class PlainLayers:
    """The layers that `op` consists of, in their order, at its place in the source; `store` takes their constants."""

    op: Operation
    store: WeightStore
    made: list[Operation] = field(default_factory=list)

    def add(self, made: Operation) -> SSAValue:
        made.location = self.op.location
        self.made.append(made)
        return made.results[0]

    def shaped(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        return x if g.shape_of(x) == tuple(shape) else self.add(g.ReshapeOp(x, tuple(shape)))

    def in_turn(self, x: SSAValue, target: Target, made: Callable[[SSAValue, int, int], SSAValue]) -> SSAValue:
        """`made` of all rows of a tensor [rows, ...], or of as many at a time as stay in SRAM while they are read
        again, which are given with their numbers [start, stop).  All, where a cluster's SRAM holds one, or not even all
        of them do, or they would be more than `MOST_TURNS` parts."""
        rows, *row = g.shape_of(x)
        taken = together_bytes(target) * rows // value_bytes(x)
        fits_one = taken >= target.chip.clusters
        taken += is_alone(value_bytes(x) // rows, target)
        if fits_one or not 0 < taken < rows <= MOST_TURNS * taken:
            return made(x, 0, rows)
        parts = []
        for start in range(0, rows, taken):
            stop = min(rows, start + taken)
            own = self.add(g.SliceOp(x, (start, *(0 for _ in row)), (stop - start, *row)))
            parts.append(made(own, start, stop))
        return self.add(g.ConcatOp(parts, 0))

    def constant(self, word: str, array: NDArray[Any], element: AnyFloat) -> SSAValue:
        """A constant of a type, under a key of its own."""
        key = self.store.add(f"{node_name(self.op) or self.op.name}/{word}", array.astype(numpy_of(element)))
        return self.add(g.WeightOp(key, g.tensor_type(element, array.shape)))

    def binary(self, kind: str, a: SSAValue, b: SSAValue, act: str | None = None) -> SSAValue:
        """Element by element, in f32, with a function of the result."""
        return self.add(g.BinaryOp(kind, a, b, act=None if act is None else g.ActAttr.of(act), element=f32))

    def reduced(self, kind: str, x: SSAValue, *axes: int) -> SSAValue:
        """Along axes, which stay with an extent of 1, in f32."""
        return self.add(g.ReduceOp(kind, x, axes, element=f32))
