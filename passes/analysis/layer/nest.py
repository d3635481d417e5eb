# Tests: test/passes/analysis/test_project.py
"""A layer as a nest of loops: how its output and its operands lie, and what a piece of the output needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, NameLoc
from xdsl.ir import Operation

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import Act, Scale
from frustum.dialects.module import FORM
from frustum.dialects.target.durations import Steps, depthwise_steps
from frustum.dialects.tile import SAME, Access, Axis, ConvLayer, LayerKind, Scaling, TensorView
from frustum.passes.errors import Problem, Unsupported

RANK = 4
WORD_BYTES = 4
"""Of a bias, of a multiplier, of a number that integers stand for."""
SAME4: Access = (SAME,) * RANK


@dataclass(frozen=True)
class MapOperand:
    """An operand that is loaded tile by tile: number of the operand, its size and place, what a piece needs of it."""

    index: int
    dims: Extents
    view: TensorView
    access: Access
    fill: float | None = None
    element_bytes: int = 4


@dataclass(frozen=True)
class Layer:
    """One graph operation. `out_dims`: extents of the loops; `axes_all`: dimensions that a piece must hold whole."""

    kind: LayerKind
    out_dims: Extents
    out_view: TensorView
    maps: tuple[MapOperand, ...]
    weight: int | None = None
    bias: int | None = None
    axes_all: tuple[int, ...] = ()
    macs: int = 0
    align: Extents = (1,) * RANK
    multiplier: int | None = None
    weight_zero: int | None = None
    out_bytes: int = 4
    """Of an element; those of its operands are in `maps`."""
    accumulator_bytes: int = 4
    keeps_sums_wide: bool = False
    """Its sums may not wait in a narrower type than f32."""
    streamed: tuple[int, ...] = ()
    """Operands that are read as weights are, in blocks while it computes, though other layers may make them."""
    held: tuple[int, int] = (1, 1)
    """Bytes that SRAM and DRAM hold of so many bytes of weights: fewer where these are in a stored form."""
    held_run: tuple[int, int] = (1, 1)
    """Input channels of a piece of weights are a multiple of the first and no fewer than the second, lest pieces repeat
    each other's scales."""

    @cached_property
    def work_dims(self) -> Extents:
        """What the pieces divide: the output, of reductions the input."""
        return self.maps[0].dims if self.kind.cuts_operand else self.out_dims

    @cached_property
    def weight_bytes(self) -> int:
        """Of an element of the weights, which have the type of the first map."""
        return self.maps[0].element_bytes

    @cached_property
    def channel_bytes(self) -> tuple[int, ...]:
        """Element bytes of each vector of one number per output channel: bias, zero points, multipliers."""
        kinds = (self.bias, WORD_BYTES), (self.weight_zero, self.weight_bytes), (self.multiplier, WORD_BYTES)
        return tuple(size for place, size in kinds if place is not None)

    @property
    def vectors(self) -> tuple[int, ...]:
        """The operands of `channel_bytes`, in their order."""
        return tuple(p for p in (self.bias, self.weight_zero, self.multiplier) if p is not None)

    @cached_property
    def is_matrix(self) -> bool:
        """It runs on the matrix unit."""
        return isinstance(self.kind, ConvLayer)

    @cached_property
    def depthwise_steps(self) -> Steps:
        """What it asks of the vector unit if that computes it, which can do convolutions of each channel by itself; of
        others nothing."""
        kind = self.kind
        if not isinstance(kind, ConvLayer) or kind.groups == 1 or kind.channels > 1 or kind.is_batched:
            return ()
        if kind.groups != self.out_dims[1]:
            return ()
        terms = (self.bias is not None) + len(self.maps) - 1
        conversions = (self.multiplier is not None) + len(kind.scales or ())
        return depthwise_steps(
            kind.kernel, terms=terms, conversions=conversions, act=None if kind.act is None else kind.act.kind
        )

    @cached_property
    def steps(self) -> Steps:
        """What it asks of the vector unit."""
        sizes = (*(m.element_bytes for m in self.maps), self.out_bytes)
        return self.kind.vector_steps(sum(size < WORD_BYTES for size in sizes) if self.kind.scales else 0)


