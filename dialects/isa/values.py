"""The words and small values of which instructions are made (`program.py`), as plain data.

The attributes of the dialect (`attributes.py`) wrap these values; the encoder writes them as bits and reads them
back.  In the IR a view is relative to the buffer it looks at and has no `memory` and no `ring`; in a program it is
physical: `memory` is set, `offset.base` counts from the start of that memory, and `ring` says how the address moves
between the copies of a multiple buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from frustum.dialects import functions
from frustum.dialects.extents import Extents
from frustum.dialects.functions import words

MAX_LOOPS = 6
"""Nesting depth of `repeat`."""
DIMENSIONS = 4
"""Of boxes and views: d0 to d3."""
TABLE_ENTRIES = 64
"""Tables that an address cache can hold at a time, if they are small enough."""

Memory: TypeAlias = Literal["dram", "sram", "nram", "wram"]
Element: TypeAlias = Literal["f32", "f16", "bf16", "i8", "i16", "i32", "i64"]
Engine: TypeAlias = Literal["gdma", "iodma", "mvdma", "bus", "cdma", "matrix", "vector", "fetch"]
CopyEngine: TypeAlias = Literal["gdma", "iodma", "mvdma", "bus", "cdma"]
Scope: TypeAlias = Literal["own", "cluster", "cores", "all_cores", "all_clusters"]
ExternalClass: TypeAlias = Literal["weight", "input", "output", "intermediate", "program"]
RunMode: TypeAlias = Literal["split", "continuous"]
"""How rows of elements are written: what a set-up of the line buffer is for."""
LineMode: TypeAlias = Literal["split", "continuous", "channels_last"]
LineSource: TypeAlias = Literal["in"]

MEMORIES: tuple[Memory, ...] = get_args(Memory)
ELEMENTS: tuple[Element, ...] = get_args(Element)
ENGINES: tuple[Engine, ...] = get_args(Engine)
CORE_ENGINES: frozenset[Engine] = frozenset({"iodma", "mvdma", "matrix", "vector"})
"""Engines that every core has; the others exist once in a cluster."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
EXTERNAL_CLASSES: tuple[ExternalClass, ...] = get_args(ExternalClass)
IMAGE_CLASSES: tuple[ExternalClass, ...] = ("weight", "program")
"""What an executable brings with it: weights, and tables of the program."""
POOL_KINDS, UNARY_KINDS = words(functions.Pooling), words(functions.Function)
BINARY_KINDS, REDUCE_KINDS = words(functions.Arithmetic), words(functions.Reduction)
RESIZE_MODES, ROUNDINGS = words(functions.Interpolation), words(functions.Rounding)
ELEMENT_BYTES: dict[str, int] = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "i16": 2, "i32": 4, "i64": 8}
INTEGER_BITS: dict[Element, int] = {"i8": 8, "i16": 16, "i32": 32}
ACCUMULATORS: dict[Element, Element] = {"f32": "f32", "f16": "f32", "bf16": "f32", "i8": "i32", "i16": "i64"}
"""Of the types of products, the type in which the matrix unit sums them."""

Four: TypeAlias = Extents
"""Of the dimensions n, c, h, w; or what comes before and behind rows and columns."""


# ------------------------------------------------------------------------------------------ small values


@dataclass(frozen=True, slots=True)
class Affine:
    """`base + sum(loops[l] * i_l) + cluster * CLUSTER + core * CORE`; loops outermost first."""

    base: int = 0
    loops: tuple[int, ...] = ()
    cluster: int = 0
    core: int = 0

    def __post_init__(self) -> None:
        """Equal functions are equal values: trailing zeros of `loops` are dropped."""
        loops = self.loops
        if loops and not loops[-1]:
            end = len(loops)
            while end and not loops[end - 1]:
                end -= 1
            object.__setattr__(self, "loops", loops[:end])

    @classmethod
    def of(cls, value: Affine | int) -> Affine:
        return value if isinstance(value, Affine) else cls(value)

    @classmethod
    def index(cls, level: int, coefficient: int = 1) -> Affine:
        """`coefficient * i_level`."""
        return cls(0, (0,) * level + (coefficient,))

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.base + other, self.loops, self.cluster, self.core)
        loops = _add(self.loops, other.loops)
        return Affine(self.base + other.base, loops, self.cluster + other.cluster, self.core + other.core)

    __radd__ = __add__

    def __mul__(self, factor: int) -> Affine:
        loops = tuple(factor * c for c in self.loops)
        return Affine(factor * self.base, loops, factor * self.cluster, factor * self.core)

    __rmul__ = __mul__

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        return self + other * -1

    @property
    def is_constant(self) -> bool:
        return not self.loops and not self.cluster and not self.core

    def at(self, indices: Sequence[int] = (), cluster: int = 0, core: int = 0) -> int:
        """The value at these loop indices (outermost first) on this core of this cluster."""
        moved = sum(c * i for c, i in zip(self.loops, indices, strict=False))
        return self.base + moved + cluster * self.cluster + core * self.core

    def __str__(self) -> str:
        """`16 + 4*i0 - 8*i2 + 512*core + 3*cluster`."""
        terms = [(c, f"i{level}") for level, c in enumerate(self.loops) if c]
        terms += [(c, name) for c, name in ((self.core, "core"), (self.cluster, "cluster")) if c]
        text = str(self.base) if self.base or not terms else ""
        for c, name in terms:
            sign = ("- " if text else "-") if c < 0 else ("+ " if text else "")
            text += f"{' ' if text else ''}{sign}{abs(c)}*{name}"
        return text


