# Tests: test/passes/lower/test_load_parts.py
"""Moves of elements from a tensor in DRAM to its place in another; loads of the other one written as loads of what was
moved there, and stores of what is moved written as stores to where it goes.

A tensor's elements are numbered by *digits*: strides that divide each other, from one element to the next up to all of
the tensor.  Where a move and a copy both go along such strides, a position of the copy is one of the move's, some
digits further, and the copy of a part is the same box, clipped to the part.

Source: docs/techniques/machine.md, "Transfers": boxes of four dimensions, nominal, and clipped late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod
from typing import TypeVar

import numpy as np
from xdsl.ir import Operation, SSAValue

from frustum.dialects.extents import replaced
from frustum.dialects.isa.instruction import value_of
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import ELEMENT_BYTES, Affine, Box, Copy, Span, View
from frustum.dialects.isa.sync import AllocOp, ExternalOp, RepeatOp
from frustum.passes.lower.executions import enclosing_counts
from frustum.passes.lower.through_cores import places_in


@dataclass(frozen=True)
class Digit:
    """`count` positions of a tensor that are `stride` bytes apart."""

    stride: int
    count: int


@dataclass(frozen=True)
class BoxPair:
    """A box of a tensor and the box of another one that has the same elements: byte offsets and strides in both,
    elements along each dimension."""

    from_offset: int
    to_offset: int
    from_strides: Sequence[int]
    to_strides: Sequence[int]
    extents: Sequence[int]


@dataclass(frozen=True)
class BoxMove(BoxPair):
    """A box of a tensor that is moved to a box of another; `load` and `store` are the copies that do it."""

    load: CopyOp
    store: CopyOp

    @property
    def source(self) -> SSAValue:
        return self.load.src

    @property
    def reversed(self) -> BoxMove:
        """The same boxes the other way round."""
        there = self.to_offset, self.from_offset, self.to_strides, self.from_strides
        return BoxMove(*there, self.extents, self.load, self.store)


AnyPair = TypeVar("AnyPair", bound=BoxPair)


@dataclass(frozen=True)
class PartInDigits:
    """A move by the digits of the tensor that it goes to: of each the first position, how many follow from it on, and
    how many bytes of the source a step is."""

    move: BoxPair
    starts: Sequence[int]
    counts: Sequence[int]
    steps: Sequence[int]


def move_of(store: CopyOp) -> BoxMove | None:
    """The move that ends with this store of a buffer: one copy from DRAM brings all of the buffer, as it is."""
    buffer = store.src.owner
    if not isinstance(buffer, AllocOp) or buffer.memory != "sram" or not is_plain(store):
        return None
    others = [use.operation for use in buffer.buffer.uses if use.operation is not store]
    if len(others) != 1 or not isinstance(load := others[0], CopyOp) or load.parent is not store.parent:
        return None
    same = load.dst is store.src and load.box == store.box and load.dst_view == store.src_view
    if not same or not is_plain(load) or not isinstance(load.src.owner, ExternalOp):
        return None
    source, target, box = load.src_view.data, store.dst_view.data, store.box.data
    offsets = [origin(view, box) for view in (source, target)]
    if not all(each.is_constant for each in offsets):
        return None
    return BoxMove(offsets[0].base, offsets[1].base, source.strides, target.strides, box.bound, load, store)


def is_plain(op: CopyOp) -> bool:
    """A copy between DRAM and SRAM of elements as they are."""
    return op.engine.data == "gdma" and op.fill is None and op.expand is None


def origin(view: View, box: Box) -> Affine:
    """The address of position 0 of a box."""
    offset = view.offset
    for start, stride in zip(box.start, view.strides, strict=True):
        offset = offset - start * stride
    return offset


def is_each_once(
    boxes: Iterable[tuple[Box, View, Sequence[int]]], tensor: ExternalOp, element: str, clusters: int
) -> bool:
    """Whether boxes of a tensor, in all passes of their loops and in all clusters, have each of its elements once."""
    times = np.zeros(tensor.bytes.value.data // ELEMENT_BYTES[element], np.int32)
    for (box, view, counts), cluster in product(boxes, range(clusters)):
        for places in places_in(box, view, counts, cluster):
            times[places] += 1
    return bool((times == 1).all())


def fill_whole(moves: Sequence[BoxMove], tensor: ExternalOp, clusters: int) -> bool:
    """Whether the moves together write all of a tensor, each element once, and read as much."""
    element = moves[0].store.dst_view.data.element
    if sum(prod(move.extents) for move in moves) * ELEMENT_BYTES[element] != tensor.bytes.value.data:
        return False
    stores = [move.store for move in moves]
    boxes = [(op.box.data, op.dst_view.data, enclosing_counts(op)) for op in stores]
    return is_each_once(boxes, tensor, element, clusters)


# -------------------------------------------------------------------- digits


def digits_of(strides: Iterable[int], size_bytes: int) -> list[Digit] | None:
    """The digits with these strides, the smallest first; None where they do not divide each other."""
    order = [*sorted(set(strides) - {0}), size_bytes]
    if any(there % here or there == here for here, there in pairwise(order)):
        return None
    return [Digit(here, there // here) for here, there in pairwise(order)]


def in_digits(value: int, digits: Sequence[Digit]) -> list[int]:
    """An address as positions along the digits; of a negative one all are negative."""
    rest, found = abs(value), [0] * len(digits)
    for k in reversed(range(len(digits))):
        found[k], rest = divmod(rest, digits[k].stride)
    assert rest == 0, "the smallest digit is an element"
    return found if value >= 0 else [-each for each in found]


def part_of(move: BoxPair, digits: Sequence[Digit]) -> PartInDigits | None:
    """A move by digits; None where it does not go along them."""
    starts = in_digits(move.to_offset, digits)
    counts, steps = [1] * len(digits), [0] * len(digits)
    number = {digit.stride: k for k, digit in enumerate(digits)}
    for extent, stride, step in zip(move.extents, move.to_strides, move.from_strides, strict=True):
        rest, to, by = extent, stride, step
        while rest > 1:
            k = number.get(to)
            if k is None or counts[k] > 1:
                return None
            whole = digits[k].count
            if rest > whole - starts[k] and (rest % whole or starts[k]):
                return None
            counts[k], steps[k] = min(rest, whole), by
            rest, to, by = rest // counts[k], to * whole, by * whole
    return PartInDigits(move, starts, counts, steps)


# -------------------------------------------------------------------- copies of parts


@dataclass(frozen=True)
class CopyInDigits:
    """A load or store by the digits of its tensor, of which it sees `view`: where it starts along each, which dimension
    of its box goes along it, and between which positions all that it moves lies."""

    copy: CopyOp
    view: View
    digits: Sequence[Digit]
    starts: Sequence[Affine]
    dims: Sequence[int | None]
    lowest: Sequence[int]
    highest: Sequence[int]
    counts: Sequence[int]
    clusters: int

    @property
    def box(self) -> Box:
        return self.copy.box.data


def tile_of(copy: CopyOp, view: View, moves: Sequence[BoxPair], size_bytes: int, clusters: int) -> CopyInDigits | None:
    """A copy by the digits of a tensor of so many bytes, to which these moves go; `view`: of the tensor.  None where
    there are no digits, or some position of it could be another digit's."""
    box, counts = copy.box.data, enclosing_counts(copy)
    sides = [(view.strides, box.extent), *((move.to_strides, move.extents) for move in moves)]
    strides = [stride for side in sides for stride, extent in zip(*side, strict=True) if extent > 1]
    digits = digits_of([ELEMENT_BYTES[view.element], *strides], size_bytes)
    if digits is None:
        return None
    starts = affine_in_digits(view.offset, digits)
    dims: list[int | None] = [None] * len(digits)
    number = {digit.stride: k for k, digit in enumerate(digits)}
    for d, (stride, extent) in enumerate(zip(view.strides, box.extent, strict=True)):
        if extent > 1:
            k = number.get(stride)
            if k is None or dims[k] is not None:
                return None
            dims[k] = d
    lowest, highest = list[int](), list[int]()
    passes, some = not_empty(box, counts, clusters)
    for start, dim in zip(starts, dims, strict=True):
        low, high = reach(start, passes, some)
        if dim is not None:
            high += box.extent[dim] - 1
            if (ahead := start - box.start[dim]).is_constant:
                low, high = max(low, ahead.base), min(high, ahead.base + box.bound[dim] - 1)
        lowest.append(low)
        highest.append(high)
    if min(lowest) < 0 or any(high >= digit.count for high, digit in zip(highest, digits, strict=True)):
        return None
    return CopyInDigits(copy, view, digits, starts, dims, lowest, highest, counts, clusters)


