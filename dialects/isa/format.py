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

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from frustum.dialects.extents import ceil_div
from frustum.dialects.isa import fields as fd
from frustum.dialects.isa import values as v
from frustum.dialects.isa.program import Common, Instruction

WORD_BITS = 32
WORD_BYTES = WORD_BITS // 8
MAX_WORDS = 16
OPCODE_BITS = 5
LENGTH_BITS = 4
WAITS_INSIDE = 2
SLOT = fd.Unsigned(11)
STAGE = fd.Unsigned(6)
AFFINE = fd.Register("affine")
FILES: Mapping[type | None, fd.RegisterKind] = {
    v.Affine: "affine", v.View: "view", v.Span: "span", v.Act: "act", v.Scale: "scale"
}  # fmt: skip
"""The register file that holds such a value."""
KINDS: Mapping[object, fd.FieldKind] = {
    **{type_: fd.Register(file) for type_, file in FILES.items()},
    v.Box: fd.BoxOf(),
    bool: fd.Flag(),
    float: fd.Real(),
    tuple[float, float]: fd.Several(2, fd.Real()),
}
"""How a field is written whose declaration says no more than its type."""


@dataclass(frozen=True)
class DeclaredField:
    """A field of an instruction as `program.py` declares it: what it holds unless that is None, how it is written."""

    name: str
    type: Any
    kind: fd.FieldKind
    default: Any
    """`MISSING`: it must be given."""

    @property
    def words(self) -> tuple[str, ...]:
        """What it may be, if it is one of some words."""
        return self.kind.words if isinstance(self.kind, fd.OneOf) else ()


def _declared_fields(instruction: type[Common]) -> tuple[DeclaredField, ...]:
    hints = get_type_hints(instruction, include_extras=True)
    common = {field.name for field in fields(Common)}
    own = [field for field in fields(instruction) if field.name not in common]
    return tuple(_declared(field.name, hints[field.name], field.default) for field in own)


def _declared(name: str, hint: Any, default: Any) -> DeclaredField:
    members = [member for member in get_args(hint) if member is not NoneType]
    if is_optional := NoneType in get_args(hint):
        (hint,) = members
    type_, *notes = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    if get_origin(type_) is Literal:
        type_, notes = str, [fd.OneOf(get_args(type_))]
    kind = notes[0] if notes else KINDS[type_]
    return DeclaredField(name, type_, fd.Maybe(kind) if is_optional else kind, default)


FIELDS_OF_TYPE: dict[type[Common], tuple[DeclaredField, ...]] = {
    type_: _declared_fields(type_) for type_ in get_args(Instruction)
}
"""The fields that are an instruction's own, in the order of their bits."""


@dataclass(frozen=True)
class PlacedField:
    """A field and where its numbers lie, counted in bits from the start of the instruction."""

    name: str
    kind: fd.FieldKind
    shifts: tuple[int, ...]
    masks: tuple[int, ...]


class Format:
    """An instruction's opcode and fields; `type` is its class in `program.py`, or that of the value that it puts into a
    register of `file`."""

    def __init__(
        self, opcode: int, name: str, type_: type | None, head: dict[str, fd.FieldKind], **body: fd.FieldKind
    ) -> None:
        self.opcode = opcode
        self.name = name
        self.type = type_
        self.file = FILES.get(type_)
        start = {"opcode": fd.Unsigned(OPCODE_BITS), "length": fd.Unsigned(LENGTH_BITS), **head}
        placed, head_bits = _place(start, 0)
        assert head_bits <= WORD_BITS, f"{name}: the first word has {head_bits} bits"
        more, bits = _place(body, WORD_BITS)
        self.head: tuple[PlacedField, ...] = placed[2:]
        self.body = more
        self.words: int = ceil_div(bits, WORD_BITS)
        assert self.words + WAITS_INSIDE <= MAX_WORDS, f"{name}: {self.words} words"

    def pack(self, values: dict[str, Any], body: Any, registers: fd.Numbers, length: int) -> int:
        """The instruction's words as one number: `values` for the first word, attributes of `body` for the rest."""
        total = self.opcode | length - 1 << OPCODE_BITS
        for field in self.head:
            total |= pack_field(field, values[field.name], registers)
        for field in self.body:
            total |= pack_field(field, getattr(body, field.name), registers)
        return total

    def unpack_head(self, total: int, registers: fd.Values) -> dict[str, Any]:
        return {field.name: unpack_field(field, total, registers) for field in self.head}

    def unpack_body(self, total: int, registers: fd.Values) -> dict[str, Any]:
        return {field.name: unpack_field(field, total, registers) for field in self.body}


def _place(fields: dict[str, fd.FieldKind], position: int) -> tuple[tuple[PlacedField, ...], int]:
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
        placed.append(PlacedField(name, kind, tuple(shifts), masks))
    return tuple(placed), position


