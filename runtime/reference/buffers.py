# Tests: test/passes/tile/test_lower_units.py
"""Tiles in SRAM that stay in their place: rings, parts of a concatenation, maps between units, and tiles of which rows
and columns are kept in two rings along the columns.

Every element knows the row (and column) of the map that it is; what was never written, or written over, stops the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from frustum.dialects.isa.program import Four
from frustum.dialects.tile import Tile
from frustum.runtime.device.memory import DTYPES
from frustum.runtime.kernels import Array, narrow
from frustum.runtime.reference.layers import Held, Ranges

NOTHING = np.iinfo(np.int32).min
"""The row (column, in a ring along the columns) of an element that holds none."""
ROWS, COLUMNS = 2, 3


@dataclass
class TileBuffer:
    """A tile with an origin in the SRAM of one cluster, and what it holds."""

    tile: Tile
    values: Array = field(init=False)
    rows: Array = field(init=False)
    bound: Four = (0, 0, 0, 0)
    """Of the map; set as it is made."""
    origin: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        dtype = DTYPES[self.tile.element]
        poison = np.nan if dtype.kind != "i" else 0
        self.values = np.full(self.tile.extents, poison, dtype)
        self.rows = np.full(self.tile.extents, NOTHING, np.int32)

    @classmethod
    def joined(cls, tile: Tile, parts: Sequence[TileBuffer]) -> TileBuffer:
        """Parts one after the other along the channels."""
        whole = cls(tile)
        whole.values = np.concatenate([part.values for part in parts], 1)
        whole.rows = np.concatenate([part.rows for part in parts], 1)
        n, _, h, w = parts[0].bound
        whole.bound = (n, sum(part.bound[1] for part in parts), h, w)
        whole.origin = (parts[0].origin[0], 0, *parts[0].origin[2:])
        return whole

    def move(self, indices: Sequence[int], cluster: int) -> None:
        """To where it begins in this pass: elsewhere than in the last one, it is empty."""
        assert self.tile.origin is not None
        origin = [start.at(indices, cluster) for start in self.tile.origin]
        if self.tile.ring:
            origin[self.tile.ring] = 0
        if tuple(origin) != self.origin:
            self.origin = tuple(origin)
            self.rows[:] = NOTHING

    def write(self, ranges: Ranges, values: Array, channel: int = 0) -> None:
        """Positions of a map whose channels begin at `channel` of the buffer."""
        index = self._index(ranges, channel)
        self.values[index] = narrow(values, self.values.dtype)
        self.rows[index] = self._numbers(ranges)

    def read(self, ranges: Ranges, channel: int = 0) -> Array:
        """The same, each of which must have been written and be there still."""
        index = self._index(ranges, channel)
        there = self.rows[index]
        missing = int((there != self._numbers(ranges)).sum())
        assert not missing, f"{missing} of {there.size} elements of {ranges} are not in {self.tile} at {self.origin}"
        return self.values[index]

    def held(self, ranges: Ranges, bound: Four, channel: int = 0) -> Held:
        """The part of some positions that is in the map."""
        inside = tuple((min(max(low, 0), size), max(min(high, size), 0))
                       for (low, high), size in zip(ranges, bound, strict=True))
        if any(low >= high for low, high in inside):
            inside = ((0, 0),) * len(inside)
        return Held(self.read(inside, channel), inside, bound)

    def _index(self, ranges: Ranges, channel: int) -> tuple[Array, ...]:
        places = []
        for d, ((low, high), first, extent) in enumerate(zip(ranges, self.origin, self.tile.extents, strict=True)):
            place = np.arange(low, high) - first + (channel if d == 1 else 0)
            if d == self.tile.ring and d:
                assert high - low <= extent, f"{high - low} rows in a ring of {extent}"
                place = place % extent
            inside = not place.size or (place.min() >= 0 and place.max() < extent)
            assert inside, f"{ranges} leaves {self.tile} at {self.origin}"
            places.append(place)
        return np.ix_(*places)

    def _numbers(self, ranges: Ranges) -> Array:
        if self.tile.ring == COLUMNS:
            return np.arange(*ranges[COLUMNS], dtype=np.int32)
        return np.arange(*ranges[ROWS], dtype=np.int32)[:, None]


@dataclass
class MarkedRing:
    """Some lanes (rows of a pass) around a ring of columns: values and, of each slot, row and column."""

    values: Array
    rows: Array = field(init=False)
    columns: Array = field(init=False)

    def __post_init__(self) -> None:
        self.rows = np.full(self.values.shape, NOTHING, np.int32)
        self.columns = np.full(self.values.shape, NOTHING, np.int32)


@dataclass
class RasterBuffer(TileBuffer):
    """A tile with `raster` in the SRAM of one cluster (`dialects/tile/tile_type.py`)."""

    kept: MarkedRing = field(init=False)
    fresh: MarkedRing = field(init=False)
    passed: int = -1
    """Passes along the rows before this one."""
    place: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        raster, dtype = self.tile.raster, DTYPES[self.tile.element]
        assert raster is not None
        n, c, rows, columns = self.tile.extents
        poison = np.nan if dtype.kind != "i" else 0
        self.kept = MarkedRing(np.full((n, c, raster.kept, raster.columns), poison, dtype))
        self.fresh = MarkedRing(np.full((n, c, rows - raster.kept, columns), poison, dtype))

    def move(self, indices: Sequence[int], cluster: int) -> None:
        """To this pass; rows of other images or channels are none of this one's."""
        assert self.tile.origin is not None
        origin = [start.at(indices, cluster) for start in self.tile.origin]
        if tuple(indices[:COLUMNS]) != self.place:
            self.place, self.passed = tuple(indices[:COLUMNS]), self.passed + 1
        if tuple(origin[:ROWS]) != self.origin[:ROWS]:
            for ring in (self.kept, self.fresh):
                ring.rows[:] = NOTHING
        self.origin: tuple[int, ...] = tuple(origin)

    def write(self, ranges: Ranges, values: Array, channel: int = 0) -> None:
        """Positions of the rows that this pass makes."""
        for number, row in enumerate(range(*ranges[ROWS])):
            ring, back, index = self._slots(row, ranges)
            assert not back, f"row {row} is not of the pass that makes rows from {self.origin[ROWS]} on"
            ring.values[index] = narrow(values[:, :, number], ring.values.dtype)
            ring.rows[index] = row
            ring.columns[index] = np.arange(*ranges[COLUMNS], dtype=np.int32)

    def read(self, ranges: Ranges, channel: int = 0) -> Array:
        """The same, each of which must have been written and be there still."""
        found = np.empty([high - low for low, high in ranges], DTYPES[self.tile.element])
        for number, row in enumerate(range(*ranges[ROWS])):
            ring, _, index = self._slots(row, ranges)
            there = (ring.rows[index] == row) & (ring.columns[index] == np.arange(*ranges[COLUMNS]))
            assert there.all(), f"{(~there).sum()} elements of row {row} of {ranges} are not in {self.tile}"
            found[:, :, number] = ring.values[index]
        return found

    def _slots(self, row: int, ranges: Ranges) -> tuple[MarkedRing, int, tuple[Array, ...]]:
        """The ring of a row, how many passes back it was made, and where its positions lie there."""
        raster, rows = self.tile.raster, self.tile.extents[ROWS]
        assert raster is not None
        back, lane = divmod(row - self.origin[ROWS], rows)
        fresh_rows = rows - raster.kept
        is_kept = lane >= fresh_rows
        assert back == 0 or (is_kept and -raster.back <= back < 0), f"row {row} is not in {self.tile} at {self.origin}"
        ring = self.kept if is_kept else self.fresh
        columns = np.arange(*ranges[COLUMNS])
        size = ring.values.shape[COLUMNS]
        assert columns.size <= size, f"{columns.size} columns in a ring of {size}"
        slots = (columns + raster.width * (self.passed + back)) % size
        near = [np.arange(*ranges[d]) - self.origin[d] for d in (0, 1)]
        number = lane - fresh_rows if is_kept else lane
        return ring, -back, (near[0][:, None, None], near[1][:, None], np.full_like(slots, number), slots)


def empty_buffer(tile: Tile) -> TileBuffer:
    """The buffer of a tile with an origin before anything is written."""
    return TileBuffer(tile) if tile.raster is None else RasterBuffer(tile)
