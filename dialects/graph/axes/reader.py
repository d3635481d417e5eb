"""Reads a network of the graph level as layers over named axes: one function for each operation."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from xdsl.dialects.builtin import NameLoc, StringAttr
from xdsl.ir import Block, Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.axes.access import Affine, Guard, Piece, View
from frustum.dialects.axes.axis import Axis, Dim, align, dim, extent_of, leaves
from frustum.dialects.axes.network import AxisNetwork, Combine, Layer, Operand
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.errors import Error
from frustum.dialects.functions import ELEMENTWISE, Reduction
from frustum.dialects.module import CARRY

TRANSCENDENTAL_PASSES = 4
"""Of the vector unit, for one of exponential, logarithm, root, division, sigmoid, tanh and erf.
Source: docs/techniques/machine.md."""
SUM_BITS = 32
"""Of sums of 8-bit integers; of wider ones they have four times as many as these (`dialects/isa/values.py`)."""
WIDE = "f32"
"""The type of floats in which sums wait, if they are to be exact."""
STATISTICS_BITS = 64
"""Two f32 numbers: sums of x and of its square, or maximum and sum of powers."""

class NoAxes(Error):
    """A loop over time reads what no position along its axis says."""


Reads = Callable[["Reader", Any], View | None]
R = TypeVar("R", bound=Reads)
OPERATIONS: dict[type[Operation], Reads] = {}
"""How each operation is read; None: no access relation says it, and it becomes a layer that needs all it reads."""
NEEDS_ALL: dict[type[Operation], str] = {}
"""Operations that always need all of their operands, with the reason."""


def reads(op: type[Operation]) -> Callable[[R], R]:
    """The function reads such operations."""

    def register(read: R) -> R:
        OPERATIONS[op] = read
        return read

    return register


def read_network(network: g.NetworkOp) -> AxisNetwork:
    """The network's layers in its order, with the tensors between them."""
    return read_with_views(network)[0]


def read_with_views(network: g.NetworkOp) -> tuple[AxisNetwork, dict[SSAValue, View]]:
    """The same, and where the elements of every value lie; of inputs and weights where they are given, though
    layers may read a copy."""
    reader = Reader()
    for name, argument in zip(network.inputs, network.body.block.args, strict=True):
        reader.views[argument] = reader.given[argument] = reader.root(name, argument, Kind.INPUT)
    for op in network.body.block.ops:
        if isinstance(op, g.OutputOp):
            reader.outputs(op)
        elif not isinstance(op, g.WeightOp):
            reader.read(op)
    reader.name_apart()
    return AxisNetwork(network.sym_name.data, reader.layers, reader.tensors), {**reader.views, **reader.given}


