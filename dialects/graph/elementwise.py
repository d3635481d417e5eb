"""Element-wise operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue
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

from frustum.dialects.functions import Arithmetic, Function
from frustum.dialects.graph import shapes
from frustum.dialects.graph.attributes import ActAttr, ArithmeticAttr, shape_of
from frustum.dialects.graph.checks import check_elements, check_result, like
from frustum.dialects.graph.scales import ScaleAttr, Scales, check_scales, scales_attr

__all__ = ["BinaryOp", "UnaryOp"]


@irdl_op_definition
class UnaryOp(IRDLOperation):
    """A function of every element."""

    name = "fgraph.unary"
    T: ClassVar = VarConstraint("T", base(TensorType))
    x = operand_def(T)
    act = prop_def(ActAttr)
    scales = opt_prop_def(Scales)
    result = result_def(T)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$act $x attr-dict `:` type($result)"

    def __init__(self, function: ActAttr | str, x: SSAValue, scales: Sequence[ScaleAttr] | None = None) -> None:
        act = ActAttr.of(function) if isinstance(function, str) else function
        super().__init__(
            operands=[x], properties={"act": act, "scales": scales_attr(scales)}, result_types=[x.type]
        )

    @property
    def kind(self) -> Function:
        return self.act.kind

    @property
    def alpha(self) -> float:
        return self.act.alpha

    @property
    def beta(self) -> float:
        return self.act.beta

    def verify_(self) -> None:
        shape_of(self.x)
        check_scales(self.scales, self.x, self.result)


@irdl_op_definition
class BinaryOp(IRDLOperation):
    """A function of the elements of two tensors, with numpy's broadcasting."""

    name = "fgraph.binary"
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    kind_attr = prop_def(ArithmeticAttr, prop_name="kind")
    act = opt_prop_def(ActAttr)
    scales = opt_prop_def(Scales)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$kind $a `,` $b attr-dict `:` functional-type(operands, results)"

    def __init__(
        self,
        kind: str,
        a: SSAValue,
        b: SSAValue,
        act: ActAttr | None = None,
        scales: Sequence[ScaleAttr] | None = None,
    ) -> None:
        shape = shapes.broadcast_shape(shape_of(a), shape_of(b))
        super().__init__(
            operands=[a, b],
            properties={
                "kind": ArithmeticAttr(Arithmetic(kind)),
                "act": act,
                "scales": scales_attr(scales),
            },
            result_types=[like(a, shape)],
        )

    @property
    def kind(self) -> Arithmetic:
        return self.kind_attr.data

    def verify_(self) -> None:
        check_result(self, shapes.broadcast_shape(shape_of(self.a), shape_of(self.b)))
        check_elements(self.a, self.b, self.result)
        check_scales(self.scales, self.a, self.b, self.result)
