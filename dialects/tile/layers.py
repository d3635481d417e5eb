"""The kinds of layers, one class each: the numbers of its own that a layer has, and what differs by kind.

`ftile.compute` holds them as `params`: the fields in their order, those that are at their default None left out.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from types import SimpleNamespace, UnionType
from typing import Any, ClassVar, TypeAlias, get_args, get_origin, get_type_hints

from xdsl.dialects import builtin
from xdsl.dialects.builtin import DenseArrayBase, DictionaryAttr, FloatAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.extents import Extents
from frustum.dialects.functions import (
    Arithmetic,
    Border,
    Function,
    Interpolation,
    Pooling,
    Reduction,
    Rounding,
    words,
)
from frustum.dialects.isa import program as p
from frustum.dialects.isa.program import UNARY_KINDS, Act, Scale
from frustum.dialects.target.durations import Steps, vector_steps

LARGEST_F16 = 65504.0
Floats: TypeAlias = tuple[float, ...]
Scaling: TypeAlias = tuple[Scale, ...] | None
"""What integers stand for, of each operand and the result; None where no operand is narrow, or none is converted."""

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
    knows_position: ClassVar[bool] = False
    """Computes with the position in the map, not only with what lies around it."""

    is_copied: ClassVar[bool] = False
    """Pieces are loaded as they are to be: nothing is computed."""

    def __init_subclass__(cls, name: str = "") -> None:
        cls.NAME = name
        if name:
            KINDS[name] = cls

    def __str__(self) -> str:
        return self.NAME

    @property
    def reduced(self) -> tuple[int, ...]:
        """Dimensions of the operand that are summed up; each can be taken in pieces, whose results are joined."""
        return ()

    def vector_steps(self, conversions: int = 0) -> Steps:
        """What the vector unit does, with so many conversions between integers and the numbers they stand for."""
        return ()

    @property
    def channel_weights(self) -> int:
        """Weights of one output channel."""
        return 0

    @property
    def is_batched(self) -> bool:
        """It reads tensors that another layer made as it reads weights: every entry of d0 has its own."""
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
class VectorLayer(LayerKind):
    """Kinds that the vector unit computes, each with one instruction, of which it gives `numbers`."""

    INSTRUCTION: ClassVar[type[p.Instruction]]

    def __init_subclass__(cls, instruction: type[p.Instruction], name: str = "") -> None:
        super().__init_subclass__(name or instruction.__name__.lower())
        cls.INSTRUCTION = instruction

    @property
    def numbers(self) -> dict[str, Any]:
        """The fields of the instruction, but for operands, positions and loops: the layer's own, under their names."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: str(value) if isinstance(value, StrEnum) else value for name, value in values}

    def vector_steps(self, conversions: int = 0) -> Steps:
        return vector_steps(self.INSTRUCTION.__name__.lower(), SimpleNamespace(**self.numbers), conversions)


@dataclass(frozen=True)
class PoolLayer(VectorLayer, instruction=p.Pool):
    kind: Pooling
    kernel: Extents
    strides: Extents
    dilations: Extents
    include_pad: bool
    pad_low: Extents
    pad_high: Extents
    act: Act | None = None
    scales: Scaling = None
    slices: bool | None = None
    """Windows are over images (slices of a volume), not over rows."""

    @property
    def numbers(self) -> dict[str, Any]:
        return {name: value for name, value in super().numbers.items() if name != "slices"}

    @property
    def axes(self) -> Extents:
        """The dimensions of its windows."""
        return (0, 3) if self.slices else (2, 3)


@dataclass(frozen=True)
class LrnLayer(VectorLayer, instruction=p.Lrn):
    size: int
    alpha: float
    beta: float
    bias: float
    scales: Scaling = None


@dataclass(frozen=True)
class ResizeLayer(VectorLayer, instruction=p.Resize):
    mode: Interpolation
    rounding: Rounding
    scale: Floats
    offset: Floats
    scales: Scaling = None
    knows_position = True


@dataclass(frozen=True)
class UnaryLayer(VectorLayer, instruction=p.Unary):
    kind: Function
    alpha: float = 0.0
    beta: float = 0.0
    scales: Scaling = None
    is_elementwise = True


@dataclass(frozen=True)
class BinaryLayer(VectorLayer, instruction=p.Binary):
    kind: Arithmetic
    act: Act | None = None
    scales: Scaling = None
    is_elementwise = True


@dataclass(frozen=True)
class SoftmaxLayer(VectorLayer, instruction=p.Softmax):
    axis: int
    scales: Scaling = None


