"""The instructions that move and compute: copies, address tables, the matrix unit, the vector unit; and the dialect.

`program.py` declares their fields; here stand operands, text formats, and what must hold.  The operands of the vector
unit are in NRAM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, get_args

from xdsl.dialects.builtin import IntegerAttr, StringAttr
from xdsl.ir import Dialect, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOption,
    Operand,
    OptOperand,
    eq,
    operand_def,
    opt_operand_def,
    opt_prop_def,
)
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.isa import attributes, sync
from frustum.dialects.isa import program as p
from frustum.dialects.isa.attributes import DRAM, NRAM, WRAM, BufferType
from frustum.dialects.isa.instruction import (
    COMMON,
    INTEGER,
    OPERATIONS,
    Instruction,
    check_at_least,
    check_pair,
    check_scales,
    check_zero,
    operation,
    value_of,
)

LOCAL: tuple[p.Memory, ...] = ("nram", "wram")
ROUTES: dict[p.CopyEngine, frozenset[tuple[p.Memory, p.Memory]]] = {
    "gdma": frozenset({("dram", "sram"), ("sram", "dram")}),
    "iodma": frozenset({("dram", m) for m in LOCAL} | {(m, "dram") for m in LOCAL}),
    "mvdma": frozenset({("sram", m) for m in LOCAL} | {(m, "sram") for m in LOCAL}),
    "bus": frozenset({("sram", m) for m in LOCAL}),
    "cdma": frozenset({("sram", "sram")}),
}
"""The (source, destination) memories each engine connects."""
SLOT_ALIGNMENT_BYTES = 16
"""Slots of compressed blocks are multiples of this."""
SCALES = " (`scales` $scales^)?"
IN_TO_OUT = "$in_ $in_view `->` $out $out_view `box` $box"

# ------------------------------------------------------------------------------------------ transfers


@operation(p.Copy)
class CopyOp(Instruction):
    """Copy a box of elements; with `fill`, positions outside [0, bound) are written with that value.

    With `expand` the source is a slot of that many bytes, and the block in it is expanded into the clipped box.
    """

    WRAPS: ClassVar[bool] = True

    src: Operand = operand_def(BufferType)
    dst: Operand = operand_def(BufferType)

    assembly_format: ClassVar[str] = (
        "custom<Word>($engine) $src $src_view `->` $dst $dst_view `box` $box (`fill` $fill^)?"
        " (`multicast` $multicast^)? (`peer` $peer^)? (`expand` $expand^)?"
        + COMMON
        + " `:` type($src) `->` type($dst)"
    )

    def check(self) -> None:
        engine = self.engine.data
        route = (_memory(self.src), _memory(self.dst))
        if route not in ROUTES[engine]:
            raise VerifyException(f"'{self.name}': {engine} does not copy from {route[0]} to {route[1]}")
        if self.multicast is not None and (engine != "gdma" or route[0] != "dram"):
            raise VerifyException(f"'{self.name}': only a gdma read is multicast")
        if (self.peer is not None) != (engine == "cdma"):
            raise VerifyException(f"'{self.name}': a peer belongs to cdma and only to cdma")
        if self.src_view.data.element != self.dst_view.data.element:
            raise VerifyException(f"'{self.name}': a copy does not convert its elements")
        for name, view in (("src_view", self.src_view.data), ("dst_view", self.dst_view.data)):
            if view.wrap is not None and self.box.data.extent[view.wrap.dim] > view.wrap.size:
                raise VerifyException(
                    f"'{self.name}': {name} wraps around {view.wrap.size} positions of d{view.wrap.dim}, "
                    f"but the box has {self.box.data.extent[view.wrap.dim]}"
                )
        if self.expand is not None:
            self.check_expansion(self.expand.value.data, route)

    def check_expansion(self, slot_bytes: int, route: tuple[p.Memory, p.Memory]) -> None:
        """What `expand` asks of the rest."""
        if route not in {("sram", memory) for memory in LOCAL}:
            raise VerifyException(
                f"'{self.name}': blocks are expanded on the way from sram to nram or wram, "
                f"found {route[0]} to {route[1]}"
            )
        if slot_bytes < SLOT_ALIGNMENT_BYTES or slot_bytes % SLOT_ALIGNMENT_BYTES:
            raise VerifyException(
                f"'{self.name}': a slot is a multiple of {SLOT_ALIGNMENT_BYTES} bytes, found {slot_bytes}"
            )
        if any(self.src_view.data.strides) or self.src_view.data.wrap is not None or self.fill is not None:
            raise VerifyException(
                f"'{self.name}': expand goes with a source without strides and wrap, and without fill"
            )


def _memory(value: SSAValue) -> p.Memory:
    assert isinstance(value.type, BufferType)
    return value.type.memory


# ------------------------------------------------------------------------------------------ the matrix unit


@operation(p.LineBuffer)
class LineBufferOp(Instruction):
    """Sets up the line buffer for the next convolution of the same core.

    All numbers are those of the convolution's largest box; clipped ones derive theirs from the same rule
    (`dialects/isa/line_buffer_plan.py`).  They count along one run of rows, for one input channel and kernel row.
    """

    assembly_format: ClassVar[str] = (
        "custom<Word>($mode) custom<Word>($source) `blocks` $blocks `lines` $lines `shift` $shift `then`"
        " $second_shift `at` $boundary (`padding` $padding^)? (`discard` $discard^)?" + COMMON
    )

    def check(self) -> None:
        for field in ("blocks", "lines", "shift", "second_shift", "boundary"):
            check_at_least(self, field, 1)
        if self.second_shift.value.data > self.shift.value.data:
            raise VerifyException(
                f"'{self.name}': the second shift is at most the shift {self.shift.value.data}, "
                f"found {self.second_shift.value.data}"
            )
        padding = value_of(self.padding)
        if len(padding) != 4 or min(padding) < 0:
            raise VerifyException(
                f"'{self.name}': padding is [top, left, bottom, right], each at least 0, found {list(padding)}"
            )
        if self.discard is not None:
            self._check_discard(value_of(self.discard))

    def _check_discard(self, values: tuple[int, ...]) -> None:
        if self.mode.data == "split":
            raise VerifyException(f"'{self.name}': split writes discard no windows, found {list(values)}")
        if len(values) != 3 or values[0] < 1 or values[2] < 1 or values[0] + values[2] != values[1]:
            raise VerifyException(
                f"'{self.name}': discard is [first, period, count], the last of each period, found {list(values)}"
            )


@operation(p.Conv)
class ConvOp(Instruction):
    """`out = act(in (*) weight + bias + residual)`; with `accumulate`, over the passes of one loop,
    which begin with what is in `acc` where it `continues`: without a loop its one pass does.

    Of integers the accumulators are `(in - in_zero) (*) (weight - weight_zero) + bias`; with a multiplier `out` is
    `saturate(rint(acc * multiplier) + out_zero)`, then `act`; without one the sums go out, as i32, or as floats after
    `act`.  A residual of integers is added in real numbers (the
    scales of what it is added to, its own, of the result), and `act` is then applied to these.

    The box is over the output (n, co, h, w); `rows` and `cols` start at the input position of the first window
    element of the box's nominal start.
    """

    in_: Operand = operand_def(eq(NRAM))
    weight: Operand = operand_def(eq(WRAM))
    bias: OptOperand = opt_operand_def(BufferType)
    acc: OptOperand = opt_operand_def(eq(NRAM))
    out: Operand = operand_def(eq(NRAM))
    weight_zero: OptOperand = opt_operand_def(eq(WRAM))
    multiplier: OptOperand = opt_operand_def(eq(WRAM))
    residual: OptOperand = opt_operand_def(eq(NRAM))
    line_mode: StringAttr | None = opt_prop_def(StringAttr)
    in_zero: IntegerAttr | None = opt_prop_def(INTEGER)
    out_zero: IntegerAttr | None = opt_prop_def(INTEGER)

    irdl_options: tuple[IRDLOption, ...] = (AttrSizedOperandSegments(as_property=True),)
    assembly_format: ClassVar[str] = (
        "`in` $in_ $in_view `weight` $weight $weight_view (`bias` $bias^ `:` type($bias) $bias_view)?"
        " (`acc` $acc^ $acc_view)? `out` $out $out_view"
        " (`weight_zero` $weight_zero^ $weight_zero_view)? (`multiplier` $multiplier^ $multiplier_view)?"
        " (`residual` $residual^ $residual_view)? `box` $box `channels` $channels `rows` $rows"
        " `cols` $cols `kernel` $kernel `strides` $strides `dilations` $dilations (`groups` $groups^)?"
        " (`accumulate` $accumulate^)? (`continues` $continues^)? (`act` $act^)? (`line_mode` $line_mode^)?"
        " (`table` $table^)? (`in_zero` $in_zero^)? (`out_zero` $out_zero^)?" + SCALES + COMMON
    )

    def check(self) -> None:
        for field in ("kernel", "strides", "dilations"):
            check_pair(self, field, 1)
        groups, outputs = self.groups.value.data, self.box.data.extent[1]
        if groups < 1 or outputs % groups:
            raise VerifyException(f"'{self.name}': {outputs} output channels in {groups} groups")
        if self.continues is not None and self.acc is None:
            raise VerifyException(f"'{self.name}': what continues has an acc to continue from")
        if (self.accumulate is not None or self.continues is not None) != (self.acc is not None):
            raise VerifyException(f"'{self.name}': accumulate and acc come together, if it does not continue")
        check_convolution(self)


def check_convolution(op: ConvOp | DepthwiseOp) -> None:
    """Where the bias is, and what must hold of integers."""
    if op.bias is not None and op.bias.type not in (NRAM, WRAM):
        raise VerifyException(f"'{op.name}': the bias is in nram or wram, found {op.bias.type}")
    if op.in_view.data.element in p.INTEGER_BITS:
        check_integers(op)
    elif any((op.weight_zero, op.multiplier, op.in_zero, op.out_zero, op.scales)):
        raise VerifyException(f"'{op.name}': zero points, multiplier and scales belong to integers")


def check_integers(op: ConvOp | DepthwiseOp) -> None:
    """Products of one type, sums of the type that holds them; without multiplier the sums go out, perhaps as floats."""
    element, out = op.in_view.data.element, op.out_view.data.element
    expected = {
        "weight": element,
        "bias": "i32",
        "acc": p.ACCUMULATORS.get(element),
        "weight_zero": element,
        "multiplier": "f32",
        "out": element if op.multiplier is not None else "i32" if out in p.INTEGER_BITS else out,
    }
    for name, of_type in expected.items():
        view = getattr(op, f"{name}_view", None)
        if view is not None and view.data.element != of_type:
            raise VerifyException(
                f"'{op.name}': {name} of a convolution of {element} has elements of {of_type},"
                f" found {view.data.element}"
            )
    for zero, its in ((op.in_zero, element), (op.out_zero, out)):
        check_zero(op.name, zero.value.data if zero is not None else 0, its)
    if op.residual_view is None:
        return
    if op.multiplier is None:
        raise VerifyException(f"'{op.name}': a residual is added to what a multiplier has made")
    check_scales(op, (out, op.residual_view.data.element, out))


@operation(p.TableLoad)
class TableOp(Instruction):
    """Bring an address table into an entry of all cores' address caches, which give up the entries it evicts.

    The tables tell the matrix unit where its operands are (`tables/address_table.py`).
    """

    src: Operand = operand_def(eq(DRAM))

    assembly_format: ClassVar[str] = "$src $src_view `bytes` $bytes `entry` $entry (`evicts` $evicts^)?" + COMMON

    def check(self) -> None:
        if self.bytes.value.data < 1:
            raise VerifyException(f"'{self.name}': a table has bytes, found {self.bytes.value.data}")
        evicts = () if self.evicts is None else value_of(self.evicts)
        for entry in (self.entry.value.data, *evicts):
            if not 0 <= entry < p.TABLE_ENTRIES:
                raise VerifyException(f"'{self.name}': an entry is in [0, {p.TABLE_ENTRIES}), found {entry}")


# ------------------------------------------------------------------------------------------ the vector unit


class Mapping(Instruction):
    """One operand in, one out."""

    in_: Operand = operand_def(eq(NRAM))
    out: Operand = operand_def(eq(NRAM))

    def check(self) -> None:
        self.check_scales()

    def check_scales(self, *, needed: bool = True) -> None:
        check_scales(self, (self.in_view.data.element, self.out_view.data.element), needed=needed)


@operation(p.Pool)
class PoolOp(Mapping):
    """Maximum or average of windows; the box is over the output."""

    assembly_format: ClassVar[str] = (
        "custom<Word>($kind) "
        + IN_TO_OUT
        + " `rows` $rows `cols` $cols `kernel` $kernel `strides` $strides `dilations` $dilations"
        " (`include_pad` $include_pad^)? (`pad_low` $pad_low^)? (`pad_high` $pad_high^)? (`act` $act^)?"
        + SCALES
        + COMMON
    )

    def check(self) -> None:
        for field in ("kernel", "strides", "dilations"):
            check_pair(self, field, 1)
        for field in ("pad_low", "pad_high"):
            check_pair(self, field, 0)
        self.check_scales(needed=self.kind.data == "avg" or self.act is not None)


@operation(p.Depthwise)
class DepthwiseOp(Instruction):
    """`out = act(in (*) weight + bias + residual)`, each channel by itself; the kernels are in WRAM.

    Of integers the numbers are those of a convolution (`fisa.conv`); the box is over the output, and `rows` and `cols`
    start at the input position of the first window element of its nominal start.
    """

    in_: Operand = operand_def(eq(NRAM))
    weight: Operand = operand_def(eq(WRAM))
    bias: OptOperand = opt_operand_def(BufferType)
    out: Operand = operand_def(eq(NRAM))
    weight_zero: OptOperand = opt_operand_def(eq(WRAM))
    multiplier: OptOperand = opt_operand_def(eq(WRAM))
    residual: OptOperand = opt_operand_def(eq(NRAM))
    in_zero: IntegerAttr | None = opt_prop_def(INTEGER)
    out_zero: IntegerAttr | None = opt_prop_def(INTEGER)

    irdl_options: tuple[IRDLOption, ...] = (AttrSizedOperandSegments(as_property=True),)
    assembly_format: ClassVar[str] = (
        "`in` $in_ $in_view `weight` $weight $weight_view (`bias` $bias^ `:` type($bias) $bias_view)?"
        " `out` $out $out_view (`weight_zero` $weight_zero^ $weight_zero_view)?"
        " (`multiplier` $multiplier^ $multiplier_view)? (`residual` $residual^ $residual_view)? `box` $box"
        " `rows` $rows `cols` $cols `kernel` $kernel `strides` $strides `dilations` $dilations (`act` $act^)?"
        " (`in_zero` $in_zero^)? (`out_zero` $out_zero^)?" + SCALES + COMMON
    )

    def check(self) -> None:
        for field in ("kernel", "strides", "dilations"):
            check_pair(self, field, 1)
        check_convolution(self)


@operation(p.Unary)
class UnaryOp(Mapping):
    """A function of each element."""

    assembly_format: ClassVar[str] = (
        "custom<Word>($kind) " + IN_TO_OUT + " (`alpha` $alpha^)? (`beta` $beta^)?" + SCALES + COMMON
    )


@operation(p.Binary)
class BinaryOp(Instruction):
    """A function of two elements; views with stride 0 broadcast."""

    a: Operand = operand_def(eq(NRAM))
    b: Operand = operand_def(eq(NRAM))
    out: Operand = operand_def(eq(NRAM))

    assembly_format: ClassVar[str] = (
        "custom<Word>($kind) $a $a_view `,` $b $b_view `->` $out $out_view `box` $box (`act` $act^)?"
        + SCALES
        + COMMON
    )

    def check(self) -> None:
        check_scales(self, [view.data.element for view in (self.a_view, self.b_view, self.out_view)])


@operation(p.Softmax)
class SoftmaxOp(Mapping):
    """Softmax along one dimension of the box."""

    assembly_format: ClassVar[str] = IN_TO_OUT + " `axis` $axis" + SCALES + COMMON

    def check(self) -> None:
        check_axes(self.name, (self.axis.value.data,))
        self.check_scales()


@operation(p.Hide)
class HideOp(Mapping):
    """-inf at positions of the map whose d1 is more than `ahead` beyond their d3, elsewhere the operand: scores of keys
    that come after a row of queries."""

    assembly_format: ClassVar[str] = IN_TO_OUT + " `ahead` $ahead" + COMMON

    def check(self) -> None:
        elements = self.in_view.data.element, self.out_view.data.element
        if any(element in p.INTEGER_BITS for element in elements):
            raise VerifyException(f"'{self.name}': integers have no infinity, found {', '.join(elements)}")


@operation(p.Normalise)
class NormaliseOp(Instruction):
    """Elements less their mean, divided by their deviation, over axes of the box and groups of channels."""

    in_: Operand = operand_def(eq(NRAM))
    scale: OptOperand = opt_operand_def(eq(NRAM))
    shift: OptOperand = opt_operand_def(eq(NRAM))
    out: Operand = operand_def(eq(NRAM))

    irdl_options: tuple[IRDLOption, ...] = (AttrSizedOperandSegments(as_property=True),)
    assembly_format: ClassVar[str] = (
        "`in` $in_ $in_view (`scale` $scale^ $scale_view)? (`shift` $shift^ $shift_view)? `out` $out $out_view "
        "`box` $box `axes` $axes (`group` $group^)? (`rms` $rms^)? `epsilon` custom<Real>($epsilon) (`act` $act^)?"
        + COMMON
    )

    def check(self) -> None:
        group = 0 if self.group is None else self.group.value.data
        if not group or value_of(self.axes):
            check_axes(self.name, value_of(self.axes))
        views = (self.in_view, self.scale_view, self.shift_view, self.out_view)
        elements = [view.data.element for view in views if view is not None]
        if any(element in p.INTEGER_BITS for element in elements):
            raise VerifyException(f"'{self.name}': only floats are normalised, found {', '.join(elements)}")
        if group and (1 in value_of(self.axes) or self.box.data.extent[1] % group):
            raise VerifyException(f"'{self.name}': the box has whole groups of {group} channels")


@operation(p.Reduce)
class ReduceOp(Mapping):
    """Mean, sum, maximum or minimum over axes of the box, which is over the input."""

    assembly_format: ClassVar[str] = (
        "custom<Word>($kind) "
        + IN_TO_OUT
        + " `axes` $axes (`scale` $scale^)? (`accumulate` $accumulate^)?"
        + SCALES
        + COMMON
    )

    def check(self) -> None:
        self.check_scales()
        axes = value_of(self.axes)
        check_axes(self.name, axes)
        if any(self.out_view.data.strides[axis] for axis in axes):
            raise VerifyException(f"'{self.name}': the output's stride is 0 on every reduced axis")


@operation(p.Lrn)
class LrnOp(Mapping):
    """Local response normalisation across channels; the box is over the output."""

    assembly_format: ClassVar[str] = (
        IN_TO_OUT
        + " `channels` $channels `size` $size `alpha` custom<Real>($alpha) `beta` custom<Real>($beta)"
        " `bias` custom<Real>($bias)" + SCALES + COMMON
    )

    def check(self) -> None:
        check_at_least(self, "size", 1)
        self.check_scales()


@operation(p.Resize)
class ResizeOp(Mapping):
    """Resampling of rows and columns; input position of output index o is `o * scale + offset`."""

    assembly_format: ClassVar[str] = (
        "custom<Word>($mode) custom<Word>($rounding) "
        + IN_TO_OUT
        + " `rows` $rows `cols` $cols `scale` $scale `offset` $offset"
        + SCALES
        + COMMON
    )

    def check(self) -> None:
        self.check_scales(needed=self.mode.data == "linear")
        for field in ("scale", "offset"):
            values = value_of(getattr(self, field))
            if len(values) != 2:
                raise VerifyException(f"'{self.name}': {field} is [h, w], found {len(values)} numbers")


def check_axes(name: str, axes: Sequence[int]) -> None:
    if not axes or any(not 0 <= axis < p.DIMENSIONS for axis in axes) or len(set(axes)) < len(axes):
        raise VerifyException(f"'{name}': axes are different dimensions 0 to 3, found {list(axes)}")


INSTRUCTIONS = [OPERATIONS[plain] for plain in get_args(p.Instruction)]
FIsa: Dialect = Dialect("fisa", [*sync.STRUCTURE, *INSTRUCTIONS], attributes.ALL)
