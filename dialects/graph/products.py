"""Layers of the matrix unit: convolution and matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import TensorType, UnitAttr, i32
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
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
from xdsl.irdl.declarative_assembly_format import (
    CustomDirective,
    ParsingState,
    PrintingState,
    TypeDirective,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.graph import shapes
from frustum.dialects.graph.attributes import (
    ActAttr,
    Ints,
    int_array,
    ints_of,
    shape_of,
    tensor_type,
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
from frustum.dialects.graph.scales import (
    ScaleAttr,
    Scales,
    check_product,
    check_scales,
    is_integer,
    scales_attr,
)

__all__ = ["ConvOp", "MatmulOp"]


@irdl_custom_directive
class ProductTypes(CustomDirective):
    """`(types of the operands) -> type`, where xDSL's own form cannot tell which operands are absent."""

    x: TypeDirective
    w: TypeDirective
    bias: TypeDirective
    w_zero: TypeDirective
    multiplier: TypeDirective
    residual: TypeDirective
    result: TypeDirective

    @property
    def operands(self) -> tuple[TypeDirective, ...]:
        return self.x, self.w, self.bias, self.w_zero, self.multiplier, self.residual

    def parse(self, parser: Parser, state: ParsingState) -> None:
        start = parser.pos
        types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        counts = [len(found or ()) for found in state.operands]
        if len(types) != sum(counts):
            parser.raise_error(f"{len(types)} types for {sum(counts)} operands", start, parser.pos)
        for directive, count in zip(self.operands, counts, strict=True):
            directive.set(state, types[:count])
            del types[:count]
        parser.parse_punctuation("->")
        self.result.set(state, (parser.parse_type(),))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        with printer.in_parens():
            printer.print_list([operand.type for operand in op.operands], printer.print_attribute)
        printer.print_string(" -> ")
        printer.print_attribute(op.results[0].type)


