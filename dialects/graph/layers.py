"""Layers of the vector unit: windows, sums, functions of elements, and conversions to and from integers."""

from __future__ import annotations

import typing
from typing import ClassVar

from xdsl.dialects import builtin
from xdsl.dialects.builtin import TensorType, i8
from xdsl.ir import Attribute, OpResult, SSAValue
from xdsl.irdl import AttrSizedOperandSegments, IRDLOption, VarConstraint, base, result_def
from xdsl.irdl.declarative_assembly_format import CustomDirective
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.functions import Function, Interpolation, Pooling
from frustum.dialects.graph import declaration as d
from frustum.dialects.graph import shapes
from frustum.dialects.graph.attributes import (
    ActAttr,
    ArithmeticAttr,
    Floats,
    InterpolationAttr,
    Ints,
    Number,
    PoolingAttr,
    ReductionAttr,
    RoundingAttr,
    shape_of,
    tensor_of,
    tensor_type,
)
from frustum.dialects.graph.scales import (
    PRODUCT_TYPES,
    ScaleAttr,
    Scales,
    check_no_scales,
    check_scales,
    check_zero,
    is_integer,
)


@d.operation
class PoolOp(d.LayerOp):
    """Pooling. `ceil_pads` [bottom, right] is what ceil_mode adds to `pads`: it never counts in a divisor.

    A `kernel` of one number is a window over the slices [D, C, H, W] of a volume: then pads are [before, behind]."""

    name = "fgraph.pool"
    kind: str = d.prop(d.word(PoolingAttr))
    x: SSAValue = d.operand()
    kernel: Ints = d.prop(d.INTS)
    strides: Ints = d.prop(d.INTS, default=(1, 1))
    pads: Ints = d.prop(d.INTS, default=(0, 0, 0, 0))
    dilations: Ints = d.prop(d.INTS, default=(1, 1))
    ceil_pads: Ints = d.prop(d.INTS, default=(0, 0))
    count_include_pad: bool = d.prop(d.FLAG, default=False)
    act: ActAttr | None = d.prop(d.ACT, default=None)
    scales: Scales | None = d.prop(d.SCALES, default=None)
    assembly_format: ClassVar[str] = (
        "$kind $x `kernel` $kernel `strides` $strides `pads` $pads `dilations` $dilations "
        "`ceil_pads` $ceil_pads (`count_include_pad` $count_include_pad^)? "
        "attr-dict `:` functional-type(operands, results)"
    )

    @property
    def is_of_slices(self) -> bool:
        """Its windows are over slices."""
        return len(self.kernel) == 1

    def inferred(self) -> Ints:
        windows = self.kernel, self.strides, self.pads, self.dilations, self.ceil_pads
        if not self.is_of_slices:
            return shapes.pool_shape(shape_of(self.x), *windows)
        kernel, strides, pads, dilations, ceil_pads = windows
        shapes.check(len(pads) == 2 and len(strides) == len(dilations) == len(ceil_pads) == 1, f"of slices: {pads}")
        depth, channels, *plane = shape_of(self.x)
        low, high = pads
        as_rows = (1, 1, depth, 1), (*kernel, 1), (*strides, 1), (low, 0, high, 0), (*dilations, 1), (*ceil_pads, 0)
        return (shapes.pool_shape(*as_rows)[2], channels, *plane)

    def verify_(self) -> None:
        super().verify_()
        if self.kind == Pooling.MAX and self.count_include_pad:
            raise VerifyException("count_include_pad belongs to avg")
        if self.kind == Pooling.MAX:
            check_no_scales(self.scales, self.act, self.x)
        else:
            check_scales(self.scales, self.x, self.result)


@d.operation
class LrnOp(d.LayerOp):
    """x / (bias + alpha / size * sum of x**2 over `size` neighbouring channels) ** beta"""

    name = "fgraph.lrn"
    T: ClassVar = VarConstraint("T", base(TensorType))
    x: SSAValue = d.operand(T)
    size: int = d.prop(d.INT)
    alpha: float = d.prop(d.FLOAT)
    beta: float = d.prop(d.FLOAT)
    bias: float = d.prop(d.FLOAT)
    scales: Scales | None = d.prop(d.SCALES, default=None)
    result: typing.ClassVar[OpResult[TensorType]] = result_def(T)
    custom_directives: ClassVar[tuple[type[CustomDirective], ...]] = (Number,)
    assembly_format: ClassVar[str] = (
        "$x `size` $size `alpha` custom<Number>($alpha) `beta` custom<Number>($beta) "
        "`bias` custom<Number>($bias) attr-dict `:` type($result)"
    )

    def verify_(self) -> None:
        if self.size < 1:
            raise VerifyException(f"size must be positive, found {self.size}")
        if len(shape_of(self.x)) < 2:
            raise VerifyException("expected an operand with channels")
        check_scales(self.scales, self.x, self.result)


