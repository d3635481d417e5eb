"""What layers make in the passes of loops, for all passes at once: spans that are affine in the loops.

Which boxes lie where is what `dialects/plan/ranges.py` says of every pass.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

from xdsl.ir import Block

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.access import Guard, Piece
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import ZERO, Span
from frustum.dialects.plan.check import title
from frustum.dialects.plan.ranges import Ranged
from frustum.dialects.plan.rates import Rates, longest
from frustum.dialects.plan.tree import Halo, Loop
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.fetch import Gate
from frustum.passes.lower.tree.layouts import Order, steps_of
from frustum.passes.lower.tree.places import Place
from frustum.passes.lower.tree.spans import (
    CLUSTERS,
    FAR,
    NotLowered,
    Spans,
    end,
    extremes,
    fresh,
    hull,
    index,
    rolled,
    settled,
    span_of,
    step_at,
    still,
    through,
    whole,
    widest,
)

MOST_PASSES = 4
"""Of a plan that one pass of a program makes. 2026-11-28."""
MOST_RUNS = 8
"""Loops of a program that the passes of one of a plan become. 2026-11-28."""
Made: TypeAlias = Mapping[str, dict[Axis, Span]]
"""Of each layer what it makes in the passes of the loops that are open."""


@dataclass(frozen=True)
class PlanLoop:
    """A loop of a plan as one of the program: its axis, its class, the layers inside, how far a pass goes, and how many
    there are.  Each pass of the program's loop at `level` makes `period` of them."""

    axis: Axis
    group: frozenset[Axis]
    inside: list[Layer]
    level: int
    step: int
    count: int
    period: int = 1
    is_alone: bool = False
    """None makes more than its share of the range."""
    edges: tuple[int, ...] = ()
    """Of some of the plan's passes, where not all are of one length."""
    rates: Rates = field(default_factory=dict)
    """Of a loop over clusters: how ranges of the other axes go on."""


@dataclass(frozen=True)
class Roll:
    """A rolling loop that is open: its level, its class, the passes in which layers have something to do, what they
    make in one, and its body.

    Where a pass of the program makes several of the plan, `number` is that of the one that is written, `at` says what
    layers make in those before and behind it, and `rings` has the buffers that they share.
    """

    level: int
    group: frozenset[Axis]
    gates: Mapping[str, Gate]
    made: Made
    block: Block
    period: int = 1
    number: int = 0
    at: Callable[[int], Made] | None = None
    before: int = 0
    """Passes before the plan's first one, where one of the program makes one."""
    rings: dict[tuple[Tensor, tuple[str, ...]], Place] = field(default_factory=dict)


