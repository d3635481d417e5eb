"""Operations that move elements without changing them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl.declarative_assembly_format import CustomDirective

from frustum.dialects.graph import declaration as d
from frustum.dialects.graph import shapes
from frustum.dialects.graph.attributes import BorderAttr, Ints, Number, shape_of, tensor_of
from frustum.dialects.graph.scales import check_integer, is_integer

CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""Transpositions of [N, C, H, W] to [N, H, W, C], and back."""
SLICES_FIRST = (1, 0, 2, 3)
"""Of a volume [C, D, H, W] to its slices [D, C, H, W], and back."""
BOX_RANK = 6
BOX = 2 + 3 * BOX_RANK
"""Numbers that say how a box of elements goes to another place."""


@d.operation
class ConcatOp(d.LayerOp):
    """Its operands, one after the other along an axis."""

    name = "fgraph.concat"
    xs: Sequence[SSAValue] = d.operands()
    axis: int = d.prop(d.INT)
    assembly_format: ClassVar[str] = "$xs `axis` $axis attr-dict `:` functional-type(operands, results)"

    def inferred(self) -> Ints:
        return shapes.concat_shape([shape_of(x) for x in self.xs], self.axis)


class SlicedOp(d.LayerOp):
    """Every steps-th element from starts on, one of each per axis; the result's type gives the sizes."""

    x: SSAValue = d.operand()
    starts: Ints = d.prop(d.INTS)
    sizes: Ints = d.result_shape()
    steps: Ints = d.prop(d.INTS)
    assembly_format: ClassVar[str] = (
        "$x `starts` $starts `steps` $steps attr-dict `:` functional-type(operands, results)"
    )

    def inferred(self) -> Ints:
        shapes.check_slice(shape_of(self.x), self.starts, self.steps, self.sizes)
        return self.sizes


@d.operation
class SliceOp(SlicedOp):
    """Every steps-th element from starts on, one of each per axis; the result's type gives the sizes."""

    name = "fgraph.slice"

    def __init__(self, x: SSAValue, starts: Ints, sizes: Ints, steps: Ints | None = None) -> None:
        super().__init__(x, starts, sizes, steps or (1,) * len(starts))


@d.operation
class PickOp(SlicedOp):
    """A slice of a map with steps above 0: a layer among others, which a unit makes tile by tile."""

    name = "fgraph.pick"

    def verify_(self) -> None:
        shape = shape_of(self.x)
        is_map = len(shape) == shapes.SPATIAL_RANK and all(step > 0 for step in self.steps)
        shapes.check(
            is_map, f"fgraph.pick: steps {self.steps} of {shape}; allowed: steps above 0 of four dimensions"
        )
        super().verify_()


@d.operation
class PadOp(d.LayerOp):
    """A constant border of low elements before and high elements after each axis; negative ones crop."""

    name = "fgraph.pad"
    x: SSAValue = d.operand()
    low: Ints = d.prop(d.INTS)
    high: Ints = d.prop(d.INTS)
    value: float = d.prop(d.FLOAT, default=0.0)
    custom_directives: ClassVar[tuple[type[CustomDirective], ...]] = (Number,)
    assembly_format: ClassVar[str] = (
        "$x `low` $low `high` $high `value` custom<Number>($value) "
        "attr-dict `:` functional-type(operands, results)"
    )

    def inferred(self) -> Ints:
        return shapes.pad_shape(shape_of(self.x), self.low, self.high)

    def verify_(self) -> None:
        super().verify_()
        if is_integer(self.x):
            check_integer(self.value, tensor_of(self.x).element_type)


@d.operation
class BorderOp(d.LayerOp):
    """A map [N, C, H, W] with `low` rows and columns before it and `high` behind it: its own, mirrored at its first and
    last one (`reflect`), the first and last one repeated (`edge`), or those of its other end (`wrap`)."""

    name = "fgraph.border"
    mode: str = d.prop(d.word(BorderAttr))
    x: SSAValue = d.operand()
    low: Ints = d.prop(d.INTS)
    high: Ints = d.prop(d.INTS)
    assembly_format: ClassVar[str] = (
        "$mode $x `low` $low `high` $high attr-dict `:` functional-type(operands, results)"
    )

    def inferred(self) -> Ints:
        return shapes.border_shape(shape_of(self.x), self.low, self.high, self.mode)


@d.operation
class ReshapeOp(d.LayerOp):
    """The same elements in the same order under another shape."""

    name = "fgraph.reshape"
    x: SSAValue = d.operand()
    shape: Ints = d.result_shape()
    assembly_format: ClassVar[str] = "$x attr-dict `:` functional-type(operands, results)"

    def inferred(self) -> Ints:
        shapes.check_reshape(shape_of(self.x), self.shape)
        return self.shape


