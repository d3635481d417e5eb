"""The common form of all instructions: a box, what is read around it, and operands that move with the clipping.

Expansion, timing and checking work on this form only and know no operation by name.  A *window* says which positions
of the read operand an output range needs: the output position at distance k from the box's nominal start needs
`[start + k*stride, start + k*stride + size)`, of which `[max(0, nominal), min(nominal + extent, bound, limit))` exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from frustum.dialects.isa.program import (
    ZERO,
    Affine,
    Barrier,
    Binary,
    Conv,
    Copy,
    Fetch,
    Four,
    Hold,
    Instruction,
    LineBuffer,
    Lrn,
    Pool,
    Reduce,
    Resize,
    Softmax,
    Span,
    TableLoad,
    Unary,
    View,
)

Int = Any
"""An int, or an array of them."""
Ints = np.ndarray
STILL: Four = (0, 0, 0, 0)
SAME = (None,) * 4
FAR = 1 << 40
"""Stands for a bound or limit that is not there."""


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """Positions of one dimension of the read operand; `nominal` is the position its view's offset points at."""

    start: Affine
    nominal: Affine
    stride: int
    size: int
    extent: int
    bound: int
    limit: Affine | None


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: `by_box` and `by_read` are the bytes its address moves for each position by which the lower end
    of the box (of the read positions) is clipped."""

    view: View
    by_box: Four = STILL
    by_read: Four = STILL
    is_read: bool = False
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """`spans`: the four dimensions of the box; `windows`: what is read of each, None where it is what the box names;
    `fills`: the box's lower ends are not cut at 0 nor its upper ends at the bound; `operands`: in the order of the
    instruction's views, None where one is absent."""

    spans: tuple[Span, ...] = ()
    windows: tuple[ReadWindow | None, ...] = ()
    operands: tuple[Operand | None, ...] = ()
    fills: bool = False


@singledispatch
def form(instruction: Instruction) -> Form:
    """The common form of `instruction`; empty for one that touches no memory."""
    raise AssertionError(f"no form of {type(instruction).__name__}")


@form.register(Fetch)
@form.register(Barrier)
@form.register(Hold)
@form.register(LineBuffer)
def _(instruction: Fetch | Barrier | Hold | LineBuffer) -> Form:
    return Form()


@form.register
def _(instruction: TableLoad) -> Form:
    one, all_bytes = Span(ZERO, 1, 1), Span(ZERO, instruction.bytes, instruction.bytes)
    return Form((one, one, one, all_bytes), SAME, (_source(instruction.src_view),))


@form.register
def _(instruction: Copy) -> Form:
    spans = instruction.box.spans
    operands = (_source(instruction.src_view), _result(instruction.dst_view))
    return Form(spans, SAME, operands, instruction.fill is not None)


@form.register
def _(instruction: Conv) -> Form:
    spans, weight, group = instruction.box.spans, instruction.weight_view, _group_move(instruction)
    rows, cols = _windows(instruction)
    channels, bias, acc = instruction.channels, instruction.bias_view, instruction.acc_view
    read = instruction.in_view.strides
    extras = instruction.weight_zero_view, instruction.multiplier_view, instruction.residual_view
    operands = (
        Operand(instruction.in_view, (0, group, 0, 0), read, is_read=True),
        Operand(weight, (0, weight.strides[0], 0, 0), (0, weight.strides[1], 0, 0), is_read=True),
        None if bias is None else Operand(bias, bias.strides, is_read=True),
        None if acc is None else Operand(acc, acc.strides, is_read=True, is_written=True),
        _result(instruction.out_view),
        *(None if extra is None else Operand(extra, extra.strides, is_read=True) for extra in extras),
    )
    return Form(spans, (None, _window(channels, 0, channels.extent), rows, cols), operands)


@form.register
def _(instruction: Pool) -> Form:
    spans = instruction.box.spans
    rows, cols = _windows(instruction)
    operands = (_source(instruction.in_view), _result(instruction.out_view))
    return Form(spans, (None, None, rows, cols), operands)


@form.register(Unary)
@form.register(Softmax)
def _(instruction: Unary | Softmax) -> Form:
    spans = instruction.box.spans
    return Form(spans, SAME, (_source(instruction.in_view), _result(instruction.out_view)))


@form.register
def _(instruction: Reduce) -> Form:
    spans = instruction.box.spans
    out = instruction.out_view
    continued = instruction.accumulate is not None
    result = Operand(out, out.strides, is_read=continued, is_written=True)
    return Form(spans, SAME, (_source(instruction.in_view), result))


@form.register
def _(instruction: Binary) -> Form:
    spans = instruction.box.spans
    a, b = _source(instruction.a_view), _source(instruction.b_view)
    return Form(spans, SAME, (a, b, _result(instruction.out_view)))


@form.register
def _(instruction: Lrn) -> Form:
    spans, given = instruction.box.spans, instruction.channels
    first = spans[1].start - (instruction.size - 1) // 2
    channels = ReadWindow(first, given.start, 1, instruction.size, given.extent, given.bound, given.limit)
    operands = (_source(instruction.in_view), _result(instruction.out_view))
    return Form(spans, (None, channels, None, None), operands)


@form.register
def _(instruction: Resize) -> Form:
    spans = instruction.box.spans
    rows, cols = (_window(span, 0, span.extent) for span in (instruction.rows, instruction.cols))
    operands = (_source(instruction.in_view), _result(instruction.out_view))
    return Form(spans, (None, None, rows, cols), operands)


def _source(view: View) -> Operand:
    return Operand(view, by_read=_moves(view), is_read=True)


def _result(view: View) -> Operand:
    return Operand(view, by_box=_moves(view), is_written=True)


def _moves(view: View) -> Four:
    """The strides; 0 where the view wraps: there the address follows from the position itself."""
    if view.wrap is None:
        return view.strides
    d0, d1, d2, d3 = (0 if d == view.wrap.dim else stride for d, stride in enumerate(view.strides))
    return d0, d1, d2, d3


def _window(span: Span, stride: int, size: int) -> ReadWindow:
    return ReadWindow(span.start, span.start, stride, size, span.extent, span.bound, span.limit)


def _windows(instruction: Conv | Pool) -> tuple[ReadWindow, ReadWindow]:
    """Rows and columns under the kernel."""
    sizes = [(k - 1) * d + 1 for k, d in zip(instruction.kernel, instruction.dilations, strict=True)]
    (v, h), (tall, wide) = instruction.strides, sizes
    return _window(instruction.rows, v, tall), _window(instruction.cols, h, wide)


def groups_of(conv: Conv, outputs: Int) -> Int:
    """How many groups a clipped box of so many output channels still has: groups are cut whole."""
    if conv.groups == 1:
        return 1 + 0 * outputs
    per_group = conv.box.extent[1] // conv.groups
    assert np.all(outputs % per_group == 0), "groups are cut whole"
    return outputs // per_group


def _group_move(instruction: Conv) -> int:
    """Bytes by which the input moves for each output channel cut at the lower end: whole groups are cut."""
    if instruction.groups == 1:
        return 0
    outputs = instruction.box.extent[1] // instruction.groups
    bytes_per_group = instruction.channels.extent * instruction.in_view.strides[1]
    start = instruction.box.start[1]
    never_cut = min(start.base, start.cluster, start.core, *start.loops, 0) == 0
    assert bytes_per_group % outputs == 0 or never_cut, "groups cut at the lower end"
    return bytes_per_group // outputs