class LoopSpans(Ranged):
    """The passes of a plan's loops, in a program that is being written."""

    code: Code

    # ------------------------------------------------------------ passes

    def runs_of(self, node: Loop, made: Made) -> list[PlanLoop]:
        """Passes of a loop, those that are of one length together; the last of them may be shorter."""
        axis, group, inside = self.known_class(node)
        outer = next(span_of(made[layer.name], axis) for layer in inside if axis in layer.axes)
        lengths = [b - a for a, b in pairwise(node.edges)]
        step, level = max(lengths), self.code.depth
        tiles = range(0, axis.extent, outer.extent)
        wanted = {a + k for a in tiles for k in range(0, outer.extent, step) if a + k < axis.extent}
        own = [(layer, a) for layer in inside for a in layer.axes if a in group]
        shared = [(layer, a) for layer, a in own if self.shares(group, inside, layer, a)]
        count = ceil_div(outer.extent, step)
        is_whole = all(span_of(made[layer.name], a).extent * step % outer.extent == 0 for layer, a in shared)
        if {*node.edges} == {*wanted, axis.extent} and (count == 1 or is_whole):
            return [PlanLoop(axis, group, inside, level, step, count)]
        self.check_runs(node, outer)
        runs, extents = list[list[int]](), {axis.extent, *(a.extent for _, a in shared)}
        for a, b in pairwise(node.edges):
            if not runs or not all(is_even([*runs[-1], b], each, axis.extent) for each in extents):
                runs.append([a, b])
            else:
                runs[-1].append(b)
        if len(runs) > MOST_RUNS:
            raise NotLowered(f"{title(node)}: ranges of {len(runs)} lengths")
        return [
            PlanLoop(axis, group, inside, level, run[1] - run[0], len(run) - 1, edges=tuple(run)) for run in runs
        ]  # fmt: skip

    def shares(self, group: Class, inside: list[Layer], layer: Layer, axis: Axis) -> bool:
        """Whether a pass has its share of a layer, and not only what others ask for."""
        is_asked = layer not in self.in_step and self.is_read_along(group, inside, layer, axis)
        return not is_asked or self.is_read_elsewhere(layer.result, inside)

    def check_runs(self, node: Loop, outer: Span) -> None:
        """NotLowered where passes of several lengths need what others have left."""
        axis, group, inside = self.known_class(node)
        summed = any(a in group and a not in layer.result.axes for layer in inside for a in layer.combine)
        why = (
            "rows that roll over" if node.halo is Halo.ROLLING
            else "sums over" if summed
            else "states of" if any(layer in self.in_step for layer in inside)
            else "clipped" if outer != whole(axis)
            else ""
        )  # fmt: skip
        if why:
            raise NotLowered(f"{title(node)}: {why} ranges that are not all of one length")

    def pass_of(self, loop: PlanLoop, made: Made, at: int = 0) -> dict[str, dict[Axis, Span]]:
        """What all layers make in pass `at` of those that one of the program's loop makes, from the last layer back."""
        axis, group, inside = loop.axis, loop.group, loop.inside
        counts = [*self.code.counts[: max(0, loop.level)], ceil_div(loop.count, loop.period)]
        extremes_of = lambda value: extremes(value, counts, 1, self.code.clusters)  # noqa: E731
        outer = next(span_of(made[layer.name], axis) for layer in inside if axis in layer.axes)
        found: dict[str, dict[Axis, Span]] = {}
        needed: dict[Tensor, list[Span]] = defaultdict(list)
        for layer in reversed(inside):
            spans = dict(made[layer.name])
            own = next(iter(group & set(layer.axes)), None)
            if own is not None:
                asked = list(needed[layer.result]) if own in layer.result.axes and not loop.is_alone else []
                if loop.is_alone or self.shares(group, inside, layer, own):
                    asked.append(self.in_proportion(own, span_of(spans, own), outer, loop, at))
                share = hull(widest(asked, extremes_of)) if asked else Span(ZERO, 0, own.extent)
                spans[own] = self.within(share, span_of(spans, own))
            found[layer.name] = spans
            for tensor, box in self.boxes_read(layer, spans):
                maker = self.network.maker.get(tensor)
                along = None if maker is None else next(iter(group & set(maker.axes)), None)
                if along is not None and along in box:
                    needed[tensor].append(box[along])
        return found

    def only_pass(self, loop: PlanLoop, made: Made) -> dict[str, dict[Axis, Span]]:
        """What all layers make in a loop of one pass: what nobody asks for is not made."""
        found = self.pass_of(loop, made)
        return {
            name: {a: settled(still(span, loop.level)) for a, span in spans.items()} for name, spans in found.items()
        }  # fmt: skip

    def in_proportion(self, axis: Axis, own: Span, outer: Span, loop: PlanLoop, at: int) -> Span:
        """The share of a layer's span of an axis that a pass along the named axis has."""
        if loop.edges:
            ends = scaled_edges(loop.edges, own.extent, loop.axis.extent)
            first, last, extent = ends[0], ends[-1], ends[1] - ends[0]
            start = own.start + first + index(loop.level, extent * loop.period) + extent * at
            passes = ceil_div(loop.count, loop.period) * loop.period
            return Span(start, extent, own.bound, own.start + last if passes * extent > last - first else own.limit)
        share = Fraction(own.extent, outer.extent) * loop.step
        if loop.level == CLUSTERS and own == whole(axis):
            step = math.ceil(loop.rates[axis] * loop.step)
            return Span(index(loop.level, step), longest(axis, step, loop.count), own.bound, own.limit)
        if share.denominator > 1:
            raise NotLowered(f"steps of {loop.step} of {outer.extent} positions, for {own.extent}")
        extent = int(share)
        start, limit = own.start + index(loop.level, extent * loop.period) + extent * at, own.limit
        passes = ceil_div(ceil_div(own.extent, extent), loop.period) * loop.period
        if passes * extent > own.extent and not (
            own.start.is_constant and own.start.base + own.extent >= own.bound
        ):
            if limit is not None:
                raise NotLowered(f"steps of {loop.step} in ranges of {outer.extent} that are clipped")
            limit = end(own)
        return Span(start, extent, own.bound, limit)

    def within(self, span: Span, outer: Span) -> Span:
        """Not beyond where the pass outside ends."""
        bound = min(span.bound, outer.bound)
        limit = span.limit
        if outer.limit is not None and limit is None:
            limit = outer.limit
        return Span(span.start, span.extent, bound, limit)

    def period_of(self, loop: PlanLoop, made: Made, order: Callable[[Tensor], Order]) -> int:
        """How many passes of the plan one of the program makes, so that all rounded positions move by whole ones."""
        period = 1
        for _ in range(MOST_PASSES):
            found = self.pass_of(replace(loop, period=period), made)
            more = 1
            for layer in loop.inside:
                for axis, step in steps_of(layer, order).items():
                    moved = step_at(span_of(found[layer.name], axis), loop.level)
                    more = math.lcm(more, step // math.gcd(moved, step)) if moved else more
            if more == 1 or period * more > MOST_PASSES:
                return period
            period *= more
        return period

    def several_made(self, loop: PlanLoop, made: Made, at: int, *, is_rolling: bool) -> dict[str, dict[Axis, Span]]:
        """What layers make in pass `at`; of a rolling loop what no earlier one has, but for what goes backwards."""
        found = self.pass_of(loop, made, at)
        if not is_rolling:
            return found
        before = self.pass_of(loop, made, at - 1)
        return {
            name: {
                a: fresh(span, before[name].get(a)) if a in loop.group and step_at(span, loop.level) >= 0 else span
                for a, span in spans.items()
            } for name, spans in found.items()
        }  # fmt: skip

    def several_before(self, node: Loop, loop: PlanLoop, made: Made) -> int:
        """`passes_before` where a pass of the program makes several."""
        most = 0
        for number in range(loop.period):
            found = self.several_made(loop, made, number, is_rolling=True)
            for span in self.ends_in(node, found, loop.group):
                step = step_at(span, loop.level)
                if step > 0 and span.extent > 0:
                    earlier = ceil_div(end(span).base, step) - 1
                    most = max(most, loop.period * earlier - number)
        return most

    def rolled_spans(self, spans: Spans, group: frozenset[Axis], level: int) -> dict[Axis, Span]:
        """What no earlier pass has made."""
        return {axis: rolled(span, level) if axis in group else span for axis, span in spans.items()}

    def passes_before(self, node: Loop, found: Made, group: frozenset[Axis], level: int) -> int:
        """Passes in which early layers make, and buffers of the loop get, what the first pass of the plan needs beside
        its own step; `found`: what that needs."""
        most, is_needed = 0, False
        for span in self.ends_in(node, found, group):
            step = step_at(span, level)
            if step > 0:
                is_moved = any(c for k, c in enumerate(span.start.loops) if k != level)
                if is_moved or (span.start.cluster and (span.extent > step or span.start.base)):
                    raise NotLowered("a rolling loop inside another one over the same axis")
                most = max(most, ceil_div(end(span).base, step) - 1)
                is_needed |= end(span).base - step > max(0, span.start.base)
        return most if is_needed else 0

    def ends_in(self, node: Loop, found: Made, group: frozenset[Axis]) -> Iterator[Span]:
        """Spans of what layers make in a pass, and of what comes into buffers of the loop."""
        yield from (span for each in found.values() for axis, span in each.items() if axis in group)
        for _, tensor, users in self.places(node.body):
            moved = [axis for axis in tensor.axes if self.changes(group, users, tensor, axis)]
            boxes = (box for user in users for other, box in self.boxes_read(user, found[user.name]) if other is tensor)
            yield from (box[axis] for box in boxes for axis in moved)

    def gates_of(self, found: Made, group: frozenset[Axis], level: int) -> dict[str, Gate]:
        gates = {}
        for name, spans in found.items():
            for axis, span in spans.items():
                step = step_at(span, level) if axis in group else 0
                first = 0 if step <= 0 else max(0, -end(span).base // step + 1)
                if first:
                    gates[name] = Gate(level, first)
        return gates

    # ------------------------------------------------------------ boxes

    def boxes_read(self, layer: Layer, spans: Spans) -> Iterator[tuple[Tensor, dict[Axis, Span]]]:
        """What a part of a layer reads of each tensor; nothing where it is empty."""
        if any(not span.extent for span in spans.values()):
            return
        for operand in layer.operands:
            for piece in operand.pieces:
                box = {}
                for axis, position in piece.by_leaf:
                    if operand.is_all or position is None:
                        box[axis] = Span(ZERO, axis.extent, axis.extent)
                        continue
                    inner = (other for other in operand.pieces if other.tensor is piece.tensor and other is not piece)
                    beside = (through(own, axis.extent, spans) for own in self.beside(axis, piece, inner, spans))
                    box[axis] = next(beside, None) or through(position, axis.extent, spans)
                yield piece.tensor, box

    def beside(self, axis: Axis, piece: Piece, others: Iterable[Piece], spans: Spans) -> Iterator[Position]:
        """Positions of other pieces whose span along an axis includes, in every pass that reads this piece, what it
        reads there: so it is with edge and reflect padding."""
        own = dict(piece.by_leaf)[axis]
        if own is None:
            return
        guards = (guard for guard in piece.guards if guard.fill is None)
        reaches = [(guard, reach) for guard in guards if (reach := read_through(own, guard)) is not None]
        for other in others if reaches else ():
            inner = dict(other.by_leaf)[axis]
            if inner is None or not inner.is_linear or not inner.terms:
                continue
            for guard, reach in reaches:
                if dict(guard.position.refined().terms) != dict(inner.refined().terms):
                    continue
                span, apart = through(inner, FAR, spans), inner.offset - guard.position.offset
                first = self.code.extremes(span.start)[1]
                last = min(self.code.extremes(each - 1)[0] for each in (end(span), span.limit) if each is not None)
                last += sum(factor * before_any(span_of(spans, a)) for a, factor in inner.refined().terms)
                is_low = guard.stop + apart <= reach[0] + 1 and last >= reach[1]
                is_high = guard.start + apart >= reach[1] and first <= reach[0]
                if span.extent < FAR and (is_low or is_high):
                    yield inner

    def box_of(self, tensor: Tensor, names: Iterable[str], made: Made) -> dict[Axis, Span]:
        """What layers touch of a tensor, all together; of no position where they touch nothing."""
        found: dict[Axis, list[Span]] = {axis: [] for axis in tensor.axes}
        for name in names:
            layer = self.layers[name]
            boxes = [box for other, box in self.boxes_read(layer, made[name]) if other is tensor]
            if layer.result is tensor and all(span.extent for span in made[name].values()):
                boxes.append({axis: span_of(made[name], axis) for axis in tensor.axes})
            for box in boxes:
                for axis, span in box.items():
                    found[axis].append(span)
        return {axis: hull(spans) if spans else Span(ZERO, 0, axis.extent) for axis, spans in found.items()}


def before_any(span: Span) -> int:
    """How far a loop moves a span before it has any position."""
    steps, beyond = [each for each in span.start.loops if each], end(span).base
    if beyond > 0 or len(steps) != 1 or steps[0] < 0 or span.start.core or span.start.cluster:
        return 0
    return ceil_div(1 - beyond, steps[0]) * steps[0]


def read_through(position: Position, guard: Guard) -> tuple[int, int] | None:
    """The first and the last position that is read where a guard holds; None where others decide."""
    terms, guarded = dict(position.refined().terms), dict(guard.position.refined().terms)
    if not position.is_linear or not guard.position.is_linear:
        return None
    if not terms:
        return position.offset, position.offset
    for sign in (1, -1):
        if terms == {axis: sign * factor for axis, factor in guarded.items()}:
            ends = [sign * (each - guard.position.offset) + position.offset for each in (guard.start, guard.stop - 1)]
            return min(ends), max(ends)
    return None


def scaled_edges(edges: Sequence[int], extent: int, of: int) -> list[int]:
    """Edges of an axis of extent `of`, in proportion: as `scaled` of `dialects/plan/ranges.py` has them."""
    return [-(-edge * extent // of) for edge in edges]


def is_even(edges: Sequence[int], extent: int, of: int) -> bool:
    """Whether ranges between edges, in proportion, are of one length, but for a shorter last one that has some."""
    (first, *others) = [b - a for a, b in pairwise(scaled_edges(edges, extent, of))]
    return all(each == first for each in others[:-1]) and all(each == first or 0 < each < first for each in others[-1:])