@d.operation
class ResizeOp(d.LayerOp):
    """Resize of the plane: output index o reads input position o * scale + offset, clamped to the edge."""

    name = "fgraph.resize"
    mode: str = d.prop(d.word(InterpolationAttr))
    x: SSAValue = d.operand()
    plane: Ints = d.given(
        lambda op, plane: d.like(op.x, (*shape_of(op.x)[:2], *plane)), lambda op: shape_of(op.result)[2:]
    )
    rounding: str = d.prop(d.word(RoundingAttr), default="floor", kw_only=True)
    scale: Floats = d.prop(d.FLOATS)
    offset: Floats = d.prop(d.FLOATS)
    scales: Scales | None = d.prop(d.SCALES, default=None)
    assembly_format: ClassVar[str] = (
        "$mode $x `rounding` $rounding `scale` $scale `offset` $offset attr-dict `:` "
        "functional-type(operands, results)"
    )

    def inferred(self) -> Ints:
        return shape_of(self.result)

    def verify_(self) -> None:
        x, result = shape_of(self.x), shape_of(self.result)
        if len(x) != shapes.SPATIAL_RANK or len(result) != shapes.SPATIAL_RANK or x[:2] != result[:2]:
            raise VerifyException(
                f"expected 4-D shapes with equal batch and channels, found {x} and {result}"
            )
        if len(self.scale) != 2 or len(self.offset) != 2:
            raise VerifyException("expected two scales and two offsets")
        super().verify_()
        if self.mode == Interpolation.NEAREST:
            check_no_scales(self.scales, None, self.x)
        else:
            check_scales(self.scales, self.x, self.result)


@d.operation
class ReduceOp(d.MixedOp):
    """Reduction over axes; a global pool is one over h and w.  Of floats the result may be of another type."""

    name = "fgraph.reduce"
    kind: str = d.prop(d.word(ReductionAttr))
    x: SSAValue = d.operand()
    axes: Ints = d.prop(d.INTS)
    keepdims: bool = d.prop(d.FLAG, default=True)
    scales: Scales | None = d.prop(d.SCALES, default=None)
    element: Attribute = d.element_of_result(default=None, kw_only=True)
    assembly_format: ClassVar[str] = (
        "$kind $x `axes` $axes (`keepdims` $keepdims^)? attr-dict `:` functional-type(operands, results)"
    )

    def inferred(self) -> Ints:
        return shapes.reduce_shape(shape_of(self.x), self.axes, self.keepdims)

    def verify_(self) -> None:
        super().verify_()
        check_scales(self.scales, self.x, self.result)


@d.operation
class SoftmaxOp(d.LayerOp):
    """Softmax along one axis."""

    name = "fgraph.softmax"
    T: ClassVar = VarConstraint("T", base(TensorType))
    x: SSAValue = d.operand(T)
    axis: int = d.prop(d.INT)
    scales: Scales | None = d.prop(d.SCALES, default=None)
    result: typing.ClassVar[OpResult[TensorType]] = result_def(T)
    assembly_format: ClassVar[str] = "$x `axis` $axis attr-dict `:` type($result)"

    def verify_(self) -> None:
        shapes.check_axis(self.axis, len(shape_of(self.x)))
        check_scales(self.scales, self.x, self.result)


@d.operation
class NormaliseOp(d.LayerOp):
    """(x - mean) / sqrt(variance + epsilon) over `axes`, times `scale`, plus `shift`, which broadcast to x; mean and
    variance are f32.  `rms`: the mean counts as 0.  With `groups` above 1 axis 1, the first of `axes`, is so many
    groups of channels, each by itself.  What comes of that goes through `act`.

    Source: Ba et al., Layer normalization, 2016; Wu and He, Group normalization, 2018; Zhang and Sennrich, Root mean
    square layer normalization, 2019.
    """

    name = "fgraph.normalise"
    T: ClassVar = VarConstraint("T", base(TensorType))
    x: SSAValue = d.operand(T)
    scale: SSAValue | None = d.operand(default=None)
    shift: SSAValue | None = d.operand(default=None)
    axes: Ints = d.prop(d.INTS, kw_only=True)
    epsilon: float = d.prop(d.FLOAT, kw_only=True)
    groups: int = d.prop(d.INT, default=1, kw_only=True)
    rms: bool = d.prop(d.FLAG, default=False, kw_only=True)
    act: ActAttr | None = d.prop(d.ACT, default=None, kw_only=True)
    result: typing.ClassVar[OpResult[TensorType]] = result_def(T)
    irdl_options: typing.ClassVar[tuple[IRDLOption, ...]] = (AttrSizedOperandSegments(as_property=True),)
    custom_directives: ClassVar[tuple[type[CustomDirective], ...]] = (Number,)
    assembly_format: ClassVar[str] = (
        "$x (`scale` $scale^ `:` type($scale))? (`shift` $shift^ `:` type($shift))? `axes` $axes "
        "`epsilon` custom<Number>($epsilon) `groups` $groups (`rms` $rms^)? attr-dict `:` type($result)"
    )

    def inferred(self) -> Ints:
        return shape_of(self.x)

    def verify_(self) -> None:
        shape, axes = shape_of(self.x), self.axes
        for axis in axes:
            shapes.check_axis(axis, len(shape))
        if not axes or tuple(sorted(set(axes))) != axes:
            raise VerifyException(f"expected axes in order, found {axes}")
        if self.groups < 1 or (self.groups > 1 and (axes[0] != 1 or shape[1] % self.groups)):
            raise VerifyException(f"{self.groups} groups of axis 1, axes {axes} of {shape}")
        if self.epsilon < 0 or is_integer(self.x):
            raise VerifyException("expected floats, and an epsilon of at least 0")
        if self.shift is not None and self.scale is None:
            raise VerifyException("a shift comes with a scale")
        for value in (self.scale, self.shift):
            if value is not None and shapes.broadcast_shape(shape, shape_of(value)) != shape:
                raise VerifyException(f"{shape_of(value)} does not broadcast to {shape}")
        super().verify_()


