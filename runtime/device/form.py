# Tests: test/dialects/isa/test_declarations.py
"""The common form of all instructions: a box, what is read around it, operands that move with the clipping, counters.

Expansion, timing and checking work on this form only and know no operation by name: of an operand it says what is
touched, and in which passes over accumulators.  A *window* says which positions
of the read operand an output range needs: the output position at distance k from the box's nominal start needs
`[start + k*stride, start + k*stride + size)`, of which `[max(0, nominal), min(nominal + extent, bound, limit))` exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import singledispatch
from typing import Any, Literal, TypeAlias

import numpy as np

from frustum.dialects.extents import replaced
from frustum.dialects.isa import program as p
from frustum.dialects.isa.format import FIELDS_OF_TYPE

Int = Any
"""An int, or an array of them."""
Ints = np.ndarray
STILL: p.Four = (0, 0, 0, 0)
SAME = (None,) * 4
Slot: TypeAlias = tuple[bool, int, int]
"""A counter: whether it is a core's, its slot, the core (of the chip) or cluster it belongs to."""
FAR = 1 << 40
"""Stands for a bound or limit that is not there."""


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """Positions of one dimension of the read operand; `nominal` is the position its view's offset points at."""

    start: p.Affine
    nominal: p.Affine
    stride: int
    size: int
    extent: int
    bound: int
    limit: p.Affine | None


class When(Enum):
    """In which passes over accumulators an operand is read, or written."""

    NEVER, ALWAYS, LAST, NOT_FIRST, NOT_LAST = range(5)

    def holds(self, is_first: Int, is_last: Int) -> Int:
        """Whether it is in passes that are, or are not, the first and the last."""
        always = is_first | True
        return (always ^ always, always, is_last, always ^ is_first, always ^ is_last)[self.value]


@dataclass(frozen=True, slots=True)
class Along:
    """Positions that are touched along an axis: those of dimension `number` of the clipped box or of what is read,
    `number` of them (`fixed`), or the groups of `number` output channels each that the box has."""

    of: Literal["box", "read", "fixed", "groups"]
    number: int

    def count(self, extent: Sequence[int] | Ints, read: Sequence[int] | Ints) -> Int:
        match self.of:
            case "box":
                return extent[self.number]
            case "read":
                return read[self.number]
            case "groups":
                return extent[1] // self.number
        return self.number


Axes: TypeAlias = tuple[Along, ...]
BOX, READ = (tuple(Along(of, d) for d in range(4)) for of in ("box", "read"))


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: `by_box` and `by_read` are the bytes its address moves for each position by which the lower end
    of the box (of the read positions) is clipped; it is touched along `axes` by `strides`."""

    view: p.View
    by_box: p.Four
    by_read: p.Four
    reads: When
    writes: When
    axes: Axes
    strides: tuple[int, ...]
    is_whole: bool
    """Axes of stride 0 move bytes as well: each position is moved or computed with on its own."""

    @property
    def element_bytes(self) -> int:
        return p.ELEMENT_BYTES[self.view.element]

    @property
    def is_written(self) -> bool:
        return self.writes is not When.NEVER


@dataclass(frozen=True, slots=True)
class AccessForm:
    """`spans`: the four dimensions of the box; `windows`: what is read of each, None where it is what the box names;
    `fills`: the box's lower ends are not cut at 0 nor its upper ends at the bound; `operands`: in the order of the
    instruction's views, None where one is absent."""

    spans: tuple[p.Span, ...] = ()
    windows: tuple[ReadWindow | None, ...] = ()
    operands: tuple[Operand | None, ...] = ()
    fills: bool = False


@singledispatch
def form(instruction: Any) -> AccessForm:
    """The common form of an instruction, empty for one that touches no memory.

    Of one without a function below `out_view` is written and all other views are read, each where the box says.
    """
    declared = FIELDS_OF_TYPE[type(instruction)]
    assert not any(field.type is p.Span for field in declared), f"no form of {type(instruction).__name__}"
    views = {field.name: getattr(instruction, field.name) for field in declared if field.type is p.View}
    operands = (_result(view) if name == "out_view" else _source(view) for name, view in views.items())
    return AccessForm(instruction.box.spans, SAME, tuple(operands)) if views else AccessForm()


@form.register
def _(instruction: p.TableLoad) -> AccessForm:
    one, all_bytes = p.Span(p.ZERO, 1, 1), p.Span(p.ZERO, instruction.bytes, instruction.bytes)
    return AccessForm((one, one, one, all_bytes), SAME, (_source(instruction.src_view),))


