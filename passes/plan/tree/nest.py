# Tests: test/passes/plan/tree/test_search.py
"""Layers under up to two loops, whose tiles lie in SRAM together: bytes of SRAM and DRAM for all steps at once.

Of each tensor from outside there are ways: streamed in slices by the one layer that uses it, a tile in the body of a
loop, or all of it before the loops.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.count import SLICE, SLICE_COPIES
from frustum.passes.plan.tree.costs import LayerParts, NestCosts
from frustum.passes.plan.tree.intervals import ClassCut, LayerInterval
from frustum.passes.plan.tree.passes import ClassTiles, Passes
from frustum.passes.plan.tree.prices import NestPrices
from frustum.passes.plan.tree.spans import NOTHING, Extents, Floats, Reads
from frustum.passes.plan.tree.units import MOST_REPEATED, PlacedInterval

NOT_IN_DRAM = 1e4
"""So often as many bytes as it has count for what may not lie there. 2026-11-28."""
NO_BYTES = 1e-3
"""A step of no size has this one, so that a byte saved has a price. 2026-11-28."""


class Interior:
    """What nests of an interval have in common: sizes, lives, streamed axes.  With `sums_in_slices` what is summed may
    come in slices, as the least SRAM wants it; the sums then go back and forth where cores cannot keep them."""

    own: LayerInterval
    extents: Extents
    tensors: tuple[Tensor, ...]
    layers: tuple[Layer, ...]
    reads: Reads
    sizes: NDArray[Any]
    waits: Floats
    """Of each tensor what it costs to wait for it."""
    copies: Floats
    """Of each tensor the DRAM bytes of all clusters together, as a multiple of those of one."""
    outside: NDArray[Any]
    first_user: list[Layer]
    streams: list[tuple[Layer, Axis, Axis] | None]
    is_streamed: NDArray[Any]
    alive: NDArray[np.float64]
    is_made: NDArray[np.bool_]
    widening: Floats
    """Of each tensor how much wider its sums are where they wait."""
    replaced: tuple[tuple[int, int, int], ...]
    costs: NestCosts | None
    least_run: int
    """Bytes of the shortest run at the DRAM port, where time counts."""
    sums_in_slices: bool
    number: int
    """Of the interval, the same for all that are equal."""

    def __init__(
        self, placed: PlacedInterval, costs: NestCosts | None = None, *, sums_in_slices: bool = True
    ) -> None:  # fmt: skip
        own, extents = placed.own, placed.extents
        self.own, self.extents, self.costs, self.sums_in_slices = own, extents, costs, sums_in_slices
        self.number = placed.number
        self.tensors, self.layers, self.reads = own.touched, own.layers, own.reads
        self.least_run = 0 if costs is None else costs.least_run_bytes
        self.sizes = np.array(
            [own.reads.size(t, extents) * own.shares[t] for t in self.tensors]
        )
        self.waits = np.array([own.wait(t) for t in self.tensors])
        self.copies = np.array([float(own.reads.copies(t)) for t in self.tensors])
        self.outside = np.array([t in own.outside for t in self.tensors])
        place = {layer: k for k, layer in enumerate(self.layers)}
        users = [[place[user] for user in own.reads.users[t] if user in place] for t in self.tensors]
        self.first_user = [self.layers[found[0]] for found in users]
        is_alone = [len(found) == 1 and t not in own.carried for t, found in zip(self.tensors, users, strict=True)]
        self.streams = self._streams(is_alone)
        self.is_streamed = np.array([axes is not None for axes in self.streams])
        self.alive = np.zeros((len(self.layers), len(self.tensors)))
        for k, found in enumerate(users):
            if not self.outside[k]:
                self.alive[found[0] : max(found) + 1, k] = 1
            elif self.streams[k] is not None:
                self.alive[found[0], k] = 1
        self.is_made = np.array([t in own.makers for t in self.tensors])
        self.widening = np.array([own.reads.widening(t) if t in own.makers else 1.0 for t in self.tensors])
        self.replaced = tuple(
            (place[layer], own.numbers[layer.result], own.numbers[old]) for layer in self.layers
            if (old := own.reads.storage_of(layer)) in own.numbers
            and not self.outside[own.numbers[old]] and not self.outside[own.numbers[layer.result]]
            and users[own.numbers[old]][-1] == place[layer] and old not in own.carried
        )  # fmt: skip

    def _streams(self, is_alone: list[bool]) -> list[tuple[Layer, Axis, Axis] | None]:
        """Of each tensor that one layer alone uses: the layer, the axis along which it streams (that which moves the
        most bytes of all that it streams), and the tensor's."""
        bytes_of: dict[Layer, dict[Axis, float]] = {}
        plain = [self.reads.plain(layer, t) for layer, t in zip(self.first_user, self.tensors, strict=True)]
        for k, layer in enumerate(self.first_user):
            for axis in plain[k] if self.outside[k] and is_alone[k] else ():
                if not self.sums_in_slices and is_summed(layer, axis):
                    continue
                found = bytes_of.setdefault(layer, {})
                found[axis] = found.get(axis, 0.0) + self.sizes[k]
        best = {
            layer: max(found, key=lambda axis: (found[axis], self.extents[axis])) for layer, found in bytes_of.items()
        }
        return [
            (layer, best[layer], plain[k][best[layer]])
            if self.outside[k] and is_alone[k] and best.get(layer) in plain[k] else None
            for k, layer in enumerate(self.first_user)
        ]  # fmt: skip

    @cached_property
    def sliced(self) -> dict[Layer, Axis]:
        """Of layers whose operands all stream along what is summed, the axis."""
        found = Counter(axes[:2] for axes in self.streams if axes is not None)
        return {layer: axis for (layer, axis), count in found.items() if count > 1 and is_summed(layer, axis)}

    @cached_property
    def work(self) -> Floats:
        """Of each layer the points, times what one costs."""
        extents = self.extents
        return np.array(
            [math.prod(extents[axis] for axis in k.axes) * max(k.macs, k.passes, 1) for k in self.layers], np.float64
        )