@dataclass(frozen=True)
class NormaliseLayer(VectorLayer, instruction=p.Normalise):
    """Over `axes`, and, where `group` is not 0, so many channels beside each other."""

    axes: tuple[int, ...]
    epsilon: float
    group: int = 0
    rms: bool = False
    act: Act | None = None


@dataclass(frozen=True)
class ReduceLayer(VectorLayer, instruction=p.Reduce):
    kind: Reduction
    axes: tuple[int, ...]
    scale: float
    """Of the sum."""
    scales: Scaling = None
    cuts_operand = True

    @property
    def reduced(self) -> tuple[int, ...]:
        return self.axes


@dataclass(frozen=True)
class AttentionLayer(LayerKind, name="attention"):
    """Attention of rows of queries to all `keys`; channels of the result are heads of `value_size`, of which `share`
    read the same head of keys and values.  Operands: queries, keys, values, and perhaps what is added to scores.
    Row i sees the keys up to i + `causal_from` only.

    With `widths` the rows of queries, and the keys, are positions of planes that are so wide: pieces, and blocks of
    keys, have whole rows of these.

    With views of keys and values (offset, strides of images, channels and rows, channels of a block) these are no tiles
    but tensors, which come in blocks while the layer computes; a tile is then one group of heads.  Between blocks
    results lie in SRAM in f32 (`is_wide`), or in the element type.

    Scores and their maxima are f32 (`has_wide_scores`), or of the element type, as what the values are multiplied with
    always is.  Of integers (`scales`) they are f16, where no score can be beyond it, or f32."""

    keys: int
    share: int
    size: int
    value_size: int
    scale: float
    softcap: float = 0.0
    causal_from: int | None = None
    key_view: Extents | None = None
    value_view: Extents | None = None
    is_wide: bool = False
    widths: Extents | None = None
    has_wide_scores: bool = False
    scales: Scaling = None

    @property
    def score_scale(self) -> float:
        """What products of queries and keys are multiplied with."""
        return self.scale if self.scales is None else self.scale * self.scales[0].scale * self.scales[1].scale

    def score_element(self, element: p.Element) -> p.Element:
        """Of scores, where queries are of this type."""
        if self.scales is None:
            return "f32" if self.has_wide_scores else element
        most = 1 << 8 * p.ELEMENT_BYTES[element] - 1
        reach = self.size * (most + abs(self.scales[0].zero)) * most * abs(self.score_scale)
        return "f16" if reach <= LARGEST_F16 else "f32"

    @property
    def is_batched(self) -> bool:
        return self.key_view is not None

    @property
    def position(self) -> int:
        """The dimension of the result along which pieces have rows of queries."""
        return 3 if self.widths is None else 2

    @property
    def width(self) -> int:
        """Rows of queries at one position of that dimension."""
        return 1 if self.widths is None else self.widths[0]

    @property
    def key_width(self) -> int:
        """Keys of which a block has all or none."""
        return 1 if self.widths is None else self.widths[1]

    @property
    def group_channels(self) -> int:
        """Channels of the result that read one head of keys and values: pieces have whole groups."""
        return self.share * self.value_size


@dataclass(frozen=True)
class ShuffleLayer(LayerKind, name="shuffle"):
    """Channel `i * groups + j` of the result is channel i of group j."""

    groups: int
    is_copied = True


@dataclass(frozen=True)
class StackLayer(LayerKind, name="stack"):
    """Channel `c * kernel + k` of image i is channel c of image `i * stride + k * dilation - pad`, or 0."""

    kernel: int
    stride: int
    dilation: int
    pad: int
    is_copied = True


@dataclass(frozen=True)
class PickLayer(LayerKind, name="pick"):
    """Every steps-th position."""

    steps: Extents


@dataclass(frozen=True)
class PhasesLayer(LayerKind):
    """Phases of a map (every factor-th row and column) as channels, `apart` from each other, or back."""

    factor: Extents
    apart: int

    @property
    def phases(self) -> int:
        return math.prod(self.factor)

    def vector_steps(self, conversions: int = 0) -> Steps:
        return (("identity", 1),)


class DepthToSpaceLayer(PhasesLayer, name="depth_to_space"):
    """The map of the phases."""


class SpaceToDepthLayer(PhasesLayer, name="space_to_depth"):
    """The phases of the map."""


