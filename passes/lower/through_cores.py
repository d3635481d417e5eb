# Tests: test/passes/lower/test_keep_tensors.py
"""Copies from SRAM to SRAM: within a cluster through the NRAM of its cores, to another cluster by CDMA.

Source: docs/techniques/machine.md, "Transfers".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import Block, Operation, Region

from frustum.dialects import isa
from frustum.dialects.extents import Extents, aligned, ceil_div, replaced
from frustum.dialects.isa.instruction import value_of
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import ELEMENT_BYTES, MAX_LOOPS, Affine, Box, Copy, Span, View
from frustum.dialects.isa.sync import AllocOp, ExternalOp, RepeatOp
from frustum.passes.lower.executions import enclosing_counts

INNERMOST = 0.1
"""A dimension whose elements are neighbours is dealt to cores only where another one gives each 10 % more of all."""


class LoadedPart(NamedTuple):
    """Positions along a dimension of a store's box that each cluster loads: `size` from its `first` on."""

    dim: int
    first: Affine
    size: int


@dataclass
class Flow:
    """The copies that write a tensor, and those that read it; `to`: of each that writes how many clusters further what
    it stores is needed."""

    external: ExternalOp
    stores: Sequence[CopyOp]
    loads: Sequence[CopyOp]
    to: Mapping[CopyOp, Sequence[int]] | None = None
    part: int | None = None
    """Bytes of each cluster's own part, where the clusters' parts lie one behind the other and each loads no other."""
    is_cut: bool = False
    """Clusters store into the parts of others: each store is cut at the borders of the parts."""
    inside: tuple[ExternalOp, int] | None = None
    """Where an input that is part of another one begins in it, in bytes."""

    @property
    def copies(self) -> list[CopyOp]:
        """Those that write, then those that read."""
        return [*self.stores, *self.loads]

    @property
    def kept_bytes(self) -> int:
        """Of the buffer of each cluster."""
        return aligned(self.part or self.external.bytes.value.data)

    @property
    def saved_bytes(self) -> int:
        """Bytes of DRAM that the copies move, nothing clipped."""
        return sum(
            prod(op.box.data.extent) * ELEMENT_BYTES[op.src_view.data.element] * prod(enclosing_counts(op))
            for op in (*self.stores, *self.loads)
        )


# -------------------------------------------------------------------- within a cluster


def may_be_staged(op: CopyOp) -> bool:
    """A copy between DRAM and SRAM of elements as they are, which may go through cores instead."""
    is_plain = op.engine.data == "gdma" and op.fill is None and op.expand is None
    box = op.box.data
    return is_plain and None in box.limit and len(enclosing_counts(op)) + sum(e > 1 for e in box.extent) <= MAX_LOOPS