def _add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if len(a) < len(b):
        a, b = b, a
    return tuple(x + y for x, y in zip(a, b, strict=False)) + a[len(b) :]


ZERO = Affine()
Starts: TypeAlias = tuple[Affine, ...]
"""A position for each dimension."""
Limits: TypeAlias = tuple[Affine | None, ...]


@dataclass(frozen=True, slots=True)
class Ring:
    """A buffer of `depth` copies of `bytes` each: the copy used is the iteration number of the body that
    holds the buffer (over the `level` loops around it) mod `depth`."""

    depth: int
    bytes: int
    level: int

    def copy(self, indices: Sequence[int], counts: Sequence[int]) -> int:
        """The copy used at these loop indices; `counts` are the loops' iteration counts, outermost first."""
        iteration = 0
        for index, count in zip(indices[: self.level], counts[: self.level], strict=True):
            iteration = iteration * count + index
        return iteration % self.depth


@dataclass(frozen=True, slots=True)
class Wrap:
    """Dimension `dim` is circular: position p of it lies at `((p + phase) mod size)` strides."""

    dim: int
    size: int
    phase: Affine = ZERO

    def __str__(self) -> str:
        """`2 mod 10`, `2 + 24*i0 mod 10`: dimension, phase, size."""
        if self.phase == ZERO:
            return f"{self.dim} mod {self.size}"
        phase = str(self.phase)
        phase = f"- {phase[1:]}" if phase.startswith("-") else f"+ {phase}"
        return f"{self.dim} {phase} mod {self.size}"


@dataclass(frozen=True, slots=True)
class View:
    """How an operand lies in memory: byte address of the nominal first element of the box, and byte strides
    of d0..d3 (0 = broadcast).  `memory` and `ring` only in programs.

    With `wrap` (operands of copies only) `offset` leaves out the start of that dimension: positions of it count from
    position 0 of the map on, around a ring.
    """

    element: Element
    offset: Affine
    strides: Four
    memory: Memory | None = None
    ring: Ring | None = None
    wrap: Wrap | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """One dimension: positions `[max(0, start), min(start + extent, bound, limit))`."""

    start: Affine
    extent: int
    bound: int
    limit: Affine | None = None

    def __str__(self) -> str:
        """`-1 + 8*i0 : 10 in 56 to 8*i1`: start : extent in bound to limit."""
        limit = "" if self.limit is None else f" to {self.limit}"
        return f"{self.start} : {self.extent} in {self.bound}{limit}"

    def clip(self, indices: Sequence[int] = (), cluster: int = 0, core: int = 0) -> tuple[int, int]:
        """`(start, stop)` at these indices; empty where stop <= start."""
        start = self.start.at(indices, cluster, core)
        stop = min(start + self.extent, self.bound)
        if self.limit is not None:
            stop = min(stop, self.limit.at(indices, cluster, core))
        return max(0, start), stop


@dataclass(frozen=True, slots=True)
class Box:
    """Four dimensions d0..d3, each clipped as a `Span`."""

    start: Starts
    extent: Four
    bound: Four
    limit: Limits = (None, None, None, None)

    @classmethod
    def of(cls, *spans: Span) -> Box:
        starts, extents, bounds, limits = zip(
            *((s.start, s.extent, s.bound, s.limit) for s in spans), strict=True
        )
        return cls(starts, extents, bounds, limits)

    def __str__(self) -> str:
        return ", ".join(map(str, self.spans))

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(map(Span, self.start, self.extent, self.bound, self.limit))


@dataclass(frozen=True, slots=True)
class Wait:
    """Hold until the counter `slot` is at least `value`; a value <= 0 never holds."""

    slot: int
    scope: Scope
    value: Affine

    def __str__(self) -> str:
        """`own 3 at 1 + 1*i0`"""
        return f"{self.scope} {self.slot} at {self.value}"


@dataclass(frozen=True, slots=True)
class Act:
    """An activation on the way out: any kind of `unary`."""

    kind: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True)
class Scale:
    """What integers stand for: `scale * (q - zero)`; of floating-point operands it says nothing."""

    scale: float = 1.0
    zero: int = 0


Scales: TypeAlias = tuple[Scale, ...]
