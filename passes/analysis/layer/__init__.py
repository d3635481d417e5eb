"""Every graph operation as a nest of four loops: what the tile level needs to know of a layer, and nothing else.

A `Layer` says how its output and each operand lie in their tensors (four dimensions, strides in elements), which
positions of an operand a piece of the output needs (`Access`), and the layer's own numbers (`params`).

One file per family of operations; this one has the tables of which builder makes which layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.isa.program import ACCUMULATORS, ELEMENT_BYTES
from frustum.dialects.module import HELD_BYTES
from frustum.passes.analysis.layer.elementwise import binary, dequantize, quantize, unary
from frustum.passes.analysis.layer.moves import (
    Move,
    concat,
    interleave,
    pad,
    pick,
    shuffle,
    side_by_side,
    slices,
    transpose,
    turn,
)
from frustum.passes.analysis.layer.nest import CONCAT, RANK, SAME4, Layer, MapOperand, dense, four, refused
from frustum.passes.analysis.layer.parameters import scales_of
from frustum.passes.analysis.layer.products import conv, matmul
from frustum.passes.analysis.layer.sums import reduce, softmax
from frustum.passes.analysis.layer.windows import lrn, pool, resize
from frustum.passes.analysis.module import element_bytes, element_of

__all__ = [
    "BUILDERS",
    "CONCAT",
    "JOINS",
    "MOVES",
    "RANK",
    "SAME4",
    "Layer",
    "MapOperand",
    "Move",
    "dense",
    "four",
    "is_move",
    "layer_of",
    "moves_of",
    "scales_of",
]

BUILDERS: dict[type[Operation], Callable[..., Layer]] = {
    g.ConvOp: conv,
    g.MatmulOp: matmul,
    g.PoolOp: pool,
    g.LrnOp: lrn,
    g.ResizeOp: resize,
    g.UnaryOp: unary,
    g.BinaryOp: binary,
    g.SoftmaxOp: softmax,
    g.ReduceOp: reduce,
    g.QuantizeOp: quantize,
    g.DequantizeOp: dequantize,
    g.ShuffleOp: shuffle,
    g.PickOp: pick,
    g.TurnOp: turn,
}
JOINS: dict[type[Operation], Callable[..., Layer]] = {g.ConcatOp: side_by_side}
"""What also moves data where it stands alone, and is a layer among others in a unit."""
MOVES: dict[type[Operation], Callable[..., list[Move]]] = {
    g.ConcatOp: concat,
    g.SliceOp: slices,
    g.PadOp: pad,
    g.TransposeOp: transpose,
    g.InterleaveOp: interleave,
}


def layer_of(op: Operation) -> Layer:
    """The layer of a graph operation; raises `Unsupported` for one that has no engine."""
    build = BUILDERS.get(type(op)) or JOINS.get(type(op))
    if build is None:
        raise refused(op, "no engine of the device runs this operation")
    return sized(build(op), op)


def sized(layer: Layer, op: Operation) -> Layer:
    """The layer with the bytes of its elements."""
    maps = tuple(replace(m, element_bytes=element_bytes(op.operands[m.index])) for m in layer.maps)
    accumulator = ACCUMULATORS.get(element_of(g.tensor_of(op.operands[0]).element_type), "f32")
    return replace(
        layer,
        maps=maps,
        out_bytes=element_bytes(op.results[0]),
        accumulator_bytes=ELEMENT_BYTES[accumulator],
        held=(1, 1) if layer.weight is None else held_of(op.operands[layer.weight]),
    )




def held_of(weights: SSAValue) -> tuple[int, int]:
    """Bytes held of weights, and their own."""
    own = weights.owner.attributes.get(HELD_BYTES) if isinstance(weights.owner, g.WeightOp) else None
    if not isinstance(own, IntegerAttr):
        return 1, 1
    return own.value.data, math.prod(g.shape_of(weights)) * element_bytes(weights)


def is_move(ops: Iterable[Operation]) -> bool:
    """Whether the operations of a unit (weights and its yield may be among them) are one that only moves data."""
    found = [type(op) in MOVES for op in ops if type(op) in MOVES or type(op) in BUILDERS]
    return found == [True]


def moves_of(op: Operation) -> list[Move] | None:
    """The copies that a moving operation consists of; None for operations that compute."""
    build = MOVES.get(type(op))
    return build(op) if build else None
