# Tests: test/passes/plan/network/test_groups.py
"""Shapes of which rows and columns are kept (`raster`): the columns of their steps, beside the rows that all shapes
that roll have alike (`needs.py`).

Source: docs/techniques/frustum.md, "Borders"; the same numbers as `roll` and `raster_place` give for one unit and one
partition (`analysis/roll.py`, `analysis/project.py`).
"""

from __future__ import annotations

import numpy as np

from frustum.dialects.extents import aligned, ceil_div
from frustum.dialects.tile import Whole
from frustum.passes.analysis.layer import Layer
from frustum.passes.plan.network.layer_order import LayerOrder, Read
from frustum.passes.plan.network.tile_shapes import Ints, Mask, TileShapes

COLUMNS = 3


class RasterColumns:
    """Of the raster shapes (`index`), as the layers of a group join from the last one back: by how many columns each
    map is ahead, the oldest that its readers need, and the steps that all of it takes; arrays are over these shapes
    alone."""

    def __init__(self, order: LayerOrder, stop: int, shapes: TileShapes):
        self.order = order
        self.stop = stop
        self.index: Ints = np.flatnonzero(shapes.is_raster)
        """Positions among all shapes."""
        self.columns: Ints = shapes.columns[self.index]
        self.ahead: dict[int, Ints] = {}
        self.oldest: dict[int, Ints] = {}
        self.valid: Mask = np.ones(len(self.index), np.bool_)
        self.late: Ints = np.zeros(len(self.index), np.int64)
        self.behind: Ints = np.zeros(len(self.index), np.int64)
        self.known: dict[int, Ints] = {}

    @property
    def is_empty(self) -> bool:
        """There are no such shapes: nothing is to be done."""
        return not len(self.index)

    def made(self, number: int) -> Ints:
        """Columns of a map that a step makes; a shape of which some map has no whole ones is not valid."""
        if number not in self.known:
            rate = self.order.rate(number, self.stop - 1, COLUMNS)
            columns = self.columns * rate.numerator
            self.valid &= columns % rate.denominator == 0
            self.known[number] = np.maximum(columns // rate.denominator, 1)
        return self.known[number]

    def take(self, k: int, layer: Layer, *, is_stored: bool) -> None:
        """Let a layer join."""
        if self.is_empty:
            return
        made, align, zero = self.made(k), layer.align[COLUMNS], np.zeros(len(self.index), np.int64)
        self.valid &= made % align == 0
        if COLUMNS in layer.axes_all and layer.out_dims[COLUMNS] > 1:
            self.valid[:] = False
        asked = self.ahead.get(k, zero)
        ahead: Ints = aligned(np.maximum(asked, 0) if is_stored else asked, align)
        self.ahead[k] = ahead
        self.oldest[k] = np.minimum(self.oldest.get(k, ahead), ahead)
        self.late = np.maximum(self.late, ceil_div(ahead, made))
        if is_stored:
            self.behind = np.maximum(self.behind, ceil_div(layer.out_dims[COLUMNS] - ahead, made))

    def pull(self, reader: int, read: Read) -> None:
        """Let a layer that has joined ask for what it needs of a map."""
        if self.is_empty:
            return
        axis, number = read.columns, read.map
        if isinstance(axis, Whole) or isinstance(read.rows, Whole) or (reader, number) in self.order.uneven:
            self.valid[:] = False
            self.ahead.setdefault(number, np.zeros(len(self.index), np.int64))
            self.oldest.setdefault(number, self.ahead[number])
            return
        oldest = self.ahead[reader] * axis.num // axis.den + axis.low
        ahead = oldest + (self.made(reader) - 1) * axis.num // axis.den + 1 + axis.reach - self.made(number)
        self.oldest[number] = np.minimum(self.oldest.get(number, oldest), oldest)
        self.ahead[number] = np.maximum(self.ahead.get(number, ahead), ahead)

    def inside(self, number: int, columns: Ints) -> Ints:
        """The columns of a map that a pass makes or loads in each of all shapes, where others have so many."""
        return columns if self.is_empty else self.put(columns, self.made(number))

    def turns(self, number: int, width: int, counts: Ints) -> Ints:
        """Passes along the columns in which a map is made, in each of all shapes, where others have so many."""
        return counts if self.is_empty else self.put(counts, ceil_div(width, self.made(number)))

    def steps(self, counts: Ints, loaded: list[int]) -> Ints:
        """Steps along the columns of the group, whose first layers load these maps."""
        if self.is_empty:
            return counts
        late = self.late
        for number in loaded:
            late = np.maximum(late, ceil_div(self.ahead[number], self.made(number)))
        return self.put(counts, late + self.behind)

    def loaded(self, number: int, width: int, columns: Ints) -> Ints:
        """Columns of a map that are loaded, each once: the last ones may be needed by nobody."""
        if self.is_empty:
            return columns
        return self.put(columns, np.minimum(width, self.ahead[number] + self.behind * self.made(number)))

    def sized(
        self, number: int, size: Ints, is_ring: Mask, span: Ints, made: Ints, plane: Ints, copies: Ints
    ) -> tuple[Ints, Mask]:
        """Bytes of a map's buffer, and where it is a ring, if other shapes have these; of all shapes: rows from the
        oldest to the newest, rows that a step makes, bytes of a position in all channels, copies of what crosses."""
        if self.is_empty:
            return size, is_ring
        span, rows, plane, copies = (each[self.index] for each in (span, made, plane, copies))
        columns, width = self.made(number), self.width(number)
        across = self.ahead[number] + columns - np.minimum(self.oldest[number], self.ahead[number])
        goes_round = (span > rows) | (across > columns)
        ring = np.maximum(across, columns) + (copies - 1) * columns
        kept = np.maximum(span - rows, 0)
        again = np.minimum(kept, rows)
        held = again * (ceil_div(kept, rows) * width + ring) + (rows - again) * ring
        own = np.where(goes_round, aligned(plane * held), copies * aligned(plane * rows * columns))
        rings = is_ring.copy()
        rings[self.index] = goes_round
        return self.put(size, own), rings

    def width(self, number: int) -> int:
        """Columns of a map; of one that a move makes, as its first reader sees it."""
        layer = self.order.nodes[number].layer if number < len(self.order.nodes) else None
        if layer is not None:
            return layer.out_dims[COLUMNS]
        return next(r.dims[COLUMNS] for r in self.order.reads_of(number, 0, len(self.order.nodes)))

    def put(self, all_shapes: Ints, own: Ints) -> Ints:
        """The array over all shapes with what raster ones have."""
        found = all_shapes.copy()
        found[self.index] = own
        return found