def pack_field(field: PlacedField, value: Any, registers: fd.Numbers) -> int:
    try:
        numbers = field.kind.write(value, registers)
    except fd.FieldError as error:
        raise error.inside(field.name) from None
    if len(numbers) == 1:
        return numbers[0] << field.shifts[0]
    total = 0
    for number, shift in zip(numbers, field.shifts, strict=True):
        total |= number << shift
    return total


def unpack_field(field: PlacedField, total: int, registers: fd.Values) -> Any:
    bits = [total >> shift & mask for shift, mask in zip(field.shifts, field.masks, strict=True)]
    try:
        return field.kind.read(iter(bits), registers)
    except fd.FieldError as error:
        raise error.inside(field.name) from None


# ------------------------------------------------------------------------------------------ set-up

_REGISTER: dict[str, fd.FieldKind] = {"register": fd.Unsigned(fd.REGISTER_BITS)}
_VIEW: dict[str, fd.FieldKind] = {
    **_REGISTER, "element": fd.OneOf(v.ELEMENTS), "memory": fd.OneOf(v.MEMORIES), "offset": AFFINE
}  # fmt: skip
_SPAN: dict[str, fd.FieldKind] = {**_REGISTER, "start": AFFINE}
_NARROW: dict[str, fd.FieldKind] = {"extent": fd.Unsigned(16), "bound": fd.Unsigned(16)}
_WIDE: dict[str, fd.FieldKind] = {"extent": fd.Unsigned(32), "bound": fd.Unsigned(32)}
STRIDES = fd.Several(4, fd.Signed(32))
COEFFICIENT = fd.Signed(32)
WIDE = fd.Signed(64)
TERMS = v.MAX_LOOPS + 2
"""Coefficients an affine may have: one per loop, then cluster, then core."""

AFFINE_FORMAT = Format(1, "affine", v.Affine, {**_REGISTER, "terms": fd.Mask(TERMS), "wide": fd.Flag()})
"""The base (two words if `wide`) and one word for each coefficient present follow."""
_RING = fd.Record(v.Ring, depth=fd.Unsigned(16), level=fd.Unsigned(3), bytes=fd.Unsigned(32))
_WRAP = fd.Record(v.Wrap, dim=fd.Unsigned(2), phase=AFFINE, size=fd.Unsigned(32))
VIEW_FORMATS = {
    (False, False): Format(2, "view", v.View, _VIEW, strides=STRIDES),
    (True, False): Format(3, "ring_view", v.View, _VIEW, strides=STRIDES, ring=_RING),
    (False, True): Format(7, "wrapped_view", v.View, _VIEW, strides=STRIDES, wrap=_WRAP),
}
"""By (there is a ring, it wraps)."""
SPAN_FORMATS = {
    (False, False): Format(4, "span", v.Span, _SPAN, **_NARROW),
    (False, True): Format(5, "limited_span", v.Span, _SPAN, **_NARROW, limit=AFFINE),
    (True, False): Format(20, "wide_span", v.Span, _SPAN, **_WIDE),
    (True, True): Format(21, "wide_limited_span", v.Span, _SPAN, **_WIDE, limit=AFFINE),
}
"""By (extent or bound needs more than 16 bits, limit is present)."""
ACT_FORMAT = Format(24, "act", v.Act, {**_REGISTER, "kind": fd.OneOf(v.UNARY_KINDS)}, alpha=fd.Real(), beta=fd.Real())
SCALE_FORMAT = Format(25, "scale", v.Scale, _REGISTER, zero=fd.Signed(32), scale=fd.Real())
REPEAT_FORMAT = Format(6, "repeat", None, {"stage": STAGE}, count=fd.Unsigned(32), body_words=fd.Unsigned(32))

# ------------------------------------------------------------------------------------------ instructions

_COMMON: dict[str, fd.FieldKind] = {
    "engine": fd.OneOf(v.ENGINES),
    "stage": STAGE,
    "waits": fd.Unsigned(2),
    "signal": fd.Maybe(SLOT),
}
WAIT = fd.Record(v.Wait, slot=SLOT, scope=fd.OneOf(v.SCOPES), value=AFFINE)
WAIT_FIELD: PlacedField = _place({"wait": WAIT}, 0)[0][0]

INSTRUCTION_FORMATS = tuple(
    Format(
        type_.OPCODE,
        type_.NAME,
        type_,
        _COMMON,
        **{field.name: field.kind for field in fields_ if field.name != "engine"},
    )
    for type_, fields_ in FIELDS_OF_TYPE.items()
)
SETUP_FORMATS = (AFFINE_FORMAT, *VIEW_FORMATS.values(), *SPAN_FORMATS.values(), ACT_FORMAT, SCALE_FORMAT)
FORMAT_OF_OPCODE = {f.opcode: f for f in (*SETUP_FORMATS, REPEAT_FORMAT, *INSTRUCTION_FORMATS)}
FORMAT_OF_TYPE: dict[type, Format] = {f.type: f for f in INSTRUCTION_FORMATS if f.type is not None}