@dataclass(frozen=True)
class Move:
    """One copy of a moving layer: which operand, its view in the loops' coordinates, where it goes in the result."""

    operand: int
    dims: Extents
    source: TensorView
    target: TensorView
    fill: float | None = None
    low: Extents = (0,) * RANK
    bound: Extents = (0,) * RANK


@dataclass
class DeviceForm:
    """What an operation of the graph is on the device."""

    layer: Callable[[Any], Layer] | None = None
    """Of one that computes, or that can be among others in a unit."""
    moves: Callable[[Any], list[Move]] | None = None
    """The copies that it consists of where it stands alone."""
    shares: bool = False
    """It may share a unit with other layers: its tiles can be cut along images, rows and columns."""


FORMS: dict[type[Operation], DeviceForm] = {}
"""Every operation that must end in a unit."""
F = TypeVar("F", bound=Callable[..., Any])


def builds(op: type[Operation], *, shares: bool = False) -> Callable[[F], F]:
    """The function makes the layer of such operations."""

    def register(build: F) -> F:
        form = FORMS.setdefault(op, DeviceForm())
        form.layer, form.shares = build, shares
        return build

    return register


def copies(op: type[Operation]) -> Callable[[F], F]:
    """The function makes the copies of such operations."""

    def register(build: F) -> F:
        FORMS.setdefault(op, DeviceForm()).moves = build
        return build

    return register


# --- dimensions ----------------------------------------------------------------------------------------------


def dense(dims: Sequence[int]) -> Extents:
    """Strides in elements of a contiguous tensor."""
    strides = [1] * len(dims)
    for i in reversed(range(len(dims) - 1)):
        strides[i] = strides[i + 1] * dims[i + 1]
    return tuple(strides)


def loops(values: Iterable[int], fill: int = 1) -> Extents:
    """The values as those of all loops: `fill` for dimensions in front that there are not."""
    values = tuple(values)
    return (fill,) * (RANK - len(values)) + values


def contiguous(shape: Sequence[int]) -> TensorView:
    """A whole tensor, dense in its own order."""
    return TensorView(0, loops(dense(shape), 0))


def window(kernel: int, stride: int, pad: int, dilation: int) -> Axis:
    return Axis(stride, 1, -pad, (kernel - 1) * dilation)


# --- any rank as four dimensions ---------------------------------------------------------------------------------


def chosen_form(op: Operation) -> Extents | None:
    """The loop that each axis of its largest tensor is part of, where `frustum-graph-choose-forms` has said so."""
    noted = op.attributes.get(FORM)
    return tuple(noted.get_values()) if isinstance(noted, DenseArrayBase) else None


def formed(shape: Sequence[int], form: Extents) -> tuple[Extents, Extents]:
    """Extents of the four loops, and strides in a dense tensor; missing axes in front have one position."""
    shape = (1,) * (len(form) - len(shape)) + tuple(shape)
    extents, strides = [1] * RANK, [0] * RANK
    for axis, (extent, stride) in enumerate(zip(shape, dense(shape), strict=True)):
        if extent > 1:
            extents[form[axis]] *= extent
            strides[form[axis]] = stride
    return tuple(extents), tuple(strides)


# --- numbers of its own --------------------------------------------------------------------------------------


def act_of(op: Operation) -> Act | None:
    act = op.properties.get("act")
    if not isinstance(act, g.ActAttr):
        return None
    return Act(str(act.kind), float(act.alpha), float(act.beta))


def scales_of(op: Operation) -> Scaling:
    """What integers stand for, of each operand and the result."""
    scales = op.properties.get("scales")
    return scaling(*scales.data) if isinstance(scales, ArrayAttr) else None


def scaling(*scales: g.ScaleAttr) -> Scaling:
    return tuple(Scale(*each.data) for each in scales)


def refused(op: Operation, reason: str) -> Unsupported:
    """The error for an operation that the device cannot run, naming the model's node."""
    location = op.location
    node = location.desc.data if isinstance(location, NameLoc) else ""
    return Unsupported([Problem("model", reason, node, op.name)])
