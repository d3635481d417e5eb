# Tests: test/passes/lower/tree/test_views.py
"""What a program has in DRAM: a buffer for each tensor that goes there, in the form that the host knows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from xdsl.ir import Block, Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects import module as m
from frustum.dialects.axes.access import View
from frustum.dialects.axes.axis import Axis, weights
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Element, ExternalClass, Span
from frustum.passes.analysis.module import element_in
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.kernels.kernel_table import STATISTICS
from frustum.passes.lower.tree.layouts import Order
from frustum.passes.lower.tree.outputs import OutputPart, OutputView
from frustum.passes.lower.tree.places import Place, packed, transfer
from frustum.passes.lower.tree.spans import end, hull, step_at, visits
from frustum.passes.lower.tree.streams.frames import Frame

SLICES = 4
"""Of SRAM, or more, in which tensors are passed on: loads and stores of slices go on side by side. 2026-11-28."""


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
    """Of a layer's result: that of the operation's, or f32 where sums are wider."""
    assert isinstance(layer.source, Operation)
    element = element_in(layer.source.results[0])
    return "f32" if layer.result.element_bits > 8 * ELEMENT_BYTES[element] else element


def planes_of(maker: Layer | None) -> int:
    """Numbers of an element of a layer's result."""
    return STATISTICS if maker is not None and maker.role == "sums" else 1