class Reader:
    """The views of the values read so far; operations add layers and tensors."""

    def __init__(self) -> None:
        self.views: dict[SSAValue, View] = {}
        self.given: dict[SSAValue, View] = {}
        """Of inputs and weights where they lie."""
        self.layers: list[Layer] = []
        self.tensors: list[Tensor] = []
        self.loops: tuple[Dim, ...] = ()
        """The axes of the loops around what is read, which all layers have first."""
        self.times: set[Axis] = set()
        """Those of all loops."""
        self._names: dict[str, int] = {}

    @contextmanager
    def inside(self, time: Axis) -> Iterator[None]:
        """Layers and tensors that are added meanwhile have this axis too; views of the tensors are at its position."""
        before, self.loops = self.loops, (*self.loops, (time,))
        self.times.add(time)
        try:
            yield
        finally:
            self.loops = before

    def read(self, op: Operation) -> None:
        """Raises KeyError for an operation with several results that has no function here."""
        known = OPERATIONS.get(type(op))
        found = None if known is None else known(self, op)
        for is_flat in (False, True):
            if found is None and known is not None and self.copy_operands(op, is_flat=is_flat):
                found = known(self, op)
        if found is None:
            found = self.whole(op)
        self.views[op.results[0]] = found

    def copy_operands(self, op: Operation, *, is_flat: bool) -> bool:
        """Copy operands that are no tensors into such, with the axes that they have, or one for each dimension
        (`is_flat`): of these every relation says something. Whether there are any."""
        found = False
        for value in op.operands:
            view = self.view(value)
            dims = [dim(str(k), extent) for k, extent in enumerate(view.shape)] if is_flat else list(view.dims)
            is_needed = not is_tensor(view) or (is_flat and any(len(leaves(own)) > 1 for own in view.dims))
            if is_needed and view.at(map(Affine.along, dims)) is not None:
                self.views[value], found = self.copied(view, op, dims, value), True
        return found

    def view(self, value: SSAValue) -> View:
        """The view of an operand; a weight becomes a tensor when it is first read."""
        if value not in self.views:
            assert isinstance(value.owner, g.WeightOp)
            self.views[value] = self.given[value] = self.root(value.owner.key.data, value, Kind.WEIGHT)
        return self.views[value]

    def outputs(self, op: g.OutputOp) -> None:
        """Notes the network's outputs.  Copied is one step of a loop, since the tensor that it lies in has all; and a
        part of what a layer makes, position by position, where outputs have no need of the rest."""
        wanted = Counter[Tensor]()
        for view in map(self.view, op.operands):
            for piece in view.pieces:
                wanted[piece.tensor] += extent_of(piece.tensor.axes) if len(view.pieces) > 1 else math.prod(view.shape)
        made = {layer.result for layer in self.layers}
        for value in op.operands:
            view = self.view(value)
            indices = [index for piece in view.pieces for index in piece.index]
            is_step = any(axis in self.times and not position.terms for axis, position in indices)
            is_part = any(p.tensor in made and wanted[p.tensor] < extent_of(p.tensor.axes) for p in view.pieces)
            is_plain = all(position.divisor == 1 and {f for _, f in position.terms} <= {1} for _, position in indices)
            if is_step or (is_part and is_plain and view.at(map(Affine.along, view.dims)) is not None):
                assert isinstance(value.owner, Operation)
                view = self.views[value] = self.copied(view, value.owner, view.dims, value)
            for piece in view.pieces:
                piece.tensor.is_output = True

    # ------------------------------------------------------------ tensors

    def root(self, name: str, value: SSAValue, kind: Kind) -> View:
        dims = tuple(dim(str(k), extent) for k, extent in enumerate(g.shape_of(value)))
        return self.tensor(name, dims, bits_of(value), kind)

    def tensor(self, name: str, dims: Iterable[Dim], bits: int, kind: Kind) -> View:
        own = tuple(dims)
        made = Tensor(name, own if kind is Kind.WEIGHT else (*self.loops, *own), bits, kind)
        self.tensors.append(made)
        return View(own, (_identity(made),))

    def name_apart(self) -> None:
        """Numbers inputs and weights that are called as another tensor is: plans name tensors."""
        results = {layer.result for layer in self.layers}
        taken = {tensor.name for tensor in results}
        for tensor in self.tensors:
            if tensor not in results:
                name, count = tensor.name, itertools.count(2)
                while tensor.name in taken:
                    tensor.name = f"{name}#{next(count)}"
                taken.add(tensor.name)

    # ------------------------------------------------------------ layers

    def add(
        self,
        op: Operation,
        dims: Iterable[Dim],
        operands: Sequence[View | None],
        *,
        role: str = "",
        reduced: dict[Axis, Combine] | None = None,
        macs: int = 0,
        passes: int = 0,
        bits: int | None = None,
        storage_of: int | None = None,
        domain: tuple[Affine, ...] = (),
    ) -> View | None:
        """A layer with a result of these dimensions, and its view; None where an operand has no access relation."""
        if any(view is None for view in operands):
            return None
        name = self.name(op, role)
        found = self.tensor(name, dims, bits or bits_of(op.results[0]), Kind.INTERMEDIATE)
        read = tuple(Operand(view.pieces) for view in operands if view is not None)
        result = found.pieces[0].tensor
        layer = Layer(name, role, result, read, dict(reduced or {}), macs, passes, storage_of, domain, source=op)
        if storage_of is not None and not all(
            layer.may_overwrite(p.tensor) and p.tensor.element_bits >= layer.result.element_bits
            for p in read[storage_of].pieces
        ):
            layer.storage_of = None
        result.sums = sums_of(op) or (carried(op) if macs and result.element_bits < SUM_BITS else "")
        self.layers.append(layer)
        return found

    def whole(self, op: Operation) -> View:
        """A layer that needs all of its operands; NoAxes in a loop, where these are made step by step."""
        name = self.name(op, "")
        if self.loops:
            raise NoAxes(f"{name}: error: it needs all of its operands, in a loop over time")
        found = self.root(name, op.results[0], Kind.INTERMEDIATE)
        views = map(self.view, op.operands)
        read = tuple(Operand(view.pieces, is_all=True, dims=view.dims) for view in views)
        self.layers.append(Layer(name, "", found.pieces[0].tensor, read, {}, passes=1, source=op))
        return found

    def copied(self, view: View, op: Operation, dims: Sequence[Dim], like: SSAValue) -> View:
        """A layer of these dimensions that copies a view, for an operation; `like`: a value of its type."""
        copy = g.UnaryOp("identity", Block(arg_types=[like.type]).args[0])
        copy.location = op.location
        found = self.add(copy, dims, [view.at(map(Affine.along, dims))], passes=passes_of("identity"))
        if found is None:
            raise NoAxes(f"{self.name(op, '')}: error: no position says what is copied")
        return found

    def name(self, op: Operation, role: str) -> str:
        """The name of the model's node, and what of it the layer is; numbered where a name comes again."""
        node = op.location.desc.data if isinstance(op.location, NameLoc) else op.name.removeprefix("fgraph.")
        name = f"{node}.{role}" if role else node
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    # ------------------------------------------------------------ reads

    def along(self, value: SSAValue | View, dims: Sequence[Dim]) -> View | None:
        """An operand read where dimensions of a layer are, with numpy's broadcasting."""
        view = value if isinstance(value, View) else self.view(value)
        own = dims[len(dims) - len(view.dims) :]
        for mine, theirs in zip(view.dims, own, strict=True):
            if extent_of(mine) == extent_of(theirs):
                align(mine, theirs)
        return view.at(
            Affine.along(d) if extent_of(m) > 1 else Affine() for m, d in zip(view.dims, own, strict=True)
        )

    def optional(self, value: SSAValue | None, dims: Sequence[Dim]) -> list[View | None]:
        """The read of an operand that may be absent."""
        return [] if value is None else [self.along(value, dims)]