@dataclass(frozen=True)
class BorderLayer(LayerKind, name="border"):
    """Rows and columns before and behind a map: its own mirrored, or the first and last repeated."""

    mirrored: bool
    low: Extents
    high: Extents
    knows_position = True

    @property
    def mode(self) -> Border:
        return Border.REFLECT if self.mirrored else Border.EDGE

    def vector_steps(self, conversions: int = 0) -> Steps:
        return (("identity", 1),)


@dataclass(frozen=True)
class WrapLayer(LayerKind, name="wrap"):
    """Rows and columns before and behind a map, which are those of its other end."""

    low: Extents
    high: Extents
    knows_position = True
    is_copied = True
    mode: ClassVar[Border] = Border.WRAP


@dataclass(frozen=True)
class ConcatLayer(LayerKind, name="concat"):
    """Maps side by side in a unit (`ftile.concat`)."""

    is_place = True


# --- as attributes -------------------------------------------------------------------------------------------


def to_attributes(layer: LayerKind) -> DictionaryAttr:
    """The numbers of a layer as the `params` of `ftile.compute`."""
    found: dict[str, Attribute] = {}
    for field in fields(layer):
        value = getattr(layer, field.name)
        if isinstance(value, Act):
            found |= {"act": StringAttr(value.kind), "act_params": _attribute((value.alpha, value.beta))}
        elif value is not None:
            found[field.name] = _attribute(value)
    return DictionaryAttr(found)


def from_attributes(name: str, params: DictionaryAttr) -> LayerKind:
    """The inverse of `to_attributes`; raises VerifyException for what no layer of this kind has."""
    if name not in KINDS:
        raise VerifyException(f"no kind of layer is called {name!r}{did_you_mean(name, list(KINDS))}")
    kind, types, values = KINDS[name], _types(name), {}
    left = {key: _plain(value) for key, value in params.data.items()}
    for field in fields(kind):
        if field.name not in left:
            if field.default is MISSING:
                raise VerifyException(f"a layer {name!r} lacks {field.name!r}")
            continue
        found = left.pop(field.name)
        held = (found, left.pop("act_params", None)) if types[field.name] is Act else found
        values[field.name] = _typed(held, types[field.name])
        if values[field.name] is None:
            raise VerifyException(f"{field.name!r} of a layer {name!r} cannot be {found!r}")
    for wrong in left:
        raise VerifyException(f"a layer {name!r} has no {wrong!r}{did_you_mean(wrong, list(types))}")
    return kind(**values)


@cache
def _types(name: str) -> dict[str, Any]:
    """The types of a kind's fields; of what may be None the other one."""
    types = ((field.name, get_type_hints(KINDS[name])[field.name]) for field in fields(KINDS[name]))
    return {name: get_args(hint)[0] if isinstance(hint, UnionType) else hint for name, hint in types}


def _typed(found: Any, wanted: Any) -> Any:
    """What a field of this type holds, of a value in IR; None for a value that it cannot hold."""
    if wanted is Act:
        kind, numbers = found
        return Act(kind, *numbers) if kind in UNARY_KINDS and _are(numbers, float) and len(numbers) == 2 else None
    if wanted == tuple[Scale, ...]:
        is_paired = _are(found, float) and found and not len(found) % 2
        return tuple(Scale(a, int(b)) for a, b in zip(found[::2], found[1::2], strict=True)) if is_paired else None
    if get_origin(wanted) is tuple:
        return found if _are(found, get_args(wanted)[0]) else None
    if wanted is bool:
        return bool(found) if found in (0, 1) else None
    if issubclass(wanted, StrEnum):
        return wanted(found) if found in words(wanted) else None
    return found if type(found) is wanted else None


def _are(values: Any, wanted: type) -> bool:
    return isinstance(values, tuple) and all(type(each) is wanted for each in values)


def _attribute(value: Any) -> Attribute:
    if isinstance(value, str):
        return StringAttr(str(value))
    if isinstance(value, float):
        return FloatAttr(value, builtin.f64)
    if isinstance(value, int):
        return IntegerAttr(int(value), i64)
    if value and isinstance(value[0], Scale):
        value = tuple(float(number) for each in value for number in (each.scale, each.zero))
    return DenseArrayBase.from_list(builtin.f64 if value and isinstance(value[0], float) else i64, value)


def _plain(value: Attribute) -> Any:
    if isinstance(value, StringAttr):
        return value.data
    if isinstance(value, (IntegerAttr, FloatAttr)):
        return value.value.data
    return tuple(value.get_values()) if isinstance(value, DenseArrayBase) else None
