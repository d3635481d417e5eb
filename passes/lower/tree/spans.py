# Tests: test/passes/lower/tree/test_spans.py
"""Which positions of axes a pass makes and reads, as functions of the loops around it.

A span is that of an instruction: a start that is affine in the loops, an extent, and where positions end (the bound of
the map, and a limit that moves).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.access import Piece
from frustum.dialects.axes.axis import Axis
from frustum.dialects.errors import Error
from frustum.dialects.isa.program import ZERO, Affine, Span

Spans: TypeAlias = Mapping[Axis, Span]
"""Of a layer's axes; one that is not named is whole."""
FAR = 1 << 30
"""More positions than any axis has."""
CLUSTERS = -1
"""The level of loops whose passes clusters make at the same time: their index is the cluster's number."""
Extremes: TypeAlias = Callable[[Affine], tuple[int, int]]
"""The least and the greatest value in all passes."""


class NotLowered(Error):
    """A plan of which no program is made, with the reason."""


def whole(axis: Axis) -> Span:
    """All positions of an axis."""
    return Span(ZERO, axis.extent, axis.extent)


def span_of(spans: Spans, axis: Axis) -> Span:
    """The span of an axis."""
    return spans.get(axis) or whole(axis)


def common(a: Span, b: Span) -> Span:
    """What two spans that no loop moves have in common."""
    first = max(a.start.base, b.start.base)
    stop = min(a.start.base + a.extent, b.start.base + b.extent)
    return Span(Affine(first), max(0, stop - first), max(first, stop))


def end(span: Span) -> Affine:
    """Where a span would end if nothing ended before."""
    return span.start + span.extent


