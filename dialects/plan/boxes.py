# Tests: test/dialects/plan/test_boxes.py
"""Arithmetic of boxes: half-open ranges of the same axes."""

from __future__ import annotations

from collections.abc import Iterable

from frustum.dialects.axes.network import Box

Range = tuple[int, int]


def meet(one: Range, other: Range) -> Range:
    return max(one[0], other[0]), min(one[1], other[1])


def elements(box: Box) -> int:
    found = 1
    for low, high in box.values():
        found *= max(0, high - low)
    return found


def do_meet(one: Box, other: Box) -> bool:
    return all(max(low, other[axis][0]) < min(high, other[axis][1]) for axis, (low, high) in one.items())


def subtract(box: Box, others: Iterable[Box]) -> list[Box]:
    """What of a box lies in none of others, as boxes that do not meet."""
    found = [box] if elements(box) else []
    for other in others:
        found = [piece for each in found for piece in _cut(each, other)]
    return found


def _cut(box: Box, other: Box) -> list[Box]:
    if not do_meet(box, other):
        return [box]
    found, rest = [], dict(box)
    for axis, (low, high) in box.items():
        start, stop = meet((low, high), other[axis])
        found += [{**rest, axis: ends} for ends in ((low, start), (stop, high)) if ends[0] < ends[1]]
        rest[axis] = start, stop
    return found


def add(boxes: list[Box], new: Box) -> None:
    """Puts a box among others, joined with those that it continues or covers."""
    new = dict(new)
    k = len(boxes) - 1
    while k >= 0:
        if (joined := _joined(boxes[k], new)) is not None:
            new = joined
            del boxes[k]
            k = len(boxes)
        k -= 1
    boxes.append(new)


def _joined(one: Box, other: Box) -> Box | None:
    """A box of the elements of two, if they are one."""
    unlike = [axis for axis, ends in other.items() if one[axis] != ends]
    if len(unlike) <= 1:
        for axis in unlike:
            (low, high), (start, stop) = one[axis], other[axis]
            return {**one, axis: (min(low, start), max(high, stop))} if low <= stop and start <= high else None
        return one
    for box, inner in ((one, other), (other, one)):
        if all(box[axis][0] <= low and high <= box[axis][1] for axis, (low, high) in inner.items()):
            return box
    return None
