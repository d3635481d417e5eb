"""The matrix unit in detail: convolutions through the lines of the line buffer, write by write and step by step.

For every pass the input iterator reads blocks of memory and writes each into lines, moved on by the shift stride from
line to line; padding is put into the block on the way and is not read.  Then one step for each tap takes an element
from every line.  Windows that straddle two rows are computed from what their lines hold; the output iterator drops
them.  Writes and steps that differ in the input channel only are done together and counted each.

The fast path (`matrix.py`) computes the same from whole maps; `durations.matrix_work` counts in closed form.
Convolutions whose blocks are channels of a position (`channels_last`) take both here: no iterator shifts along them.
So do those whose address tables lead along no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from frustum.dialects.isa.line_buffer_plan import RowRun, column_pieces, fills, kept, run_of, writes
from frustum.dialects.isa.program import ELEMENT_BYTES, Conv, LineBuffer, Node, Repeat, RunMode
from frustum.dialects.target import MatrixUnit
from frustum.dialects.target.durations import matrix_work
from frustum.runtime.device.effects import Call
from frustum.runtime.device.form import Ints, groups_of
from frustum.runtime.device.matrix import (
    IN,
    OUT,
    accumulators,
    convolve,
    input_strides,
    way_out,
    weights_of,
    wide,
)
from frustum.runtime.kernels import Array
from frustum.runtime.time.work import windows_of

Piece = tuple[int, int, int]
"""(number of the run, first window, windows): what lies together in the lines."""


class SetUpError(Exception):
    """A convolution for which the line buffer is not set up, or set up otherwise; names field, found and needed."""


@dataclass
class LineBufferCounts:
    """What really happened, over all cores."""

    writes: int = 0
    steps: int = 0
    discarded: int = 0

    def add(self, units: int, writes: int, steps: int, discarded: int) -> None:
        self.writes, self.steps = self.writes + units * writes, self.steps + units * steps
        self.discarded += units * discarded


class LineBuffers:
    """The line buffers of all cores while a program runs once."""

    def __init__(self, unit: MatrixUnit, body: Sequence[Node]) -> None:
        self.unit = unit
        self.counts: LineBufferCounts = LineBufferCounts()
        self._set_ups: dict[int, LineBuffer | None] = {}
        _pair(body, self._set_ups)

    def convolve(self, instruction: Conv, work: Call) -> None:
        """The effect of a convolution, for `ExecutionPlan.run`."""
        has_no_strides = work.addresses is not None and work.addresses.strides is None
        if instruction.line_mode == "channels_last" or has_no_strides:
            self._count_in_closed_form(instruction, work)
            convolve(instruction, work)
        else:
            way_out(instruction, work, self._products(instruction, instruction.line_mode, work))

    def _products(self, conv: Conv, mode: RunMode, work: Call) -> Array:
        """`[units..., n, co, h, w]` in f32; of integers in i64."""
        images, outputs, rows, columns = work.extent
        shape, units = _units(conv, work)
        run, runs = run_of(windows_of(conv), mode, images, rows, columns)
        check_set_up(self._set_ups.get(id(conv)), conv, run)
        job = _LineRun(conv, work, run, runs, self.unit, LineBufferCounts())
        sums = job.sums(shape[:-4])
        numbers = kept(run.windows, run.discard)
        self.counts.add(units, job.counts.writes, job.counts.steps, runs * (run.windows - len(numbers)))
        sums = sums.reshape(*shape[:-4], outputs, runs, run.windows)[..., numbers]
        result = np.moveaxis(sums.reshape(*shape[:-4], outputs, images, rows, columns), -4, -3)
        return accumulators(result)

    def _count_in_closed_form(self, conv: Conv, work: Call) -> None:
        if conv.line_mode == "channels_last" and self._set_ups.get(id(conv)) is not None:
            raise SetUpError("a channels_last convolution with a line_buffer instruction before it")
        images, outputs, rows, columns = work.extent
        groups = groups_of(conv, outputs)
        sizes = images, rows, columns, work.read[1], outputs // groups, groups
        done = matrix_work(self.unit, windows_of(conv).convolution(*sizes), conv.line_mode)
        self.counts.add(_units(conv, work)[1], done.writes, done.steps, int(done.discarded))


def _units(conv: Conv, work: Call) -> tuple[tuple[int, ...], int]:
    """Shape of the output of all units that run together, and how many they are."""
    shape = work.view(OUT, conv.out_view, work.extent).shape
    return shape, int(np.prod(shape[:-4], dtype=np.int64))


def check_set_up(set_up: LineBuffer | None, conv: Conv, run: RowRun) -> None:
    """Raise SetUpError where the set-up is not for this convolution; a split one needs none.

    A run whose rows are as long as those of the set-up must have its numbers.
    """
    if set_up is None:
        if conv.line_mode != "split":
            raise SetUpError(f"a {conv.line_mode} convolution without a line_buffer instruction before it")
        return
    pairs: list[tuple[str, object, object]] = [
        ("mode", set_up.mode, conv.line_mode),
        ("shift", set_up.shift, run.stride),
    ]
    if set_up.discard is not None and run.rows > 1 and set_up.discard[0] == run.columns:
        pairs += [("boundary", set_up.boundary, run.distance), ("discard", set_up.discard, run.discard)]
        pairs += [("second_shift", set_up.second_shift, run.second_shift)]
    for field, found, needed in pairs:
        if found != needed:
            raise SetUpError(f"line_buffer: {field} is {found}, the convolution needs {needed}")


def _pair(body: Sequence[Node], found: dict[int, LineBuffer | None]) -> None:
    """The set-up of every convolution, by identity: the last one before it in its body since another convolution."""
    pending: LineBuffer | None = None
    for node in body:
        match node:
            case Repeat():
                _pair(node.body, found)
            case LineBuffer():
                pending = node
            case Conv():
                found[id(node)], pending = pending, None


@dataclass(frozen=True)
class _LineRun:
    """One convolution on a group of units; counts are those of one unit."""

    conv: Conv
    work: Call
    run: RowRun
    runs: int
    unit: MatrixUnit
    counts: LineBufferCounts

    def sums(self, lead: tuple[int, ...]) -> Array:
        """Accumulators `[units..., co, windows]` of all runs, windows to be discarded included."""
        conv, outputs = self.conv, self.work.extent[1]
        weights = weights_of(conv, self.work)
        result = np.zeros((*lead, outputs, self.runs * self.run.windows), weights.dtype)
        if weights.size == 0:
            return result
        first = 0
        for pieces in fills(self.run, self.runs, self.unit.lines):
            count = sum(piece[2] for piece in pieces)
            for group, chosen in self.slices():
                part = result[..., chosen, first : first + count]
                for row in range(conv.kernel[0]):
                    self.add(part, weights[..., chosen, :, row, :], pieces, group, row)
            first += count
        return result

    def slices(self) -> Iterator[tuple[int, slice]]:
        """The output channels of each pass: at most Q, of one group."""
        outputs = self.work.extent[1]
        groups = groups_of(self.conv, outputs)
        step, per_group = self.unit.channels, outputs // groups
        for group in range(groups):
            end = (group + 1) * per_group
            for start in range(end - per_group, end, step):
                yield group, slice(start, min(start + step, end))

    def add(self, part: Array, weights: Array, pieces: list[Piece], group: int, row: int) -> None:
        """Fill the lines for one kernel row and add its steps to `part` `[units..., co, lines]`."""
        conv = self.conv
        block = self.unit.line_buffer.block_bytes // ELEMENT_BYTES[conv.in_view.element]
        dilation, taps = conv.dilations[1], conv.kernel[1]
        for first, count, fill in column_pieces(block, taps, dilation, self.run.stride):
            offset, span = first * dilation, (count - 1) * dilation + 1
            lines = self.fill(pieces, group, row, fill, offset, span)  # units..., ci, lines, span
            for tap in range(count):
                part += weights[..., first + tap] @ lines[..., tap * dilation]
                self.counts.steps += lines.shape[-3]

    def fill(self, pieces: list[Piece], group: int, row: int, fill: int, offset: int, span: int) -> Array:
        """What the lines hold, `[units..., channels, lines, span]`, once all pieces are written."""
        held = []
        for number, first, count in pieces:
            for window, windows, start, stop in writes(self.run, first, count, span, fill, offset):
                block = self.block(number, group, row, start, stop)
                self.counts.writes += block.shape[-2]
                shifts = [self.run.start(window + line) + offset - start for line in range(windows)]
                held.append(block[..., np.add.outer(shifts, np.arange(span))])
        return np.concatenate(held, axis=-2)

    def block(self, number: int, group: int, row: int, start: int, stop: int) -> Array:
        """Elements [start, stop) of a run's stream in every channel, `[units..., channels, elements]`: one piece of
        memory, less its zero point, with padding where the stream has it."""
        conv, work = self.conv, self.work
        move, is_read = self.places(number, row, np.arange(start, stop))
        (_, channel_bytes, _, step), group_bytes = input_strides(conv, work)
        channels = work.read[1]
        lowest = int(move[is_read].min(initial=np.iinfo(np.int64).max)) if is_read.any() else 0
        count = (int(move[is_read].max()) - lowest) // step + 1 if is_read.any() and step else 1
        assert count <= stop - start, "a block is one piece of memory"
        base = lowest + group * group_bytes
        shape, strides = (1, 1, channels, count), (0, 0, channel_bytes, step)
        read = wide(work.view(IN, conv.in_view, shape, strides, base)[..., 0, 0, :, :], conv.in_zero)
        block = np.zeros((*read.shape[:-1], stop - start), read.dtype)
        if is_read.any():
            block[..., is_read] = read[..., (move[is_read] - lowest) // step if step else 0 * move[is_read]]
        return block

    def places(self, number: int, row: int, element: Ints) -> tuple[Ints, Ints]:
        """Byte offsets of a run's elements from the first one read, and which of them are read from memory.

        What lies between two rows is read where the block holds what lies on both sides of it.
        """
        conv, work, run = self.conv, self.work, self.run
        steps, _ = input_strides(conv, work)
        rows, position = np.divmod(element, run.distance)
        image, output_row = np.divmod(number * run.rows + rows, work.extent[2])
        input_row = output_row * conv.strides[0] + row * conv.dilations[0] - work.low[2]
        column = position - work.low[3]
        move: Ints = image * steps[0] + input_row * steps[2] + column * steps[3]
        length = (run.columns - 1) * run.stride + (conv.kernel[1] - 1) * conv.dilations[1] + 1
        in_row = (input_row >= 0) & (input_row < work.read[2])
        is_map = in_row & (column >= 0) & (column < work.read[3])
        between = in_row & (position >= length)
        if is_map.any():
            between &= (move > move[is_map].min()) & (move < move[is_map].max())
        return move, is_map | (between & is_map.any())
