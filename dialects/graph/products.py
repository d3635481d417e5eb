"""Layers of the matrix unit: convolution and matrix product."""

from __future__ import annotations

import math
import typing
from typing import Any, ClassVar

from xdsl.dialects import builtin
from xdsl.dialects.builtin import TensorType, i32
from xdsl.ir import SSAValue
from xdsl.irdl import AttrSizedOperandSegments, IRDLOperation, IRDLOption
from xdsl.irdl.declarative_assembly_format import (
    CustomDirective,
    ParsingState,
    PrintingState,
    TypeDirective,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.graph import declaration as d
from frustum.dialects.graph import shapes
from frustum.dialects.graph.attributes import ActAttr, Ints, shape_of, tensor_of, tensor_type
from frustum.dialects.graph.scales import Scales, check_product, check_scales, is_integer


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
            printer.print_list([each.type for each in op.operands], printer.print_attribute)
        printer.print_string(" -> ")
        printer.print_attribute(op.results[0].type)


class ProductOp(d.LayerOp):
    """What a convolution and a matrix product have in common: of integers a multiplier, zero points and scales, the
    addition of a residual, and the activation."""

    w_zero: SSAValue | None = d.operand(default=None, kw_only=True)
    multiplier: SSAValue | None = d.operand(default=None, kw_only=True)
    residual: SSAValue | None = d.operand(default=None, kw_only=True)
    zeros: Ints | None = d.prop(d.INTS, default=None, kw_only=True)
    scales: Scales | None = d.prop(d.SCALES, default=None, kw_only=True)
    act: ActAttr | None = d.prop(d.ACT, default=None, kw_only=True)
    custom_directives: ClassVar[tuple[type[CustomDirective], ...]] = (ProductTypes,)
    irdl_options: typing.ClassVar[tuple[IRDLOption, ...]] = (AttrSizedOperandSegments(as_property=True),)

    def result_type(self, shape: Ints) -> TensorType[Any]:
        is_sum = is_integer(self.operands[0]) and self.multiplier is None
        return tensor_type(i32, shape) if is_sum else super().result_type(shape)


@d.operation
class ConvOp(ProductOp):
    """Convolution. x: [N, C, H, W], w: [M, C/groups, KH, KW], bias: [M]; pads: top, left, bottom, right.

    residual: of the result's shape, added before `act`.
    On integers also w_zero: [M], multiplier: [M] and `zeros` [of x, of the result] (docs/ir-graph.md, "Integers").
    """

    name = "fgraph.conv"
    x: SSAValue = d.operand()
    w: SSAValue = d.operand()
    bias: SSAValue | None = d.operand(default=None)
    strides: Ints = d.prop(d.INTS, default=(1, 1))
    pads: Ints = d.prop(d.INTS, default=(0, 0, 0, 0))
    dilations: Ints = d.prop(d.INTS, default=(1, 1))
    groups: int = d.prop(d.INT, default=1)
    assembly_format: ClassVar[str] = (
        "$x `,` $w (`,` $bias^)? (`w_zero` $w_zero^)? (`multiplier` $multiplier^)? (`residual` $residual^)? "
        "`strides` $strides `pads` $pads `dilations` $dilations `groups` $groups attr-dict `:` "
        "custom<ProductTypes>(type($x), type($w), type($bias), type($w_zero), type($multiplier), type($residual), "
        "type($result))"
    )

    @property
    def kernel(self) -> Ints:
        return shape_of(self.w)[2:]

    def inferred(self) -> Ints:
        windows = self.strides, self.pads, self.dilations
        return shapes.conv_shape(shape_of(self.x), shape_of(self.w), *windows, self.groups)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return math.prod(shape_of(self.result)) * math.prod(shape_of(self.w)[1:])

    def verify_(self) -> None:
        d.check_result(self, self.inferred())
        _check_types(self, self.x, self.w, shape_of(self.w)[0])


@d.operation
class MatmulOp(ProductOp):
    """Matrix product. a: [.., M, K], b: [.., K, N] (transposed where marked), bias: [N].

    residual: of the result's shape, added before `act`.
    On integers also w_zero: [N], multiplier: [N] and `zeros` [of a, of the result] (docs/ir-graph.md, "Integers").
    """

    name = "fgraph.matmul"
    a: SSAValue = d.operand()
    b: SSAValue = d.operand()
    bias: SSAValue | None = d.operand(default=None)
    trans_a: bool = d.prop(d.FLAG, default=False)
    trans_b: bool = d.prop(d.FLAG, default=False)
    assembly_format: ClassVar[str] = (
        "$a `,` $b (`,` $bias^)? (`w_zero` $w_zero^)? (`multiplier` $multiplier^)? (`residual` $residual^)? "
        "(`trans_a` $trans_a^)? (`trans_b` $trans_b^)? attr-dict `:` "
        "custom<ProductTypes>(type($a), type($b), type($bias), type($w_zero), type($multiplier), type($residual), "
        "type($result))"
    )

    def inferred(self) -> Ints:
        return shapes.matmul_shape(shape_of(self.a), shape_of(self.b), self.trans_a, self.trans_b)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return math.prod(shape_of(self.result)) * shape_of(self.a)[-2 if self.trans_a else -1]

    def verify_(self) -> None:
        d.check_result(self, self.inferred())
        _check_types(self, self.a, self.b, self.inferred()[-1])


def _check_types(op: ConvOp | MatmulOp, x: SSAValue, w: SSAValue, columns: int) -> None:
    if op.residual is not None:
        d.check_result(op, shape_of(op.residual))
        d.check_elements(op.residual, op.result)
    if is_integer(x):
        # with a residual the activation is one of real numbers
        act = op.act if op.residual is None else None
        check_product((x, w), op.result, columns, (op.bias, op.w_zero, op.multiplier), op.zeros, act)
        _check_residual(op)
        return
    d.check_elements(x, w, op.result)
    _check_bias(x, op.bias, columns)
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
    product = op.scales[0]
    if product.zero != op.zeros[1]:
        raise VerifyException(f"the product's zero point is {op.zeros[1]} in zeros, {product.zero} in scales")


def _check_bias(x: SSAValue, bias: SSAValue | None, length: int) -> None:
    """A bias is a vector, in the operand's type or in f32 (the machine keeps it so)."""
    if bias is None:
        return
    if shape_of(bias) != (length,):
        raise VerifyException(f"the bias has shape {shape_of(bias)}, expected {(length,)}")
    element, own = tensor_of(bias).element_type, tensor_of(x).element_type
    if element not in (builtin.f32, own):
        raise VerifyException(f"the bias has elements of {element}, expected f32 or {own}")
