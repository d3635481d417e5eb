"""A program of the machine as plain data: what the bytes of an executable say, and nothing else.

This file imports neither xDSL nor numpy.  The attributes of the dialect (`attributes.py`) wrap the small
values of this file; the encoder writes them as bits and reads them back.  In the IR a view is relative to the
buffer it looks at and has no `memory` and no `ring`; in a program it is physical: `memory` is set,
`offset.base` counts from the start of that memory, and `ring` says how the address moves between the copies of
a multiple buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias, get_args

from frustum.dialects import functions
from frustum.dialects.functions import words

MAX_LOOPS = 6
"""Nesting depth of `repeat`."""
TABLE_ENTRIES = 64
"""Tables that an address cache can hold at a time, if they are small enough."""

Memory: TypeAlias = Literal["dram", "sram", "nram", "wram"]
Element: TypeAlias = Literal["f32", "f16", "bf16", "i8", "i16", "i32", "i64"]
Engine: TypeAlias = Literal["gdma", "iodma", "mvdma", "bus", "cdma", "matrix", "vector", "fetch"]
CopyEngine: TypeAlias = Literal["gdma", "iodma", "mvdma", "bus", "cdma"]
Scope: TypeAlias = Literal["own", "cluster", "cores", "all_cores", "all_clusters"]
ExternalClass: TypeAlias = Literal["weight", "input", "output", "intermediate", "program"]
PoolKind: TypeAlias = str
UnaryKind: TypeAlias = str
BinaryKind: TypeAlias = str
ReduceKind: TypeAlias = str
ResizeMode: TypeAlias = str
Rounding: TypeAlias = str
RunMode: TypeAlias = Literal["split", "continuous"]
LineMode: TypeAlias = RunMode | Literal["channels_last"]
LineSource: TypeAlias = Literal["in"]

MEMORIES: tuple[Memory, ...] = get_args(Memory)
ELEMENTS: tuple[Element, ...] = get_args(Element)
ENGINES: tuple[Engine, ...] = get_args(Engine)
COPY_ENGINES: tuple[CopyEngine, ...] = get_args(CopyEngine)
CORE_ENGINES: frozenset[Engine] = frozenset({"iodma", "mvdma", "matrix", "vector"})
"""Engines that every core has; the others exist once in a cluster."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
EXTERNAL_CLASSES: tuple[ExternalClass, ...] = get_args(ExternalClass)
IMAGE_CLASSES: tuple[ExternalClass, ...] = ("weight", "program")
"""What an executable brings with it: weights, and tables of the program."""
POOL_KINDS, UNARY_KINDS = words(functions.Pooling), words(functions.Function)
BINARY_KINDS, REDUCE_KINDS = words(functions.Arithmetic), words(functions.Reduction)
RESIZE_MODES, ROUNDINGS = words(functions.Interpolation), words(functions.Rounding)
RUN_MODES: tuple[RunMode, ...] = get_args(RunMode)
"""How rows of elements are written: what a set-up of the line buffer is for."""
LINE_MODES: tuple[LineMode, ...] = (*RUN_MODES, "channels_last")
LINE_SOURCES: tuple[LineSource, ...] = get_args(LineSource)
ELEMENT_BYTES: dict[Element, int] = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "i16": 2, "i32": 4, "i64": 8}
ACCUMULATORS: dict[Element, Element] = {"f32": "f32", "f16": "f32", "bf16": "f32", "i8": "i32", "i16": "i64"}
"""Of the types of products, the type in which the matrix unit sums them."""

Four: TypeAlias = tuple[int, ...]
"""Of the dimensions n, c, h, w; or what comes before and behind rows and columns."""
Pair: TypeAlias = tuple[int, int]
Scales: TypeAlias = "tuple[Scale, ...]"


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
        starts, extents, bounds, limits = zip(*((s.start, s.extent, s.bound, s.limit) for s in spans), strict=True)
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

    kind: UnaryKind
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True)
class Scale:
    """What integers stand for: `scale * (q - zero)`; of floating-point operands it says nothing."""

    scale: float = 1.0
    zero: int = 0


