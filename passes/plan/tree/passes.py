# Tests: test/passes/plan/tree/test_search.py
"""What each tensor of an interval of layers needs along one class of axes, for all candidate steps at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.passes.plan.tree.costs import LayerParts
from frustum.passes.plan.tree.intervals import ClassCut, LayerInterval
from frustum.passes.plan.tree.spans import NOTHING, Extents, Floats, Ints, PassRanges, Reads, settled


@dataclass(frozen=True, eq=False)
class ClassTiles:
    """Tensors along one class, [tensors, candidates]; or along a class of each candidate's own.

    `changes`: whether passes change what is needed of a tensor; of others nothing else counts.  `whole`: positions in
    all; `new`: at most in one pass; `beside`: of those of earlier passes that stay; `loaded`: in all passes together
    into a buffer that moves; `streamed`: by the first user, which has no buffer; `run`: bytes that lie one behind the
    other in DRAM of one pass; `slice`: of the axis along which it is streamed, in one pass.  `counts`: passes,
    [candidates]; `repeats`, [layers, candidates]: how often as much a layer does as it would do at once.
    """

    changes: NDArray[np.bool_]
    whole: Ints
    new: Ints
    beside: Ints
    loaded: Ints
    streamed: Ints
    run: Ints
    slice: Ints
    counts: Ints
    repeats: Floats

    def at(self, index: NDArray[np.int64]) -> ClassTiles:
        """Of these candidates."""
        return ClassTiles(*(getattr(self, each.name)[..., index] for each in fields(self)))

    @staticmethod
    def unchanged(tensors: int, layers: int, most: int) -> ClassTiles:
        """Of one pass over everything.  `most`: no axis is longer."""
        one, none = np.ones((tensors, 1), np.int64), np.zeros((tensors, 1), np.int64)
        layer, is_changed = np.ones((layers, 1)), np.ones((tensors, 1), np.bool_)
        return ClassTiles(is_changed, one, one, none, one, one, one * NOTHING, one * most, np.ones(1, np.int64), layer)

    @staticmethod
    def joined(parts: Sequence[ClassTiles]) -> ClassTiles:
        """Candidates of several."""
        names = [each.name for each in fields(ClassTiles)]
        return ClassTiles(*(np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names))


@dataclass(frozen=True, eq=False)
class TensorTiles:
    """One tensor's row of `ClassTiles`: whether it changes; and whole, new, beside, loaded, streamed, run."""

    changes: bool
    found: Ints


