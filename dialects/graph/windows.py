"""Layers over windows of their operand: pooling, LRN, resize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    base,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.functions import Interpolation, Pooling, Rounding
from frustum.dialects.graph import shapes
from frustum.dialects.graph.attributes import (
    ActAttr,
    Floats,
    InterpolationAttr,
    Ints,
    Number,
    PoolingAttr,
    RoundingAttr,
    float_array,
    float_attr,
    floats_of,
    int_array,
    ints_of,
    shape_of,
)
from frustum.dialects.graph.checks import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    check_elements,
    check_result,
    i64_attr,
    like,
    unit,
)
from frustum.dialects.graph.scales import ScaleAttr, Scales, check_no_scales, check_scales, scales_attr

__all__ = ["LrnOp", "PoolOp", "ResizeOp"]


@irdl_op_definition
class PoolOp(IRDLOperation):
    """Pooling. `ceil_pads` [bottom, right] is what ceil_mode adds to `pads`: it never counts in a divisor."""

    name = "fgraph.pool"
    x = operand_def(TensorType)
    kind_attr = prop_def(PoolingAttr, prop_name="kind")
    kernel_attr = prop_def(INTS, prop_name="kernel")
    strides_attr = prop_def(INTS, prop_name="strides")
    pads_attr = prop_def(INTS, prop_name="pads")
    dilations_attr = prop_def(INTS, prop_name="dilations")
    ceil_pads_attr = prop_def(INTS, prop_name="ceil_pads")
    count_include_pad_attr = opt_prop_def(UnitAttr, prop_name="count_include_pad")
    act = opt_prop_def(ActAttr)
    scales = opt_prop_def(Scales)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$kind $x `kernel` $kernel `strides` $strides `pads` $pads `dilations` $dilations "
        "`ceil_pads` $ceil_pads (`count_include_pad` $count_include_pad^)? "
        "attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self,
        kind: str,
        x: SSAValue,
        *,
        kernel: Ints,
        strides: Ints = (1, 1),
        pads: Ints = (0, 0, 0, 0),
        dilations: Ints = (1, 1),
        ceil_pads: Ints = (0, 0),
        count_include_pad: bool = False,
        act: ActAttr | None = None,
        scales: Sequence[ScaleAttr] | None = None,
    ) -> None:
        shape = shapes.pool_shape(shape_of(x), kernel, strides, pads, dilations, ceil_pads)
        super().__init__(
            operands=[x],
            properties={
                "kind": PoolingAttr(Pooling(kind)),
                "kernel": int_array(kernel),
                "strides": int_array(strides),
                "pads": int_array(pads),
                "dilations": int_array(dilations),
                "ceil_pads": int_array(ceil_pads),
                "count_include_pad": unit(count_include_pad),
                "act": act,
                "scales": scales_attr(scales),
            },
            result_types=[like(x, shape)],
        )

    @property
    def kind(self) -> Pooling:
        return self.kind_attr.data

    @property
    def kernel(self) -> Ints:
        return ints_of(self.kernel_attr)

    @property
    def strides(self) -> Ints:
        return ints_of(self.strides_attr)

    @property
    def pads(self) -> Ints:
        return ints_of(self.pads_attr)

    @property
    def dilations(self) -> Ints:
        return ints_of(self.dilations_attr)

    @property
    def ceil_pads(self) -> Ints:
        return ints_of(self.ceil_pads_attr)

    @property
    def count_include_pad(self) -> bool:
        return self.count_include_pad_attr is not None

    def verify_(self) -> None:
        expected = shapes.pool_shape(
            shape_of(self.x), self.kernel, self.strides, self.pads, self.dilations, self.ceil_pads
        )
        check_result(self, expected)
        check_elements(self.x, self.result)
        if self.kind == Pooling.MAX and self.count_include_pad:
            raise VerifyException("count_include_pad belongs to avg")
        if self.kind == Pooling.MAX:
            check_no_scales(self.scales, self.act, self.x)
        else:
            check_scales(self.scales, self.x, self.result)


@irdl_op_definition
class LrnOp(IRDLOperation):
    """x / (bias + alpha / size * sum of x**2 over `size` neighbouring channels) ** beta"""

    name = "fgraph.lrn"
    T: ClassVar = VarConstraint("T", base(TensorType))
    x = operand_def(T)
    size_attr = prop_def(INT, prop_name="size")
    alpha_attr = prop_def(FLOAT, prop_name="alpha")
    beta_attr = prop_def(FLOAT, prop_name="beta")
    bias_attr = prop_def(FLOAT, prop_name="bias")
    scales = opt_prop_def(Scales)
    result = result_def(T)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    custom_directives = (Number,)
    assembly_format = (
        "$x `size` $size `alpha` custom<Number>($alpha) `beta` custom<Number>($beta) "
        "`bias` custom<Number>($bias) attr-dict `:` type($result)"
    )

    def __init__(
        self,
        x: SSAValue,
        size: int,
        alpha: float,
        beta: float,
        bias: float,
        scales: Sequence[ScaleAttr] | None = None,
    ) -> None:
        properties: dict[str, Attribute | None] = {
            "size": i64_attr(size),
            "alpha": float_attr(alpha),
            "beta": float_attr(beta),
            "bias": float_attr(bias),
            "scales": scales_attr(scales),
        }
        super().__init__(operands=[x], properties=properties, result_types=[x.type])

    @property
    def size(self) -> int:
        return self.size_attr.value.data

    @property
    def alpha(self) -> float:
        return self.alpha_attr.value.data

    @property
    def beta(self) -> float:
        return self.beta_attr.value.data

    @property
    def bias(self) -> float:
        return self.bias_attr.value.data

    def verify_(self) -> None:
        if self.size < 1:
            raise VerifyException(f"size must be positive, found {self.size}")
        if len(shape_of(self.x)) < 2:
            raise VerifyException("expected an operand with channels")
        check_scales(self.scales, self.x, self.result)


@irdl_op_definition
class ResizeOp(IRDLOperation):
    """Resize of the plane: output index o reads input position o * scale + offset, clamped to the edge."""

    name = "fgraph.resize"
    x = operand_def(TensorType)
    mode_attr = prop_def(InterpolationAttr, prop_name="mode")
    rounding_attr = prop_def(RoundingAttr, prop_name="rounding")
    scale_attr = prop_def(FLOATS, prop_name="scale")
    offset_attr = prop_def(FLOATS, prop_name="offset")
    scales = opt_prop_def(Scales)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$mode $x `rounding` $rounding `scale` $scale `offset` $offset attr-dict `:` "
        "functional-type(operands, results)"
    )

    def __init__(
        self,
        mode: str,
        x: SSAValue,
        plane: Ints,
        *,
        scale: Floats,
        offset: Floats,
        rounding: str = "floor",
        scales: Sequence[ScaleAttr] | None = None,
    ) -> None:
        """`plane` is the result's height and width."""
        super().__init__(
            operands=[x],
            properties={
                "mode": InterpolationAttr(Interpolation(mode)),
                "rounding": RoundingAttr(Rounding(rounding)),
                "scale": float_array(scale),
                "offset": float_array(offset),
                "scales": scales_attr(scales),
            },
            result_types=[like(x, (*shape_of(x)[:2], *plane))],
        )

    @property
    def mode(self) -> Interpolation:
        return self.mode_attr.data

    @property
    def rounding(self) -> Rounding:
        return self.rounding_attr.data

    @property
    def scale(self) -> Floats:
        return floats_of(self.scale_attr)

    @property
    def offset(self) -> Floats:
        return floats_of(self.offset_attr)

    def verify_(self) -> None:
        x, result = shape_of(self.x), shape_of(self.result)
        if len(x) != shapes.SPATIAL_RANK or len(result) != shapes.SPATIAL_RANK or x[:2] != result[:2]:
            raise VerifyException(
                f"expected 4-D shapes with equal batch and channels, found {x} and {result}"
            )
        if len(self.scale) != 2 or len(self.offset) != 2:
            raise VerifyException("expected two scales and two offsets")
        check_elements(self.x, self.result)
        if self.mode == Interpolation.NEAREST:
            check_no_scales(self.scales, None, self.x)
        else:
            check_scales(self.scales, self.x, self.result)
