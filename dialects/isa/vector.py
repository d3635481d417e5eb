"""The vector unit: pooling, element by element, softmax, reduction, LRN, resize.  All operands are in NRAM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Unpack

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import eq, irdl_op_definition, operand_def, opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.isa.attributes import (
    NRAM,
    ActAttr,
    BoxAttr,
    RealAttr,
    RealsAttr,
    ScalesAttr,
    SpanAttr,
    ViewAttr,
)
from frustum.dialects.isa.instruction import (
    COMMON,
    INTEGER,
    INTEGERS,
    CommonFields,
    Instruction,
    Real,
    Word,
    check_pair,
    check_scales,
    check_word,
    integers,
)
from frustum.dialects.isa.program import (
    BINARY_KINDS,
    POOL_KINDS,
    REDUCE_KINDS,
    RESIZE_MODES,
    ROUNDINGS,
    UNARY_KINDS,
    Act,
    BinaryKind,
    Box,
    Engine,
    Pair,
    PoolKind,
    ReduceKind,
    ResizeMode,
    Rounding,
    Scales,
    Span,
    UnaryKind,
    View,
)

DIMENSIONS = 4
SCALES = " (`scales` $scales^)?"
IN_TO_OUT = "$in_ $in_view `->` $out $out_view `box` $box"


class Mapping(Instruction):
    """One operand in, one out."""

    ENGINE: ClassVar[Engine | None] = "vector"
    VIEWS: ClassVar = (("in_", "in_view"), ("out", "out_view"))

    in_ = operand_def(eq(NRAM))
    out = operand_def(eq(NRAM))
    in_view = prop_def(ViewAttr)
    out_view = prop_def(ViewAttr)
    box = prop_def(BoxAttr)
    scales = opt_prop_def(ScalesAttr)

    def check_scales(self, *, needed: bool = True) -> None:
        scales = None if self.scales is None else self.scales.data
        elements = (self.in_view.data.element, self.out_view.data.element)
        check_scales(self.name, scales, elements, needed=needed)


@irdl_op_definition
class PoolOp(Mapping):
    """Maximum or average of windows; the box is over the output."""

    name = "fisa.pool"

    kind = prop_def(StringAttr)
    rows = prop_def(SpanAttr)
    cols = prop_def(SpanAttr)
    kernel = prop_def(INTEGERS)
    strides = prop_def(INTEGERS)
    dilations = prop_def(INTEGERS)
    include_pad = opt_prop_def(UnitAttr)
    pad_low = prop_def(INTEGERS, default_value=integers((0, 0)))
    pad_high = prop_def(INTEGERS, default_value=integers((0, 0)))
    act = opt_prop_def(ActAttr)

    custom_directives = (Word,)
    assembly_format = (
        "custom<Word>($kind) "
        + IN_TO_OUT
        + " `rows` $rows `cols` $cols `kernel` $kernel `strides` $strides `dilations` $dilations"
        " (`include_pad` $include_pad^)? (`pad_low` $pad_low^)? (`pad_high` $pad_high^)? (`act` $act^)?"
        + SCALES
        + COMMON
    )

    def __init__(
        self,
        kind: PoolKind,
        in_: SSAValue | Operation,
        out: SSAValue | Operation,
        *,
        in_view: View,
        out_view: View,
        box: Box,
        rows: Span,
        cols: Span,
        kernel: Pair,
        strides: Pair = (1, 1),
        dilations: Pair = (1, 1),
        include_pad: bool = False,
        pad_low: Pair = (0, 0),
        pad_high: Pair = (0, 0),
        act: Act | None = None,
        scales: Scales | None = None,
        **common: Unpack[CommonFields],
    ) -> None:
        fields = {
            "kind": kind,
            "in_view": in_view,
            "out_view": out_view,
            "box": box,
            "rows": rows,
            "cols": cols,
            "kernel": kernel,
            "strides": strides,
            "dilations": dilations,
            "include_pad": include_pad,
            "pad_low": pad_low,
            "pad_high": pad_high,
            "act": act,
            "scales": scales,
        }
        self.fill_in((in_, out), common, fields)

    def check(self) -> None:
        check_word(self.name, "kind", self.kind, POOL_KINDS)
        for field in ("kernel", "strides", "dilations"):
            check_pair(self.name, field, getattr(self, field), 1)
        for field in ("pad_low", "pad_high"):
            check_pair(self.name, field, getattr(self, field), 0)
        self.check_scales(needed=self.kind.data == "avg" or self.act is not None)


@irdl_op_definition
class UnaryOp(Mapping):
    """A function of each element."""

    name = "fisa.unary"

    kind = prop_def(StringAttr)
    alpha = prop_def(RealAttr, default_value=RealAttr(0.0))
    beta = prop_def(RealAttr, default_value=RealAttr(0.0))

    custom_directives = (Word,)
    assembly_format = (
        "custom<Word>($kind) " + IN_TO_OUT + " (`alpha` $alpha^)? (`beta` $beta^)?" + SCALES + COMMON
    )

    def __init__(
        self,
        kind: UnaryKind,
        in_: SSAValue | Operation,
        out: SSAValue | Operation,
        *,
        in_view: View,
        out_view: View,
        box: Box,
        alpha: float = 0.0,
        beta: float = 0.0,
        scales: Scales | None = None,
        **common: Unpack[CommonFields],
    ) -> None:
        fields = {
            "kind": kind,
            "in_view": in_view,
            "out_view": out_view,
            "box": box,
            "alpha": float(alpha),
            "beta": float(beta),
            "scales": scales,
        }
        self.fill_in((in_, out), common, fields)

    def check(self) -> None:
        check_word(self.name, "kind", self.kind, UNARY_KINDS)
        self.check_scales()


@irdl_op_definition
class BinaryOp(Instruction):
    """A function of two elements; views with stride 0 broadcast."""

    name = "fisa.binary"
    ENGINE: ClassVar[Engine | None] = "vector"
    VIEWS: ClassVar = (("a", "a_view"), ("b", "b_view"), ("out", "out_view"))

    kind = prop_def(StringAttr)
    a = operand_def(eq(NRAM))
    b = operand_def(eq(NRAM))
    out = operand_def(eq(NRAM))
    a_view = prop_def(ViewAttr)
    b_view = prop_def(ViewAttr)
    out_view = prop_def(ViewAttr)
    box = prop_def(BoxAttr)
    act = opt_prop_def(ActAttr)
    scales = opt_prop_def(ScalesAttr)

    custom_directives = (Word,)
    assembly_format = (
        "custom<Word>($kind) $a $a_view `,` $b $b_view `->` $out $out_view `box` $box (`act` $act^)?"
        + SCALES
        + COMMON
    )

    def __init__(
        self,
        kind: BinaryKind,
        a: SSAValue | Operation,
        b: SSAValue | Operation,
        out: SSAValue | Operation,
        *,
        a_view: View,
        b_view: View,
        out_view: View,
        box: Box,
        act: Act | None = None,
        scales: Scales | None = None,
        **common: Unpack[CommonFields],
    ) -> None:
        fields = {
            "kind": kind,
            "a_view": a_view,
            "b_view": b_view,
            "out_view": out_view,
            "box": box,
            "act": act,
            "scales": scales,
        }
        self.fill_in((a, b, out), common, fields)

    def check(self) -> None:
        check_word(self.name, "kind", self.kind, BINARY_KINDS)
        scales = None if self.scales is None else self.scales.data
        elements = [view.data.element for view in (self.a_view, self.b_view, self.out_view)]
        check_scales(self.name, scales, elements, needed=True)


@irdl_op_definition
class SoftmaxOp(Mapping):
    """Softmax along one dimension of the box."""

    name = "fisa.softmax"

    axis = prop_def(INTEGER)

    assembly_format = IN_TO_OUT + " `axis` $axis" + SCALES + COMMON

    def __init__(
        self,
        in_: SSAValue | Operation,
        out: SSAValue | Operation,
        *,
        in_view: View,
        out_view: View,
        box: Box,
        axis: int,
        scales: Scales | None = None,
        **common: Unpack[CommonFields],
    ) -> None:
        fields = {"in_view": in_view, "out_view": out_view, "box": box, "axis": axis, "scales": scales}
        self.fill_in((in_, out), common, fields)

    def check(self) -> None:
        check_axes(self.name, (self.axis.value.data,))
        self.check_scales()


@irdl_op_definition
class ReduceOp(Mapping):
    """Mean, sum, maximum or minimum over axes of the box, which is over the input."""

    name = "fisa.reduce"

    kind = prop_def(StringAttr)
    axes = prop_def(INTEGERS)
    scale = prop_def(RealAttr, default_value=RealAttr(1.0))
    accumulate = opt_prop_def(INTEGER)

    custom_directives = (Word,)
    assembly_format = (
        "custom<Word>($kind) "
        + IN_TO_OUT
        + " `axes` $axes (`scale` $scale^)? (`accumulate` $accumulate^)?"
        + SCALES
        + COMMON
    )

    def __init__(
        self,
        kind: ReduceKind,
        in_: SSAValue | Operation,
        out: SSAValue | Operation,
        *,
        in_view: View,
        out_view: View,
        box: Box,
        axes: tuple[int, ...],
        scale: float = 1.0,
        accumulate: int | None = None,
        scales: Scales | None = None,
        **common: Unpack[CommonFields],
    ) -> None:
        fields = {
            "kind": kind,
            "in_view": in_view,
            "out_view": out_view,
            "box": box,
            "axes": axes,
            "scale": float(scale),
            "accumulate": accumulate,
            "scales": scales,
        }
        self.fill_in((in_, out), common, fields)

    def check(self) -> None:
        check_word(self.name, "kind", self.kind, REDUCE_KINDS)
        self.check_scales()
        check_axes(self.name, self.axes.get_values())
        strides = self.out_view.data.strides
        if any(strides[axis] for axis in self.axes.get_values()):
            raise VerifyException(f"'{self.name}': the output's stride is 0 on every reduced axis")


@irdl_op_definition
class LrnOp(Mapping):
    """Local response normalisation across channels; the box is over the output."""

    name = "fisa.lrn"

    channels = prop_def(SpanAttr)
    size = prop_def(INTEGER)
    alpha = prop_def(RealAttr)
    beta = prop_def(RealAttr)
    bias = prop_def(RealAttr)

    custom_directives = (Real,)
    assembly_format = (
        IN_TO_OUT
        + " `channels` $channels `size` $size `alpha` custom<Real>($alpha) `beta` custom<Real>($beta)"
        " `bias` custom<Real>($bias)" + SCALES + COMMON
    )

    def __init__(
        self,
        in_: SSAValue | Operation,
        out: SSAValue | Operation,
        *,
        in_view: View,
        out_view: View,
        box: Box,
        channels: Span,
        size: int,
        alpha: float,
        beta: float,
        bias: float,
        scales: Scales | None = None,
        **common: Unpack[CommonFields],
    ) -> None:
        fields = {
            "in_view": in_view,
            "out_view": out_view,
            "box": box,
            "channels": channels,
            "size": size,
            "alpha": float(alpha),
            "beta": float(beta),
            "bias": float(bias),
            "scales": scales,
        }
        self.fill_in((in_, out), common, fields)

    def check(self) -> None:
        if self.size.value.data < 1:
            raise VerifyException(f"'{self.name}': size is at least 1, found {self.size.value.data}")
        self.check_scales()


@irdl_op_definition
class ResizeOp(Mapping):
    """Resampling of rows and columns; input position of output index o is `o * scale + offset`."""

    name = "fisa.resize"

    mode = prop_def(StringAttr)
    rounding = prop_def(StringAttr)
    rows = prop_def(SpanAttr)
    cols = prop_def(SpanAttr)
    scale = prop_def(RealsAttr)
    offset = prop_def(RealsAttr)

    custom_directives = (Word,)
    assembly_format = (
        "custom<Word>($mode) custom<Word>($rounding) "
        + IN_TO_OUT
        + " `rows` $rows `cols` $cols `scale` $scale `offset` $offset"
        + SCALES
        + COMMON
    )

    def __init__(
        self,
        mode: ResizeMode,
        rounding: Rounding,
        in_: SSAValue | Operation,
        out: SSAValue | Operation,
        *,
        in_view: View,
        out_view: View,
        box: Box,
        rows: Span,
        cols: Span,
        scale: tuple[float, float],
        offset: tuple[float, float],
        scales: Scales | None = None,
        **common: Unpack[CommonFields],
    ) -> None:
        fields = {
            "mode": mode,
            "rounding": rounding,
            "in_view": in_view,
            "out_view": out_view,
            "box": box,
            "rows": rows,
            "cols": cols,
            "scale": (float(scale[0]), float(scale[1])),
            "offset": (float(offset[0]), float(offset[1])),
            "scales": scales,
        }
        self.fill_in((in_, out), common, fields)

    def check(self) -> None:
        check_word(self.name, "mode", self.mode, RESIZE_MODES)
        check_word(self.name, "rounding", self.rounding, ROUNDINGS)
        self.check_scales(needed=self.mode.data == "linear")
        for field in ("scale", "offset"):
            values = self.scale.data if field == "scale" else self.offset.data
            if len(values) != 2:
                raise VerifyException(f"'{self.name}': {field} is [h, w], found {len(values)} numbers")


def check_axes(name: str, axes: Sequence[int]) -> None:
    if not axes or any(not 0 <= axis < DIMENSIONS for axis in axes) or len(set(axes)) < len(axes):
        raise VerifyException(f"'{name}': axes are different dimensions 0 to 3, found {list(axes)}")