def is_tensor(view: View) -> bool:
    """Whether it has the elements of one tensor, each once."""
    (piece, *others) = view.pieces
    return not others and not piece.guards and all(position == Affine.of(axis) for axis, position in piece.index)


def _identity(tensor: Tensor) -> Piece:
    return Piece(tensor, tuple((axis, Affine.of(axis)) for axis in tensor.axes))


def window(
    name: str, own: Dim, made: Dim, kernel: int, stride: int, pad: int, dilation: int = 1, fill: float = 0.0
) -> tuple[Affine, tuple[Guard, ...], tuple[Axis, ...]]:
    """Where a window reads along one dimension: position, guard of what lies beyond, and the axis of its taps."""
    tap = Axis(name, kernel, is_tap=True) if kernel > 1 else None
    position = Affine.along(made, stride, -pad) + (Affine.of(tap, dilation) if tap else Affine())
    low, high = position.hull({})
    extent = extent_of(own)
    is_inside = low >= 0 and high <= extent
    return position, () if is_inside else (Guard(position, 0, extent, fill),), (tap,) if tap else ()


def bits_of(value: SSAValue) -> int:
    element = g.tensor_of(value).element_type
    width = getattr(element, "bitwidth", None)
    assert isinstance(width, int), element
    return width


def zero_of(op: Any) -> float:
    """The element that stands for 0 in an operation's first operand."""
    zeros, scales = getattr(op, "zeros", None), getattr(op, "scales", None)
    return float(zeros[0] if zeros else scales[0].zero if scales else 0)


def sums_of(op: Any) -> str:
    """The type in which sums of integers wait that what they are in the end does not hold."""
    if not op.operands or not g.is_integer(op.operands[0]) or bits_of(op.results[0]) >= SUM_BITS:
        return ""
    if isinstance(op, g.ConvOp | g.MatmulOp):
        return f"i{max(SUM_BITS, 4 * bits_of(op.operands[0]))}"
    is_sum = isinstance(op, g.ReduceOp) and op.kind not in (Reduction.MAX, Reduction.MIN)
    return "f32" if is_sum else ""


def carried(op: Operation) -> str:
    """The type in which sums of a product wait, where its elements are less exact; none where nobody asks."""
    return WIDE if op.attributes.get(CARRY) == StringAttr(WIDE) else ""


def least_of(value: SSAValue) -> float:
    """The least element that a tensor may have."""
    return float(g.bounds(g.tensor_of(value).element_type)[0]) if g.is_integer(value) else -math.inf


def passes_of(*words: str | None) -> int:
    """Passes of the vector unit for each element."""
    kinds = [ELEMENTWISE[word] for word in words if word is not None]
    return sum(kind.elementary + TRANSCENDENTAL_PASSES * kind.transcendental for kind in kinds)


def act_of(op: Any) -> str | None:
    return None if op.act is None else str(op.act.kind)


def gone(view: View, axes: Iterable[int]) -> tuple[list[Axis], tuple[Dim, ...]]:
    """The axes of these dimensions, and the dimensions without them (of extent 1)."""
    axes = tuple(axes)
    reduced = [axis for k in axes for axis in view.dims[k]]
    return reduced, tuple(() if k in axes else own for k, own in enumerate(view.dims))