@d.operation
class PartOp(d.LayerOp):
    """`count` positions of the first axis from `start` on, of a tensor that lies in DRAM: these bytes, no copy."""

    name = "fgraph.part"
    x: SSAValue = d.operand()
    start: int = d.prop(d.INT)
    count: int = d.prop(d.INT)
    assembly_format: ClassVar[str] = (
        "$x `start` $start `count` $count attr-dict `:` functional-type(operands, results)"
    )

    def inferred(self) -> Ints:
        size, *inner = shape_of(self.x)
        shapes.check(
            0 <= self.start < self.start + self.count <= size,
            f"fgraph.part: start {self.start}, count {self.count}; allowed: positions of {size}",
        )
        return self.count, *inner


class PermutedOp(d.LayerOp):
    """Axes reordered: axis i of the result is axis perm[i] of the operand."""

    x: SSAValue = d.operand()
    perm: Ints = d.prop(d.INTS)
    assembly_format: ClassVar[str] = "$x `perm` $perm attr-dict `:` functional-type(operands, results)"

    def inferred(self) -> Ints:
        return shapes.transpose_shape(shape_of(self.x), self.perm)


@d.operation
class TransposeOp(PermutedOp):
    """Axes reordered: axis i of the result is axis perm[i] of the operand."""

    name = "fgraph.transpose"


@d.operation
class TurnOp(PermutedOp):
    """A map [N, C, H, W] with its channels last, or one of [N, H, W, C] with its channels first: a transposition that
    is a layer among others, since it only says how one of its two tensors lies."""

    name = "fgraph.turn"

    def verify_(self) -> None:
        is_turn = self.perm in (CHANNELS_LAST, CHANNELS_FIRST)
        shapes.check(is_turn, f"fgraph.turn: perm {self.perm}; allowed: {CHANNELS_LAST}, {CHANNELS_FIRST}")
        super().verify_()


@d.operation
class StackOp(d.LayerOp):
    """Slices [D, C, H, W] of a volume, and beside each channel of a slice that of its neighbours: channel
    `c * kernel + k` of slice i of the result is channel c of slice `i * stride + k * dilation - pads[0]`, or 0 where
    there is none.  So a convolution with three spatial axes is one of two axes of the result.

    Of a `volume` the operand is [C, D, H, W]."""

    name = "fgraph.stack"
    x: SSAValue = d.operand()
    kernel: int = d.prop(d.INT)
    stride: int = d.prop(d.INT, default=1)
    pads: Ints = d.prop(d.INTS, default=(0, 0))
    dilation: int = d.prop(d.INT, default=1)
    volume: bool = d.prop(d.FLAG, default=False)
    assembly_format: ClassVar[str] = (
        "$x `kernel` $kernel `stride` $stride `pads` $pads `dilation` $dilation (`volume` $volume^)? "
        "attr-dict `:` functional-type(operands, results)"
    )

    @property
    def slices(self) -> Ints:
        """The operand's extents as [D, C, H, W]."""
        shape = shape_of(self.x)
        return shapes.transpose_shape(shape, SLICES_FIRST) if self.volume else shape

    def inferred(self) -> Ints:
        shape = shape_of(self.x)
        is_map = len(shape) == shapes.SPATIAL_RANK and len(self.pads) == 2 and self.kernel > 0 and self.stride > 0
        shapes.check(is_map and min(self.pads) >= 0 and self.dilation > 0, f"no windows of slices of {shape}")
        depth, channels, *plane = self.slices
        span = self.dilation * (self.kernel - 1) + 1
        count = (depth + sum(self.pads) - span) // self.stride + 1
        shapes.check(count > 0, f"a window of {span} slices is longer than {depth} with pads {self.pads}")
        return (count, channels * self.kernel, *plane)

    def verify_(self) -> None:
        super().verify_()
        is_plain = not is_integer(self.x) or not any(self.pads)
        shapes.check(is_plain, f"fgraph.stack: integers have no slices of 0 around them, found pads {self.pads}")


@d.operation
class VolumeOp(d.LayerOp):
    """The volume [C, D, H, W] of slices [D, C, H, W]: a layer among others, which only says how its result lies."""

    name = "fgraph.volume"
    x: SSAValue = d.operand()
    assembly_format: ClassVar[str] = "$x attr-dict `:` functional-type(operands, results)"

    def inferred(self) -> Ints:
        shapes.check(len(shape_of(self.x)) == shapes.SPATIAL_RANK, f"expected slices, found {shape_of(self.x)}")
        return shapes.transpose_shape(shape_of(self.x), SLICES_FIRST)


@d.operation
class ShuffleOp(d.LayerOp):
    """Channels of `groups` dealt in turn: channel `i * groups + j` of the result is channel i of group j."""

    name = "fgraph.shuffle"
    x: SSAValue = d.operand()
    groups: int = d.prop(d.INT)
    assembly_format: ClassVar[str] = "$x `groups` $groups attr-dict `:` functional-type(operands, results)"

    def verify_(self) -> None:
        shape = shape_of(self.x)
        is_even = len(shape) == shapes.SPATIAL_RANK and self.groups > 0 and shape[1] % self.groups == 0
        shapes.check(is_even, f"fgraph.shuffle: {self.groups} groups of the channels of {shape}")
        super().verify_()


