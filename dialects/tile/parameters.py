"""The numbers of a layer as an attribute dictionary, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from xdsl.dialects.builtin import (
    DenseArrayBase,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    f64,
    i64,
)
from xdsl.ir import Attribute

Plain: TypeAlias = int | float | str | Sequence[int] | Sequence[float]


def to_attributes(values: Mapping[str, Plain]) -> DictionaryAttr:
    """Plain numbers, words and lists of numbers as an attribute dictionary."""
    return DictionaryAttr({key: _to_attribute(value) for key, value in values.items()})


def _to_attribute(value: Plain) -> Attribute:
    if isinstance(value, str):
        return StringAttr(value)
    if isinstance(value, float):
        return FloatAttr(value, f64)
    if isinstance(value, int):
        return IntegerAttr(value, i64)
    if value and isinstance(value[0], float):
        return cast(Attribute, DenseArrayBase.from_list(f64, cast(Sequence[float], value)))
    return cast(Attribute, DenseArrayBase.from_list(i64, cast(Sequence[int], value)))


def to_plain(attributes: DictionaryAttr) -> dict[str, Any]:
    """The inverse of `to_attributes`; lists become tuples."""
    return {key: _to_plain(value) for key, value in attributes.data.items()}


def _to_plain(value: Attribute) -> Any:
    if isinstance(value, StringAttr):
        return value.data
    if isinstance(value, (IntegerAttr, FloatAttr)):
        return value.value.data
    assert isinstance(value, DenseArrayBase)
    return tuple(value.get_values())
