"""A program of the machine as plain data: what the bytes of an executable say, and nothing else.

Each instruction is declared here, once: its opcode, and its fields in the order of their bits.  A field's type says
how it is written (`format.py`) and what carries it in the IR (`instruction.py`); an integer also says how wide it is.
Made from this are the bits, the operation's properties and its constructor, the listing, and docs/operations.md.

This file imports neither xDSL nor numpy; the small values of instructions (`values.py`) are found here too.
"""
# ruff: noqa: F403, F405

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, TypeAlias

from frustum.dialects.extents import Extents
from frustum.dialects.isa.fields import Mask, OneOf, Register, Several, Signed, Unsigned
from frustum.dialects.isa.values import *

U2: TypeAlias = Annotated[int, Unsigned(2)]
U16: TypeAlias = Annotated[int, Unsigned(16)]
U32: TypeAlias = Annotated[int, Unsigned(32)]
Pair: TypeAlias = Annotated[tuple[int, ...], Several(2, Unsigned(16))]
ZeroPoint: TypeAlias = Annotated[int, Signed(16)]
PoolKind: TypeAlias = Annotated[str, OneOf(POOL_KINDS)]
UnaryKind: TypeAlias = Annotated[str, OneOf(UNARY_KINDS)]
BinaryKind: TypeAlias = Annotated[str, OneOf(BINARY_KINDS)]
ReduceKind: TypeAlias = Annotated[str, OneOf(REDUCE_KINDS)]
ResizeMode: TypeAlias = Annotated[str, OneOf(RESIZE_MODES)]
RoundingMode: TypeAlias = Annotated[str, OneOf(ROUNDINGS)]
Level: TypeAlias = Annotated[int, Unsigned(3)]
"""A loop around the instruction, 0 the outermost."""
Entry: TypeAlias = Annotated[int, Unsigned(6)]
"""One of the address cache."""
TwoScales: TypeAlias = Annotated[Scales, Several(2, Register("scale"))]
"""Of the operand, of the result."""
ThreeScales: TypeAlias = Annotated[Scales, Several(3, Register("scale"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What every instruction has.  `layer` and `unit` index the program's names, for reports only."""

    OPCODE: ClassVar[int]
    NAME: ClassVar[str]
    stage: int = 0
    waits: tuple[Wait, ...] = ()
    signal: int | None = None
    layer: int = 0
    unit: int = 0

    def __init_subclass__(cls, opcode: int = 0, name: str = "") -> None:
        if opcode:  # none where `dataclass` makes the class again, with slots
            cls.OPCODE, cls.NAME = opcode, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Common, opcode=8, name="copy"):
    engine: CopyEngine
    src_view: View
    dst_view: View
    multicast: bool = False
    peer: Affine | None = None
    box: Box
    expand: Annotated[int, Unsigned(30)] | None = None
    """Bytes of the slot at the source, whose block (`weights/codec.py`) stands for the elements of the clipped box, d0
    outermost; the source's view then has no strides."""
    fill: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBuffer(Common, opcode=23, name="line_buffer"):
    """How the lines are written for the next convolution of the same core, for its nominal box.

    Elements and lines count along one run of rows, for one input channel and kernel row.  `shift` is the shift stride
    from line to line, `second_shift` that to the first line of a row from the line before it; `boundary` is the number
    of elements from the start of a row to that of the next.  `padding` (top, left, bottom, right) is inserted on the
    fly.  `discard` (first, period, count): in every `period` windows, `count` from number `first` on are not written.
    """

    engine: ClassVar[Engine] = "matrix"
    mode: RunMode
    source: LineSource
    lines: U16
    shift: U16
    second_shift: U16
    blocks: U32
    boundary: U32
    padding: Annotated[Extents, Several(4, Unsigned(16))] = (0, 0, 0, 0)
    discard: Annotated[tuple[int, int, int], Several(3, Unsigned(32))] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(Common, opcode=9, name="conv"):
    engine: ClassVar[Engine] = "matrix"
    in_view: View
    weight_view: View
    out_view: View
    channels: Span
    box: Box
    rows: Span
    cols: Span
    bias_view: View | None = None
    acc_view: View | None = None
    line_mode: LineMode = "split"
    accumulate: Level | None = None
    groups: U16 = 1
    continues: bool = False
    """Accumulators continue from `acc` in the first pass too."""
    kernel: Pair
    strides: Pair
    dilations: Pair
    act: Act | None = None
    table: Entry | None = None
    """Entry of the address cache that holds the table of its operands."""
    weight_zero_view: View | None = None
    multiplier_view: View | None = None
    residual_view: View | None = None
    in_zero: ZeroPoint = 0
    out_zero: ZeroPoint = 0
    scales: ThreeScales | None = None
    """With a residual of integers: of what it is added to, its own, of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector(Common):
    """An instruction of the vector unit."""

    engine: ClassVar[Engine] = "vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Vector, opcode=10, name="pool"):
    in_view: View
    out_view: View
    rows: Span
    cols: Span
    box: Box
    kernel: Pair
    strides: Pair
    dilations: Pair
    pad_low: Pair = (0, 0)
    pad_high: Pair = (0, 0)
    kind: PoolKind
    include_pad: bool = False
    act: Act | None = None
    scales: TwoScales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Depthwise(Vector, opcode=22, name="depthwise"):
    """A convolution of each channel by itself: channel c of the result has the kernel c of channel c."""

    in_view: View
    weight_view: View
    out_view: View
    box: Box
    rows: Span
    cols: Span
    bias_view: View | None = None
    kernel: Pair
    strides: Pair
    dilations: Pair
    act: Act | None = None
    weight_zero_view: View | None = None
    multiplier_view: View | None = None
    residual_view: View | None = None
    in_zero: ZeroPoint = 0
    out_zero: ZeroPoint = 0
    scales: ThreeScales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unary(Vector, opcode=11, name="unary"):
    in_view: View
    out_view: View
    kind: UnaryKind
    box: Box
    alpha: float = 0.0
    beta: float = 0.0
    scales: TwoScales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary(Vector, opcode=12, name="binary"):
    a_view: View
    b_view: View
    out_view: View
    kind: BinaryKind
    box: Box
    act: Act | None = None
    scales: ThreeScales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax(Vector, opcode=13, name="softmax"):
    in_view: View
    out_view: View
    axis: U2
    box: Box
    scales: TwoScales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hide(Vector, opcode=27, name="hide"):
    """-inf where the position along d1 is more than `ahead` beyond that along d3, elsewhere the operand."""

    in_view: View
    out_view: View
    ahead: Annotated[int, Signed(32)]
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalise(Vector, opcode=29, name="normalise"):
    """(x - mean) / sqrt(variance + epsilon) of the elements along `axes` and of `group` channels beside each other
    (0: along no others), times a scale, plus a shift, then `act`; `rms`: the mean counts as 0.  Sums are f32."""

    in_view: View
    scale_view: View | None = None
    shift_view: View | None = None
    out_view: View
    axes: Annotated[tuple[int, ...], Mask(4)]
    group: U32 = 0
    rms: bool = False
    epsilon: float
    box: Box
    act: Act | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Vector, opcode=14, name="reduce"):
    """`box` is over the input; `out_view` has stride 0 on the reduced axes."""

    in_view: View
    out_view: View
    kind: ReduceKind
    axes: Annotated[tuple[int, ...], Mask(4)]
    accumulate: Level | None = None
    box: Box
    scale: float = 1.0
    scales: TwoScales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lrn(Vector, opcode=15, name="lrn"):
    in_view: View
    out_view: View
    channels: Span
    box: Box
    size: U32
    alpha: float
    beta: float
    bias: float
    scales: TwoScales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(Vector, opcode=16, name="resize"):
    in_view: View
    out_view: View
    rows: Span
    cols: Span
    mode: ResizeMode
    rounding: RoundingMode
    box: Box
    scale: tuple[float, float]
    offset: tuple[float, float]
    scales: TwoScales | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch(Common, opcode=17, name="fetch"):
    engine: ClassVar[Engine] = "fetch"
    page: U16


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLoad(Common, opcode=28, name="table"):
    """The instruction `table`: `bytes` from DRAM into `entry` of every address cache, which gives up `evicts`."""

    engine: ClassVar[Engine] = "fetch"
    src_view: View
    entry: Entry
    bytes: U32
    evicts: Annotated[tuple[int, ...], Mask(TABLE_ENTRIES)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Common, opcode=18, name="barrier"):
    """Every engine of every cluster drains; all counters are reset to 0."""

    engine: ClassVar[None] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Common, opcode=19, name="wait"):
    """The instruction `wait`: only waits (and may signal)."""

    engine: Engine


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop; child c runs in pass t with index i = t - c.stage while 0 <= i < count."""

    count: int
    body: tuple[Node, ...]
    stage: int = 0


Instruction: TypeAlias = (
    Copy
    | LineBuffer
    | Conv
    | Pool
    | Depthwise
    | Unary
    | Binary
    | Softmax
    | Normalise
    | Hide
    | Reduce
    | Lrn
    | Resize
    | Fetch
    | TableLoad
    | Barrier
    | Hold
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

    def externals_of(self, *classes: str) -> tuple[External, ...]:
        """Those of some classes, in order."""
        return tuple(each for each in self.externals if each.class_ in classes)


def instructions(body: Sequence[Node]) -> Iterator[Instruction]:
    """All instructions in textual order."""
    for node in body:
        if isinstance(node, Repeat):
            yield from instructions(node.body)
        else:
            yield node
