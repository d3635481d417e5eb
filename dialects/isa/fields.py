"""Kinds of bit fields: how a value of an instruction becomes unsigned numbers of fixed width, and back.

A kind has `widths`, one per number.  Values that live in the register file (`Affine`, `View`, `Span`) are written
as register numbers, which the `Numbers` passed in gives and the `Values` passed in resolves.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

from frustum.dialects.isa.values import DIMENSIONS, Box

RegisterKind = Literal["affine", "view", "span", "act", "scale"]
REGISTERS = 256
"""Entries of each register file."""
REGISTER_BITS = 8


class Numbers(Protocol):
    """The register files, seen by who writes instructions."""

    def number_of(self, kind: RegisterKind, value: Any) -> int:
        """The register that holds `value`, defined if need be."""
        ...


class Values(Protocol):
    """The register files, seen by who reads instructions."""

    def value_of(self, kind: RegisterKind, number: int) -> Any:
        """What a register holds."""
        ...


class FieldError(ValueError):
    """A value that its field cannot hold, or bits that mean nothing: `field` is the path to it."""

    def __init__(self, value: object, allowed: str, field: str = "") -> None:
        super().__init__(value, allowed, field)
        self.value = value
        self.allowed = allowed
        self.field = field

    def inside(self, field: str) -> FieldError:
        """The same error, seen from the instruction or field that contains it."""
        return FieldError(self.value, self.allowed, f"{field}.{self.field}" if self.field else field)

    def __str__(self) -> str:
        text = f"{self.value} is not {self.allowed}"
        return f"{self.field}: {text}" if self.field else text


class FieldKind(ABC):
    """One kind of field."""

    widths: tuple[int, ...]

    @abstractmethod
    def write(self, value: Any, registers: Numbers) -> tuple[int, ...]:
        """One unsigned number for each of `widths`."""

    @abstractmethod
    def read(self, bits: Iterator[int], registers: Values) -> Any:
        """The value, from as many numbers."""


class Unsigned(FieldKind):
    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.widths: tuple[int, ...] = (bits,)

    def write(self, value: int, registers: Numbers) -> tuple[int, ...]:
        if not 0 <= value < 1 << self.bits:
            raise FieldError(value, f"in [0, {(1 << self.bits) - 1}]")
        return (value,)

    def read(self, bits: Iterator[int], registers: Values) -> int:
        return next(bits)


class Signed(FieldKind):
    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.widths: tuple[int, ...] = (bits,)

    def write(self, value: int, registers: Numbers) -> tuple[int, ...]:
        half = 1 << self.bits - 1
        if not -half <= value < half:
            raise FieldError(value, f"in [{-half}, {half - 1}]")
        return (value & (1 << self.bits) - 1,)

    def read(self, bits: Iterator[int], registers: Values) -> int:
        value = next(bits)
        return value - (1 << self.bits) if value >> self.bits - 1 else value


class Flag(FieldKind):
    widths: tuple[int, ...] = (1,)

    def write(self, value: bool, registers: Numbers) -> tuple[int, ...]:
        return (int(value),)

    def read(self, bits: Iterator[int], registers: Values) -> bool:
        return bool(next(bits))


class Real(FieldKind):
    """f64."""

    widths: tuple[int, ...] = (64,)
    _FLOAT = struct.Struct("<d")

    def write(self, value: float, registers: Numbers) -> tuple[int, ...]:
        return (int.from_bytes(self._FLOAT.pack(value), "little"),)

    def read(self, bits: Iterator[int], registers: Values) -> float:
        (value,) = self._FLOAT.unpack(next(bits).to_bytes(8, "little"))
        return float(value)


class OneOf(FieldKind):
    """One of a list of words, by its place in the list."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words: tuple[str, ...] = tuple(words)
        self.place: dict[str, tuple[int]] = {word: (place,) for place, word in enumerate(words)}
        self.widths: tuple[int, ...] = (max(1, (len(words) - 1).bit_length()),)

    def write(self, value: str, registers: Numbers) -> tuple[int, ...]:
        if value not in self.place:
            raise FieldError(value, f"one of {', '.join(self.words)}")
        return self.place[value]

    def read(self, bits: Iterator[int], registers: Values) -> str:
        place = next(bits)
        if place >= len(self.words):
            raise FieldError(place, f"the number of one of {', '.join(self.words)}")
        return self.words[place]