def through(position: Position, extent: int, spans: Spans) -> Span:
    """Positions along a tensor's axis of this extent that a part of a layer's axes leads to; all of them where no
    affine function says which."""
    own = position.refined()
    if any(not span_of(spans, axis).extent for axis, _ in own.terms):
        return Span(ZERO, 0, extent)
    start, reach, low, high = Affine(own.offset), 1, own.offset, own.offset
    limits = list[tuple[int, Span]]()
    for axis, factor in own.terms:
        span = span_of(spans, axis)
        start += (span.start if factor > 0 else span.start + (span.extent - 1)) * factor
        reach += abs(factor) * (span.extent - 1)
        low += min(0, factor * (span.bound - 1))
        high += max(0, factor * (span.bound - 1))
        if span.limit is not None:
            limits.append((factor, span))
    if own.bend and (low < 0 or high >= extent * own.divisor):
        beyond = max(0, -(low // own.divisor)), max(0, high // own.divisor - extent + 1)
        if not _reaches_inside(own, spans, extent, beyond):
            return Span(ZERO, extent, extent)
    limit = None
    if limits:
        ((factor, span), *others) = limits
        if others or factor < 0 or span.limit is None:
            first, last = max(0, low // own.divisor), min(extent, high // own.divisor + 1)
            return Span(ZERO, extent, extent) if own.bend else Span(Affine(first), max(0, last - first), max(0, last))
        limit = start + (reach - 1) - (end(span) - span.limit) * factor + 1
    if own.divisor > 1:
        rounded = divided(start, own.divisor)
        if rounded is None or limit is not None:
            return Span(ZERO, extent, extent)
        reach = (start.base % own.divisor + reach - 1) // own.divisor + 1
        start, high = rounded, high // own.divisor
    return settled(Span(start, reach, max(0, min(extent, high + 1)), limit))


def _reaches_inside(own: Position, spans: Spans, extent: int, beyond: tuple[int, int]) -> bool:
    """Whether parts that are beyond an end by so many positions have the positions that these are bent to, too."""
    if own.bend == "wrap":
        return False
    first, last = own.offset, own.offset  # the end of the first part, and the start of the last
    for axis, factor in own.terms:
        span = span_of(spans, axis)
        if span.start.is_constant:
            ends = factor * span.start.base, factor * (span.start.base + span.extent - 1)
            first, last = first + max(ends), last + min(ends)
        else:
            ends = factor * _first_end(span), factor * _last_start(span)
            first, last = first + min(ends), last + max(ends)
    low, high = beyond if own.bend == "reflect" else (0, 0)
    return first // own.divisor >= low and last // own.divisor < extent - high


def _first_end(span: Span) -> int:
    """The least of the last positions of all passes."""
    low = span.start.base
    return min(low + span.extent, span.bound) - 1 if low >= 0 and min(span.start.loops, default=0) >= 0 else 0


def _last_start(span: Span) -> int:
    """The first position of the last pass, or one behind it."""
    steps = [each for each in span.start.loops if each]
    if len(steps) != 1 or steps[0] < 0 or span.start.core or span.start.cluster:
        return span.bound - 1
    return span.bound - 1 - (span.bound - 1 - span.start.base) % steps[0]


def settled(span: Span) -> Span:
    """A span that no loop moves, without what its bounds leave out."""
    if not span.start.is_constant or span.limit is not None:
        return span
    low = max(0, span.start.base)
    return Span(Affine(low), max(1, min(span.start.base + span.extent, span.bound) - low), span.bound)


def presence(piece: Piece, spans: Spans) -> Iterator[Affine]:
    """Numbers that are 0 or more in passes in which a part of a layer reads something of a piece, as far as that does
    not     follow from where the piece ends."""
    ranges = {(each.refined().terms, -each.refined().offset): axis.extent for axis, each in piece.by_leaf if each}
    for guard in piece.guards:
        own = guard.position.refined()
        if not own.is_linear or ranges.get((own.terms, guard.start - own.offset)) == guard.stop - guard.start:
            continue
        low = high = Affine(own.offset)
        for axis, factor in own.terms:
            span = span_of(spans, axis)
            ends = span.start * factor, (span.start + (span.extent - 1)) * factor
            low, high = low + ends[factor < 0], high + ends[factor > 0]
        yield low * -1 + (guard.stop - 1)
        yield high + -guard.start


def divided(start: Affine, divisor: int) -> Affine | None:
    """A position rounded down; None where a loop moves it by a part of one."""
    if any(each % divisor for each in (*start.loops, start.core, start.cluster)):
        return None
    loops = tuple(each // divisor for each in start.loops)
    return Affine(start.base // divisor, loops, start.cluster // divisor, start.core // divisor)


def widest(spans: Iterable[Span], extremes_of: Extremes) -> list[Span]:
    """Spans that move alike as one; those of them that are inside no other one in all passes."""
    alike = list[Span]()
    for span in spans:
        k = next((k for k, other in enumerate(alike) if (other.start - span.start).is_constant), None)
        if k is None:
            alike.append(span)
        else:
            alike[k] = _joined(alike[k], span)
    return [
        span for span in alike
        if not any(other is not span and _is_around(other, span, extremes_of) for other in alike)
    ] or alike[:1]  # fmt: skip


def _is_around(outer: Span, span: Span, extremes_of: Extremes) -> bool:
    ends = span.start - outer.start, end(outer) - end(span)
    return outer.limit is None and outer.bound >= span.bound and all(extremes_of(each)[0] >= 0 for each in ends)


def hull(spans: Iterable[Span]) -> Span:
    """The smallest span around several, but those of no position; where they move unlike each other, all up to
    the last bound."""
    several = list(spans)
    first, *rest = [span for span in several if span.extent] or several[:1]
    for other in rest:
        first = _joined(first, other)
    return first


def _joined(a: Span, b: Span) -> Span:
    bound, apart = max(a.bound, b.bound), b.start - a.start
    if not apart.is_constant:
        return Span(ZERO, bound, bound)
    start = a.start if apart.base >= 0 else b.start
    last = end(a) if (end(b) - end(a)).base <= 0 else end(b)
    limit = None
    if a.limit is not None and b.limit is not None:
        between = b.limit - a.limit
        if not between.is_constant:
            return Span(ZERO, bound, bound)
        limit = a.limit if between.base <= 0 else b.limit
    return Span(start, (last - start).base, bound, limit)


def sharers(spans: Iterable[Span], clusters: int) -> int:
    """How many clusters have a box of their own: they share the ports through which these come or go."""
    return clusters if any(span.start.cluster for span in spans) else 1


def step_at(span: Span, level: int) -> int:
    """How far a pass of the loop at a level moves a span."""
    return _moved_by(span.start, level)


def _moved_by(value: Affine, level: int) -> int:
    if level == CLUSTERS:
        return value.cluster
    return value.loops[level] if level < len(value.loops) else 0


def index(level: int, factor: int = 1) -> Affine:
    """So often the index of the loop at a level."""
    return Affine(cluster=factor) if level == CLUSTERS else Affine.index(level, factor)


def rolled(span: Span, level: int) -> Span:
    """What of a span the pass before did not have."""
    step = step_at(span, level)
    return span if step <= 0 or span.extent <= step else replace(span, start=end(span) - step, extent=step)


def fresh(span: Span, before: Span | None) -> Span:
    """What of a span one of an earlier pass did not have, if that ended as the others before it: it may be nothing."""
    if before is None or not before.extent:
        return span
    beyond = end(span) - end(before)
    if not beyond.is_constant:
        raise NotLowered("ranges of passes that move unlike each other")
    extent = min(span.extent, max(0, beyond.base))
    return replace(span, start=end(span) - extent, extent=extent)


def latest(spans: Iterable[Span]) -> Span | None:
    """The span that ends last of those that have a position; they move alike."""
    found: Span | None = None
    for span in spans:
        if span.extent and (found is None or (end(span) - end(found)).base > 0):
            found = span
    return found


def still(span: Span, level: int) -> Span:
    """The span in the first pass of a loop, of which there is no other."""

    def at(value: Affine) -> Affine:
        loops = tuple(0 if k == level else each for k, each in enumerate(value.loops))
        return Affine(value.base, loops, value.cluster, value.core)

    return replace(span, start=at(span.start), limit=None if span.limit is None else at(span.limit))


def later(span: Span, level: int, passes: int) -> Span:
    """The span so many passes of a loop later: its index counts from an earlier pass on."""
    limit = None if span.limit is None else _moved(span.limit, level, passes)
    return replace(span, start=_moved(span.start, level, passes), limit=limit)


def _moved(value: Affine, level: int, passes: int) -> Affine:
    return value - passes * _moved_by(value, level)


def is_repeated(box: Mapping[Axis, Span], counts: Sequence[int], clusters: int) -> bool:
    """Whether some passes of loops, each of so many, or some clusters, have a position of an axis that others have, of
    those loops that move a box at all."""
    return any((visits(axis, span, counts, clusters) > 1).any() for axis, span in box.items())


def visits(axis: Axis, span: Span, counts: Sequence[int], clusters: int) -> npt.NDArray[np.int64]:
    """How many passes of the loops that move a span, and clusters, have each position of an axis."""
    times = np.zeros(axis.extent, np.int64)
    levels = (*range(len(counts)), CLUSTERS)
    ranges = (
        range(count if step_at(span, level) else 1) for level, count in zip(levels, (*counts, clusters), strict=True)
    )
    for *at, cluster in itertools.product(*ranges):
        first = span.start.at(at, cluster)
        last = min(first + span.extent, span.bound, *(() if span.limit is None else (span.limit.at(at, cluster),)))
        times[max(0, first) : max(0, last)] += 1
    return times


def extremes(value: Affine, counts: Sequence[int], cores: int, clusters: int = 1) -> tuple[int, int]:
    """The least and the greatest value over loops of so many passes."""
    low = high = value.base
    terms = (*zip(value.loops, counts, strict=False), (value.core, cores), (value.cluster, clusters))
    for factor, count in terms:
        low += min(0, factor * (count - 1))
        high += max(0, factor * (count - 1))
    return low, high
