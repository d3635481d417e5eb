"""Between real numbers and the integers that stand for them."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType, f32, i8
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.graph.attributes import shape_of, tensor_of, tensor_type
from frustum.dialects.graph.checks import check_result
from frustum.dialects.graph.scales import PRODUCT_TYPES, ScaleAttr, check_zero

__all__ = ["DequantizeOp", "QuantizeOp"]


@irdl_op_definition
class QuantizeOp(IRDLOperation):
    """f32 numbers as integers: saturate(round(x / scale) + zero), half to even."""

    name = "fgraph.quantize"
    x = operand_def(TensorType)
    to = prop_def(ScaleAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$x attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, to: ScaleAttr, element: Attribute = i8) -> None:
        super().__init__(operands=[x], properties={"to": to}, result_types=[tensor_type(element, shape_of(x))])

    def verify_(self) -> None:
        check_result(self, shape_of(self.x))
        source, target = tensor_of(self.x).element_type, tensor_of(self.result).element_type
        if source != f32 or target not in PRODUCT_TYPES:
            raise VerifyException(f"quantising is from f32 to i8 or i16, found {source} to {target}")
        check_zero(self.to.zero, target)


@irdl_op_definition
class DequantizeOp(IRDLOperation):
    """Integers as the f32 numbers that they stand for: (q - zero) * scale."""

    name = "fgraph.dequantize"
    x = operand_def(TensorType)
    from_ = prop_def(ScaleAttr, prop_name="from")
    result = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$x attr-dict `:` functional-type(operands, results)"

    def __init__(self, x: SSAValue, from_: ScaleAttr) -> None:
        super().__init__(operands=[x], properties={"from": from_}, result_types=[tensor_type(f32, shape_of(x))])

    def verify_(self) -> None:
        check_result(self, shape_of(self.x))
        source, target = tensor_of(self.x).element_type, tensor_of(self.result).element_type
        if target != f32:
            raise VerifyException(f"dequantising is to f32, found {target}")
        check_zero(self.from_.zero, source)