# ------------------------------------------------------------------------------------------ instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What every instruction has.  `layer` and `unit` index the program's names, for reports only."""

    stage: int = 0
    waits: tuple[Wait, ...] = ()
    signal: int | None = None
    layer: int = 0
    unit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Common):
    engine: CopyEngine
    src_view: View
    dst_view: View
    box: Box
    fill: float | None = None
    multicast: bool = False
    peer: Affine | None = None
    expand: int | None = None
    """Bytes of the slot at the source, whose block (`weight_codec.py`) stands for the elements of the clipped box, d0
    outermost; the source's view then has no strides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBuffer(Common):
    """How the lines are written for the next convolution of the same core, for its nominal box.

    Elements and lines count along one run of rows, for one input channel and kernel row.  `shift` is the shift stride
    from line to line, `second_shift` that to the first line of a row from the line before it; `boundary` is the number
    of elements from the start of a row to that of the next.  `padding` (top, left, bottom, right) is inserted on the
    fly.  `discard` (first, period, count): in every `period` windows, `count` from number `first` on are not written.
    """

    engine: ClassVar[Engine] = "matrix"
    mode: RunMode
    source: LineSource
    blocks: int
    shift: int
    second_shift: int
    boundary: int
    lines: int
    padding: Four = (0, 0, 0, 0)
    discard: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(Common):
    engine: ClassVar[Engine] = "matrix"
    in_view: View
    weight_view: View
    bias_view: View | None = None
    acc_view: View | None = None
    out_view: View
    box: Box
    channels: Span
    rows: Span
    cols: Span
    kernel: Pair
    strides: Pair
    dilations: Pair
    groups: int = 1
    accumulate: int | None = None
    act: Act | None = None
    line_mode: LineMode = "split"
    table: int | None = None
    """Entry of the address cache that holds the table of its operands."""
    weight_zero_view: View | None = None
    multiplier_view: View | None = None
    residual_view: View | None = None
    in_zero: int = 0
    out_zero: int = 0
    scales: Scales | None = None
    """With a residual of integers: of what it is added to, its own, of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Common):
    engine: ClassVar[Engine] = "vector"
    kind: PoolKind
    in_view: View
    out_view: View
    box: Box
    rows: Span
    cols: Span
    kernel: Pair
    strides: Pair
    dilations: Pair
    include_pad: bool = False
    pad_low: Pair = (0, 0)
    pad_high: Pair = (0, 0)
    act: Act | None = None
    scales: Scales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unary(Common):
    engine: ClassVar[Engine] = "vector"
    kind: UnaryKind
    in_view: View
    out_view: View
    box: Box
    alpha: float = 0.0
    beta: float = 0.0
    scales: Scales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary(Common):
    engine: ClassVar[Engine] = "vector"
    kind: BinaryKind
    a_view: View
    b_view: View
    out_view: View
    box: Box
    act: Act | None = None
    scales: Scales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax(Common):
    engine: ClassVar[Engine] = "vector"
    in_view: View
    out_view: View
    box: Box
    axis: int
    scales: Scales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Common):
    """`box` is over the input; `out_view` has stride 0 on the reduced axes."""

    engine: ClassVar[Engine] = "vector"
    kind: ReduceKind
    in_view: View
    out_view: View
    box: Box
    axes: tuple[int, ...]
    scale: float = 1.0
    accumulate: int | None = None
    scales: Scales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lrn(Common):
    engine: ClassVar[Engine] = "vector"
    in_view: View
    out_view: View
    box: Box
    channels: Span
    size: int
    alpha: float
    beta: float
    bias: float
    scales: Scales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(Common):
    engine: ClassVar[Engine] = "vector"
    mode: ResizeMode
    rounding: Rounding
    in_view: View
    out_view: View
    box: Box
    rows: Span
    cols: Span
    scale: tuple[float, float]
    offset: tuple[float, float]
    scales: Scales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch(Common):
    engine: ClassVar[Engine] = "fetch"
    page: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLoad(Common):
    """The instruction `table`: `bytes` from DRAM into `entry` of every address cache, which gives up `evicts`."""

    engine: ClassVar[Engine] = "fetch"
    src_view: View
    bytes: int
    entry: int
    evicts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Common):
    """Every engine of every cluster drains; all counters are reset to 0."""

    engine: ClassVar[None] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Common):
    """The instruction `wait`: only waits (and may signal)."""

    engine: Engine


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop; child c runs in pass t with index i = t - c.stage while 0 <= i < count."""

    count: int
    body: tuple[Node, ...]
    stage: int = 0


Instruction: TypeAlias = (
    Copy | LineBuffer | Conv | Pool | Unary | Binary | Softmax | Reduce | Lrn | Resize | Fetch | TableLoad
    | Barrier | Hold
)
Node: TypeAlias = Instruction | Repeat
FETCHES = (Fetch, TableLoad)
"""What cluster 0 brings for all clusters."""


# ------------------------------------------------------------------------------------------ the program


@dataclass(frozen=True, slots=True)
class External:
    """A buffer in DRAM that the host knows.  `element` is the type on the device, `model_dtype` (a numpy
    name) that of the model; it is empty for what only the device sees."""

    name: str
    class_: ExternalClass
    address: int
    bytes: int
    shape: tuple[int, ...]
    element: Element
    model_dtype: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """One executable's text and what must be known to load and to report it."""

    body: tuple[Node, ...]
    externals: tuple[External, ...] = ()
    name: str = ""
    dtype: str = "f32"
    target: str = "{}"
    """The target description as JSON with sorted keys."""
    layers: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    useful_macs: tuple[int, ...] = ()
    """Of each layer: outputs x channels x kernel of the network."""
    own_elements: tuple[int, ...] = ()
    """Of each layer: elements of the network's map that it makes and no layer before (0: all); none where no layer says
    so.  Bands of columns overlap."""
    core_slots: int = 0
    cluster_slots: int = 0
    peak_bytes: dict[Memory, int] = field(default_factory=dict)
    """Highest address any buffer reaches in each memory, plus one."""


def instructions(body: Sequence[Node]) -> Iterator[Instruction]:
    """All instructions in textual order."""
    for node in body:
        if isinstance(node, Repeat):
            yield from instructions(node.body)
        else:
            yield node
