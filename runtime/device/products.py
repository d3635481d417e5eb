"""The convolutions of floats, and with them matrix products: windows as columns, products by numpy, the way out.

All numbers are worked out before (`product_table.py`); what is left for each group of units is a few calls, in which
the loops of `kernels/product_loop.py` touch every element once.  Source: im2col, K. Chellapilla et al., "High
performance convolutional neural networks for document processing" (2006).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod

import numpy as np

from frustum.runtime.device.form import Ints
from frustum.runtime.device.memory import Memories
from frustum.runtime.device.product_table import IN_PLANE, WEIGHT_PLANE, ProductTable
from frustum.runtime.kernels import Array, unary
from frustum.runtime.kernels import product_loop as c
from frustum.runtime.kernels.convolution import in_two

COLUMNS_BYTES = 2 << 20
"""Bytes of columns and results at a time, so that they stay in the caches."""
LARGE = 1 << 23
"""Products from which on halves on two threads pay."""
FLOAT = np.dtype(np.float32)

Part = tuple[int, int, int, int]
"""Units of a group: outer from, to; inner from, to."""


class Products:
    """Computes the groups of a table; `seq` is the place of each in the program order."""

    def __init__(self, table: ProductTable) -> None:
        self.seq: Ints = table.seq
        self._table = table
        self._lead, self._first, self._direct = table.groups.lead.tolist(), table.first.tolist(), table.direct.tolist()
        self._numbers = table.calls.tolist()
        self._lanes = _Lane(), _Lane()

    def run(self, memories: Memories, group: int, other: ThreadPoolExecutor | None) -> None:
        """All of one group; half of it on another thread, if there is one and the group is large."""
        outer, inner = self._lead[group]
        whole = (0, outer, 0, inner)
        if other is None or outer * inner == 1 or outer * inner * _products(self._numbers[group]) < LARGE:
            self._run(memories, group, whole, self._lanes[0])
            return
        halves = zip(_halves(whole), reversed(self._lanes), strict=True)
        in_two(other, lambda half: self._run(memories, group, *half), *halves)

    def _run(self, memories: Memories, group: int, part: Part, lane: _Lane) -> None:
        """As many units at a time as the caches hold, or some rows of one that is too large."""
        numbers = self._numbers[group]
        height, row_bytes = numbers[c.ROWS], _row_bytes(numbers)
        band = height if self._direct[group] else max(1, min(height, COLUMNS_BYTES // row_bytes))
        for piece in _pieces(part, max(1, COLUMNS_BYTES // (row_bytes * height))):
            start = self._first[group] + piece[0] * self._lead[group][1] + piece[2]
            cells = self._table.cells[start : start + _units(piece)]
            job = _Piece(self._table, group, numbers, self._direct[group], piece, cells, memories, lane)
            for row in range(0, height, band):
                job.compute(row, min(band, height - row))


@dataclass(slots=True)
class _Lane:
    """Where one thread computes: arrays of f32 that grow as they must."""

    arrays: dict[str, Array] = field(default_factory=dict)

    def take(self, name: str, size: int) -> Array:
        """An array of this size, with anything in it."""
        array = self.arrays.get(name)
        if array is None or array.size < size:
            array = self.arrays[name] = np.empty(size, FLOAT)
        return array[:size]


@dataclass(slots=True)
class _Piece:
    """Some units of a group; `numbers` are its row of the table of calls."""

    table: ProductTable
    group: int
    numbers: list[int]
    direct: bool
    piece: Part
    cells: Ints
    memories: Memories
    lane: _Lane

    def compute(self, row: int, rows: int) -> None:
        """Rows `[row, row + rows)` of the outputs."""
        numbers, call = self.numbers, self.table.calls[self.group]
        result = self._multiply(row, rows)
        act = self.table.convs[self.table.conv[self.group]].act
        alpha, beta = (0.0, 0.0) if act is None else (act.alpha, act.beta)
        work = self.memories.floats, self.memories.halves, call, self.cells, result, FLOAT.type(alpha), FLOAT.type(beta)
        if act is None or numbers[c.ACT] != c.OTHER_ACT or not numbers[c.IS_LAST]:
            c.finish(*work, row, rows, True, True)
            return
        c.finish(*work, row, rows, True, False)
        result[...] = unary(act.kind, result, act.alpha, act.beta)
        c.finish(*work, row, rows, False, True)

    def _multiply(self, row: int, rows: int) -> Array:
        """`[units, outputs, images * rows * columns]`, flat."""
        numbers, call, cells = self.numbers, self.table.calls[self.group], self.cells
        outputs, groups, places = numbers[c.OUTPUTS], numbers[c.GROUPS], numbers[c.IMAGES] * rows * numbers[c.COLUMNS]
        result = self.lane.take("result", len(cells) * outputs * places)
        source = self.memories.floats
        if numbers[c.IN_TYPE] != c.F32:
            source, call, cells = self._widened_inputs(call, cells)
        if groups > 1 and numbers[c.CHANNELS] == 1:
            weights = self.memories.floats
            if numbers[c.WEIGHT_TYPE] != c.F32:
                weights, call, cells = self._widened_weights(call, cells)
            c.depthwise(source, weights, call, cells, result, row, rows)
            return result
        lead, terms = (*_shape(self.piece), groups), _terms(numbers)
        if numbers[c.WEIGHT_TYPE] != c.F32:
            weights = self._widened_weights(call, cells)[0]
        else:
            strides = numbers[c.WEIGHT_STRIDES : c.WEIGHT_STRIDES + 4]
            shape = outputs, numbers[c.CHANNELS], numbers[c.KERNEL], numbers[c.KERNEL + 1]
            weights = self._view(WEIGHT_PLANE, shape, strides)
        columns = self._columns(source, call, cells, row, rows)
        np.matmul(
            weights.reshape(*lead, outputs // groups, terms), columns.reshape(*lead, terms, places),
            out=result.reshape(*lead, outputs // groups, places),
        )  # fmt: skip
        return result

    def _columns(self, source: Array, call: Ints, cells: Ints, row: int, rows: int) -> Array:
        """`[units, groups, channels * kernel, images * rows * columns]`: what the weights are multiplied with."""
        numbers = self.numbers
        if self.direct and numbers[c.IN_TYPE] != c.F32:
            return source
        if self.direct:
            shape = numbers[c.GROUPS], numbers[c.CHANNELS], rows * numbers[c.COLUMNS]
            strides = numbers[c.GROUP_STRIDE], numbers[c.IN_STRIDES + 1], numbers[c.IN_STRIDES + 3]
            return self._view(IN_PLANE, shape, strides)
        size = len(cells) * numbers[c.GROUPS] * _terms(numbers) * numbers[c.IMAGES] * rows * numbers[c.COLUMNS]
        columns = self.lane.take("columns", size)
        c.gather(source, call, cells, columns, row, rows)
        return columns

    def _view(self, plane: int, shape: tuple[int, ...], strides: list[int] | tuple[int, ...]) -> Array:
        """An operand of all units as it lies in memory: `[outer, inner, *shape]`."""
        outer, inner = self.table.groups.step[self.group, :, plane].tolist()
        base = int(self.table.groups.base[self.group, plane]) + self.piece[0] * outer + self.piece[2] * inner
        bytes_ = [step * FLOAT.itemsize for step in (outer, inner, *strides)]
        return np.ndarray((*_shape(self.piece), *shape), FLOAT, self.memories.flat, base * FLOAT.itemsize, bytes_)

    def _widened_inputs(self, call: Ints, cells: Ints) -> tuple[Array, Ints, Ints]:
        """The inputs as f32 without gaps, and a call and cells that say so."""
        numbers = self.numbers
        high, wide = cells[:, c.READ : c.READ + 2].max(axis=0).tolist()
        image = numbers[c.IMAGES] * high * wide
        size = numbers[c.GROUPS] * numbers[c.CHANNELS] * image
        inputs = self.lane.take("inputs", len(cells) * size)
        c.widen_inputs(self.memories.halves, call, cells, inputs, high, wide)
        call, cells = call.copy(), cells.copy()
        call[c.IN_STRIDES : c.IN_STRIDES + 4] = high * wide, image, wide, 1
        call[c.GROUP_STRIDE] = numbers[c.CHANNELS] * image
        cells[:, c.IN_AT] = np.arange(len(cells)) * size
        return inputs, call, cells

    def _widened_weights(self, call: Ints, cells: Ints) -> tuple[Array, Ints, Ints]:
        """The weights as f32 without gaps, and a call and cells that say so."""
        numbers, terms = self.numbers, _terms(self.numbers)
        weights = self.lane.take("weights", len(cells) * numbers[c.OUTPUTS] * terms)
        c.widen_weights(self.memories.halves, call, cells, weights)
        call, cells = call.copy(), cells.copy()
        high, wide = numbers[c.KERNEL], numbers[c.KERNEL + 1]
        call[c.WEIGHT_STRIDES : c.WEIGHT_STRIDES + 4] = terms, high * wide, wide, 1
        cells[:, c.WEIGHT_AT] = np.arange(len(cells)) * numbers[c.OUTPUTS] * terms
        return weights, call, cells


def _terms(numbers: list[int]) -> int:
    """Products that each output sums."""
    return numbers[c.CHANNELS] * numbers[c.KERNEL] * numbers[c.KERNEL + 1]


def _products(numbers: list[int]) -> int:
    """Of one unit."""
    return _terms(numbers) * prod(numbers[c.IMAGES : c.COLUMNS + 1])


def _row_bytes(numbers: list[int]) -> int:
    """Of the columns and the results of one row of one unit."""
    elements = numbers[c.GROUPS] * _terms(numbers) + numbers[c.OUTPUTS]
    return elements * numbers[c.IMAGES] * numbers[c.COLUMNS] * FLOAT.itemsize


def _shape(part: Part) -> tuple[int, int]:
    return part[1] - part[0], part[3] - part[2]


def _units(part: Part) -> int:
    return (part[1] - part[0]) * (part[3] - part[2])


def _halves(part: Part) -> tuple[Part, Part]:
    """Two parts, over the outer units if there are several."""
    o0, o1, i0, i1 = part
    if o1 - o0 > 1:
        return (o0, (o0 + o1) // 2, i0, i1), ((o0 + o1) // 2, o1, i0, i1)
    return (o0, o1, i0, (i0 + i1) // 2), (o0, o1, (i0 + i1) // 2, i1)


def _pieces(part: Part, units: int) -> Iterator[Part]:
    """Pieces of at most so many units, whose cells follow each other."""
    o0, o1, i0, i1 = part
    if units >= i1 - i0:
        step = units // (i1 - i0)
        for start in range(o0, o1, step):
            yield start, min(start + step, o1), i0, i1
        return
    for outer in range(o0, o1):
        for start in range(i0, i1, units):
            yield outer, outer + 1, start, min(start + units, i1)
