"""Layers over whole axes: reduction and softmax."""

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

from frustum.dialects.functions import Reduction
from frustum.dialects.graph import shapes
from frustum.dialects.graph.attributes import (
    Ints,
    ReductionAttr,
    int_array,
    ints_of,
    shape_of,
)
from frustum.dialects.graph.checks import (
    INT,
    INTS,
    check_elements,
    check_result,
    i64_attr,
    like,
    unit,
)
from frustum.dialects.graph.scales import ScaleAttr, Scales, check_scales, scales_attr

__all__ = ["ReduceOp", "SoftmaxOp"]


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Reduction over axes; a global pool is one over h and w."""

    name = "fgraph.reduce"
    x = operand_def(TensorType)
    kind_attr = prop_def(ReductionAttr, prop_name="kind")
    axes_attr = prop_def(INTS, prop_name="axes")
    keepdims_attr = opt_prop_def(UnitAttr, prop_name="keepdims")
    scales = opt_prop_def(Scales)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$kind $x `axes` $axes (`keepdims` $keepdims^)? attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self,
        kind: str,
        x: SSAValue,
        axes: Ints,
        keepdims: bool = True,
        scales: Sequence[ScaleAttr] | None = None,
    ) -> None:
        shape = shapes.reduce_shape(shape_of(x), axes, keepdims)
        super().__init__(
            operands=[x],
            properties={
                "kind": ReductionAttr(Reduction(kind)),
                "axes": int_array(axes),
                "keepdims": unit(keepdims),
                "scales": scales_attr(scales),
            },
            result_types=[like(x, shape)],
        )

    @property
    def kind(self) -> Reduction:
        return self.kind_attr.data

    @property
    def axes(self) -> Ints:
        return ints_of(self.axes_attr)

    @property
    def keepdims(self) -> bool:
        return self.keepdims_attr is not None

    def verify_(self) -> None:
        check_result(self, shapes.reduce_shape(shape_of(self.x), self.axes, self.keepdims))
        check_elements(self.x, self.result)
        check_scales(self.scales, self.x, self.result)


@irdl_op_definition
class SoftmaxOp(IRDLOperation):
    """Softmax along one axis."""

    name = "fgraph.softmax"
    T: ClassVar = VarConstraint("T", base(TensorType))
    x = operand_def(T)
    axis_attr = prop_def(INT, prop_name="axis")
    scales = opt_prop_def(Scales)
    result = result_def(T)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$x `axis` $axis attr-dict `:` type($result)"

    def __init__(self, x: SSAValue, axis: int, scales: Sequence[ScaleAttr] | None = None) -> None:
        properties: dict[str, Attribute | None] = {"axis": i64_attr(axis), "scales": scales_attr(scales)}
        super().__init__(operands=[x], properties=properties, result_types=[x.type])

    @property
    def axis(self) -> int:
        return self.axis_attr.value.data

    def verify_(self) -> None:
        shapes.check_axis(self.axis, len(shape_of(self.x)))
        check_scales(self.scales, self.x, self.result)