@form.register
def _(instruction: p.Copy) -> AccessForm:
    source, element = _source(instruction.src_view, is_whole=True), p.ELEMENT_BYTES[instruction.src_view.element]
    if instruction.expand is not None:
        slot = (Along("fixed", instruction.expand // element),)
        source = replace(source, axes=slot, strides=(element,))
    operands = (source, _result(instruction.dst_view, is_whole=True))
    return AccessForm(instruction.box.spans, SAME, operands, instruction.fill is not None)


@form.register
def _(instruction: p.Conv) -> AccessForm:
    """Input, weights and numbers for each output channel do not lie like the output."""
    weight, view, channels = instruction.weight_view, instruction.in_view, instruction.channels
    rows, cols = _windows(instruction)
    (n, *others), channel = view.strides, (BOX[1],)
    groups = [(Along("groups", outputs_per_group(instruction)), channels.extent * others[0])] * (instruction.groups > 1)
    taps = (Along("fixed", taps) for taps in instruction.kernel)
    operands = (
        Operand(
            view, (0, _group_move(instruction), 0, 0), view.strides, When.ALWAYS, When.NEVER,
            (READ[0], *(axis for axis, _ in groups), *READ[1:]), (n, *(step for _, step in groups), *others), True,
        ),
        Operand(
            weight, (0, weight.strides[0], 0, 0), (0, weight.strides[1], 0, 0), When.ALWAYS, When.NEVER,
            (BOX[1], READ[1], *taps), weight.strides, True,
        ),
        _beside(instruction.bias_view, When.LAST, channel),
        _beside(instruction.acc_view, When.NOT_FIRST, writes=When.NOT_LAST),
        _result(instruction.out_view, When.LAST),
        _beside(instruction.weight_zero_view, When.ALWAYS, channel),
        _beside(instruction.multiplier_view, When.LAST, channel),
        _beside(instruction.residual_view, When.LAST),
    )  # fmt: skip
    return AccessForm(instruction.box.spans, (None, _window(channels, 0, channels.extent), rows, cols), operands)


@form.register
def _(instruction: p.Depthwise) -> AccessForm:
    """The operands in the places of those of a convolution; there are no sums from before."""
    weight, channel = instruction.weight_view, (BOX[1],)
    rows, cols = _windows(instruction)
    taps = (Along("fixed", taps) for taps in instruction.kernel)
    move, strides = (0, weight.strides[0], 0, 0), (weight.strides[0], *weight.strides[2:])
    operands = (
        replace(_source(instruction.in_view), is_whole=True),
        Operand(weight, move, STILL, When.ALWAYS, When.NEVER, (BOX[1], *taps), strides, True),
        _beside(instruction.bias_view, When.ALWAYS, channel),
        None,
        _result(instruction.out_view),
        _beside(instruction.weight_zero_view, When.ALWAYS, channel),
        _beside(instruction.multiplier_view, When.ALWAYS, channel),
        _beside(instruction.residual_view, When.ALWAYS),
    )
    return AccessForm(instruction.box.spans, (None, None, rows, cols), operands)


def _beside(view: p.View | None, reads: When, axes: Axes = BOX, writes: When = When.NEVER) -> Operand | None:
    """What lies as the output does, or has numbers for its channels."""
    if view is None:
        return None
    strides = view.strides if axes is BOX else view.strides[1:2]
    return Operand(view, view.strides, STILL, reads, writes, axes, strides, axes is not BOX)


@form.register
def _(instruction: p.Pool) -> AccessForm:
    spans = instruction.box.spans
    rows, cols = _windows(instruction)
    operands = (_source(instruction.in_view), _result(instruction.out_view))
    return AccessForm(spans, (None, None, rows, cols), operands)


@form.register
def _(instruction: p.Normalise) -> AccessForm:
    of_box = (None if view is None else _source(view) for view in (instruction.scale_view, instruction.shift_view))
    operands = (_source(instruction.in_view), *of_box, _result(instruction.out_view))
    return AccessForm(instruction.box.spans, SAME, operands)


@form.register
def _(instruction: p.Reduce) -> AccessForm:
    spans = instruction.box.spans
    out = instruction.out_view
    read = When.NEVER if instruction.accumulate is None else When.NOT_FIRST
    result = replace(_result(out), by_box=out.strides, reads=read)
    return AccessForm(spans, SAME, (_source(instruction.in_view), result))


@form.register
def _(instruction: p.Lrn) -> AccessForm:
    spans, given = instruction.box.spans, instruction.channels
    first = spans[1].start - (instruction.size - 1) // 2
    channels = ReadWindow(first, given.start, 1, instruction.size, given.extent, given.bound, given.limit)
    operands = (_source(instruction.in_view), _result(instruction.out_view))
    return AccessForm(spans, (None, channels, None, None), operands)


@form.register
def _(instruction: p.Resize) -> AccessForm:
    spans = instruction.box.spans
    rows, cols = (_window(span, 0, span.extent) for span in (instruction.rows, instruction.cols))
    operands = (_source(instruction.in_view), _result(instruction.out_view))
    return AccessForm(spans, (None, None, rows, cols), operands)


def _source(view: p.View, is_whole: bool = False) -> Operand:
    return Operand(view, STILL, _moves(view), When.ALWAYS, When.NEVER, READ, view.strides, is_whole)


def _result(view: p.View, writes: When = When.ALWAYS, is_whole: bool = False) -> Operand:
    return Operand(view, _moves(view), STILL, When.NEVER, writes, BOX, view.strides, is_whole)


def _moves(view: p.View) -> p.Four:
    """The strides; 0 where the view wraps: there the address follows from the position itself."""
    if view.wrap is None:
        return view.strides
    return replaced(view.strides, view.wrap.dim, 0)


def _window(span: p.Span, stride: int, size: int) -> ReadWindow:
    return ReadWindow(span.start, span.start, stride, size, span.extent, span.bound, span.limit)


def _windows(instruction: p.Conv | p.Pool | p.Depthwise) -> tuple[ReadWindow, ReadWindow]:
    """Rows and columns under the kernel."""
    sizes = [(k - 1) * d + 1 for k, d in zip(instruction.kernel, instruction.dilations, strict=True)]
    (v, h), (tall, wide) = instruction.strides, sizes
    return _window(instruction.rows, v, tall), _window(instruction.cols, h, wide)


def outputs_per_group(conv: p.Conv) -> int:
    return conv.box.extent[1] // conv.groups


def groups_of(conv: p.Conv, outputs: Int) -> Int:
    """How many groups a clipped box of so many output channels still has: groups are cut whole."""
    if conv.groups == 1:
        return 1 + 0 * outputs
    assert np.all(outputs % outputs_per_group(conv) == 0), "groups are cut whole"
    return outputs // outputs_per_group(conv)


def _group_move(instruction: p.Conv) -> int:
    """Bytes by which the input moves for each output channel cut at the lower end: whole groups are cut."""
    if instruction.groups == 1:
        return 0
    outputs = outputs_per_group(instruction)
    bytes_per_group = instruction.channels.extent * instruction.in_view.strides[1]
    start = instruction.box.start[1]
    never_cut = min(start.base, start.cluster, start.core, *start.loops, 0) == 0
    assert bytes_per_group % outputs == 0 or never_cut, "groups cut at the lower end"
    return bytes_per_group // outputs


# --- counters ----------------------------------------------------------------------------------------------


def is_on_core(instruction: p.Instruction) -> bool:
    return instruction.engine in p.CORE_ENGINES


def reaches_all_clusters(instruction: p.Instruction) -> bool:
    """Whether cluster 0 executes the instruction for all clusters."""
    return isinstance(instruction, p.FETCHES) or (isinstance(instruction, p.Copy) and instruction.multicast)


def watched(wait: p.Wait, on_core: bool, unit: int, clusters: int, cores: int) -> list[Slot]:
    """The counters that a wait of this unit (core or cluster) looks at."""
    cluster = unit // cores if on_core else unit
    match wait.scope:
        case "own":
            return [(on_core, wait.slot, unit)]
        case "cluster":
            return [(False, wait.slot, cluster)]
        case "cores":
            return [(True, wait.slot, core) for core in range(cluster * cores, (cluster + 1) * cores)]
        case "all_cores":
            return [(True, wait.slot, core) for core in range(clusters * cores)]
    return [(False, wait.slot, other) for other in range(clusters)]


def reached(instruction: p.Instruction, unit: int, clusters: int) -> list[Slot]:
    """The counters that the signal of this unit reaches, if there is one."""
    if instruction.signal is None:
        return []
    units = range(clusters) if reaches_all_clusters(instruction) else (unit,)
    return [(is_on_core(instruction), instruction.signal, each) for each in units]