def through_cores(op: CopyOp, room: int, cores: int) -> list[Operation]:
    """The same copy between two buffers in SRAM: each core takes pieces of half the `room` bytes into its NRAM, and
    puts them where they are to be."""
    level, box = len(enclosing_counts(op)), op.box.data
    source, target = op.src_view.data, op.dst_view.data
    own, counts = pieces_of(box, source, room // 2, cores, level)
    tags = {name: int(str(value_of(op.properties[name]))) for name in ("layer", "unit")}
    stage = op.stage.value.data
    alloc = AllocOp(
        "nram", aligned(prod(own.extent) * ELEMENT_BYTES[source.element]), 2 if counts or level else 1
    )
    local = View(source.element, Affine(), dense(own.extent, source))
    taken = Copy(engine="mvdma", src_view=shifted(source, box, own), dst_view=local, box=own)
    put = Copy(engine="mvdma", src_view=local, dst_view=shifted(target, box, own), box=own)
    first, second = (0, 1) if counts else (stage, stage)
    ops: list[Operation] = [
        alloc,
        isa.emit(taken, op.src, alloc.buffer, stage=first, **tags),
        isa.emit(put, alloc.buffer, op.dst, stage=second, **tags),
    ]
    for k, count in reversed(list(enumerate(counts))):
        ops = [RepeatOp(count, Region(Block(ops)), stage=0 if k else stage)]
    return ops


def pieces_of(box: Box, view: View, room: int, cores: int, level: int) -> tuple[Box, list[int]]:
    """The piece of a box that a core moves at a time, in at most `room` bytes, and the passes of loops over pieces,
    which begin at a nesting of `level`.

    Along one dimension pieces are dealt to the cores.  A dimension that is limited already is only cut into equal
    pieces.
    """
    order = sorted(range(len(box.extent)), key=lambda d: -view.strides[d])
    extent, dealt = list(box.extent), best_dealt(box, view, cores)
    if dealt is not None:
        extent[dealt] = ceil_div(extent[dealt], cores)
    most = max(1, room // ELEMENT_BYTES[view.element])
    for d in order:
        if prod(extent) <= most:
            break
        fit = max(1, most * extent[d] // prod(extent))
        equal = box.limit[d] is not None
        extent[d] = max(n for n in range(1, fit + 1) if extent[d] % n == 0) if equal else fit
    counts: list[int] = []
    spans = list(box.spans)
    for d in order:
        sharing = cores if d == dealt else 1
        count = ceil_div(box.extent[d], extent[d] * sharing)
        start = box.start[d] + (Affine(core=extent[d]) if d == dealt else Affine())
        if count > 1:
            start = start + Affine.index(level + len(counts), extent[d] * sharing)
            counts.append(count)
        end = box.limit[d]
        if end is None and count * sharing * extent[d] > box.extent[d]:
            end = box.start[d] + box.extent[d]
        spans[d] = Span(start, extent[d], box.bound[d], end)
    return Box.of(*spans), counts


def best_dealt(box: Box, view: View, cores: int) -> int | None:
    """The dimension along which each core's share is the smallest part of all; where none can be shared, one along
    which the first core has all.  None for one core."""
    if cores == 1:
        return None
    size = ELEMENT_BYTES[view.element]
    found = []
    for d, (extent, stride) in enumerate(zip(box.extent, view.strides, strict=True)):
        if extent > 1 and (box.limit[d] is None or extent % cores == 0):
            share = ceil_div(extent, cores) / extent
            found.append((share + INNERMOST * (stride == size), -stride, d))
    return min(found)[-1] if found else box.limit.index(None)


def dense(extent: Extents, like: View) -> Extents:
    """Byte strides of a box without gaps, its dimensions in the order in which they lie elsewhere."""
    found, stride = [0] * len(extent), ELEMENT_BYTES[like.element]
    for d in sorted(range(len(extent)), key=lambda d: (like.strides[d], d)):
        found[d] = stride
        stride *= extent[d]
    return tuple(found)


def shifted(view: View, box: Box, own: Box) -> View:
    """The view of part of a box."""
    offset = view.offset
    for d, stride in enumerate(view.strides):
        if view.wrap is None or view.wrap.dim != d:
            offset = offset + (own.start[d] - box.start[d]) * stride
    return replace(view, offset=offset)


# -------------------------------------------------------------------- inputs


def loaded_bytes(flow: Flow, clusters: int) -> int:
    """Bytes of DRAM that the loads of a tensor read; what is multicast counts once."""
    elements = sum(
        len(places)
        for op in flow.loads
        for cluster in range(1 if op.multicast is not None else clusters)
        for places in places_of(op, op.src_view.data, cluster)
    )
    return elements * ELEMENT_BYTES[flow.loads[0].src_view.data.element]


def brought(flow: Flow, kept: AllocOp, clusters: int) -> Operation:
    """The load of a whole tensor into a buffer of each cluster."""
    first = flow.loads[0]
    element = first.src_view.data.element
    size = ELEMENT_BYTES[element]
    count = flow.external.bytes.value.data // size
    view, one = View(element, Affine(), (0, 0, 0, size)), Span(Affine(), 1, 1)
    box = Box.of(one, one, one, Span(Affine(), count, count))
    source, start = flow.inside or (flow.external, 0)
    there = replace(view, offset=Affine(start))
    load = Copy(engine="gdma", src_view=there, dst_view=view, box=box, multicast=clusters > 1)
    tags = {name: int(str(value_of(first.properties[name]))) for name in ("layer", "unit")}
    return isa.emit(load, source.buffer, kept.buffer, **tags)


# -------------------------------------------------------------------- to other clusters


def own_part(flow: Flow, clusters: int) -> int | None:
    """Bytes of the part of a tensor that each cluster stores and loads, if these lie one behind the other."""
    views = [op.dst_view.data for op in flow.stores] + [op.src_view.data for op in flow.loads]
    return part_of(flow.copies, views, flow.external.bytes.value.data, clusters)


def part_loaded(flow: Flow, clusters: int) -> int | None:
    """Bytes of the part of a tensor that each cluster loads, if these lie one behind the other, and what any cluster
    stores can be cut at their borders."""
    size = flow.external.bytes.value.data
    part = part_of(flow.loads, [op.src_view.data for op in flow.loads], size, clusters)
    if part is None or not all(may_be_sent(op) and cut_at(op, part, clusters) is not None for op in flow.stores):
        return None
    return part


def part_of(copies: Sequence[CopyOp], views: Sequence[View], size: int, clusters: int) -> int | None:
    """Bytes of the part of a tensor of so many bytes that each cluster moves by these copies, which see it so, if the
    parts lie one behind the other."""
    steps = {view.offset.cluster for view in views}
    if clusters == 1 or len(steps) != 1 or (part := steps.pop()) * clusters != size:
        return None
    for op, view in zip(copies, views, strict=True):
        offset, box = view.offset, op.box.data
        moves = [*zip(offset.loops, enclosing_counts(op), strict=False), *zip(view.strides, box.extent, strict=True)]
        last = offset.base + sum(step * (count - 1) for step, count in moves)
        if offset.base < 0 or offset.core or min(step for step, _ in moves) < 0 or last >= part:
            return None
    return part


def in_own_part(view: View) -> View:
    """The same place, from the start of the cluster's part."""
    return replace(view, offset=replace(view.offset, cluster=0))


def cut_at(op: CopyOp, part: int, clusters: int) -> int | None:
    """The dimension of a store's box of which each part of so many bytes of the tensor has whole positions; None where
    there is none, or boxes begin before the tensor or end behind what is stored, inside of a part."""
    view, box, size = op.dst_view.data, op.box.data, part * clusters
    if view.wrap is not None:
        return None
    start = start_of(op)
    if not start.is_constant or start.base < 0:
        return None
    counts = enclosing_counts(op)
    for d, stride in enumerate(view.strides):
        inner = [own for k, own in enumerate(zip(view.strides, box.bound, strict=True)) if k != d and own[1] > 1]
        if not stride or part % stride or start.base % stride + sum(own * (n - 1) for own, n in inner) >= stride:
            continue
        first = box.start[d]
        moves = [step * (count - 1) for step, count in zip(first.loops, counts, strict=False)]
        moves.append(first.cluster * (clusters - 1))
        low = first.base + sum(move for move in moves if move < 0)
        high = first.base + sum(move for move in moves if move > 0) + box.extent[d]
        is_whole = high <= box.bound[d] or start.base // stride + box.bound[d] == size // stride
        return d if low >= 0 and is_whole else None
    return None


def in_part(op: CopyOp, d: int, by: int, part: int) -> Copy:
    """What a cluster stores of the part of the cluster `by` further, of so many bytes, `d` being the dimension along
    which parts follow each other: positions count from the start of that part."""
    view = op.dst_view.data
    size = part // view.strides[d]
    first = Affine(by * size - start_of(op).base // view.strides[d], cluster=size)
    own = within(copy_of(op), d, first, size)
    return replace(own, dst_view=replace(view, offset=view.offset - Affine(by * part, cluster=part)))


def start_of(op: CopyOp) -> Affine:
    """Where a store has position 0 of all dimensions."""
    view = op.dst_view.data
    start = view.offset
    for first, stride in zip(op.box.data.start, view.strides, strict=True):
        start = start - first * stride
    return start


def copy_of(op: CopyOp) -> Copy:
    """The views and the box of a copy."""
    return Copy(engine=op.engine.data, src_view=op.src_view.data, dst_view=op.dst_view.data, box=op.box.data)


def within(copy: Copy, d: int, first: Affine, size: int, end: Affine | None = None) -> Copy:
    """What a copy moves of `size` positions along a dimension from one on, which becomes the first, up to an `end`."""
    spans, source = list(copy.box.spans), copy.src_view
    own = spans[d]
    limit = own.limit if end is None else end
    spans[d] = Span(own.start - first, own.extent, size, None if limit is None else limit - first)
    if (wrap := source.wrap) is not None and wrap.dim == d:  # positions of the ring are those of the whole copy
        source = replace(source, wrap=replace(wrap, phase=wrap.phase + first))
    return replace(copy, src_view=source, box=Box.of(*spans))


def windows(op: CopyOp, loaded: NDArray[np.bool_]) -> list[LoadedPart]:
    """What each cluster loads of what a store may write, `loaded` being all elements of the tensor that it loads: along
    the dimensions where these are equally many, at equal steps from cluster to cluster."""
    view, box, start = op.dst_view.data, op.box.data, start_of(op)
    if view.wrap is not None or not start.is_constant or start.base < 0:
        return []
    size, clusters = ELEMENT_BYTES[view.element], len(loaded)
    places = np.array([start.base])
    for stride, count in zip(view.strides, box.bound, strict=True):
        places = places[..., np.newaxis] + np.arange(count) * stride
    if places.max() // size >= loaded.shape[1]:
        return []
    grid = loaded[:, places[0] // size]
    found, free = [], box.limit.count(None)
    for d, count in enumerate(box.bound):
        lines = np.logical_or.reduce(np.moveaxis(grid, d + 1, 1).reshape(clusters, count, -1), axis=2)
        which = np.flatnonzero(np.logical_or.reduce(lines, axis=1))
        if not len(which):
            return []
        low, high = lines[which].argmax(axis=1), count - lines[which, ::-1].argmax(axis=1)
        step = (low[-1] - low[0]) // max(1, which[-1] - which[0])
        begin, extent = int(low[0] - step * which[0]), int((high - low).max())
        last = begin + step * (clusters - 1)
        if extent == count or (low != begin + step * which).any() or min(begin, last) < 0:
            continue
        is_beyond = max(begin, last) + extent > count
        if is_beyond and (box.limit[d] is not None or free == 1):  # no room to say that the tensor ends before
            continue
        free -= is_beyond
        found.append(LoadedPart(d, Affine(begin, cluster=int(step)), extent))
    return found


def needed(op: CopyOp, by: int, found: Sequence[LoadedPart], clusters: int, *, is_there: bool) -> Copy:
    """What the cluster `by` further needs of a store, from where the store has put it or from where it was."""
    copy = copy_of(op)
    if is_there:
        copy = replace(copy, src_view=copy.dst_view)
    for d, first, size in found:
        bound, last = op.box.data.bound[d], max(first.at(), first.at((), clusters - 1))
        end = Affine(bound) if last + size > bound else None
        copy = within(copy, d, first + by * first.cluster, size, end)
    return copy


def may_be_sent(op: CopyOp) -> bool:
    """Some dimension of the box can say that nobody is so many clusters further."""
    return None in op.box.data.limit


def send(op: CopyOp, by: int, clusters: int, is_there: bool = False, own: Copy | None = None) -> Operation:
    """What a cluster stores, to the same place in the SRAM of the one `by` further, or `own` of it: the box is empty
    where none is.  `is_there`: from where it has been stored, not from where it was."""
    box, to = (op.box.data, op.dst_view.data) if own is None else (own.box, own.dst_view)
    d = box.limit.index(None)
    others = Affine(clusters - by, cluster=-1) if by > 0 else Affine(1 + by, cluster=1)
    limits = replaced(box.limit, d, box.start[d] + others * box.extent[d])
    peer, away = Affine(by, cluster=1), replace(box, limit=limits)
    source, place = (op.dst, op.dst_view.data) if is_there else (op.src, op.src_view.data)
    copy = Copy(
        engine="cdma", src_view=place if own is None else own.src_view, dst_view=to, box=away, peer=peer
    )
    tags = {name: int(str(value_of(op.properties[name]))) for name in ("stage", "layer", "unit")}
    return isa.emit(copy, source, op.dst, **tags)


def loaded_of(flow: Flow, clusters: int) -> NDArray[np.bool_]:
    """Of each cluster which elements of a tensor it loads."""
    size = flow.external.bytes.value.data // ELEMENT_BYTES[flow.loads[0].src_view.data.element]
    return np.logical_or.reduce([marked(op, op.src_view.data, clusters, size) for op in flow.loads])


def distances(flow: Flow, loaded: NDArray[np.bool_]) -> dict[CopyOp, list[int]] | None:
    """Of each copy that stores how many clusters further something of it is loaded; None where several clusters, but
    not all, store an element, or a cluster loads what none stores."""
    clusters, size = loaded.shape
    if clusters == 1:
        return {}
    stored = {op: marked(op, op.dst_view.data, clusters, size) for op in flow.stores}
    by = np.any(list(stored.values()), axis=0)
    times = by.sum(axis=0)
    if ((times > 1) & (times < clusters)).any():
        return None
    owner = np.where(times > 0, by.argmax(axis=0), -1)
    missing = loaded & ~by
    if (times[missing.any(axis=0)] == 0).any():
        return None
    away = np.where(missing, np.arange(clusters)[:, np.newaxis] - owner, 0)
    found = {op: np.unique(away[:, own.any(axis=0)]).tolist() for op, own in stored.items()}
    return {op: [by for by in sorted(each) if by] for op, each in found.items()}


def distances_to_parts(flow: Flow, part: int, clusters: int) -> dict[CopyOp, list[int]] | None:
    """Of each copy that stores how many clusters further the parts of so many bytes are of which it stores something;
    None where several clusters store an element, or one is loaded that none stores."""
    element = ELEMENT_BYTES[flow.loads[0].src_view.data.element]
    size = part * clusters // element
    stored = {op: marked(op, op.dst_view.data, clusters, size) for op in flow.stores}
    by = np.any(list(stored.values()), axis=0)
    loaded = loaded_of(flow, clusters)
    if (by.sum(axis=0) > 1).any() or (loaded.any(axis=0) & ~by.any(axis=0)).any():
        return None
    found = {op: own.reshape(clusters, clusters, -1).any(axis=2) for op, own in stored.items()}
    return {op: sorted({int(to - of) for of, to in np.argwhere(own)}) for op, own in found.items()}


def marked(op: CopyOp, view: View, clusters: int, size: int) -> NDArray[np.bool_]:
    """Of each cluster which of so many elements of a tensor a copy moves."""
    found = np.zeros((clusters, size), np.bool_)
    for cluster in range(clusters):
        for places in places_of(op, view, cluster):
            found[cluster, places] = True
    return found


def places_of(op: CopyOp, view: View, cluster: int) -> Iterator[NDArray[np.int64]]:
    """Of each execution of a copy in a cluster the elements of the tensor that it moves."""
    return places_in(op.box.data, view, enclosing_counts(op), cluster)


def places_in(box: Box, view: View, counts: Sequence[int], cluster: int) -> Iterator[NDArray[np.int64]]:
    """Of each pass of loops in a cluster the elements of a tensor that a box of it has."""
    size = ELEMENT_BYTES[view.element]
    for index in product(*map(range, counts)):
        places = np.array([view.offset.at(index, cluster)])
        for span, stride in zip(box.spans, view.strides, strict=True):
            low, high = span.clip(index, cluster)
            steps = np.arange(low, max(low, high)) - span.start.at(index, cluster)
            places = (places[:, np.newaxis] + steps * stride).ravel()
        yield places // size
