"""Every graph operation as a nest of loops: what the tile level needs to know of a layer, and nothing else.

A `Layer` says how its output and each operand lie in their tensors (four dimensions, strides in elements), which
positions of an operand a piece of the output needs (`Access`), and has the layer's own numbers (`kind`).

One file per family of operations, whose functions `nest.FORMS` knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, StringAttr
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.isa.program import ACCUMULATORS, ELEMENT_BYTES
from frustum.dialects.module import CARRY, HELD_BYTES, HELD_RUN
from frustum.passes.analysis.layer import attention, products, vectors  # noqa: F401  (their forms)
from frustum.passes.analysis.layer.moves import is_side_by_side
from frustum.passes.analysis.layer.nest import (
    FORMS,
    RANK,
    SAME4,
    DeviceForm,
    Layer,
    MapOperand,
    Move,
    contiguous,
    dense,
    loops,
    refused,
)
from frustum.passes.analysis.module import element_bytes, element_of, value_bytes

__all__ = [
    "RANK",
    "SAME4",
    "Layer",
    "MapOperand",
    "Move",
    "can_join",
    "contiguous",
    "dense",
    "is_layer",
    "is_move",
    "is_side_by_side",
    "is_work",
    "layer_of",
    "loops",
    "moves_of",
]


def is_work(op: Operation) -> bool:
    """The operation must end in a unit: it computes, or it moves data."""
    return type(op) in FORMS


def is_layer(op: Operation) -> bool:
    """It can be among others in a unit: all that computes, and concatenation of maps along channels."""
    return form_of(op).layer is not None and (not isinstance(op, g.ConcatOp) or is_side_by_side(op))


def can_join(op: Operation) -> bool:
    """The layer may share a unit with others, whose tiles are cut along images, rows and columns."""
    return form_of(op).shares and is_layer(op)


def is_move(ops: Iterable[Operation]) -> bool:
    """Whether the operations of a unit (weights and its yield may be among them) are one that only moves data."""
    return [form_of(op).moves is not None for op in ops if is_work(op)] == [True]


def moves_of(op: Operation) -> list[Move] | None:
    """The copies that a moving operation consists of; None for operations that compute."""
    build = form_of(op).moves
    return build(op) if build else None


def form_of(op: Operation) -> DeviceForm:
    return FORMS.get(type(op), DeviceForm())


def layer_of(op: Operation) -> Layer:
    """The layer of a graph operation, with the bytes of its elements; raises `Unsupported` for one that has no
    engine."""
    build = form_of(op).layer
    if build is None:
        raise refused(op, "no engine of the device runs this operation")
    layer = build(op)
    accumulator = ACCUMULATORS.get(element_of(g.tensor_of(op.operands[0]).element_type), "f32")
    return replace(
        layer,
        maps=tuple(replace(m, element_bytes=element_bytes(op.operands[m.index])) for m in layer.maps),
        out_bytes=element_bytes(op.results[0]),
        keeps_sums_wide=op.attributes.get(CARRY) == StringAttr("f32"),
        accumulator_bytes=ELEMENT_BYTES[accumulator],
        held=(1, 1) if layer.weight is None else held_of(op.operands[layer.weight]),
        held_run=(1, 1) if layer.weight is None else held_run_of(op.operands[layer.weight]),
    )


def held_of(weights: SSAValue) -> tuple[int, int]:
    """Bytes held of weights, and their own."""
    own = weights.owner.attributes.get(HELD_BYTES) if isinstance(weights.owner, g.WeightOp) else None
    if not isinstance(own, IntegerAttr):
        return 1, 1
    return own.value.data, value_bytes(weights)


def held_run_of(weights: SSAValue) -> tuple[int, int]:
    """What input channels of a piece of these weights are a multiple of, and how many they are at least."""
    run = weights.owner.attributes.get(HELD_RUN) if isinstance(weights.owner, g.WeightOp) else None
    if not isinstance(run, DenseArrayBase):
        return 1, 1
    grain, least = map(int, run.get_values())
    return grain, least
