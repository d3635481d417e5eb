# Tests: test/runtime/reference/test_plan.py
"""Memories that know which elements of a tensor they hold, and how much of each element's sum."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.runtime.kernels import Array


def points_of(layer: Layer | None) -> int:
    """How many points make an element of a layer's result; 1 of what no layer makes."""
    return 1 if layer is None else math.prod(a.extent for a in layer.combine if a not in layer.result.axes)


class Store:
    """Elements of one tensor: `values` `[channels, ...]`, and of each how many points went into it: 0, it is absent;
    `total`, it is whole."""

    def __init__(self, tensor: Tensor, channels: int, total: int) -> None:
        self.tensor, self.total = tensor, total
        shape = [axis.extent for axis in tensor.axes]
        self.values = np.full((channels, *shape), np.nan)
        self.done = np.zeros(shape, np.int64)

    def fill(self, array: Array) -> None:
        """Holds all of a tensor that no layer makes."""
        self.values[0] = array.reshape(self.done.shape)
        self.done[...] = self.total

    def write(self, box: Box, values: Array, done: int) -> None:
        """Some channels of a box, all with so many points."""
        place = self.place(box)
        self.values[(slice(len(values)), *place)] = values
        self.done[place] = done

    def copy(self, other: Store, box: Box) -> int:
        """A box of another store as it is there, absent elements too; gives how many elements were copied."""
        place = self.place(box)
        self.values[(slice(None), *place)] = other.values[(slice(None), *place)]
        self.done[place] = other.done[place]
        return self.done[place].size

    def overlay(self, other: Store, box: Box) -> None:
        """Elements of a box that another store has."""
        place = self.place(box)
        is_there = other.done[place] > 0
        self.done[place][is_there] = other.done[place][is_there]
        for own, theirs in zip(self.values, other.values, strict=True):
            own[place][is_there] = theirs[place][is_there]

    def keep(self, ranges: Iterable[tuple[Axis, tuple[int, int]]]) -> None:
        """Drops all elements but those in one of these ranges."""
        kept = np.zeros(self.done.shape, bool)
        for axis, (low, high) in ranges:
            kept[self.place({axis: (low, max(low, high))})] = True
        self.done[~kept] = 0
        self.values[:, ~kept] = np.nan

    def place(self, box: Box) -> tuple[slice, ...]:
        return tuple(slice(*box.get(axis, (0, axis.extent))) for axis in self.tensor.axes)

    @property
    def size_bits(self) -> int:
        return int(np.count_nonzero(self.done)) * self.tensor.element_bits


class Tile:
    """A copy of a box of a store, for one part of a layer."""

    def __init__(self, store: Store, box: Box) -> None:
        place = store.place(box)
        self.values, self.done = store.values[(slice(None), *place)].copy(), store.done[place].copy()
        self.starts, self.whole = [each.start for each in place], store.done.shape

    def find(self, flat: Array) -> tuple[Array, Array]:
        """Which of these elements of the tensor lie here, and where: by the numbers that they have in the tile."""
        inside, places = np.ones(flat.shape, bool), list[Array]()
        if not self.whole:
            return inside, flat
        for at, start, extent in zip(np.unravel_index(flat, self.whole), self.starts, self.done.shape, strict=True):
            places.append(at - start)
            inside &= (places[-1] >= 0) & (places[-1] < extent)
        return inside, np.ravel_multi_index([each[inside] for each in places], self.done.shape)