class DramTensors:
    """The externals of a network, declared as they are asked for: those that the host passes and expects first."""

    def __init__(
        self, network: g.NetworkOp, views: Mapping[SSAValue, View], elements: Mapping[Tensor, Element], block: Block,
        made: Mapping[Tensor, Layer], orders: Mapping[Tensor, Order], read: Collection[Tensor],
    ) -> None:  # fmt: skip
        self.network: g.NetworkOp = network
        self.views: Mapping[SSAValue, View] = views
        self.elements: Mapping[Tensor, Element] = elements
        self.block: Block = block
        self.places: dict[Tensor, Place] = {}
        self.outputs: list[OutputView] = []
        self.frames: list[Frame] = []
        self.parts: dict[Tensor, list[OutputPart]] = {}
        self.made: Mapping[Tensor, Layer] = made
        self.orders: dict[Tensor, Order] = dict(orders)
        self.read: Collection[Tensor] = read
        self.loads: Counter[Tensor] = Counter()
        """How often a plan loads a tensor, loops aside."""
        self.passed: set[Tensor] = set()
        self.last_external: isa.ExternalOp | None = None
        self.dtypes: tuple[str | None, ...] = m.texts_of(network, m.MODEL_DTYPES) or (None,) * (
            len(network.inputs) + len(network.outputs)
        )

    def declare(self) -> None:
        """Inputs, then outputs."""
        for name, argument, dtype in zip(self.network.inputs, self.network.body.block.args, self.dtypes, strict=False):
            buffer = self.external(name, "input", argument, dtype)
            for piece in self.views[argument].pieces:
                self.place(piece.tensor, buffer)
        dtypes = self.dtypes[len(self.network.inputs) :]
        for name, value, dtype in zip(self.network.outputs, self.network.terminator.operands, dtypes, strict=True):
            self.output(name, value, dtype)

    def output(self, name: str, value: SSAValue, dtype: str | None) -> None:
        """An output; the home of each tensor that it has once, as a whole, is there, unless it has one."""
        own = OutputView.of(self.views[value], self.external(name, "output", value, dtype), element_in(value))
        self.outputs.append(own)
        frame = Frame.of(own, name)
        if len(frame.positions) > 1:
            self.frames.append(frame)
        for part in own.parts():
            self.parts.setdefault(part.tensor, []).append(part)
            if part.window is not None and not part.window.has and part.tensor in self.made:
                self.places.setdefault(part.tensor, part.window)
                if part.tensor not in self.read:  # it lies in buffers as it leaves
                    steps = part.window.strides
                    self.orders.setdefault(part.tensor, (*sorted(part.tensor.axes, key=lambda a: -abs(steps[a])),))

    def frame_of(self, tensor: Tensor) -> Frame | None:
        """The first output that has it beside parts of other layers."""
        return next((frame for frame in self.frames if tensor in frame.positions), None)

    def stored(self, tensor: Tensor, but: Place | None = None) -> tuple[Place | None, list[OutputPart]]:
        """Where a result goes in DRAM: its home, if somebody reads it there, and outputs elsewhere.  `but`: an output
        that has it already."""
        parts = self.parts.get(tensor, [])
        home = self.places.get(tensor)
        if home is None and (tensor in self.loads or not parts):
            home = self.of(tensor)
        parts = [part for part in parts if part.window is None or part.window is not home]
        if but is None:
            return home, parts
        is_there = home is not None and home.buffer is but.buffer
        return None if is_there else home, [part for part in parts if part.into.buffer is not but.buffer]

    def form(self, tensor: Tensor) -> Place:
        """How a tensor lies in DRAM; no buffer is declared for one that only outputs have."""
        parts = self.parts.get(tensor, [])
        if tensor in self.places or not parts or tensor in self.loads:
            return self.of(tensor)
        return next((part.window for part in parts if part.window), None) or self.packed(tensor, parts[0].into.buffer)

    def loaded(
        self, code: Code, tensor: Tensor, box: Mapping[Axis, Span], place: Place, conditions: Sequence[Affine]
    ) -> None:  # fmt: skip
        """A box of a tensor has been loaded, where these numbers are 0 or more: outputs that have it get it from there,
        if every position comes once."""
        parts = self.parts.get(tensor, [])
        if not parts or tensor in self.made or self.loads[tensor] > 1:
            return
        wanted = {axis: hull(part.read_along(axis) for part in parts) for axis in tensor.axes}
        if comes_once(box, wanted, code.counts, code.clusters):
            self.passed.add(tensor)
            for part in parts:
                part.store(code, box, place, conditions)

    def write_rest(self, code: Code) -> None:
        """Writes what outputs have beside results: tensors that no layer makes, and values."""
        for tensor, parts in self.parts.items():
            if tensor not in self.made and tensor not in self.passed:
                self.pass_on(code, tensor, parts)
        for view in self.outputs:
            view.write_values(code)

    def pass_on(self, code: Code, tensor: Tensor, parts: Sequence[OutputPart]) -> None:
        """A tensor to outputs, through SRAM in slices."""
        box = {axis: hull(part.read_along(axis) for part in parts) for axis in tensor.axes}
        element, room = self.elements[tensor], code.target.cluster.sram.capacity_bytes // SLICES
        size = math.prod(span.extent for span in box.values()) * ELEMENT_BYTES[element]
        axis = max(box, key=lambda each: box[each].extent, default=None)
        count = 1 if axis is None else min(box[axis].extent, max(SLICES, ceil_div(size, room)))
        with code.repeat(count) as index:
            if axis is not None:
                step, last = ceil_div(box[axis].extent, count), end(box[axis]).base
                box[axis] = Span(box[axis].start + index * step, step, last)
            strides, size = packed(tensor.axes, box, element)
            buffer = code.allocate("sram", size, 2 if count > 1 else 1)
            place = Place(buffer, "sram", element, strides, {each: span.start for each, span in box.items()})
            transfer(code, "gdma", box, self.of(tensor), place)
            with code.at_stage(int(count > 1)):
                for part in parts:
                    part.store(code, box, place)

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
                planes = planes_of(self.made.get(tensor))
                shape = (planes, *shape) if planes > 1 else shape
                size = math.prod(shape) * ELEMENT_BYTES[element]
                buffer = self.add(isa.ExternalOp(tensor.name, kind, size, shape, element))
            self.place(tensor, buffer)
        return self.places[tensor]

    def order(self, tensor: Tensor) -> Order:
        """Its axes as they lie in buffers, outermost first."""
        return self.orders.get(tensor, tensor.axes) if tensor in self.made else tensor.axes

    def weight_of(self, tensor: Tensor) -> SSAValue:
        return next(
            value for value, view in self.views.items()
            if isinstance(value.owner, g.WeightOp) and view.pieces[0].tensor is tensor
        )  # fmt: skip

    def place(self, tensor: Tensor, buffer: SSAValue) -> None:
        self.places[tensor] = self.packed(tensor, buffer)

    def packed(self, tensor: Tensor, buffer: SSAValue) -> Place:
        size = ELEMENT_BYTES[self.elements[tensor]]
        strides = {axis: step * size for axis, step in weights(self.order(tensor)).items()}
        plane = math.prod(axis.extent for axis in tensor.axes) * size
        planes = planes_of(self.made.get(tensor))
        return Place(buffer, "dram", self.elements[tensor], strides, planes=planes, plane_bytes=plane)

    def external(self, name: str, kind: ExternalClass, value: SSAValue, dtype: str | None) -> SSAValue:
        shape, element = g.shape_of(value), element_in(value)
        size = max(1, math.prod(shape)) * ELEMENT_BYTES[element]
        made = isa.ExternalOp(name, kind, size, shape, element, model_dtype=dtype)
        if kind == "weight" and isinstance(value.owner, Operation):
            own = value.owner.attributes
            made.attributes.update({name: own[name] for name in (m.INTEGERS, m.EXPANDED) if name in own})
        return self.add(made)

    def add(self, op: isa.ExternalOp) -> SSAValue:
        last = self.last_external
        if last is not None:
            self.block.insert_op_after(op, last)
        elif self.block.first_op is None:
            self.block.add_op(op)
        else:
            self.block.insert_op_before(op, self.block.first_op)
        self.last_external = op
        return op.buffer


def comes_once(
    box: Mapping[Axis, Span], wanted: Mapping[Axis, Span], counts: Sequence[int], clusters: int
) -> bool:  # fmt: skip
    """Whether passes of loops, each of so many, and clusters lead to every wanted position in one of them alone."""
    moved = [axis for level, count in enumerate(counts) if count > 1 for axis in box if step_at(box[axis], level)]
    if len(moved) != sum(count > 1 for count in counts):
        return False
    return not any(
        (visits(axis, span, counts, clusters)[wanted[axis].start.base :][: wanted[axis].extent] != 1).any()
        for axis, span in box.items()
    )
