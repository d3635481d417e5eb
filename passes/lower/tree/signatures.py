# Tests: test/passes/lower/tree/test_signatures.py
"""Keys of choices: all that one depends on, with axes, tensors and layers as numbers.

Alike parts of a network, or of several, have equal keys: what was found of one is known of the others.  A result is
kept with the same numbers (`Signature.number`), and read with those of the part that asks (`Signature.things`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias

from xdsl.ir import Operation

from frustum.dialects import isa
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.isa.program import Span
from frustum.dialects.target import Target

MOST_KNOWN = 100_000
"""So many choices of a kind are kept for a machine. 2026-11-29."""
Known: TypeAlias = dict[Hashable, Any]
"""Choices that were made before, with numbers in place of axes, tensors and layers."""
Thing: TypeAlias = Axis | Tensor | Layer
PLAIN = (int, float, str, type(None), Enum, Span, isa.Affine)
"""What is equal where it is alike."""


@lru_cache(maxsize=16)
def known_choices(target: Target, kind: str) -> Known:
    """The choices of a kind that were made for a machine."""
    return {}


def keep(known: Known, key: Hashable, choice: Any) -> None:
    """Adds a choice; where there are too many, the others are forgotten."""
    if len(known) >= MOST_KNOWN:
        known.clear()
    known[key] = choice


class Signature:
    """Numbers of axes, tensors and layers, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.numbers: dict[Thing, int] = {}
        self.things: list[Any] = []

    def number(self, thing: Thing) -> int:
        """Of a thing that a key of this signature has."""
        return self.numbers[thing]

    @property
    def tensors(self) -> list[Tensor]:
        """In the order of their numbers."""
        return [thing for thing in self.things if isinstance(thing, Tensor)]

    def key(self, value: Any) -> Hashable:
        """Equal for alike values: sequences, mappings and data classes of numbers, words, axes, tensors and layers."""
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, Axis) and value.parts is not None:
            return ("parts", *map(self.key, value.leaves))
        if isinstance(value, Axis | Tensor | Layer):
            return self._numbered(value)
        if isinstance(value, Operation):
            return _operation(value)
        if isinstance(value, Mapping):
            return tuple((self.key(each), self.key(own)) for each, own in value.items())
        if isinstance(value, frozenset):
            return ("set", *sorted(each if isinstance(each, int) else self.number(each) for each in value))
        if isinstance(value, tuple | list):
            return tuple(map(self.key, value))
        if is_dataclass(value):
            return (type(value), *(self.key(getattr(value, field.name)) for field in fields(value)))
        raise TypeError(f"no key of {type(value).__name__}")

    def _numbered(self, thing: Thing) -> Hashable:
        """Its number; where it is new, with what is known of it."""
        if thing in self.numbers:
            return ("known", self.numbers[thing])
        self.numbers[thing] = len(self.things)
        self.things.append(thing)
        return tuple(map(self.key, _facts(thing)))


def _facts(thing: Thing) -> Iterable[Any]:
    match thing:
        case Axis():
            return "axis", thing.extent, thing.is_bound, thing.is_tap
        case Tensor():
            return "tensor", thing.axes, thing.dims, thing.element_bits, thing.kind, thing.is_output, thing.sums
        case Layer():
            return (
                "layer", thing.role, thing.result, thing.axes, thing.operands, thing.combine, thing.macs, thing.passes,
                thing.storage_of, thing.domain, thing.source,
            )  # fmt: skip


def _operation(op: Operation) -> Hashable:
    """What an operation is, whoever made its operands.  One with regions is like no other."""
    if op.regions:
        return op.name, id(op)
    own = sorted((*op.properties.items(), *op.attributes.items()), key=lambda item: item[0])
    return op.name, tuple(own), tuple(_types(op))


def _types(op: Operation) -> Iterator[Hashable]:
    yield from (value.type for value in op.operands)
    yield from (value.type for value in op.results)
