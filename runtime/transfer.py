"""Effects of the copies, whichever engine makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import prod

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, Copy, View
from frustum.runtime.effects import RAW, Work, effect
from frustum.runtime.expanded_blocks import expanded_block
from frustum.runtime.memory import DTYPES

SRC, DST = 0, 1


@effect.register
def copy(instruction: Copy, work: Work) -> None:
    """`dst = src`, with several destinations for a multicast or broadcast; with `fill` a border around it."""
    src, dst = instruction.src_view, instruction.dst_view
    assert src.element == dst.element, "copies do not convert"
    if instruction.expand is not None:
        _expand(instruction, work)
        return
    if any(work.split):
        _copy_in_pieces(instruction, work)
        return
    copies = work.copies if work.copies > 1 else 0
    inner = 0
    if instruction.fill is not None and (any(work.low) or any(work.high)):
        inner = sum(low * stride for low, stride in zip(work.low, dst.strides, strict=True))
        value = np.array(instruction.fill, DTYPES[dst.element])
        work.raw(DST, dst, work.extent, copies=copies)[...] = value.view(RAW[value.itemsize])
    if 0 in work.read:
        return
    target = work.raw(DST, dst, work.read, inner, copies)
    source = work.raw(SRC, src, work.read)
    target[...] = np.expand_dims(source, -5) if copies else source


def _expand(instruction: Copy, work: Work) -> None:
    """The block of each unit's slot into its box; units that have the same block expand it once."""
    src, dst = instruction.src_view, instruction.dst_view
    assert instruction.expand is not None
    copies = work.copies if work.copies > 1 else 0
    element = ELEMENT_BYTES[src.element]
    slots = work.raw(SRC, replace(src, strides=(0, 0, 0, element)), (1, 1, 1, instruction.expand // element))
    target = work.raw(DST, dst, work.read, 0, copies)
    for unit in np.ndindex(target.shape[: target.ndim - 4 - bool(copies)]):
        expanded = expanded_block(slots[unit].tobytes(), prod(work.read) * element)
        target[unit] = expanded.view(target.dtype).reshape(work.read)


def _copy_in_pieces(instruction: Copy, work: Work) -> None:
    """The same for a box that goes beyond the end of a ring: pieces that do not, one after another."""
    src, dst = instruction.src_view, instruction.dst_view
    copies = work.copies if work.copies > 1 else 0
    low = work.low if instruction.fill is not None else (0, 0, 0, 0)
    if any(low) or (instruction.fill is not None and any(work.high)):
        value = np.array(instruction.fill, DTYPES[dst.element])
        for start, shape in _pieces(work.extent, _cuts(dst, work.split[DST])):
            piece = work.raw(DST, dst, shape, _moved(dst, work.split[DST], start), copies)
            piece[...] = value.view(RAW[value.itemsize])
    if 0 in work.read:
        return
    inner = [(dim, at - low[dim]) for dim, at in _cuts(dst, work.split[DST])]
    for start, shape in _pieces(work.read, [*_cuts(src, work.split[SRC]), *inner]):
        there = [n + before for n, before in zip(start, low, strict=True)]
        target = work.raw(DST, dst, shape, _moved(dst, work.split[DST], there), copies)
        source = work.raw(SRC, src, shape, _moved(src, work.split[SRC], start))
        target[...] = np.expand_dims(source, -5) if copies else source


def _cuts(view: View, split: int) -> list[tuple[int, int]]:
    """Dimension and position of the end of the ring inside the box, if it is there."""
    return [(view.wrap.dim, split)] if view.wrap is not None and split else []


def _pieces(
    shape: Sequence[int], cuts: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Start and shape of the boxes into which a box of this shape falls; `cuts`: dimension, position in it."""
    edges = [sorted({0, n, *(at for dim, at in cuts if dim == d and 0 < at < n)}) for d, n in enumerate(shape)]
    for ranges in product(*(pairwise(each) for each in edges)):
        yield tuple(start for start, _ in ranges), tuple(stop - start for start, stop in ranges)


def _moved(view: View, split: int, start: Sequence[int]) -> int:
    """Bytes from an operand's first element to the one at `start`, counted from the first."""
    moved = sum(n * stride for n, stride in zip(start, view.strides, strict=True))
    around = view.wrap
    if around is not None and split and start[around.dim] >= split:
        moved -= around.size * view.strides[around.dim]
    return moved