@d.operation
class UnaryOp(d.LayerOp):
    """A function of every element."""

    name = "fgraph.unary"
    T: ClassVar = VarConstraint("T", base(TensorType))
    act: ActAttr = d.prop(d.ACT)
    x: SSAValue = d.operand(T)
    scales: Scales | None = d.prop(d.SCALES, default=None)
    result: typing.ClassVar[OpResult[TensorType]] = result_def(T)
    assembly_format: ClassVar[str] = "$act $x attr-dict `:` type($result)"

    def __init__(self, function: ActAttr | str, x: SSAValue, scales: Scales | None = None) -> None:
        super().__init__(ActAttr.of(function) if isinstance(function, str) else function, x, scales)

    @property
    def kind(self) -> Function:
        return self.act.kind

    def verify_(self) -> None:
        super().verify_()
        check_scales(self.scales, self.x, self.result)


@d.operation
class BinaryOp(d.MixedOp):
    """A function of the elements of two tensors, with numpy's broadcasting.  Floats may be of different types."""

    name = "fgraph.binary"
    kind: str = d.prop(d.word(ArithmeticAttr))
    a: SSAValue = d.operand()
    b: SSAValue = d.operand()
    act: ActAttr | None = d.prop(d.ACT, default=None)
    scales: Scales | None = d.prop(d.SCALES, default=None)
    element: Attribute = d.element_of_result(default=None, kw_only=True)
    assembly_format: ClassVar[str] = "$kind $a `,` $b attr-dict `:` functional-type(operands, results)"

    def inferred(self) -> Ints:
        return shapes.broadcast_shape(shape_of(self.a), shape_of(self.b))

    def verify_(self) -> None:
        super().verify_()
        check_scales(self.scales, self.a, self.b, self.result)


@d.operation
class QuantizeOp(d.LayerOp):
    """f32 numbers as integers: saturate(round(x / scale) + zero), half to even."""

    name = "fgraph.quantize"
    x: SSAValue = d.operand()
    to: ScaleAttr = d.prop(d.Kind(ScaleAttr))
    element: Attribute = d.given(
        lambda op, element: tensor_type(element, shape_of(op.x)),
        lambda op: tensor_of(op.result).element_type,
        default=i8,
    )
    assembly_format: ClassVar[str] = "$x attr-dict `:` functional-type(operands, results)"

    def verify_(self) -> None:
        d.check_result(self, shape_of(self.x))
        source, target = tensor_of(self.x).element_type, self.element
        if source != builtin.f32 or target not in PRODUCT_TYPES:
            raise VerifyException(f"quantising is from f32 to i8 or i16, found {source} to {target}")
        check_zero(self.to.zero, target)


@d.operation
class DequantizeOp(d.LayerOp):
    """Integers as the numbers that they stand for: (q - zero) * scale, computed in f32."""

    name = "fgraph.dequantize"
    x: SSAValue = d.operand()
    from_: ScaleAttr = d.prop(d.Kind(ScaleAttr), ir_name="from")
    element: Attribute = d.given(
        lambda op, element: tensor_type(element, shape_of(op.x)),
        lambda op: tensor_of(op.result).element_type,
        default=builtin.f32,
    )
    assembly_format: ClassVar[str] = "$x attr-dict `:` functional-type(operands, results)"

    def verify_(self) -> None:
        d.check_result(self, shape_of(self.x))
        if is_integer(self.result):
            raise VerifyException(f"dequantising is to floating point, found {self.element}")
        check_zero(self.from_.zero, tensor_of(self.x).element_type)
