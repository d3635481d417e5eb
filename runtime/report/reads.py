"""Which bytes of inputs and weights a program reads at all: what of them is compulsory.

Boxes become contiguous ranges, dimension by dimension for all of them together, and ranges that touch become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import TypeAlias

import numpy as np

from frustum.dialects.isa.program import ELEMENT_BYTES, Copy, External
from frustum.runtime.device.expand import DRAM, Expanded, Rows
from frustum.runtime.device.order import Ints

Ranges: TypeAlias = Ints
"""`[n, 2]`: disjoint ranges [start, stop) of bytes, in growing order."""
Reads: TypeAlias = Mapping[tuple[str, str], Ranges]
"""Of each input and weight, by class and name, the bytes that are read, from its first one on."""
SOURCE = 0


def reads(expanded: Expanded) -> Reads:
    """What all executions of a program read of its inputs and weights.

    Where weights are held compressed they count whole, as they are uncompressed.
    """
    known = sorted(
        (each for each in expanded.program.externals if each.class_ in ("input", "weight")),
        key=lambda each: each.address,
    )
    if not known:
        return {}
    start, run = (
        np.concatenate(part) for part in zip(*map(_runs, _boxes(expanded)), strict=True)
    )  # fmt: skip
    number = np.searchsorted([each.address for each in known], start, side="right") - 1
    is_compressed = any(isinstance(each, Copy) and each.expand is not None for each in expanded.instructions)
    found: dict[tuple[str, str], Ranges] = {}
    for k, each in enumerate(known):
        mine = np.flatnonzero(number == k)
        first = start[mine] - each.address
        inside = first < each.bytes
        ranges = merged(np.stack([first[inside], (first + run[mine])[inside]], axis=1))
        if is_compressed and each.class_ == "weight":
            ranges = np.array([[0, raw_bytes(each)]], np.int64)
        found[each.class_, each.name] = ranges
    return found


def raw_bytes(external: External) -> int:
    """Of its elements, without padding or compression."""
    return prod(external.shape) * ELEMENT_BYTES[external.element]


def together(parts: Iterable[Reads]) -> Reads:
    """What several programs read, each on its own."""
    found: dict[tuple[str, str], list[Ranges]] = {}
    for part in parts:
        for key, ranges in part.items():
            found.setdefault(key, []).append(ranges)
    return {key: merged(np.concatenate(ranges)) for key, ranges in found.items()}


def size_bytes(ranges: Ranges) -> int:
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def merged(ranges: Ints) -> Ranges:
    """Ranges in any order, which may overlap, as disjoint ones in growing order."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    if not len(ranges):
        return ranges
    reach = np.maximum.accumulate(ranges[:, 1])
    first = np.append(True, ranges[1:, 0] > reach[:-1])
    last = np.append(first[1:], True)
    return np.stack([ranges[first, 0], reach[last]], axis=1)


def _boxes(expanded: Expanded) -> Iterable[Ints]:
    """Of both tables every different box that is read in DRAM: address, element bytes, 4 extents, 4 strides."""
    for rows in (expanded.core, expanded.cluster):
        yield _boxes_of(expanded, rows)


def _boxes_of(expanded: Expanded, rows: Rows) -> Ints:
    views = [each.src_view if isinstance(each, Copy) else None for each in expanded.instructions]
    strides = np.array([view.strides if view else (0,) * 4 for view in views], np.int64).reshape(-1, 4)
    element = np.array([ELEMENT_BYTES[view.element] if view else 0 for view in views], np.int64)
    moves = rows.active & (rows.read > 0).all(axis=0)
    moves &= ((expanded.memory[:, SOURCE] == DRAM) & (element > 0))[rows.static, None]
    row, unit = np.nonzero(moves)
    static = rows.static[row]
    facts = (rows.address[SOURCE, row, unit], element[static], *rows.read[:, row, unit], *strides[static].T)
    return np.unique(np.stack(facts, axis=1), axis=0) if len(row) else np.zeros((0, 10), np.int64)


def _runs(boxes: Ints) -> tuple[Ints, Ints]:
    """First bytes and lengths of the contiguous runs of all boxes."""
    start, run = boxes[:, 0], boxes[:, 1]
    extent, stride = boxes[:, 2:6], boxes[:, 6:10]
    start = start + ((extent - 1) * np.minimum(stride, 0)).sum(axis=1)  # from the lowest address on
    stride = np.abs(stride)
    order = np.argsort(stride, axis=1, kind="stable")
    extent, stride = np.take_along_axis(extent, order, axis=1), np.take_along_axis(stride, order, axis=1)
    for d in range(4):
        count = np.where(stride[:, d] == 0, 1, extent[:, d])
        goes_on = stride[:, d] <= run  # the next position begins where this one ends, or before
        run = np.where(goes_on & (count > 1), run + (count - 1) * stride[:, d], run)
        count = np.where(goes_on, 1, count)
        box = np.repeat(np.arange(len(start)), count)
        number = np.arange(len(box)) - np.repeat(np.cumsum(count) - count, count)
        start, run, extent, stride = start[box] + number * stride[box, d], run[box], extent[box], stride[box]
    return start, run