class Register(FieldKind):
    """A value of the register file."""

    widths: tuple[int, ...] = (REGISTER_BITS,)

    def __init__(self, kind: RegisterKind) -> None:
        self.kind = kind

    def write(self, value: Any, registers: Numbers) -> tuple[int, ...]:
        return (registers.number_of(self.kind, value),)

    def read(self, bits: Iterator[int], registers: Values) -> Any:
        return registers.value_of(self.kind, next(bits))


class BoxOf(FieldKind):
    """A box: four span registers."""

    widths: tuple[int, ...] = (REGISTER_BITS,) * DIMENSIONS

    def write(self, value: Box, registers: Numbers) -> tuple[int, ...]:
        return tuple(registers.number_of("span", span) for span in value.spans)

    def read(self, bits: Iterator[int], registers: Values) -> Box:
        return Box.of(*(registers.value_of("span", next(bits)) for _ in range(DIMENSIONS)))


class Mask(FieldKind):
    """A sorted set of small numbers, one bit each."""

    def __init__(self, bits: int) -> None:
        self.widths: tuple[int, ...] = (bits,)
        self.bits = bits

    def write(self, value: Sequence[int], registers: Numbers) -> tuple[int, ...]:
        mask = 0
        for bit in value:
            if not 0 <= bit < self.bits:
                raise FieldError(bit, f"in [0, {self.bits - 1}]")
            mask |= 1 << bit
        return (mask,)

    def read(self, bits: Iterator[int], registers: Values) -> tuple[int, ...]:
        mask = next(bits)
        return tuple(bit for bit in range(self.bits) if mask >> bit & 1)


class Several(FieldKind):
    """A tuple of equal fields."""

    def __init__(self, count: int, kind: FieldKind) -> None:
        self.count = count
        self.kind = kind
        self.widths: tuple[int, ...] = kind.widths * count

    def write(self, value: Sequence[Any], registers: Numbers) -> tuple[int, ...]:
        if len(value) != self.count:
            raise FieldError(list(value), f"{self.count} values")
        return tuple(n for part in value for n in self.kind.write(part, registers))

    def read(self, bits: Iterator[int], registers: Values) -> tuple[Any, ...]:
        return tuple(self.kind.read(bits, registers) for _ in range(self.count))


class Maybe(FieldKind):
    """A value or None: one bit of presence, then the value."""

    def __init__(self, kind: FieldKind) -> None:
        self.kind = kind
        self.widths: tuple[int, ...] = (1, *kind.widths)
        self._absent = (0,) * len(self.widths)

    def write(self, value: Any, registers: Numbers) -> tuple[int, ...]:
        return self._absent if value is None else (1, *self.kind.write(value, registers))

    def read(self, bits: Iterator[int], registers: Values) -> Any:
        return self.kind.read(bits, registers) if next(bits) else self._skip(bits)

    def _skip(self, bits: Iterator[int]) -> None:
        for _ in self.kind.widths:
            next(bits)


class Record(FieldKind):
    """A small dataclass, field by field."""

    def __init__(self, type_: type, **fields: FieldKind) -> None:
        self.type = type_
        self.fields: tuple[tuple[str, FieldKind], ...] = tuple(fields.items())
        self.widths: tuple[int, ...] = tuple(width for kind in fields.values() for width in kind.widths)

    def write(self, value: Any, registers: Numbers) -> tuple[int, ...]:
        return tuple(n for name, kind in self.fields for n in kind.write(getattr(value, name), registers))

    def read(self, bits: Iterator[int], registers: Values) -> Any:
        return self.type(**{name: kind.read(bits, registers) for name, kind in self.fields})