def affine_in_digits(value: Affine, digits: Sequence[Digit]) -> list[Affine]:
    """An address that moves with loops and clusters as positions along the digits."""
    bases, clusters = in_digits(value.base, digits), in_digits(value.cluster, digits)
    loops = [in_digits(step, digits) for step in value.loops]
    return [
        Affine(bases[k], tuple(steps[k] for steps in loops), clusters[k]) for k in range(len(digits))
    ]


def reach(value: Affine, counts: Sequence[int], clusters: int) -> tuple[int, int]:
    """The least and the greatest value in all passes of loops and all clusters."""
    moved = [step * (count - 1) for step, count in zip(value.loops, counts, strict=False)]
    moved.append(value.cluster * (clusters - 1))
    return value.base + sum(min(0, by) for by in moved), value.base + sum(max(0, by) for by in moved)


def not_empty(box: Box, counts: Sequence[int], clusters: int) -> tuple[list[int], int]:
    """The passes of loops, and the clusters, behind which a box is empty."""
    sizes = [*counts, clusters]
    for start, bound in zip(box.start, box.bound, strict=True):
        steps = [*(*start.loops, *(0,) * len(counts))[: len(counts)], start.cluster]
        least = start.base + sum(min(0, step * (size - 1)) for step, size in zip(steps, sizes, strict=True))
        for k, step in enumerate(steps):
            if step > 0:
                sizes[k] = max(1, min(sizes[k], (bound - 1 - least) // step + 1))
    return sizes[:-1], sizes[-1]


def copy_of_part(tile: CopyInDigits, part: PartInDigits) -> Copy | None:
    """The same copy of what lies in a part, with the other tensor of the part's move; None where its box cannot say
    that.  Empty boxes where nothing of the part is copied."""
    spans, used = list(tile.box.spans), set[int]()
    for k, (start, d) in enumerate(zip(tile.starts, tile.dims, strict=True)):
        first, count = part.starts[k], part.counts[k]
        if first <= tile.lowest[k] and tile.highest[k] < first + count:
            continue
        if d is None:  # one position, said by a dimension that says nothing yet
            d = next((free for free in range(len(spans)) if free not in used and never_clips(tile, free)), None)
            span: Span | None = Span(start - first, 1, count)
        else:
            span = clipped(tile, d, start - first, count)
        if d is None or span is None:
            return None
        spans[d] = span
        used.add(d)
    op, view = tile.copy, tile.view
    offset = Affine(part.move.from_offset)
    for start, first, step in zip(tile.starts, part.starts, part.steps, strict=True):
        offset = offset + (start - first) * step
    step_of = {digit.stride: step for digit, step in zip(tile.digits, part.steps, strict=True)}
    there = replace(view, offset=offset, strides=tuple(step_of.get(stride, 0) for stride in view.strides))
    is_load = isinstance(op.src.owner, ExternalOp)
    here = op.dst_view.data if is_load else op.src_view.data
    if (wrap := here.wrap) is not None:  # positions of the ring are those of the whole copy
        ahead = tile.box.start[wrap.dim] - spans[wrap.dim].start
        here = replace(here, wrap=replace(wrap, phase=wrap.phase + ahead))
    views = (there, here) if is_load else (here, there)
    box, multicast = Box.of(*spans), op.multicast is not None
    return Copy(engine=op.engine.data, src_view=views[0], dst_view=views[1], box=box, multicast=multicast)


def copies_of_parts(
    copy: CopyOp, view: View, size_bytes: int, moves: Sequence[AnyPair], clusters: int
) -> list[tuple[AnyPair, Copy]] | None:
    """A copy with a tensor of so many bytes, of which it sees `view`, as copies with the other tensors of moves to it;
    None where boxes cannot say that."""
    tile = tile_of(copy, view, moves, size_bytes, clusters)
    if tile is None:
        return None
    found = []
    for move in moves:
        part = part_of(move, tile.digits)
        new = None if part is None else copy_of_part(tile, part)
        if new is None:
            return None
        found.append((move, new))
    return found


def never_clips(tile: CopyInDigits, d: int) -> bool:
    """A dimension of one position that is there in every pass."""
    span = tile.box.spans[d]
    low, high = reach(span.start, tile.counts, tile.clusters)
    return span.extent == 1 and span.limit is None and low >= 0 and high < span.bound


def clipped(tile: CopyInDigits, d: int, start: Affine, count: int) -> Span | None:
    """A dimension of a box in positions of a part, `start` that of its first one, clipped to `count` of them and as
    before."""
    span = tile.box.spans[d]
    ahead, limit, bound = start - span.start, span.limit, count
    low, high = reach(span.start, tile.counts, tile.clusters)
    if low < 0 and not (ahead.is_constant and ahead.base <= 0):
        return None
    if limit is not None:
        limit = limit + ahead
    if high + span.extent > span.bound:
        if ahead.is_constant:
            bound = max(1, min(count, span.bound + ahead.base))
            if span.bound + ahead.base < 1:
                limit = Affine()
        elif limit is None:
            limit = ahead + span.bound
        else:
            return None
    return Span(start, span.extent, bound, limit)


def once(load: CopyOp, clusters: int) -> Box | None:
    """The box of a load in the first of all passes that load the same, empty in the others and in other clusters;
    None where it has no dimension that can say that."""
    view, box = load.src_view.data, load.box.data
    moving = [view.offset, *box.start, *(limit for limit in box.limit if limit is not None)]
    same = Affine()
    for level in range(len(enclosing_counts(load))):
        if not any(each.loops[level : level + 1] not in ((), (0,)) for each in moving):
            same = same + Affine.index(level)
    if clusters > 1 and (load.multicast is not None or not any(each.cluster for each in moving)):
        same = same + Affine(cluster=1)
    if same == Affine():
        return box
    if None not in box.limit:
        return None
    d = box.limit.index(None)
    return replace(box, limit=replaced(box.limit, d, box.start[d] + (-same + 1) * box.extent[d]))


# -------------------------------------------------------------------- in the program


def tags_of(op: CopyOp) -> dict[str, int]:
    return {name: int(str(value_of(op.properties[name]))) for name in ("layer", "unit")}


def remove(move: BoxMove) -> None:
    """The two copies of a move, their buffer, and the loops in which nothing else is."""
    buffer, block = move.load.dst.owner, move.load.parent
    for op in (move.store, move.load, buffer):
        assert isinstance(op, Operation)
        erase(op)
    while block is not None and isinstance(loop := block.parent_op(), RepeatOp) and not block.ops:
        block = loop.parent
        erase(loop)


def erase(op: Operation) -> None:
    op.detach()
    op.erase()
