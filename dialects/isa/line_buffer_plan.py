"""Arithmetic of the line buffer: rows of windows as one run, what straddles their ends, blocks, lines, discards.

Windows slide along rows.  A *run* is a sequence of rows that the lines see as one stream of elements (one input
channel, one kernel row): in `split` mode every row is a run; in `continuous` mode the rows of an image are one, and
those of several images where the images follow each other as their rows do.  In a run

- row r starts at element `r * D`, D = `distance`: the elements from row to row in memory (vertical stride x pitch),
  or the row's length with its padding where that is more: padding takes the place of what lies between two rows, and
  is inserted where there is less.  It is never stored and never read.
- window i is number `k = i % period` of row `i // period` and starts `k * S` elements after it.  The first `Wo` of a
  period are the row's own windows; the others straddle two rows, are computed and discarded.
- the shift from the last window of a period to the next row is the *second shift*, at most S.

Widths, heights and counts may be numpy arrays in what `durations.py` uses; plans and iterators are of plain integers.
Source: docs/techniques/line-buffer.md, "Where rows end".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frustum.dialects.extents import Extents, Int, ceil_div
from frustum.dialects.isa.values import RunMode
from frustum.dialects.target.durations import Convolution, larger, straddling_windows

Pair = Extents
Discard = tuple[int, int, int]
"""(first, period, count): of every `period` windows, `count` from number `first` on are dropped."""


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution over a map in memory; sizes in elements, (rows, columns) where in pairs.

    `steps` are the bytes from one element to the next in n, c, h, w; `row_elements` the most that a row has without
    padding.
    """

    kernel: Pair
    stride: Pair
    dilation: Pair
    groups: int
    element_bytes: int
    steps: Extents
    row_elements: int

    @property
    def span(self) -> int:
        """Elements that one kernel row covers."""
        return (self.kernel[1] - 1) * self.dilation[1] + 1

    @property
    def row_bytes(self) -> int:
        """From the input of one output row to that of the next."""
        return self.stride[0] * self.steps[2]

    @property
    def joins(self) -> bool:
        """Whether rows can be one run: neighbours in a row are neighbours in memory, rows lie one after another."""
        is_run = self.steps[3] == self.element_bytes and self.row_bytes % self.element_bytes == 0
        return is_run and self.row_bytes >= self.row_elements * self.element_bytes

    @property
    def is_channels_last(self) -> bool:
        """Whether the channels of a position are neighbours in memory and positions are not."""
        apart = self.steps[3] > self.element_bytes and self.steps[3] % self.element_bytes == 0
        return apart and self.steps[1] == self.element_bytes

    def length(self, columns: Int) -> Int:
        """Elements that a row of so many windows covers, padding included."""
        return (columns - 1) * self.stride[1] + self.span

    def distance(self, columns: Int) -> Int:
        """D: elements from the start of a row to that of the next in the run."""
        return larger(self.length(columns), self.row_bytes // self.element_bytes)

    def straddling(self, columns: Int) -> Int:
        """Windows to discard at a row end."""
        length = self.length(columns)
        distance = self.distance(columns)
        return straddling_windows(length, distance, self.kernel[1], self.stride[1], self.dilation[1])

    def runs(self, images: Int, rows: Int) -> Int:
        """How many runs `rows` rows of each of `images` images are in `continuous` mode."""
        if not self.joins:
            return images * rows
        follows = rows * self.row_bytes == self.steps[0]
        return images - (images - 1) * follows

    def convolution(
        self,
        images: Int,
        rows: Int,
        columns: Int,
        channels_in: Int,
        channels_out: Int,
        groups: Int | None = None,
    ) -> Convolution:
        """What one instruction does, for `durations.matrix_work`; channels are those of one group.

        `groups`: those that clipping left, where not all are there.
        """
        return Convolution(
            rows=images * rows,
            columns=columns,
            channels_in=channels_in,
            channels_out=channels_out,
            element_bytes=self.element_bytes,
            groups=self.groups if groups is None else groups,
            kernel_h=self.kernel[0],
            kernel_w=self.kernel[1],
            stride_w=self.stride[1],
            dilation_w=self.dilation[1],
            straddling=self.straddling(columns),
            runs=self.runs(images, rows),
            pitch_channels=self.steps[3] // self.element_bytes if self.is_channels_last else None,
        )


@dataclass(frozen=True)
class RowRun:
    """Rows of windows that the lines see as one stream, in elements."""

    rows: int
    columns: int
    stride: int
    distance: int
    straddling: int

    @property
    def period(self) -> int:
        return self.columns + self.straddling

    @property
    def windows(self) -> int:
        """Discarded ones included; nothing follows the last row."""
        return self.rows * self.columns + (self.rows - 1) * self.straddling

    @property
    def second_shift(self) -> int:
        """From the last window before a row to the row's first one."""
        return self.distance - (self.period - 1) * self.stride if self.rows > 1 else self.stride

    @property
    def discard(self) -> Discard | None:
        if self.rows == 1 or self.straddling == 0:
            return None
        return self.columns, self.period, self.straddling

    def start(self, window: int) -> int:
        """First element of a window: one shift for each window before it, the second one at every row's start."""
        rows, number = divmod(window, self.period)
        return rows * ((self.period - 1) * self.stride + self.second_shift) + number * self.stride


def run_of(windows: Windows, mode: RunMode, images: int, rows: int, columns: int) -> tuple[RowRun, int]:
    """The runs of one instruction, which are alike, and how many there are."""
    total = images * rows
    runs = windows.runs(images, rows) if mode == "continuous" else total
    straddling, distance = windows.straddling(columns), windows.distance(columns)
    joined = total // runs
    return RowRun(joined, columns, windows.stride[1], distance, straddling if joined > 1 else 0), runs


# --- the instruction ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinePlan:
    """A line-buffer write instruction, but for its source and padding: see `fisa.line_buffer`."""

    mode: RunMode
    blocks: int
    lines: int
    shift: int
    second_shift: int
    boundary: int
    discard: Discard | None


def plan(run: RowRun, mode: RunMode, lines: int, block: int, taps: int, dilation: int) -> LinePlan:
    """How a run is written: `lines` of the buffer, `block` elements of a block, `taps` of a kernel row."""
    filled = min(lines, run.windows)
    blocks = sum(ceil_div(filled, fill) for _, _, fill in column_pieces(block, taps, dilation, run.stride))
    return LinePlan(mode, blocks, filled, run.stride, run.second_shift, run.distance, run.discard)


# --- iterators ---------------------------------------------------------------------------------------------


def column_pieces(block: int, taps: int, dilation: int, stride: int) -> tuple[tuple[int, int, int], ...]:
    """(first tap, taps, lines that one write fills) of the fewest pieces of a kernel row that fit into a block."""
    most = (block - 1) // dilation + 1
    pieces = []
    for first in range(0, taps, most):
        count = min(most, taps - first)
        pieces.append((first, count, (block - (count - 1) * dilation - 1) // stride + 1))
    return tuple(pieces)


def fills(run: RowRun, runs: int, lines: int) -> Iterator[list[tuple[int, int, int]]]:
    """The lines are filled in order; for each fill its pieces: (number of the run, first window, windows)."""
    total = runs * run.windows
    for start in range(0, total, lines):
        stop = min(start + lines, total)
        pieces = []
        while start < stop:
            number, first = divmod(start, run.windows)
            count = min(stop - start, run.windows - first)
            pieces.append((number, first, count))
            start += count
        yield pieces


def writes(
    run: RowRun, first: int, count: int, span: int, fill: int, offset: int
) -> Iterator[tuple[int, int, int, int]]:
    """The input iterator: blocks for `count` windows from number `first` on, `fill` of them with each write.

    Yields (window, windows, first element, end) of each; `offset` and `span` are the first tap of the column piece
    in elements and what the piece covers.
    """
    for window in range(first, first + count, fill):
        number = min(fill, first + count - window)
        last = run.start(window + number - 1)
        yield window, number, run.start(window) + offset, last + offset + span


def kept(windows: int, discard: Discard | None) -> list[int]:
    """The output iterator: numbers of the windows of a run that are written."""
    if discard is None:
        return list(range(windows))
    first, period, count = discard
    return [window for window in range(windows) if not first <= window % period < first + count]
