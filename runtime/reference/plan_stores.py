# Tests: test/runtime/reference/test_plan.py
"""Memories that know which elements of a tensor they hold, and how much of each element's sum."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.runtime.kernels import Array

Range = tuple[int, int]


def points_of(layer: Layer | None) -> int:
    """How many points make an element of a layer's result; 1 of what no layer makes."""
    return 1 if layer is None else math.prod(a.extent for a in layer.combine if a not in layer.result.axes)


class Clock:
    """What time it is, and how many bits become needed or needless at each."""

    def __init__(self) -> None:
        self.now = 0
        self.needed: dict[int, int] = defaultdict(int)

    def most_bits(self) -> int:
        return max(accumulate(bits for _, bits in sorted(self.needed.items())), default=0)


class Store:
    """Elements of one tensor: `values` `[channels, ...]`, and of each how many points went into it: 0, it is absent;
    `total`, it is whole.  With a clock it notes from when to when each element is needed."""

    tensor: Tensor
    total: int
    clock: Clock | None
    values: NDArray[Any]
    done: NDArray[np.int64]
    since: NDArray[np.int64]
    used: NDArray[np.int64]

    def __init__(self, tensor: Tensor, channels: int, total: int, clock: Clock | None = None) -> None:
        self.tensor, self.total, self.clock = tensor, total, clock
        shape = [axis.extent for axis in tensor.axes]
        self.values = np.full((channels, *shape), np.nan)
        self.done = np.zeros(shape, np.int64)
        self.hull: list[Range] | None = None
        """A box around all elements that a store with a clock has."""
        self.since, self.used = np.zeros(shape, np.int64), np.zeros(shape, np.int64)

    def fill(self, array: Array) -> None:
        """Holds all of a tensor that no layer makes."""
        self.values[0] = array.reshape(self.done.shape)
        self.done[...] = self.total

    def write(self, box: Box, values: Array, done: int) -> None:
        """Some channels of a box, all with so many points."""
        place = self.place(box)
        self.drop(place)
        self.values[(slice(len(values)), *place)] = values
        self.done[place] = done
        self.begin(place)

    def copy(self, other: Store, box: Box) -> int:
        """A box of another store as it is there, absent elements too; gives how many elements were copied."""
        place = self.place(box)
        self.values[(slice(None), *place)] = other.values[(slice(None), *place)]
        self.done[place] = other.done[place]
        self.begin(place)
        if other.clock:
            other.used[place] = other.clock.now
        return self.done[place].size

    def overlay(self, other: Store, box: Box) -> None:
        """Elements of a box that another store has."""
        place = self.place(box)
        is_there = other.done[place] > 0
        self.done[place][is_there] = other.done[place][is_there]
        every = (slice(None), *place)
        self.values[every] = np.where(is_there, other.values[every], self.values[every])
        self.begin(place)

    def receive(self, other: Store, box: Box) -> int:
        """Elements of a box that are not here come from another store, if that has them; how many."""
        place = self.place(box)
        new = (self.done[place] == 0) & (other.done[place] > 0)
        count = int(new.sum())
        if count:
            since, used = self.since[place].copy(), self.used[place].copy()
            self.done[place] = np.where(new, other.done[place], self.done[place])
            every = (slice(None), *place)
            self.values[every] = np.where(new, other.values[every], self.values[every])
            if other.clock:
                other.used[place] = np.where(new, other.clock.now, other.used[place])
            self.begin(place)
            if self.clock:
                self.since[place] = np.where(new, self.since[place], since)
                self.used[place] = np.where(new, self.used[place], used)
        return count

    def has(self, box: Box) -> bool:
        return bool((self.done[self.place(box)] > 0).all())

    def only(self, box: Box, part: Box) -> None:
        """Drops the elements of a box that are not in a part of it."""
        gone = np.zeros(self.done.shape, bool)
        gone[self.place(box)] = True
        gone[self.place(part)] = False
        self.drop((...,), gone)

    def begin(self, place: tuple[Any, ...]) -> None:
        """Elements come, and are needed if somebody uses them later."""
        if self.clock:
            self.since[place] = self.clock.now
            self.used[place] = self.clock.now - 1
            own = [(each.start, each.stop) for each in place[:-1]]
            hull = own if self.hull is None else self.hull
            self.hull = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(own, hull, strict=True)]

    def keep(self, ranges: Iterable[tuple[Axis, Range]]) -> None:
        """Drops all elements but those in one of these ranges."""
        if self.hull is None:
            return
        hull, kept = self.hull, list[list[Range]]()
        place: tuple[Any, ...] = (*(slice(*ends) for ends in hull), ...)
        gone = np.ones(self.done[place].shape, np.bool_)
        for axis, (low, high) in ranges:
            at = self.tensor.axes.index(axis)
            own = [*hull[:at], (max(low, hull[at][0]), min(high, hull[at][1])), *hull[at + 1 :]]
            if own[at][0] < own[at][1]:
                gone[tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(own, hull, strict=True))] = False
                kept.append(own)
        self.drop(place, gone)
        self.hull = [(min(a for a, _ in each), max(b for _, b in each)) for each in zip(*kept, strict=True)]
        self.hull = self.hull if kept else None

    def drop(self, place: tuple[Any, ...], gone: Array | None = None) -> None:
        """Elements of a place: all, or by a mask."""
        done, since, used = self.done[place], self.since[place], self.used[place]
        gone = np.ones(done.shape, bool) if gone is None else gone
        if self.clock:
            was = gone & (done > 0) & (used >= since)
            for times, sign in ((since[was], 1), (used[was] + 1, -1)):
                for time, count in zip(*np.unique(times, return_counts=True), strict=True):
                    self.clock.needed[int(time)] += sign * int(count) * self.tensor.element_bits
        done[gone] = 0
        self.values[(slice(None), *place)][:, gone] = np.nan

    def place(self, box: Box) -> tuple[Any, ...]:
        """The index of a box; with an ellipsis, so that a tensor of one number is a place too."""
        return (*(slice(*box.get(axis, (0, axis.extent))) for axis in self.tensor.axes), ...)


class Tile:
    """A copy of a box of a store, for one part of a layer."""

    values: NDArray[Any]
    done: NDArray[np.int64]
    starts: list[Any]
    whole: tuple[int, ...]

    def __init__(self, store: Store, box: Box) -> None:
        place = store.place(box)
        self.values, self.done = store.values[(slice(None), *place)].copy(), store.done[place].copy()
        self.starts, self.whole = [each.start for each in place[:-1]], store.done.shape

    def find(self, flat: Array) -> tuple[Array, Array]:
        """Which of these elements of the tensor lie here, and where: by the numbers that they have in the tile."""
        inside, places = np.ones(flat.shape, bool), list[Array]()
        if not self.whole:
            return inside, flat
        for at, start, extent in zip(np.unravel_index(flat, self.whole), self.starts, self.done.shape, strict=True):
            places.append(at - start)
            inside &= (places[-1] >= 0) & (places[-1] < extent)
        return inside, np.ravel_multi_index([each[inside] for each in places], self.done.shape)
