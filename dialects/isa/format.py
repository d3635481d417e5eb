"""Bit fields of every instruction, declared once: they give the encoder, the decoder and the documentation.

A word has 32 bits, an instruction 1 to 16 words, fields fill words from the lowest bit up.  A field does not cross
words; one of 64 bits takes two whole words.  Every instruction begins with `opcode` and `length` (words - 1).

* Set-up instructions (`affine`, views, spans, `act`, `scale`) define a register, by value: what they take from other
  registers is read where they stand, not where the new register is used.  They have no stage, wait for nothing and
  run in every pass of their loop.  Registers are undefined where a page begins.
* All others have engine, stage and signal in the first word and up to two waits, one word each, at the end.
  More waits take `wait` instructions before it.  `repeat` gives the length of its body, which follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from frustum.dialects.isa.fields import (
    REGISTER_BITS,
    BoxOf,
    FieldError,
    Flag,
    Kind,
    Mask,
    Maybe,
    Numbers,
    OneOf,
    Real,
    Record,
    Register,
    Several,
    Signed,
    Unsigned,
    Values,
)
from frustum.dialects.isa.program import (
    BINARY_KINDS,
    ELEMENTS,
    ENGINES,
    LINE_MODES,
    LINE_SOURCES,
    MAX_LOOPS,
    MEMORIES,
    POOL_KINDS,
    REDUCE_KINDS,
    RESIZE_MODES,
    ROUNDINGS,
    RUN_MODES,
    SCOPES,
    TABLE_ENTRIES,
    UNARY_KINDS,
    Barrier,
    Binary,
    Conv,
    Copy,
    Fetch,
    Hold,
    LineBuffer,
    Lrn,
    Pool,
    Reduce,
    Resize,
    Ring,
    Softmax,
    TableLoad,
    Unary,
    Wait,
    Wrap,
)

WORD_BITS = 32
WORD_BYTES = WORD_BITS // 8
MAX_WORDS = 16
OPCODE_BITS = 5
LENGTH_BITS = 4
WAITS_INSIDE = 2
SLOT = Unsigned(11)
STAGE = Unsigned(6)
AFFINE, VIEW, SPAN = Register("affine"), Register("view"), Register("span")
ACT, SCALE = Maybe(Register("act")), Register("scale")
LEVEL = Maybe(Unsigned(3))
ENTRY = Unsigned(6)
PAIR = Several(2, Unsigned(16))
ZERO_POINT = Signed(16)
SCALES = Maybe(Several(2, SCALE))
"""Of the operand, of the result."""


@dataclass(frozen=True)
class Placed:
    """A field and where its numbers lie, counted in bits from the start of the instruction."""

    name: str
    kind: Kind
    shifts: tuple[int, ...]
    masks: tuple[int, ...]


class Format:
    """An instruction's opcode and fields; `type` is its class in `program.py`, if it is one of those."""

    def __init__(self, opcode: int, name: str, type_: type | None, head: dict[str, Kind], **body: Kind) -> None:
        self.opcode, self.name, self.type = opcode, name, type_
        start: dict[str, Kind] = {"opcode": Unsigned(OPCODE_BITS), "length": Unsigned(LENGTH_BITS), **head}
        placed, head_bits = _place(start, 0)
        assert head_bits <= WORD_BITS, f"{name}: the first word has {head_bits} bits"
        more, bits = _place(body, WORD_BITS)
        self.head = placed[2:]
        self.body = more
        self.words = -(-bits // WORD_BITS)
        assert self.words + WAITS_INSIDE <= MAX_WORDS, f"{name}: {self.words} words"

    def pack(self, values: dict[str, Any], body: Any, registers: Numbers, length: int) -> int:
        """The instruction's words as one number: `values` for the first word, attributes of `body` for the rest."""
        total = self.opcode | length - 1 << OPCODE_BITS
        for field in self.head:
            total |= pack_field(field, values[field.name], registers)
        for field in self.body:
            total |= pack_field(field, getattr(body, field.name), registers)
        return total

    def unpack_head(self, total: int, registers: Values) -> dict[str, Any]:
        return {field.name: unpack_field(field, total, registers) for field in self.head}

    def unpack_body(self, total: int, registers: Values) -> dict[str, Any]:
        return {field.name: unpack_field(field, total, registers) for field in self.body}


def _place(fields: dict[str, Kind], position: int) -> tuple[tuple[Placed, ...], int]:
    """Give each field its bits from `position` on; the position after them."""
    placed = []
    for name, kind in fields.items():
        shifts = []
        for width in kind.widths:
            if position % WORD_BITS + width > WORD_BITS:
                position += -position % WORD_BITS
            shifts.append(position)
            position += width
        masks = tuple((1 << width) - 1 for width in kind.widths)
        placed.append(Placed(name, kind, tuple(shifts), masks))
    return tuple(placed), position


def pack_field(field: Placed, value: Any, registers: Numbers) -> int:
    try:
        numbers = field.kind.write(value, registers)
    except FieldError as error:
        raise error.inside(field.name) from None
    if len(numbers) == 1:
        return numbers[0] << field.shifts[0]
    total = 0
    for number, shift in zip(numbers, field.shifts, strict=True):
        total |= number << shift
    return total


def unpack_field(field: Placed, total: int, registers: Values) -> Any:
    bits = [total >> shift & mask for shift, mask in zip(field.shifts, field.masks, strict=True)]
    try:
        return field.kind.read(iter(bits), registers)
    except FieldError as error:
        raise error.inside(field.name) from None


# ------------------------------------------------------------------------------------------ set-up

_REGISTER: dict[str, Kind] = {"register": Unsigned(REGISTER_BITS)}
_VIEW: dict[str, Kind] = {"element": OneOf(ELEMENTS), "memory": OneOf(MEMORIES), "offset": AFFINE}
_SPAN: dict[str, Kind] = {**_REGISTER, "start": AFFINE}
_NARROW: dict[str, Kind] = {"extent": Unsigned(16), "bound": Unsigned(16)}
_WIDE: dict[str, Kind] = {"extent": Unsigned(32), "bound": Unsigned(32)}
STRIDES = Several(4, Signed(32))
COEFFICIENT = Signed(32)
WIDE = Signed(64)
TERMS = MAX_LOOPS + 2
"""Coefficients an affine may have: one per loop, then cluster, then core."""

AFFINE_FORMAT = Format(1, "affine", None, {**_REGISTER, "terms": Mask(TERMS), "wide": Flag()})
"""The base (two words if `wide`) and one word for each coefficient present follow."""
VIEW_FORMAT = Format(2, "view", None, {**_REGISTER, **_VIEW}, strides=STRIDES)
RING_VIEW_FORMAT = Format(
    3,
    "ring_view",
    None,
    {**_REGISTER, **_VIEW},
    strides=STRIDES,
    ring=Record(Ring, depth=Unsigned(16), level=Unsigned(3), bytes=Unsigned(32)),
)
WRAPPED_VIEW_FORMAT = Format(
    7,
    "wrapped_view",
    None,
    {**_REGISTER, **_VIEW},
    strides=STRIDES,
    wrap=Record(Wrap, dim=Unsigned(2), phase=AFFINE, size=Unsigned(32)),
)
SPAN_FORMATS = {
    (False, False): Format(4, "span", None, _SPAN, **_NARROW),
    (False, True): Format(5, "limited_span", None, _SPAN, **_NARROW, limit=AFFINE),
    (True, False): Format(20, "wide_span", None, _SPAN, **_WIDE),
    (True, True): Format(21, "wide_limited_span", None, _SPAN, **_WIDE, limit=AFFINE),
}
"""By (extent or bound needs more than 16 bits, limit is present)."""
ACT_FORMAT = Format(
    24, "act", None, {**_REGISTER, "kind": OneOf(UNARY_KINDS)}, alpha=Real(), beta=Real()
)
SCALE_FORMAT = Format(25, "scale", None, _REGISTER, zero=Signed(32), scale=Real())
REPEAT_FORMAT = Format(6, "repeat", None, {"stage": STAGE}, count=Unsigned(32), body_words=Unsigned(32))

# ------------------------------------------------------------------------------------------ instructions

_COMMON: dict[str, Kind] = {
    "engine": OneOf(ENGINES),
    "stage": STAGE,
    "waits": Unsigned(2),
    "signal": Maybe(SLOT),
}
WAIT = Record(Wait, slot=SLOT, scope=OneOf(SCOPES), value=AFFINE)
(WAIT_FIELD,), _ = _place({"wait": WAIT}, 0)

INSTRUCTION_FORMATS = (
    Format(
        8,
        "copy",
        Copy,
        _COMMON,
        src_view=VIEW,
        dst_view=VIEW,
        multicast=Flag(),
        peer=Maybe(AFFINE),
        box=BoxOf(),
        expand=Maybe(Unsigned(30)),
        fill=Maybe(Real()),
    ),
    Format(
        9,
        "conv",
        Conv,
        _COMMON,
        in_view=VIEW,
        weight_view=VIEW,
        out_view=VIEW,
        channels=SPAN,
        box=BoxOf(),
        rows=SPAN,
        cols=SPAN,
        bias_view=Maybe(VIEW),
        acc_view=Maybe(VIEW),
        line_mode=OneOf(LINE_MODES),
        accumulate=LEVEL,
        groups=Unsigned(16),
        kernel=PAIR,
        strides=PAIR,
        dilations=PAIR,
        act=ACT,
        table=Maybe(ENTRY),
        weight_zero_view=Maybe(VIEW),
        multiplier_view=Maybe(VIEW),
        residual_view=Maybe(VIEW),
        in_zero=ZERO_POINT,
        out_zero=ZERO_POINT,
        scales=Maybe(Several(3, SCALE)),
    ),
    Format(
        10,
        "pool",
        Pool,
        _COMMON,
        in_view=VIEW,
        out_view=VIEW,
        rows=SPAN,
        cols=SPAN,
        box=BoxOf(),
        kernel=PAIR,
        strides=PAIR,
        dilations=PAIR,
        pad_low=PAIR,
        pad_high=PAIR,
        kind=OneOf(POOL_KINDS),
        include_pad=Flag(),
        act=ACT,
        scales=SCALES,
    ),
    Format(
        11,
        "unary",
        Unary,
        _COMMON,
        in_view=VIEW,
        out_view=VIEW,
        kind=OneOf(UNARY_KINDS),
        box=BoxOf(),
        alpha=Real(),
        beta=Real(),
        scales=SCALES,
    ),
    Format(
        12,
        "binary",
        Binary,
        _COMMON,
        a_view=VIEW,
        b_view=VIEW,
        out_view=VIEW,
        kind=OneOf(BINARY_KINDS),
        box=BoxOf(),
        act=ACT,
        scales=Maybe(Several(3, SCALE)),
    ),
    Format(
        13,
        "softmax",
        Softmax,
        _COMMON,
        in_view=VIEW,
        out_view=VIEW,
        axis=Unsigned(2),
        box=BoxOf(),
        scales=SCALES,
    ),
    Format(
        14,
        "reduce",
        Reduce,
        _COMMON,
        in_view=VIEW,
        out_view=VIEW,
        kind=OneOf(REDUCE_KINDS),
        axes=Mask(4),
        accumulate=LEVEL,
        box=BoxOf(),
        scale=Real(),
        scales=SCALES,
    ),
    Format(
        15,
        "lrn",
        Lrn,
        _COMMON,
        in_view=VIEW,
        out_view=VIEW,
        channels=SPAN,
        box=BoxOf(),
        size=Unsigned(32),
        alpha=Real(),
        beta=Real(),
        bias=Real(),
        scales=SCALES,
    ),
    Format(
        16,
        "resize",
        Resize,
        _COMMON,
        in_view=VIEW,
        out_view=VIEW,
        rows=SPAN,
        cols=SPAN,
        mode=OneOf(RESIZE_MODES),
        rounding=OneOf(ROUNDINGS),
        box=BoxOf(),
        scale=Several(2, Real()),
        offset=Several(2, Real()),
        scales=SCALES,
    ),
    Format(17, "fetch", Fetch, _COMMON, page=Unsigned(16)),
    Format(
        28,
        "table",
        TableLoad,
        _COMMON,
        src_view=VIEW,
        entry=ENTRY,
        bytes=Unsigned(32),
        evicts=Mask(TABLE_ENTRIES),
    ),
    Format(18, "barrier", Barrier, _COMMON),
    Format(19, "wait", Hold, _COMMON),
    Format(
        23,
        "line_buffer",
        LineBuffer,
        _COMMON,
        mode=OneOf(RUN_MODES),
        source=OneOf(LINE_SOURCES),
        lines=Unsigned(16),
        shift=Unsigned(16),
        second_shift=Unsigned(16),
        blocks=Unsigned(32),
        boundary=Unsigned(32),
        padding=Several(4, Unsigned(16)),
        discard=Maybe(Several(3, Unsigned(32))),
    ),
)
VIEW_FORMATS = (VIEW_FORMAT, RING_VIEW_FORMAT, WRAPPED_VIEW_FORMAT)
SETUP_FORMATS = (AFFINE_FORMAT, *VIEW_FORMATS, *SPAN_FORMATS.values(), ACT_FORMAT, SCALE_FORMAT)
FORMAT_OF_OPCODE = {f.opcode: f for f in (*SETUP_FORMATS, REPEAT_FORMAT, *INSTRUCTION_FORMATS)}
FORMAT_OF_TYPE: dict[type, Format] = {f.type: f for f in INSTRUCTION_FORMATS if f.type is not None}
