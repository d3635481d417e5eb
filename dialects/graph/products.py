"""Layers of the matrix unit: convolution and matrix product."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure

from frustum.dialects.graph import shapes
from frustum.dialects.graph.attributes import (
    ActAttr,
    Ints,
    int_array,
    ints_of,
    shape_of,
)
from frustum.dialects.graph.checks import (
    INT,
    INTS,
    check_bias,
    check_elements,
    check_result,
    i64_attr,
    like,
    unit,
)

__all__ = ["ConvOp", "MatmulOp"]


@irdl_op_definition
class ConvOp(IRDLOperation):
    """Convolution. x: [N, C, H, W], w: [M, C/groups, KH, KW], bias: [M]; pads: top, left, bottom, right."""

    name = "fgraph.conv"
    x = operand_def(TensorType)
    w = operand_def(TensorType)
    bias = opt_operand_def(TensorType)
    strides_attr = prop_def(INTS, prop_name="strides")
    pads_attr = prop_def(INTS, prop_name="pads")
    dilations_attr = prop_def(INTS, prop_name="dilations")
    groups_attr = prop_def(INT, prop_name="groups")
    act = opt_prop_def(ActAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$x `,` $w (`,` $bias^)? `strides` $strides `pads` $pads `dilations` $dilations `groups` $groups "
        "attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self,
        x: SSAValue,
        w: SSAValue,
        bias: SSAValue | None = None,
        *,
        strides: Ints = (1, 1),
        pads: Ints = (0, 0, 0, 0),
        dilations: Ints = (1, 1),
        groups: int = 1,
        act: ActAttr | None = None,
    ) -> None:
        shape = shapes.conv_shape(shape_of(x), shape_of(w), strides, pads, dilations, groups)
        super().__init__(
            operands=[x, w, bias],
            properties={
                "strides": int_array(strides),
                "pads": int_array(pads),
                "dilations": int_array(dilations),
                "groups": i64_attr(groups),
                "act": act,
            },
            result_types=[like(x, shape)],
        )

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
    def groups(self) -> int:
        return self.groups_attr.value.data

    @property
    def kernel(self) -> Ints:
        return shape_of(self.w)[2:]

    def verify_(self) -> None:
        x, w = shape_of(self.x), shape_of(self.w)
        check_result(self, shapes.conv_shape(x, w, self.strides, self.pads, self.dilations, self.groups))
        check_elements(self.x, self.w, self.result)
        check_bias(self.x, self.bias, w[0])


@irdl_op_definition
class MatmulOp(IRDLOperation):
    """Matrix product. a: [.., M, K], b: [.., K, N] (transposed where marked), bias: [N]."""

    name = "fgraph.matmul"
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    bias = opt_operand_def(TensorType)
    trans_a_attr = opt_prop_def(UnitAttr, prop_name="trans_a")
    trans_b_attr = opt_prop_def(UnitAttr, prop_name="trans_b")
    act = opt_prop_def(ActAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$a `,` $b (`,` $bias^)? (`trans_a` $trans_a^)? (`trans_b` $trans_b^)? "
        "attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self,
        a: SSAValue,
        b: SSAValue,
        bias: SSAValue | None = None,
        *,
        trans_a: bool = False,
        trans_b: bool = False,
        act: ActAttr | None = None,
    ) -> None:
        shape = shapes.matmul_shape(shape_of(a), shape_of(b), trans_a, trans_b)
        super().__init__(
            operands=[a, b, bias],
            properties={"trans_a": unit(trans_a), "trans_b": unit(trans_b), "act": act},
            result_types=[like(a, shape)],
        )

    @property
    def trans_a(self) -> bool:
        return self.trans_a_attr is not None

    @property
    def trans_b(self) -> bool:
        return self.trans_b_attr is not None

    def verify_(self) -> None:
        expected = shapes.matmul_shape(shape_of(self.a), shape_of(self.b), self.trans_a, self.trans_b)
        check_result(self, expected)
        check_elements(self.a, self.b, self.result)
        check_bias(self.a, self.bias, expected[-1])
