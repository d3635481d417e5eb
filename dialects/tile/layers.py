"""The kinds of layers, one class each: the numbers of its own that a layer has, and what differs by kind.

`ftile.compute` holds them as `params`: the fields in their order, those that are at their default None left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from xdsl.dialects.builtin import DenseArrayBase, DictionaryAttr, FloatAttr, IntegerAttr, StringAttr, f64, i64
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.extents import Extents
from frustum.dialects.functions import (
    Arithmetic,
    Function,
    Interpolation,
    Pooling,
    Reduction,
    Rounding,
    words,
)
from frustum.dialects.isa.values import UNARY_KINDS, Act, Scale

Operations = tuple[tuple[str, int], ...]
"""What the vector unit does: names and windows of `durations.vector_passes`, whose passes add up."""
Floats = tuple[float, ...]
Scaling = tuple[Scale, ...] | None
"""What integers stand for, of each operand and the result; None where no operand is narrow, or none is converted."""
K = TypeVar("K", bound="LayerKind")

KINDS: dict[str, type[LayerKind]] = {}
"""Every kind by its name in IR."""


@dataclass(frozen=True)
class LayerKind:
    """What the levels below the graph know of a layer beside its loops: a subclass per kind, registered by name."""

    NAME: ClassVar[str] = ""
    cuts_operand: ClassVar[bool] = False
    """Pieces are pieces of the operand, all of which goes into the result, not of the result."""
    is_place: ClassVar[bool] = False
    """Operands are written into their places in the result: no work of its own."""
    is_elementwise: ClassVar[bool] = False
    is_spatial: ClassVar[bool] = True
    """Rows and columns are made from those around them, so that they can be made in several steps."""
    knows_position: ClassVar[bool] = False
    """Computes with the position in the map, not only with what lies around it."""

    def __init_subclass__(cls, name: str) -> None:
        cls.NAME = name
        KINDS[name] = cls

    def __str__(self) -> str:
        return self.NAME

    @property
    def reduced(self) -> tuple[int, ...]:
        """Dimensions of the operand that are summed up; each can be taken in pieces, whose results are joined."""
        return ()

    @property
    def operations(self) -> Operations:
        """Of the vector unit, without conversions between integers and the numbers they stand for."""
        return ()

    @property
    def channel_weights(self) -> int:
        """Weights of one output channel."""
        return 0

    @property
    def is_batched(self) -> bool:
        """Every entry of d0 has weights of its own, which another layer made."""
        return False

    @property
    def act(self) -> Act | None:
        """The activation on the way out."""
        return None

    @property
    def scales(self) -> Scaling:
        return None


@dataclass(frozen=True)
class ConvLayer(LayerKind, name="conv"):
    """Convolutions and products of matrices, which run on the matrix unit: `channels` input channels per group,
    strides of the weights for (co, ci, kh, kw) and for d0 (0: all entries have the same)."""

    kernel: Extents
    strides: Extents
    dilations: Extents
    groups: int
    channels: int
    weight_strides: Extents
    weight_batch: int
    act: Act | None = None
    scales: Scaling = None
    in_zero: int | None = None
    out_zero: int | None = None
    vectors: str | None = None
    """What follows the weights, if it is not a bias alone."""

    @property
    def vector_names(self) -> list[str]:
        """What has one number per output channel, in the order of the operands."""
        return (self.vectors or "bias").split()

    @property
    def is_integer(self) -> bool:
        """Sums of products of integers, with an activation and a scale of their own on the way out."""
        return self.in_zero is not None

    @property
    def channel_weights(self) -> int:
        return self.channels * math.prod(self.kernel)

    @property
    def is_batched(self) -> bool:
        return self.weight_batch != 0


@dataclass(frozen=True)
class PoolLayer(LayerKind, name="pool"):
    kind: Pooling
    kernel: Extents
    strides: Extents
    dilations: Extents
    include_pad: bool
    pad_low: Extents
    pad_high: Extents
    act: Act | None = None
    scales: Scaling = None

    @property
    def operations(self) -> Operations:
        return (("pool", math.prod(self.kernel)), *_activation(self.act))


@dataclass(frozen=True)
class LrnLayer(LayerKind, name="lrn"):
    size: int
    alpha: float
    beta: float
    bias: float
    scales: Scaling = None

    @property
    def operations(self) -> Operations:
        return (("lrn", self.size),)


@dataclass(frozen=True)
class ResizeLayer(LayerKind, name="resize"):
    mode: Interpolation
    rounding: Rounding
    scale: Floats
    offset: Floats
    scales: Scaling = None
    knows_position = True

    @property
    def operations(self) -> Operations:
        return ((f"resize_{self.mode}", 1),)


@dataclass(frozen=True)
class UnaryLayer(LayerKind, name="unary"):
    kind: Function
    alpha: float = 0.0
    beta: float = 0.0
    scales: Scaling = None
    is_elementwise = True

    @property
    def operations(self) -> Operations:
        return ((str(self.kind), 1),)


@dataclass(frozen=True)
class BinaryLayer(LayerKind, name="binary"):
    kind: Arithmetic
    act: Act | None = None
    scales: Scaling = None
    is_elementwise = True

    @property
    def operations(self) -> Operations:
        return ((str(self.kind), 1), *_activation(self.act))


@dataclass(frozen=True)
class SoftmaxLayer(LayerKind, name="softmax"):
    axis: int
    scales: Scaling = None
    is_spatial = False

    @property
    def operations(self) -> Operations:
        return (("softmax", 1),)


@dataclass(frozen=True)
class ReduceLayer(LayerKind, name="reduce"):
    kind: Reduction
    axes: tuple[int, ...]
    scale: float
    """Of the sum."""
    scales: Scaling = None
    cuts_operand = True
    is_spatial = False

    @property
    def reduced(self) -> tuple[int, ...]:
        return self.axes

    @property
    def operations(self) -> Operations:
        return (("reduce", 1),)


@dataclass(frozen=True)
class ShuffleLayer(LayerKind, name="shuffle"):
    """Channel `i * groups + j` of the result is channel i of group j."""

    groups: int


@dataclass(frozen=True)
class PickLayer(LayerKind, name="pick"):
    """Every steps-th position."""

    steps: Extents


@dataclass(frozen=True)
class ConcatLayer(LayerKind, name="concat"):
    """Maps side by side in a unit (`ftile.concat`)."""

    is_place = True


def _activation(act: Act | None) -> Operations:
    return () if act is None else ((act.kind, 1),)


# --- as attributes -------------------------------------------------------------------------------------------


def to_attributes(layer: LayerKind) -> DictionaryAttr:
    """The numbers of a layer as the `params` of `ftile.compute`."""
    return DictionaryAttr({name: _to_attribute(value) for name, value in _flat(layer).items()})


def from_attributes(name: str, params: DictionaryAttr) -> LayerKind:
    """The inverse of `to_attributes`; raises VerifyException for what no layer of this kind has."""
    if name not in KINDS:
        raise VerifyException(f"no kind of layer is called {name!r}{did_you_mean(name, list(KINDS))}")
    return _built(KINDS[name], {key: _to_plain(value) for key, value in params.data.items()})


def _flat(layer: LayerKind) -> dict[str, Any]:
    """The fields that are not None: an activation as two entries, scales as numbers in a row."""
    found: dict[str, Any] = {}
    for field in fields(layer):
        value = getattr(layer, field.name)
        if isinstance(value, Act):
            found |= {"act": value.kind, "act_params": (float(value.alpha), float(value.beta))}
        elif field.name == "scales" and value is not None:
            found["scales"] = tuple(float(number) for each in value for number in (each.scale, each.zero))
        elif value is not None:
            found[field.name] = value
    return found


def _built(kind: type[K], given: Mapping[str, Any]) -> K:
    hints, values, left = _hints(kind.NAME), {}, dict(given)
    for field in fields(kind):
        if field.name not in left:
            if field.default is MISSING:
                raise VerifyException(f"a layer {kind.NAME!r} lacks {field.name!r}")
            continue
        value = found = left.pop(field.name)
        if field.name == "act":
            value = _act(value, left.pop("act_params", None))
        elif field.name == "scales":
            value = _scales(value)
        elif hints[field.name] is bool and value in (0, 1):
            value = bool(value)
        elif _is_word(hints[field.name]) and value in words(hints[field.name]):
            value = hints[field.name](value)
        if value is None or not _is_a(value, hints[field.name]):
            raise VerifyException(f"{field.name!r} of a layer {kind.NAME!r} cannot be {found!r}")
        values[field.name] = value
    if left:
        known = list(hints)
        wrong = next(iter(left))
        raise VerifyException(f"a layer {kind.NAME!r} has no {wrong!r}{did_you_mean(wrong, known)}")
    return kind(**values)


@cache
def _hints(name: str) -> dict[str, Any]:
    hints = get_type_hints(KINDS[name])
    return {field.name: hints[field.name] for field in fields(KINDS[name])}


def _act(kind: Any, numbers: Any) -> Act | None:
    is_known = kind in UNARY_KINDS and _is_a(numbers, tuple[float, float])
    return Act(kind, *numbers) if is_known else None


def _scales(numbers: Any) -> Scaling:
    if not _is_a(numbers, tuple[float, ...]) or len(numbers) % 2 or not numbers:
        return None
    return tuple(Scale(scale, int(zero)) for scale, zero in zip(numbers[::2], numbers[1::2], strict=True))


def _is_word(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, StrEnum)


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a value has a declared type: numbers, words, tuples of them."""
    arguments = get_args(hint)
    if isinstance(hint, UnionType):
        return any(_is_a(value, each) for each in arguments)
    if get_origin(hint) is not tuple:
        return type(value) is hint
    if not isinstance(value, tuple):
        return False
    each = arguments[:1] * len(value) if arguments[-1] is ... else arguments
    return len(each) == len(value) and all(map(_is_a, value, each))


def _to_attribute(value: Any) -> Attribute:
    if isinstance(value, str):
        return StringAttr(str(value))
    if isinstance(value, float):
        return FloatAttr(value, f64)
    if isinstance(value, int):
        return IntegerAttr(int(value), i64)
    if value and isinstance(value[0], float):
        return DenseArrayBase.from_list(f64, value)
    return DenseArrayBase.from_list(i64, value)


def _to_plain(value: Attribute) -> Any:
    if isinstance(value, StringAttr):
        return value.data
    if isinstance(value, (IntegerAttr, FloatAttr)):
        return value.value.data
    return tuple(value.get_values()) if isinstance(value, DenseArrayBase) else None