@irdl_op_definition
class ConvOp(IRDLOperation):
    """Convolution. x: [N, C, H, W], w: [M, C/groups, KH, KW], bias: [M]; pads: top, left, bottom, right.

    residual: of the result's shape, added before `act`.
    On integers also w_zero: [M], multiplier: [M] and `zeros` [of x, of the result] (docs/ir-graph.md, "Integers").
    """

    name = "fgraph.conv"
    x = operand_def(TensorType)
    w = operand_def(TensorType)
    bias = opt_operand_def(TensorType)
    w_zero = opt_operand_def(TensorType)
    multiplier = opt_operand_def(TensorType)
    residual = opt_operand_def(TensorType)
    strides_attr = prop_def(INTS, prop_name="strides")
    pads_attr = prop_def(INTS, prop_name="pads")
    dilations_attr = prop_def(INTS, prop_name="dilations")
    groups_attr = prop_def(INT, prop_name="groups")
    zeros_attr = opt_prop_def(INTS, prop_name="zeros")
    scales = opt_prop_def(Scales)
    act = opt_prop_def(ActAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    custom_directives = (ProductTypes,)
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$x `,` $w (`,` $bias^)? (`w_zero` $w_zero^)? (`multiplier` $multiplier^)? (`residual` $residual^)? "
        "`strides` $strides `pads` $pads `dilations` $dilations `groups` $groups attr-dict `:` "
        "custom<ProductTypes>(type($x), type($w), type($bias), type($w_zero), type($multiplier), type($residual), "
        "type($result))"
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
        w_zero: SSAValue | None = None,
        multiplier: SSAValue | None = None,
        zeros: Ints | None = None,
        residual: SSAValue | None = None,
        scales: Sequence[ScaleAttr] | None = None,
    ) -> None:
        shape = shapes.conv_shape(shape_of(x), shape_of(w), strides, pads, dilations, groups)
        super().__init__(
            operands=[x, w, bias, w_zero, multiplier, residual],
            properties={
                "strides": int_array(strides),
                "pads": int_array(pads),
                "dilations": int_array(dilations),
                "groups": i64_attr(groups),
                "zeros": int_array(zeros) if zeros is not None else None,
                "scales": scales_attr(scales),
                "act": act,
            },
            result_types=[_result_type(x, multiplier, shape)],
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
    def zeros(self) -> Ints | None:
        return None if self.zeros_attr is None else ints_of(self.zeros_attr)

    @property
    def kernel(self) -> Ints:
        return shape_of(self.w)[2:]

    def verify_(self) -> None:
        x, w = shape_of(self.x), shape_of(self.w)
        check_result(self, shapes.conv_shape(x, w, self.strides, self.pads, self.dilations, self.groups))
        _check_types(self, self.x, self.w, w[0])


@irdl_op_definition
class MatmulOp(IRDLOperation):
    """Matrix product. a: [.., M, K], b: [.., K, N] (transposed where marked), bias: [N].

    residual: of the result's shape, added before `act`.
    On integers also w_zero: [N], multiplier: [N] and `zeros` [of a, of the result] (docs/ir-graph.md, "Integers").
    """

    name = "fgraph.matmul"
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    bias = opt_operand_def(TensorType)
    w_zero = opt_operand_def(TensorType)
    multiplier = opt_operand_def(TensorType)
    residual = opt_operand_def(TensorType)
    trans_a_attr = opt_prop_def(UnitAttr, prop_name="trans_a")
    trans_b_attr = opt_prop_def(UnitAttr, prop_name="trans_b")
    zeros_attr = opt_prop_def(INTS, prop_name="zeros")
    scales = opt_prop_def(Scales)
    act = opt_prop_def(ActAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    custom_directives = (ProductTypes,)
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$a `,` $b (`,` $bias^)? (`w_zero` $w_zero^)? (`multiplier` $multiplier^)? (`residual` $residual^)? "
        "(`trans_a` $trans_a^)? (`trans_b` $trans_b^)? attr-dict `:` "
        "custom<ProductTypes>(type($a), type($b), type($bias), type($w_zero), type($multiplier), type($residual), "
        "type($result))"
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
        w_zero: SSAValue | None = None,
        multiplier: SSAValue | None = None,
        zeros: Ints | None = None,
        residual: SSAValue | None = None,
        scales: Sequence[ScaleAttr] | None = None,
    ) -> None:
        shape = shapes.matmul_shape(shape_of(a), shape_of(b), trans_a, trans_b)
        super().__init__(
            operands=[a, b, bias, w_zero, multiplier, residual],
            properties={
                "trans_a": unit(trans_a),
                "trans_b": unit(trans_b),
                "zeros": int_array(zeros) if zeros is not None else None,
                "scales": scales_attr(scales),
                "act": act,
            },
            result_types=[_result_type(a, multiplier, shape)],
        )

    @property
    def trans_a(self) -> bool:
        return self.trans_a_attr is not None

    @property
    def trans_b(self) -> bool:
        return self.trans_b_attr is not None

    @property
    def zeros(self) -> Ints | None:
        return None if self.zeros_attr is None else ints_of(self.zeros_attr)

    def verify_(self) -> None:
        expected = shapes.matmul_shape(shape_of(self.a), shape_of(self.b), self.trans_a, self.trans_b)
        check_result(self, expected)
        _check_types(self, self.a, self.b, expected[-1])


def _result_type(x: SSAValue, multiplier: SSAValue | None, shape: Ints) -> TensorType[Any]:
    return tensor_type(i32, shape) if is_integer(x) and multiplier is None else like(x, shape)


def _check_types(op: ConvOp | MatmulOp, x: SSAValue, w: SSAValue, columns: int) -> None:
    if op.residual is not None:
        check_result(op, shape_of(op.residual))
        check_elements(op.residual, op.result)
    if is_integer(x):
        # with a residual the activation is one of real numbers
        act = op.act if op.residual is None else None
        check_product((x, w), op.result, columns, (op.bias, op.w_zero, op.multiplier), op.zeros, act)
        _check_residual(op)
        return
    check_elements(x, w, op.result)
    check_bias(x, op.bias, columns)
    if any(field is not None for field in (op.zeros, op.w_zero, op.multiplier, op.scales)):
        raise VerifyException("zeros, w_zero, multiplier and scales belong to products of integers")


def _check_residual(op: ConvOp | MatmulOp) -> None:
    """It is added to the numbers that the requantised product stands for."""
    if op.residual is None:
        if op.scales is not None:
            raise VerifyException("scales belong to a product with a residual")
        return
    check_scales(op.scales, op.result, op.residual, op.result)
    assert op.scales is not None and op.zeros is not None
    product = op.scales.data[0]
    if product.zero != op.zeros[1]:
        raise VerifyException(f"the product's zero point is {op.zeros[1]} in zeros, {product.zero} in scales")
