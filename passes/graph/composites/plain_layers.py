# Tests: test/passes/graph/composites/test_expand_normalise.py
"""Plain layers instead of a composite one, as they are made one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from xdsl.dialects.builtin import AnyFloat, f32
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.passes.analysis.module import node_name
from frustum.passes.weights import WeightStore, numpy_of


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
