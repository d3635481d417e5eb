"""Layers under up to two loops, whose tiles lie in SRAM together: bytes of SRAM and DRAM for all steps at once.

Of each tensor from outside there are ways: streamed in slices by the one layer that uses it, a tile in the body of a
loop, or all of it before the loops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.plan.count import SLICE, SLICE_COPIES
from frustum.passes.plan.tree.intervals import Interval
from frustum.passes.plan.tree.passes import Passes
from frustum.passes.plan.tree.prices import Floats, Prices
from frustum.passes.plan.tree.spans import Extents

MOST_REPEATED = 2.0
"""Times that work may be done.  Plans for bytes alone would else trade any work for a byte. 2026-11-28."""
LOOPS = 2
NO_BYTES = 1e-3
"""A step of no size has this one, so that a byte saved has a price."""


class Interior:
    """What nests of an interval have in common: sizes, lives, streamed axes."""

    def __init__(self, own: Interval, extents: Extents) -> None:
        self.own, self.extents = own, extents
        self.tensors, self.layers, self.reads = own.touched, own.layers, own.reads
        self.sizes = np.array([math.prod(extents[a] for a in t.axes) * t.element_bits / 8 for t in self.tensors])
        self.outside = np.array([t in own.outside for t in self.tensors])
        place = {layer: k for k, layer in enumerate(self.layers)}
        users = [[place[user] for user in own.reads.users[t] if user in place] for t in self.tensors]
        self.first_user = [self.layers[found[0]] for found in users]
        self.streams = self._streams([len(found) == 1 for found in users])
        self.alive = np.zeros((len(self.layers), len(self.tensors)))
        for k, found in enumerate(users):
            if not self.outside[k]:
                self.alive[found[0] : found[-1] + 1, k] = 1
            elif self.streams[k] is not None:
                self.alive[found[0], k] = 1
        self.is_made = np.array([t in own.makers for t in self.tensors])
        self.replaced = tuple(
            (place[layer], own.numbers[layer.result], own.numbers[old]) for layer in self.layers
            if (old := own.reads.storage_of(layer)) in own.numbers
            and not self.outside[own.numbers[old]] and not self.outside[own.numbers[layer.result]]
            and users[own.numbers[old]][-1] == place[layer]
        )  # fmt: skip

    def _streams(self, is_alone: list[bool]) -> list[tuple[Axis, Axis] | None]:
        """Of each tensor that one layer alone uses the axis of the layer along which it is streamed, and its own: the
        one that moves the most bytes of all that the layer streams."""
        bytes_of: dict[Layer, dict[Axis, float]] = {}
        plain = [self.reads.plain(layer, t) for layer, t in zip(self.first_user, self.tensors, strict=True)]
        for k, layer in enumerate(self.first_user):
            for axis in plain[k] if self.outside[k] and is_alone[k] else ():
                found = bytes_of.setdefault(layer, {})
                found[axis] = found.get(axis, 0.0) + self.sizes[k]
        best = {
            layer: max(found, key=lambda axis: (found[axis], self.extents[axis])) for layer, found in bytes_of.items()
        }
        return [
            (best[layer], plain[k][best[layer]])
            if self.outside[k] and is_alone[k] and best.get(layer) in plain[k] else None
            for k, layer in enumerate(self.first_user)
        ]  # fmt: skip


class Nest:
    """An interval under the loops of `levels`, outermost first, for all of their steps at once."""

    def __init__(self, interior: Interior, levels: Sequence[Passes]) -> None:
        self.interior, self.levels = interior, levels
        shapes = [len(level.counts) for level in levels]
        self.index: NDArray[np.int64] = (
            np.indices(shapes).reshape(len(shapes), -1) if shapes else np.zeros((0, 1), np.int64)
        )
        """Of each candidate its place in the list of steps of every loop."""
        self.counts = [level.counts[self.index[k]] for k, level in enumerate(levels)]
        self.along = [level.along_all.at(self.index[k]) for k, level in enumerate(levels)]

    @cached_property
    def buffers(self) -> tuple[Floats, Floats]:
        """Bytes that stay from pass to pass, and those of the tile of one pass, in the innermost body."""
        shape = len(self.interior.tensors), self.index.shape[1]
        rest = self.interior.sizes / math.prod((own.whole for own in self.along), start=np.ones(shape[0]))
        border, tile, inner = np.zeros(shape), np.ones(shape), np.ones(shape[0])
        for k in range(len(self.along) - 1, -1, -1):
            own = self.along[k]
            outer = math.prod((each.new for each in self.along[:k]), start=np.ones(shape))
            border = border + own.beside * inner[:, None] * outer
            inner, tile = inner * own.whole, tile * own.new
        return rest[:, None] * border, rest[:, None] * tile

    @cached_property
    def slices(self) -> Floats:
        """Bytes of slices, of tensors that are streamed."""
        interior, count = self.interior, self.index.shape[1]
        found = np.zeros((len(interior.tensors), count))
        shares = [
            np.where(own.changes[:, None], (own.new + own.beside) / own.whole[:, None], 1.0) for own in self.along
        ]
        for k, axes in enumerate(interior.streams):
            if axes is not None:
                extent = np.full(count, interior.extents[axes[1]])
                for level, index in zip(self.levels, self.index, strict=True):
                    here = level.extent(interior.first_user[k], axes[0])
                    extent = extent if here is None else here[index]
                box = interior.sizes[k] * math.prod((share[k] for share in shares), start=np.ones(count))
                found[k] = box * np.minimum(1.0, SLICE_COPIES * SLICE / extent)
        return found

    @cached_property
    def ways(self) -> tuple[Floats, Floats]:
        """Bytes of SRAM and of DRAM, [ways, tensors, candidates]: streamed, a tile in each body, all."""
        interior = self.interior
        shape = len(interior.tensors), self.index.shape[1]
        ones, made = np.ones(shape), interior.is_made[:, None]
        times, is_whole = ones, np.ones(shape, np.bool_)
        streams, share = ones, ones
        sizes, moved = [ones], [ones]
        innermost = np.full(shape[0], -1)
        for k, own in enumerate(self.along):
            innermost = np.where(own.changes, k, innermost)
        for k, (own, count) in enumerate(zip(self.along, self.counts, strict=True)):
            changes, whole = own.changes[:, None], own.whole[:, None]
            times = times * np.where(changes, own.loaded / whole, count[None, :])
            streams = streams * np.where(changes, own.streamed / whole, count[None, :])
            is_whole = is_whole & changes
            share = share * np.where(changes, (own.new + own.beside) / whole, 1.0)
            tile = sum(self.buffers) / interior.sizes[:, None]  # type: ignore[operator]
            here = np.where((innermost == k)[:, None], tile, share)
            sizes.append(np.where(changes, here, sizes[-1]))
            moved.append(np.where(changes, self._with_sums(times, made, is_whole), moved[-1]))
        is_streamed = np.array([axes is not None for axes in interior.streams])[:, None]
        sizes.append(np.where(is_streamed, 0.0, sizes[-1]))
        moved.append(np.where(is_streamed, self._with_sums(streams, made, is_whole), moved[-1]))
        bytes_ = interior.sizes[None, :, None]
        return np.array(sizes[::-1]) * bytes_, np.array(moved[::-1]) * bytes_

    def _with_sums(self, times: Floats, made: NDArray[np.bool_], is_whole: NDArray[np.bool_]) -> Floats:
        """A sum over passes is read again in each but the first."""
        return np.where(made & ~is_whole, 2 * times - 1, times)

    @cached_property
    def prices(self) -> Prices:
        """What the candidates cost, without their loops."""
        interior, outside = self.interior, self.interior.outside[:, None]
        sizes, moved = self.ways
        taken = list(np.maximum(np.diff(sizes, axis=0), NO_BYTES))
        saved = list(np.maximum(-np.diff(moved, axis=0), 0.0))
        for k in range(len(taken) - 1):  # a step behind a worse one is taken with it
            is_better = saved[k + 1] / taken[k + 1] > saved[k] / taken[k]
            both = taken[k] + taken[k + 1], saved[k] + saved[k + 1]
            taken[k], taken[k + 1] = np.where(is_better, both[0], taken[k]), np.where(is_better, NO_BYTES, taken[k + 1])
            saved[k], saved[k + 1] = np.where(is_better, both[1], saved[k]), np.where(is_better, 0.0, saved[k + 1])
        missing = LOOPS + 1 - len(taken)
        steps, save = (np.pad(np.array(x), ((0, missing), (0, 0), (0, 0)), constant_values=v)
                       for x, v in ((taken, NO_BYTES), (saved, 0.0)))  # fmt: skip
        border, tile = (np.where(outside, 0.0, each) for each in self.buffers)
        return Prices(
            interior.outside, interior.sizes, np.where(outside, sizes[0], 0.0), np.where(outside, moved[0], 0.0),
            steps, save, border, tile, self.slices, interior.alive, interior.replaced, self._repeated(),
        )  # fmt: skip

    def _repeated(self) -> Floats:
        """Infinite where too much is computed again."""
        interior, work, again = self.interior, 0.0, np.zeros(self.index.shape[1])
        for layer in interior.layers:
            points = math.prod(interior.extents[axis] for axis in layer.axes) * max(layer.macs, layer.passes)
            factor = math.prod(
                (level.repeats(layer)[index] for level, index in zip(self.levels, self.index, strict=True)),
                start=np.ones(self.index.shape[1]),
            )
            work, again = work + points, again + factor * points
        return np.where(again > MOST_REPEATED * max(work, 1.0), np.inf, 0.0)
