"""The matrix unit: convolution, which is also the matrix product (a 1x1 kernel)."""

from __future__ import annotations

from typing import ClassVar, Unpack

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    eq,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
)
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.isa.attributes import (
    NRAM,
    WRAM,
    ActAttr,
    BoxAttr,
    BufferType,
    ScalesAttr,
    SpanAttr,
    ViewAttr,
)
from frustum.dialects.isa.instruction import (
    COMMON,
    INTEGER,
    INTEGER_BITS,
    INTEGERS,
    CommonFields,
    Instruction,
    check_pair,
    check_scales,
    check_word,
    check_zero,
    integer,
)
from frustum.dialects.isa.program import (
    ACCUMULATORS,
    LINE_MODES,
    Act,
    Box,
    Engine,
    LineMode,
    Pair,
    Scales,
    Span,
    View,
)


@irdl_op_definition
class ConvOp(Instruction):
    """`out = act(in (*) weight + bias + residual)`; with `accumulate`, over the passes of one loop.

    Of integers the accumulators are `(in - in_zero) (*) (weight - weight_zero) + bias`; with a multiplier `out` is
    `saturate(rint(acc * multiplier) + out_zero)`, then `act`.  A residual of integers is added in real numbers (the
    scales of what it is added to, its own, of the result), and `act` is then applied to these.

    The box is over the output (n, co, h, w); `rows` and `cols` start at the input position of the first window
    element of the box's nominal start.
    """

    name = "fisa.conv"
    ENGINE: ClassVar[Engine | None] = "matrix"
    VIEWS: ClassVar = (
        ("in_", "in_view"),
        ("weight", "weight_view"),
        ("bias", "bias_view"),
        ("acc", "acc_view"),
        ("out", "out_view"),
        ("weight_zero", "weight_zero_view"),
        ("multiplier", "multiplier_view"),
        ("residual", "residual_view"),
    )

    in_ = operand_def(eq(NRAM))
    weight = operand_def(eq(WRAM))
    bias = opt_operand_def(BufferType)
    acc = opt_operand_def(eq(NRAM))
    out = operand_def(eq(NRAM))
    weight_zero = opt_operand_def(eq(WRAM))
    multiplier = opt_operand_def(eq(WRAM))
    residual = opt_operand_def(eq(NRAM))
    in_view = prop_def(ViewAttr)
    weight_view = prop_def(ViewAttr)
    bias_view = opt_prop_def(ViewAttr)
    acc_view = opt_prop_def(ViewAttr)
    out_view = prop_def(ViewAttr)
    box = prop_def(BoxAttr)
    channels = prop_def(SpanAttr)
    rows = prop_def(SpanAttr)
    cols = prop_def(SpanAttr)
    kernel = prop_def(INTEGERS)
    strides = prop_def(INTEGERS)
    dilations = prop_def(INTEGERS)
    groups = prop_def(INTEGER, default_value=integer(1))
    accumulate = opt_prop_def(INTEGER)
    act = opt_prop_def(ActAttr)
    line_mode = opt_prop_def(StringAttr)
    table = opt_prop_def(INTEGER)
    weight_zero_view = opt_prop_def(ViewAttr)
    multiplier_view = opt_prop_def(ViewAttr)
    residual_view = opt_prop_def(ViewAttr)
    in_zero = opt_prop_def(INTEGER)
    out_zero = opt_prop_def(INTEGER)
    scales = opt_prop_def(ScalesAttr)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "`in` $in_ $in_view `weight` $weight $weight_view (`bias` $bias^ `:` type($bias) $bias_view)?"
        " (`acc` $acc^ $acc_view)? `out` $out $out_view"
        " (`weight_zero` $weight_zero^ $weight_zero_view)? (`multiplier` $multiplier^ $multiplier_view)?"
        " (`residual` $residual^ $residual_view)? `box` $box `channels` $channels `rows` $rows"
        " `cols` $cols `kernel` $kernel `strides` $strides `dilations` $dilations (`groups` $groups^)?"
        " (`accumulate` $accumulate^)? (`act` $act^)? (`line_mode` $line_mode^)? (`table` $table^)?"
        " (`in_zero` $in_zero^)? (`out_zero` $out_zero^)? (`scales` $scales^)?" + COMMON
    )

    def __init__(
        self,
        in_: SSAValue | Operation,
        weight: SSAValue | Operation,
        out: SSAValue | Operation,
        bias: SSAValue | Operation | None = None,
        acc: SSAValue | Operation | None = None,
        weight_zero: SSAValue | Operation | None = None,
        multiplier: SSAValue | Operation | None = None,
        residual: SSAValue | Operation | None = None,
        *,
        in_view: View,
        weight_view: View,
        out_view: View,
        bias_view: View | None = None,
        acc_view: View | None = None,
        box: Box,
        channels: Span,
        rows: Span,
        cols: Span,
        kernel: Pair,
        strides: Pair = (1, 1),
        dilations: Pair = (1, 1),
        groups: int = 1,
        accumulate: int | None = None,
        act: Act | None = None,
        line_mode: LineMode = "split",
        table: int | None = None,
        weight_zero_view: View | None = None,
        multiplier_view: View | None = None,
        residual_view: View | None = None,
        in_zero: int = 0,
        out_zero: int = 0,
        scales: Scales | None = None,
        **common: Unpack[CommonFields],
    ) -> None:
        fields = {
            "in_view": in_view,
            "weight_view": weight_view,
            "bias_view": bias_view,
            "acc_view": acc_view,
            "out_view": out_view,
            "box": box,
            "channels": channels,
            "rows": rows,
            "cols": cols,
            "kernel": kernel,
            "strides": strides,
            "dilations": dilations,
            "groups": groups,
            "accumulate": accumulate,
            "act": act,
            "line_mode": None if line_mode == "split" else line_mode,
            "table": table,
            "weight_zero_view": weight_zero_view,
            "multiplier_view": multiplier_view,
            "residual_view": residual_view,
            "in_zero": in_zero or None,
            "out_zero": out_zero or None,
            "scales": scales,
        }
        operands = (in_, weight, bias, acc, out, weight_zero, multiplier, residual)
        self.fill_in(operands, common, fields)

    def check(self) -> None:
        for field in ("kernel", "strides", "dilations"):
            check_pair(self.name, field, getattr(self, field), 1)
        groups, outputs = self.groups.value.data, self.box.data.extent[1]
        if groups < 1 or outputs % groups:
            raise VerifyException(f"'{self.name}': {outputs} output channels in {groups} groups")
        if self.line_mode is not None:
            check_word(self.name, "line_mode", self.line_mode, LINE_MODES)
        if (self.accumulate is not None) != (self.acc is not None):
            raise VerifyException(f"'{self.name}': accumulate and acc come together")
        if self.bias is not None and self.bias.type not in (NRAM, WRAM):
            raise VerifyException(f"'{self.name}': the bias is in nram or wram, found {self.bias.type}")
        if self.in_view.data.element in INTEGER_BITS:
            self.check_integers()
        elif any((self.weight_zero, self.multiplier, self.in_zero, self.out_zero, self.scales)):
            raise VerifyException(f"'{self.name}': zero points, multiplier and scales belong to integers")

    def check_integers(self) -> None:
        """Products of one type, sums of the type that holds them; without multiplier the sums go out."""
        element, out = self.in_view.data.element, self.out_view.data.element
        made = element if self.multiplier is not None else "i32"
        wide = ACCUMULATORS.get(element)
        kinds = (
            ("weight", self.weight_view, element),
            ("bias", self.bias_view, "i32"),
            ("acc", self.acc_view, wide),
            ("weight_zero", self.weight_zero_view, element),
            ("multiplier", self.multiplier_view, "f32"),
            ("out", self.out_view, made),
        )
        for name, view, expected in kinds:
            if view is not None and view.data.element != expected:
                raise VerifyException(
                    f"'{self.name}': {name} of a convolution of {element} has elements of {expected},"
                    f" found {view.data.element}"
                )
        for zero, its in ((self.in_zero, element), (self.out_zero, out)):
            check_zero(self.name, zero.value.data if zero is not None else 0, its)
        if self.residual_view is None:
            return
        if self.multiplier is None:
            raise VerifyException(f"'{self.name}': a residual is added to what a multiplier has made")
        elements = (out, self.residual_view.data.element, out)
        scales = None if self.scales is None else self.scales.data
        check_scales(self.name, scales, elements, needed=True)