class PhasesOp(d.LayerOp):
    """A map [N, C, H, W], and one with factor[0] * factor[1] times as many channels, each with every factor-th row and
    column of it: phase `a * factor[1] + b` of channel c begins at row a and column b, and is channel
    `c * phases + phase` if the phases are 1 `apart`, `c + phase * C` if they are C apart."""

    x: SSAValue = d.operand()
    factor: Ints = d.prop(d.INTS)
    apart: int = d.prop(d.INT)
    shape: Ints = d.result_shape()
    assembly_format: ClassVar[str] = (
        "$x `factor` $factor `apart` $apart attr-dict `:` functional-type(operands, results)"
    )

    @property
    def phases(self) -> int:
        return math.prod(self.factor)


@d.operation
class DepthToSpaceOp(PhasesOp):
    """The map of which the operand has the phases; its last row and column may be of any phase."""

    name = "fgraph.depth_to_space"

    def inferred(self) -> Ints:
        shapes.check_phases(self.shape, shape_of(self.x), self.factor, self.apart)
        return self.shape


@d.operation
class SpaceToDepthOp(PhasesOp):
    """The phases of a map, as long as each other."""

    name = "fgraph.space_to_depth"

    def __init__(self, x: SSAValue, factor: Ints, apart: int) -> None:
        n, c, h, w = shape_of(x)
        super().__init__(x, factor, apart, (n, c * math.prod(factor), h // factor[0], w // factor[1]))

    def inferred(self) -> Ints:
        whole, (down, across) = shape_of(self.x), self.factor
        shapes.check_phases(whole, self.shape, self.factor, self.apart)
        shapes.check(whole[2] % down == whole[3] % across == 0, f"the phases of {whole} differ in size: {self.factor}")
        return self.shape


@d.operation
class RearrangeOp(d.LayerOp):
    """The same elements in another order: each of the boxes goes to a place of its own, and together they are all.

    A box is `BOX` numbers: the first element of the operand and of the result, then extents, steps in the operand and
    steps in the result, in elements, of `BOX_RANK` dimensions (1, 0, 0 where there are fewer)."""

    name = "fgraph.rearrange"
    x: SSAValue = d.operand()
    boxes: Ints = d.prop(d.INTS)
    shape: Ints = d.result_shape()
    assembly_format: ClassVar[str] = "$x `boxes` $boxes attr-dict `:` functional-type(operands, results)"

    @property
    def parts(self) -> list[tuple[int, int, Ints, Ints, Ints]]:
        """Of each box the first elements, extents, steps in the operand and steps in the result."""
        found = []
        for start in range(0, len(self.boxes), BOX):
            source, target, *rest = self.boxes[start : start + BOX]
            extents, steps, made = (tuple(rest[k * BOX_RANK : (k + 1) * BOX_RANK]) for k in range(3))
            found.append((source, target, extents, steps, made))
        return found

    def inferred(self) -> Ints:
        size = math.prod(shape_of(self.x))
        shapes.check(len(self.boxes) % BOX == 0, f"fgraph.rearrange: boxes of {BOX} numbers, found {len(self.boxes)}")
        moved = sum(math.prod(extents) for _, _, extents, _, _ in self.parts)
        shapes.check(
            moved == size == math.prod(self.shape), f"fgraph.rearrange: {moved} elements go to {self.shape}, of {size}"
        )
        for *firsts, extents, steps, made in self.parts:
            for first, strides in zip(firsts, (steps, made), strict=True):
                ends = [(e - 1) * s for e, s in zip(extents, strides, strict=True)]
                low, high = first + sum(min(0, end) for end in ends), first + sum(max(0, end) for end in ends)
                shapes.check(low >= 0 and high < size, f"fgraph.rearrange: a box from {low} to {high} of {size}")
        return self.shape


@d.operation
class InterleaveOp(d.LayerOp):
    """result[n, c, s_h*i + a, s_w*j + b] = parts[a*s_w + b][n, c, i, j], for factor [s_h, s_w]"""

    name = "fgraph.interleave"
    parts: Sequence[SSAValue] = d.operands()
    factor: Ints = d.prop(d.INTS)
    assembly_format: ClassVar[str] = (
        "$parts `factor` $factor attr-dict `:` functional-type(operands, results)"
    )

    def inferred(self) -> Ints:
        return shapes.interleave_shape([shape_of(part) for part in self.parts], self.factor)


def root_of(value: SSAValue) -> SSAValue:
    """The value whose bytes these are, behind reshapes."""
    while isinstance(value.owner, ReshapeOp):
        value = value.owner.x
    return value
