# Tests: test/passes/lower/tree/test_lower_plan.py
"""What a program has in DRAM: a buffer for each tensor that goes there, in the form that the host knows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects import module as m
from frustum.dialects.axes.access import View
from frustum.dialects.axes.axis import leaves, weights
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.isa.program import ELEMENT_BYTES, Element, ExternalClass
from frustum.passes.analysis.module import element_in
from frustum.passes.lower.tree.places import Place
from frustum.passes.lower.tree.spans import NotLowered

STATISTICS = 2
"""Numbers of an element of what is known of a norm's or a softmax's operand."""


def elements_of(network: AxisNetwork, views: Mapping[SSAValue, View]) -> dict[Tensor, Element]:
    """The device's type of every tensor's elements."""
    found = dict[Tensor, Element]()
    for value, view in views.items():
        if not isinstance(value.owner, Operation) or isinstance(value.owner, g.WeightOp):
            for piece in view.pieces:
                found.setdefault(piece.tensor, element_in(value))
    for layer in network.layers:
        found[layer.result] = element_of(layer)
    return found


def element_of(layer: Layer) -> Element:
    """Of a layer's result: of statistics the type of their sums."""
    assert isinstance(layer.source, Operation)
    return "f32" if layer.role in ("sums", "squares") else element_in(layer.source.results[0])


class DramTensors:
    """The externals of a network, declared as they are asked for: those that the host passes and expects first."""

    def __init__(
        self, network: g.NetworkOp, views: Mapping[SSAValue, View], elements: Mapping[Tensor, Element], block: Block
    ) -> None:
        self.network, self.views, self.elements, self.block = network, views, elements, block
        self.places: dict[Tensor, Place] = {}
        self.dtypes: tuple[str | None, ...] = m.texts_of(network, m.MODEL_DTYPES) or (None,) * (
            len(network.inputs) + len(network.outputs)
        )

    def declare(self) -> None:
        """Inputs, then outputs.  NotLowered where an output is not as a tensor lies."""
        for name, argument, dtype in zip(self.network.inputs, self.network.body.block.args, self.dtypes, strict=False):
            buffer = self.external(name, "input", argument, dtype)
            for piece in self.views[argument].pieces:
                self.place(piece.tensor, buffer)
        dtypes = self.dtypes[len(self.network.inputs) :]
        for name, value, dtype in zip(self.network.outputs, self.network.terminator.operands, dtypes, strict=True):
            self.output(name, value, dtype)

    def output(self, name: str, value: SSAValue, dtype: str | None) -> None:
        view = self.views[value]
        (piece, *others) = view.pieces
        if others or piece.guards or piece.tensor in self.places:
            raise NotLowered(f"output '{name}' is a view of several tensors, or of one that is there already")
        order = leaves(axis for own in view.dims for axis in own)
        index = dict(piece.by_leaf)
        moved = [position.terms[0] for position in index.values() if position is not None and position.terms]
        if [*(a for a, _ in moved)] != [*index] or any(f != 1 for _, f in moved) or {*order} != {*index}:
            raise NotLowered(f"output '{name}' is a part of what a layer makes")
        buffer = self.external(name, "output", value, dtype)
        size = ELEMENT_BYTES[self.elements[piece.tensor]]
        strides = {axis: step * size for axis, step in weights(order).items()}
        self.places[piece.tensor] = Place(buffer, "dram", self.elements[piece.tensor], strides)

    def of(self, tensor: Tensor) -> Place:
        """Where a tensor lies in DRAM."""
        if tensor not in self.places:
            kind: ExternalClass = "weight" if tensor.kind is Kind.WEIGHT else "intermediate"
            value = self.weight_of(tensor) if kind == "weight" else None
            if value is not None:
                assert isinstance(value.owner, g.WeightOp)
                buffer = self.external(value.owner.key.data, kind, value, None)
            else:
                element, shape = self.elements[tensor], tuple(axis.extent for axis in tensor.axes) or (1,)
                size = math.prod(shape) * ELEMENT_BYTES[element]
                buffer = self.add(isa.ExternalOp(tensor.name, kind, size, shape, element))
            self.place(tensor, buffer)
        return self.places[tensor]

    def weight_of(self, tensor: Tensor) -> SSAValue:
        return next(
            value for value, view in self.views.items()
            if isinstance(value.owner, g.WeightOp) and view.pieces[0].tensor is tensor
        )  # fmt: skip

    def place(self, tensor: Tensor, buffer: SSAValue) -> None:
        size = ELEMENT_BYTES[self.elements[tensor]]
        strides = {axis: step * size for axis, step in weights(tensor.axes).items()}
        self.places[tensor] = Place(buffer, "dram", self.elements[tensor], strides)

    def external(self, name: str, kind: ExternalClass, value: SSAValue, dtype: str | None) -> SSAValue:
        shape, element = g.shape_of(value), element_in(value)
        size = max(1, math.prod(shape)) * ELEMENT_BYTES[element]
        made = isa.ExternalOp(name, kind, size, shape, element, model_dtype=dtype)
        if kind == "weight" and isinstance(value.owner, Operation):
            known = {name: value.owner.attributes[name] for name in (m.INTEGERS, m.EXPANDED) if name in value.owner.attributes}
            made.attributes.update(known)
        return self.add(made)

    def add(self, op: isa.ExternalOp) -> SSAValue:
        first = next((each for each in self.block.ops if not isinstance(each, isa.ExternalOp)), None)
        if first is None:
            self.block.add_op(op)
        else:
            self.block.insert_op_before(op, first)
        return op.buffer


def number(value: int) -> IntegerAttr[object]:
    return IntegerAttr(value, i64)