class Passes:
    """Of layers in order, in one cut.  What is known of fewer layers with the same last one is not found again."""

    reads: Reads
    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]
    cut: ClassCut
    extents: Extents
    counts: Ints
    in_step: frozenset[Layer]
    makes_steps: bool
    """Whether the passes are over what layers carry from step to step."""
    is_late: NDArray[np.bool_]
    """Candidates in which a layer would make several steps of what it carries in one pass."""

    def __init__(self, own: LayerInterval, cut: ClassCut, extents: Extents, known: KnownPasses) -> None:
        self.reads, self.layers, self.tensors = own.reads, own.layers, own.touched
        self.cut, self.extents = cut, extents
        self.counts = cut.passes
        self.in_step, self.makes_steps = own.in_step, cut.group == own.steps
        self.is_late = np.zeros(len(self.counts), np.bool_)
        self.made: dict[Layer, PassRanges | None] = {}
        """Along the layer's axis of the class; None: it has none, and is repeated."""
        self._asked: dict[tuple[Tensor, Axis], PassRanges] = {}
        self._uses: dict[tuple[Tensor, Axis], dict[Layer, PassRanges]] = {}
        self._whole: set[tuple[Tensor, Axis]] = set()
        """What some layer needs all of in each pass."""
        self._rows: dict[Tensor, TensorTiles] = {}
        self._proportions: dict[int, PassRanges] = {}
        key = own.layers[-1], cut.reference, cut.is_rolling, tuple(cut.high[:, 0].tolist()), id(extents)
        last = known.get(key)
        self._find(own.outside, 0 if last is None else self._begin(last))
        known[key] = self

    def _begin(self, last: Passes) -> int:
        """Takes what is known of fewer layers with the same last one; of how many."""
        same = len(last.layers)
        if self.layers[-same:] != last.layers:
            return 0
        if any((self.cut.group ^ last.cut.group) & self.reads.axes[layer] for layer in last.layers):
            return 0
        self.made, self._asked, self._uses = dict(last.made), dict(last._asked), dict(last._uses)
        self.is_late = last.is_late.copy()
        self._whole, self._proportions = set(last._whole), last._proportions
        new = {t for layer in self.layers[:-same] for t in self.reads.touched[layer]}
        self._rows = {t: row for t, row in last._rows.items() if t not in new}
        return same

    def _find(self, outside: Collection[Tensor], known: int) -> None:
        asked = self._asked
        for layer in reversed(self.layers[: len(self.layers) - known]):
            own = next(iter(self.reads.axes[layer] & self.cut.group), None)
            if own is None:
                self.made[layer] = None
                continue
            span = asked.get((layer.result, own)) if own in layer.result.axes else None
            if span is None or layer.result in outside or layer in self.in_step:
                share = self._in_proportion(self.extents[own])
                span = share if span is None else span.joined(share)
            made = span.news if self.cut.is_rolling else span
            self.made[layer] = made
            if self.makes_steps and layer in self.in_step:
                self.is_late |= made.most > 1
            for read in self.reads.of[layer]:
                key = read.tensor, read.axis
                needed = self.reads.along(read, own, span)
                used = needed if made is span else self.reads.along(read, own, made)
                if needed is None or used is None:
                    self._whole.add(key)
                    continue
                asked[key] = asked[key].joined(needed) if key in asked else needed
                uses = self._uses.get(key, {})
                self._uses[key] = {**uses, layer: uses[layer].joined(used) if layer in uses else used}

    def _in_proportion(self, extent: int) -> PassRanges:
        if extent not in self._proportions:
            whole = self.extents[self.cut.reference]
            low, high = (-(-edge * extent // whole) for edge in (self.cut.low, self.cut.high))
            self._proportions[extent] = settled(low, np.minimum(high, extent))
        return self._proportions[extent]

    # ------------------------------------------------------------ tensors

    def along(self, streams: Sequence[tuple[Layer, Axis, Axis] | None]) -> ClassTiles:
        """`streams`: of each tensor the layer that streams it, along which of its axes, and the tensor's."""
        rows = [self._rows.get(t) or self._rows.setdefault(t, self._row(t)) for t in self.tensors]
        shape, slices = (len(rows), len(self.counts)), np.ones((len(rows), len(self.counts)), np.int64)
        for k, axes in enumerate(streams):
            if axes is not None:
                made = self.made[axes[0]] if axes[1] in self.cut.group else None
                slices[k] = self.extents[axes[2]] if made is None else np.maximum(made.most, 1)
        changes = np.array([row.changes for row in rows])
        found = np.array([row.found for row in rows])
        repeats = np.array([self._repeats(layer) for layer in self.layers])
        changes_all = np.broadcast_to(changes[:, None], shape)
        whole, new, beside, loaded, streamed, run = np.moveaxis(found, 1, 0)
        return ClassTiles(changes_all, whole, new, beside, loaded, streamed, run, slices, self.counts, repeats)

    def _row(self, tensor: Tensor) -> TensorTiles:
        found = np.empty((6, len(self.counts)), np.int64)
        found[:] = ((1,), (1,), (0,), (1,), (1,), (tensor.element_bits,))
        whole, new, beside, loaded, streamed, run = found
        changes = False
        for axis in tensor.axes:
            along = self._of_axis(tensor, axis)
            if along is None:
                run *= self.extents[axis]
                continue
            full, tile, stays, total, stream = along
            run[:] = np.where(tile < full, tensor.element_bits, run) * tile
            if changes:  # two axes that the same passes move: no more than this
                most, old = tile + stays, new + beside
                beside[:] = old * most - new * tile
                new *= tile
                loaded *= most
                streamed *= most
            else:
                new[:], beside[:], loaded[:], streamed[:] = tile, stays, total, stream
            changes = True
            whole *= full
        run[:] = np.maximum(1, run // 8) if changes else NOTHING
        return TensorTiles(changes, found)

    def _of_axis(self, tensor: Tensor, axis: Axis) -> tuple[int, Ints, Ints | int, Ints, Ints] | None:
        """Of one axis of a tensor: whole, new, beside, loaded, streamed; None: no pass changes it."""
        users = [layer for layer in self.reads.users[tensor] if layer in self.made]
        uses = self._uses.get((tensor, axis), {})
        is_made = users[0].result is tensor
        made = self.made[users[0]] if is_made and axis in self.cut.group else None
        if made is None and (is_made or not uses):
            return None
        if (tensor, axis) in self._whole or any(k not in uses and k.result is not tensor for k in users):
            return None
        read = None
        for span in uses.values():
            read = span if read is None else read.joined(span)
        if made is not None:
            stays = made.beside(read) if read is not None and self.cut.is_rolling else 0
            return made.whole, made.most, np.minimum(stays, made.whole - made.most), made.total, made.total
        assert read is not None
        stream = uses[users[0]].total
        if not self.cut.is_rolling:
            return read.whole, read.most, 0, read.total, stream
        news = read.news
        return read.whole, news.most, np.minimum(read.beside(read), read.whole - news.most), news.total, stream

    def parts(self) -> LayerParts:
        """What of each layer a pass has."""
        shape = len(self.layers), len(self.counts)
        axis, extent, runs = np.full(shape, -1), np.ones(shape, np.int64), np.ones(shape)
        for k, layer in enumerate(self.layers):
            made = self.made[layer]
            if made is None:
                runs[k] = self.counts
                continue
            (own,) = self.reads.axes[layer] & self.cut.group
            axis[k], extent[k] = layer.axes.index(own), np.maximum(made.most, 1)
            runs[k] = made.total / extent[k]
        return LayerParts(axis, extent, runs)

    def _repeats(self, layer: Layer) -> Floats:
        made = self.made[layer]
        times = self.counts if made is None else made.total / max(1, made.whole)
        return np.where(self.is_late, np.inf, times).astype(np.float64)


KnownPasses: TypeAlias = dict[object, Passes]
"""Of each last layer, cut and extents the passes that were found last."""