def is_summed(layer: Layer, axis: Axis) -> bool:
    """Whether a layer has sums over an axis."""
    return layer.macs > 0 and axis in layer.combine and axis not in layer.result.axes


@dataclass(frozen=True, eq=False)
class NestLoops:
    """The loops that nests of an interval may have: over every class, with every step.  Number 0: no loop."""

    levels: tuple[Passes, ...]
    first: NDArray[np.int64]
    """The number of the first step of each level; after the last level, how many there are."""
    tiles: ClassTiles

    @staticmethod
    def of(interior: Interior, levels: Sequence[Passes]) -> NestLoops:
        """Loops over these levels."""
        longest = max(interior.extents.values(), default=1)
        none = ClassTiles.unchanged(len(interior.tensors), len(interior.layers), longest)
        tiles = ClassTiles.joined([none, *(passes.along(interior.streams) for passes in levels)])
        first = np.cumsum([1, *(len(passes.counts) for passes in levels)])
        return NestLoops(tuple(levels), first, tiles)

    @cached_property
    def parts(self) -> LayerParts:
        """What of each layer a pass has."""
        none = LayerParts.unchanged(self.tiles.repeats.shape[0])
        return LayerParts.joined([none, *(passes.parts() for passes in self.levels)])

    def steps(self, level: int, stride: int = 1) -> NDArray[np.int64]:
        """Every so many steps of a level, and the last one."""
        stop = self.first[level + 1]
        return np.unique(np.append(np.arange(self.first[level], stop, stride), stop - 1))

    def near(self, nests: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
        """Nests whose steps are neighbours of those of some, without those that are known."""
        level = np.searchsorted(self.first, nests, side="right") - 1
        low, high = self.first[level], self.first[level + 1] - 1
        moves = np.array(list(itertools.product((-1, 0, 1), repeat=len(nests)))).T[:, :, None]
        found = np.clip(nests[:, None] + moves, low[:, None], high[:, None]).reshape(len(nests), -1)
        base = int(self.first[-1])
        numbers = np.setdiff1d(found[0] * base + found[1], known[0] * base + known[1])
        return np.array([numbers // base, numbers % base])

    def loop(self, number: int) -> tuple[ClassCut, int] | None:
        """A loop's class, and its step."""
        if number == 0:
            return None
        level = int(np.searchsorted(self.first, number, side="right")) - 1
        cut = self.levels[level].cut
        return cut, int(cut.high[number - self.first[level], 0])


class LoopNest:
    """An interval in many nests: of each the numbers of its loops, outermost first.  `streams_little`: only what takes
    less than half of its tile so is streamed."""

    interior: Interior
    loops: NestLoops
    nests: NDArray[np.int64]
    streams_little: bool
    along: list[ClassTiles]
    shape: tuple[int, int]

    def __init__(
        self, interior: Interior, loops: NestLoops, nests: NDArray[np.int64], *, streams_little: bool = False
    ) -> None:  # fmt: skip
        self.interior, self.loops, self.nests, self.streams_little = interior, loops, nests, streams_little
        self.along = [loops.tiles.at(numbers) for numbers in nests]
        self.shape = len(interior.tensors), nests.shape[1]

    @staticmethod
    def all_of(interior: Interior, loops: NestLoops, nests: NDArray[np.int64]) -> list[LoopNest]:
        """These nests; and those of them, in which streams would hold half of a tile, without such streams."""
        found = LoopNest(interior, loops, nests)
        large = found.is_large.any(axis=0)
        return [found, LoopNest(interior, loops, nests[:, large], streams_little=True)] if large.any() else [found]

    @cached_property
    def buffers(self) -> tuple[Floats, Floats]:
        """Bytes that stay from pass to pass, and those of the tile of one pass, in the innermost body."""
        rest = self.interior.sizes[:, None] / math.prod((own.whole for own in self.along), start=np.ones(self.shape))
        border, tile, inner = np.zeros(self.shape), np.ones(self.shape), np.ones(self.shape)
        for k in range(len(self.along) - 1, -1, -1):
            own = self.along[k]
            outer = math.prod((each.new for each in self.along[:k]), start=np.ones(self.shape))
            border = border + own.beside * inner * outer
            inner, tile = inner * own.whole, tile * own.new
        return rest * border, rest * tile

    @cached_property
    def slices(self) -> Floats:
        """Bytes of slices, of tensors that are streamed."""
        return np.where(self.is_streamed, self._slices, 0.0)

    @cached_property
    def is_streamed(self) -> NDArray[np.bool_]:
        """[tensors, candidates]."""
        may_stream = np.broadcast_to(self.interior.is_streamed[:, None], self.shape)
        return may_stream & ~self.is_large if self.streams_little else may_stream

    @cached_property
    def is_large(self) -> NDArray[np.bool_]:
        """Whether slices take at least half of a tile."""
        return self.interior.is_streamed[:, None] & (self._slices * 2 >= self.buffers[0] + self.buffers[1])

    @cached_property
    def _slices(self) -> Floats:
        interior, is_streamed = self.interior, self.interior.is_streamed
        found = np.zeros(self.shape)
        box = interior.sizes[is_streamed, None]
        extent = np.array([interior.extents[axes[2]] for axes in interior.streams if axes is not None])[:, None]
        for own in self.along:
            box = box * ((own.new + own.beside) / own.whole)[is_streamed]
            extent = np.minimum(extent, own.slice[is_streamed])
        if is_streamed.any():
            found[is_streamed] = box * np.minimum(1.0, SLICE_COPIES * SLICE / extent)
        return found

    @cached_property
    def bytes(self) -> tuple[Floats, Floats]:
        """SRAM and DRAM bytes, [ways, tensors, candidates]: streamed, a tile in each body from the innermost, all.

        Where time counts, short runs are as many DRAM bytes as the port is busy with.
        """
        interior, ones = self.interior, np.ones(self.shape)
        made, times, is_whole = interior.is_made[:, None], ones, np.ones(self.shape, np.bool_)
        streams, share, sizes, moved, run = ones, ones, [ones], [ones], NOTHING * ones
        tile = (self.buffers[0] + self.buffers[1]) / interior.sizes[:, None]
        innermost = np.full(self.shape, -1)
        for k, own in enumerate(self.along):
            innermost = np.where(own.changes, k, innermost)
        second = ones if interior.costs is not None and interior.costs.ahead else np.zeros(self.shape)
        for k, own in enumerate(self.along):
            times = times * np.where(own.changes, own.loaded / own.whole, own.counts)
            streams = streams * np.where(own.changes, own.streamed / own.whole, own.counts)
            is_whole = is_whole & own.changes
            share, second = share * (own.new + own.beside) / own.whole, second * own.new / own.whole
            size = np.where(innermost == k, tile, share) + second
            sizes.append(np.where(own.changes & (own.counts > 1), np.minimum(size, sizes[0]), sizes[-1]))
            run = np.minimum(run, own.run)
            crossing = self._with_sums(times, made, is_whole) * np.maximum(1.0, interior.least_run / run)
            moved.append(np.where(own.changes, crossing, moved[-1]))
        sizes = [np.where(is_whole, size, size * interior.widening[:, None]) for size in sizes]
        is_streamed = self.is_streamed
        sizes.append(np.where(is_streamed, 0.0, sizes[-1]))
        crossing = self._with_sums(streams, made, is_whole) * np.maximum(1.0, interior.least_run / run)
        moved.append(np.where(is_streamed, crossing, moved[-1]))
        bytes_ = interior.sizes[None, :, None]
        least = np.minimum.accumulate(np.array(moved[::-1]), axis=0)  # more room may be left empty
        return np.array(sizes[::-1]) * bytes_, least * bytes_ * interior.copies[None, :, None]

    def _with_sums(self, times: Floats, made: NDArray[np.bool_], is_whole: NDArray[np.bool_]) -> Floats:
        """A sum over passes may not wait in DRAM, where no machine writes an element twice: it is as if it took all."""
        return np.where(made & ~is_whole & (times > 1), NOT_IN_DRAM, times)

    @cached_property
    def prices(self) -> NestPrices:
        """What the candidates cost, without their loops."""
        interior, outside = self.interior, self.interior.outside[:, None]
        sizes, moved = self.bytes
        taken = list(np.maximum(np.diff(sizes, axis=0), NO_BYTES))
        saved = list(np.maximum(-np.diff(moved, axis=0), 0.0))
        for k in range(len(taken) - 1):  # a step behind a worse one is taken with it
            is_better = saved[k + 1] / taken[k + 1] > saved[k] / taken[k]
            both = taken[k] + taken[k + 1], saved[k] + saved[k + 1]
            taken[k], taken[k + 1] = np.where(is_better, both[0], taken[k]), np.where(is_better, NO_BYTES, taken[k + 1])
            saved[k], saved[k + 1] = np.where(is_better, both[1], saved[k]), np.where(is_better, 0.0, saved[k + 1])
        steps, save = np.array(taken), np.array(saved)
        border, tile = (np.where(outside, 0.0, each) for each in self.buffers)
        return NestPrices(
            interior.outside, interior.costs is not None and interior.costs.is_energy,
            0.0 if interior.costs is None else interior.costs.idle, interior.sizes * interior.copies + interior.waits,
            np.zeros_like(interior.copies) if interior.costs is None else interior.costs.first * interior.copies,
            np.where(outside, sizes[0], 0.0), np.where(outside, moved[0], 0.0) + interior.waits[:, None], steps, save,
            border, tile, self.slices,
            interior.alive, interior.replaced, self._repeated() + self._between(), self.busy,
        )  # fmt: skip

    @cached_property
    def busy(self) -> Floats:
        """What the candidates cost at least, whatever moves; or, of energy, what is added to what moves."""
        interior = self.interior
        if interior.costs is None:
            return np.zeros(self.shape[1])
        known, key = interior.costs.known, (interior.number, interior.sums_in_slices, self.nests.tobytes())
        if key not in known:
            tiles, inside, parts = self._parts
            found = interior.costs.of_nests(interior.layers, interior.extents, parts, tiles, inside, interior.sliced)
            known[key] = found if interior.costs.is_energy else found * self._begun + self._late
        return known[key]

    @property
    def _parts(self) -> tuple[dict[Tensor, Floats], frozenset[Tensor], list[LayerParts]]:
        """Bytes of tensors in a pass, those that no other layers have, and what loops make of each layer."""
        interior = self.interior
        tiles = dict(zip(interior.tensors, np.add(*self.buffers), strict=True))
        inside = frozenset(interior.tensors[k] for k in np.flatnonzero(~interior.outside))
        return tiles, inside, [self.loops.parts.at(numbers) for numbers in self.nests]

    @cached_property
    def _late(self) -> Floats:
        """Bytes of what rolls along the outer one of two loops, and moves with the inner one: it lies in one ring for
        both, into which nothing comes ahead."""
        outer, inner = self.along
        may_be = self.interior.outside & ~self.interior.is_made
        is_late = (outer.beside > 0) & inner.changes & (inner.counts > 1) & may_be[:, None]
        late: Floats = self.interior.sizes @ is_late
        return late

    @cached_property
    def _begun(self) -> Floats:
        """How much longer loops take in which early layers are a pass ahead of those that read rows of several: in
        the passes before the first these work alone."""
        within = ~self.interior.outside[:, None]
        is_ahead = (((own.beside > 0) & within).any(axis=0) for own in self.along)
        factors = (1 + ahead / own.counts for ahead, own in zip(is_ahead, self.along, strict=True))
        return math.prod(factors, start=np.ones(self.shape[1]))

    def _between(self) -> Floats:
        """What loads of a pass wait for, where they do not come ahead."""
        costs = self.interior.costs
        if costs is None or not costs.between:
            return np.zeros(self.shape[1])
        runs = (self.loops.parts.at(numbers).runs for numbers in self.nests)
        found: Floats = costs.between * math.prod(runs, start=np.ones(self.shape[1])).max(axis=0)
        return found

    def _repeated(self) -> Floats:
        """Infinite where too much is computed again."""
        factor = math.prod((own.repeats for own in self.along), start=np.ones((len(self.interior.layers), 1)))
        again = np.broadcast_to(self.interior.work @ factor, self.shape[1:])
        return np.where(again > MOST_REPEATED * self.interior.work.sum(), np.inf, 0.0)
