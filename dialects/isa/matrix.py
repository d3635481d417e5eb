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

from frustum.dialects.isa.attributes import NRAM, WRAM, ActAttr, BoxAttr, BufferType, SpanAttr, ViewAttr
from frustum.dialects.isa.instruction import (
    COMMON,
    INTEGER,
    INTEGERS,
    CommonFields,
    Instruction,
    check_pair,
    check_word,
    integer,
)
from frustum.dialects.isa.program import LINE_MODES, Act, Box, Engine, LineMode, Pair, Span, View


@irdl_op_definition
class ConvOp(Instruction):
    """`out = act(in (*) weight + bias)`; with `accumulate`, over the passes of one loop.

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
    )

    in_ = operand_def(eq(NRAM))
    weight = operand_def(eq(WRAM))
    bias = opt_operand_def(BufferType)
    acc = opt_operand_def(eq(NRAM))
    out = operand_def(eq(NRAM))
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

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "`in` $in_ $in_view `weight` $weight $weight_view (`bias` $bias^ `:` type($bias) $bias_view)?"
        " (`acc` $acc^ $acc_view)? `out` $out $out_view `box` $box `channels` $channels `rows` $rows"
        " `cols` $cols `kernel` $kernel `strides` $strides `dilations` $dilations (`groups` $groups^)?"
        " (`accumulate` $accumulate^)? (`act` $act^)? (`line_mode` $line_mode^)?" + COMMON
    )

    def __init__(
        self,
        in_: SSAValue | Operation,
        weight: SSAValue | Operation,
        out: SSAValue | Operation,
        bias: SSAValue | Operation | None = None,
        acc: SSAValue | Operation | None = None,
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
        }
        self.fill_in((in_, weight, bias, acc, out), common, fields)

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
