"""A layer as a nest of four loops: how its output and its operands lie, and what a piece of the output needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation

from frustum.dialects.extents import Extents
from frustum.dialects.tile import SAME, Access, AnyAxis, Axis, Plain, TensorView
from frustum.passes.errors import Problem, Unsupported

RANK = 4
WORD_BYTES = 4
"""Of a bias, of a multiplier."""
MATRIX = "conv"
"""Kind of the layers that run on the matrix unit."""
CONCAT = "concat"
"""Kind of a concatenation inside a unit, which is a place and no work."""


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

    kind: str
    out_dims: Extents
    out_view: TensorView
    maps: tuple[MapOperand, ...]
    params: Mapping[str, Plain] = field(default_factory=dict)
    weight: int | None = None
    bias: int | None = None
    axes_all: tuple[int, ...] = ()
    macs: int = 0
    align: Extents = (1, 1, 1, 1)
    multiplier: int | None = None
    weight_zero: int | None = None
    out_bytes: int = 4
    """Of an element; those of its operands are in `maps`."""
    accumulator_bytes: int = 4
    held: tuple[int, int] = (1, 1)
    """Bytes that SRAM and DRAM hold of so many bytes of weights: fewer where these are to be compressed."""

    @cached_property
    def work_dims(self) -> Extents:
        """What the pieces divide: the output, of reductions the input."""
        return self.maps[0].dims if self.kind == "reduce" else self.out_dims

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
        return self.kind == MATRIX


def dense(dims: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a contiguous tensor."""
    strides = [1] * len(dims)
    for i in reversed(range(len(dims) - 1)):
        strides[i] = strides[i + 1] * dims[i + 1]
    return tuple(strides)


def four(values: Sequence[int], fill: int) -> Extents:
    padded = [fill] * (RANK - len(values)) + list(values)
    n, c, h, w = padded
    return (n, c, h, w)


SAME4: Access = (SAME, SAME, SAME, SAME)


def access_of(axes: Sequence[AnyAxis]) -> Access:
    a, b, c, d = axes
    return (a, b, c, d)


def window(kernel: int, stride: int, pad: int, dilation: int) -> Axis:
    return Axis(stride, 1, -pad, (kernel - 1) * dilation)


def refused(op: Operation, reason: str) -> Unsupported:
    """The error for an operation that the device cannot run, naming the model's node."""
    location = op.location
    node = location.desc.data if isinstance(location, NameLoc) else ""
    return Unsupported([Problem("model", reason, node, op.name)])
