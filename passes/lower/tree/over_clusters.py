# Tests: test/passes/lower/tree/test_lowered_clusters.py
"""Loops over clusters: what each cluster makes of a class of axes, holds of a tensor, and sends to the others.

All clusters run one program.  In a loop over clusters spans move with the number of the cluster; outside, all make the
same.  What a cluster has beside its own share lies where it would lie if it had made it: others send it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.isa.program import MAX_LOOPS, Affine, Span
from frustum.dialects.plan.check import title
from frustum.dialects.plan.clusters import distributed_in, shares_of
from frustum.dialects.plan.rates import edges_of, rates_of
from frustum.dialects.plan.tree import Halo, Loop, Node, Resident
from frustum.dialects.plan.tree import Sequence as Children
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.loop_spans import LoopSpans, Made, PlanLoop
from frustum.passes.lower.tree.places import Place, Run
from frustum.passes.lower.tree.regions import Clip, Linear, Region, move
from frustum.passes.lower.tree.spans import CLUSTERS, NotLowered, end, span_of

BEYOND = 1 << 12
"""More positions than any window reaches: clusters without a range end so far before the first. 2026-11-28."""


@dataclass(frozen=True)
class Dealt:
    """A loop over clusters that is open: its axes and layers, and how many clusters have a range (`ranges`).
    `is_exchanged`: what lies beyond its share each gets from the others; `are_equal`: all ranges are as long."""

    group: frozenset[Axis]
    is_exchanged: bool
    layers: tuple[str, ...]
    ranges: int
    are_equal: bool


class OverClusters(LoopSpans):
    """Spans, shares and exchange of clusters, while a plan is written."""

    dealt: Dealt | None

    def dealing(self, node: Loop, made: Made) -> PlanLoop:
        """A loop over clusters.  NotLowered where its ranges are not equal shares of a whole axis."""
        axis, group, inside = self.known_class(node)
        step = node.edges[1] - node.edges[0]
        if node.edges != edges_of(axis, step, node.passes):
            raise NotLowered(f"{title(node)}: ranges that are not all of one length")
        outer = next(span_of(made[layer.name], axis) for layer in inside if axis in layer.axes)
        if outer.extent < axis.extent or self.dealt is not None:
            raise NotLowered(f"{title(node)}: loops over clusters inside others over the same axis")
        is_alone = node.halo is Halo.EXCHANGED
        if is_alone and node.passes < self.code.clusters:
            raise NotLowered(f"{title(node)}: exchange with clusters that have no range")
        rates = rates_of(axis, group, inside)
        return PlanLoop(axis, group, inside, CLUSTERS, step, node.passes, is_alone=is_alone, rates=rates)

    def cluster_spans(self, node: Loop, made: Made) -> dict[str, dict[Axis, Span]]:
        """What layers make in a loop over clusters; nothing in those for which there is no range."""
        loop = self.dealing(node, made)
        found = self.pass_of(loop, made)
        idle = self.code.clusters - loop.count
        if not idle:
            return found
        return {
            name: {axis: self._busy(span, loop.count) if axis in loop.group else span for axis, span in spans.items()}
            for name, spans in found.items()
        }  # fmt: skip

    def _busy(self, span: Span, count: int) -> Span:
        """The span in the first so many clusters, and nothing in the others."""
        if span.limit is not None:
            raise NotLowered("clipped ranges of fewer clusters than there are")
        beyond = span.bound + BEYOND
        return replace(span, limit=Affine((count - 1) * beyond + span.bound, cluster=-beyond))

    def opened(self, nodes: Iterable[Node], made: Made) -> Made:
        """What layers make where the loops over clusters inside nodes are open."""
        found = dict(made)
        for node in nodes:
            for loop in distributed_in(node):
                found.update(self.cluster_spans(loop, made))
        return found

    # ------------------------------------------------------------ shares

    def own_part(self, box: Mapping[Axis, Span]) -> dict[Axis, Span]:
        """What of a box lies in the cluster's own range, of axes that no loop moves beside."""
        return {axis: own_share(span) for axis, span in box.items()}

    def check_around(self, tensor: Tensor, box: Mapping[Axis, Span]) -> None:
        """NotLowered where a cluster would load for others what it has no place for."""
        for axis, span in box.items():
            own = own_share(span)
            if own.start.base < span.start.base or end(own).base > end(span).base:
                raise NotLowered(f"{tensor.name}: along {axis.name} clusters read beside their ranges")

    def beyond_shares(self, box: Mapping[Axis, Span]) -> Iterator[dict[Axis, Span]]:
        """What of a box no share has, since these end before the axis does: the last clusters have it."""
        for axis, span in box.items():
            shared = span.start.cluster * self.code.clusters
            if own_share(span) is span or abs(shared) >= span.bound:
                continue
            if shared > 0:
                yield {**box, axis: Span(Affine(shared), span.bound - shared, span.bound, end(span))}
            else:
                yield {**box, axis: Span(Affine(), span.bound + shared, span.bound)}

    def held_box(self, node: Children, resident: Resident, names: Sequence[str], made: Made) -> dict[Axis, Span]:
        """What a cluster holds of a resident tensor in the end: its share, and what its readers need beside it."""
        tensor = self.tensors[resident.tensor]
        if not resident.sharded:
            return self.box_of(tensor, names, made)
        children = node.children[resident.first : resident.last + 1]
        found = self.box_of(tensor, names, self.opened(children, made))
        axis, share = self.share_of(node, resident)
        return {**found, axis: _joined(found[axis], share)}

    def share_of(self, node: Children, resident: Resident) -> tuple[Axis, Span]:
        """The axis of a sharded residency, and the cluster's share of it."""
        axis, ranges = shares_of(self, resident, node, self.code.clusters)
        step = ranges[0][1]
        if any(low != min(k * step, axis.extent) for k, (low, _) in enumerate(ranges)):
            raise NotLowered(f"{title(resident)}: shares that are not all of one length")
        return axis, Span(Affine(cluster=step), step, axis.extent)

    def summed_in(self, node: Loop) -> list[Layer]:
        """Layers of which each cluster of a loop makes a part of all results."""
        _, group, inside = self.known_class(node)
        return [layer for layer in inside if group & {own for own in layer.axes if own not in layer.result.axes}]

    # ------------------------------------------------------------ exchange

    def exchange(
        self, tensor: Tensor, place: Place, made: Mapping[Axis, Span], wanted: Mapping[Axis, Span],
        conditions: Sequence[Affine] = (),
    ) -> None:  # fmt: skip
        """Each cluster sends of its own share what others want, and have not made; all have the same place."""
        moved = [axis for axis, span in made.items() if span.start.cluster]
        if not moved:
            return
        if len(moved) > 1:
            raise NotLowered(f"{tensor.name}: shares of clusters along several axes")
        (axis,) = moved
        clusters, is_whole = self.code.clusters, not wanted[axis].start.cluster
        own = {**made, axis: own_share(made[axis])}
        for rest in self.beyond_shares(made):
            asked = [*conditions, Affine(1 - clusters, cluster=1)]
            for by in range(1, clusters):
                self._send(place, rest, made, wanted, axis, Affine(-by), asked)
        for sign in (1, -1):
            if is_whole and clusters > 2 and self.code.depth < MAX_LOOPS:
                with self.code.repeat(clusters - 1) as index:
                    self._send(place, own, made, wanted, axis, (index + 1) * sign, conditions)
                continue
            for by in range(1, clusters):
                self._send(place, own, made, wanted, axis, Affine(by * sign), conditions)

    def _send(
        self, place: Place, own: Mapping[Axis, Span], made: Mapping[Axis, Span], wanted: Mapping[Axis, Span],
        axis: Axis, by: Affine, conditions: Sequence[Affine],
    ) -> None:  # fmt: skip
        """What of its own is wanted and not made by the cluster so far on."""
        number = list(made).index(axis)
        dims = [span if each is axis else meet(span, wanted[each]) for each, span in own.items()]
        position, code = Linear({number: 1}), self.code
        asked, there = _moved(wanted[axis], by), _moved(made[axis], by)
        at = _positions(made)
        clips = [Clip(position + asked.start * -1, asked.extent), *place.clips(at)]
        is_on = code.extremes(by)[0] > 0
        if is_on == (there.start.cluster > 0):
            clips.append(Clip(-position + there.start + -1, None))
        else:
            clips.append(Clip(position + end(there) * -1, None))
        left = by * -1 + (code.clusters - 1) - Affine(cluster=1) if is_on else by + Affine(cluster=1)
        region = replace(Region.of(dims).clipped(clips), conditions=(left, *conditions))
        far = replace(place, origin={a: _at(start, by) for a, start in place.origin.items()})
        for k in range(place.planes):
            target = replace(far.plane(k).end(at), peer=by + Affine(cluster=1))
            move(code, "cdma", place.element, region, place.plane(k).end(at), target)


def send_parts(code: Code, place: Place, box: Mapping[Axis, Span], others: Axis, to: Place) -> None:
    """Each cluster sends a box to all others; from each one it comes to a position of its own along an axis.  They
    are in no loop, so that none waits for another: the scheduler does not look at regions inside of a shared loop."""
    at = _positions(box)
    for by in (by for distance in range(1, code.clusters) for by in (distance, -distance)):
        peer, slot = Affine(by, cluster=1), (by - 1) % code.clusters
        ends = peer * -1 + (code.clusters - 1) if by > 0 else peer
        region = replace(Region.of(list(box.values())), conditions=(ends,))
        for k in range(place.planes):
            target = to.plane(k).end({**at, (others,): Linear({}, Affine(slot))})
            move(code, "cdma", place.element, region, place.plane(k).end(at), replace(target, peer=peer))


def _positions(box: Mapping[Axis, Span]) -> dict[Run, Linear]:
    return {(each,): Linear({k: 1}) for k, each in enumerate(box)}


def own_share(span: Span) -> Span:
    """The cluster's own range of a span, which may reach into those of its neighbours: ranges follow each other from
    the first position on, or, where they are read backwards, from the last."""
    step = span.start.cluster
    if not step or span.start.loops or span.extent <= abs(step):
        return span
    first = 0 if step > 0 else span.bound + step
    return Span(Affine(first, cluster=step), abs(step), span.bound, span.limit)


def meet(a: Span, b: Span) -> Span:
    """What two spans have in common that are alike, or of which one has all."""
    return a if a.extent <= b.extent else b


def _joined(a: Span, b: Span) -> Span:
    if a.start.cluster != b.start.cluster or a.start.loops or b.start.loops:
        bound = max(a.bound, b.bound)
        return Span(Affine(), bound, bound)
    first = min(a.start.base, b.start.base)
    last = max(end(a).base, end(b).base)
    return Span(Affine(first, cluster=a.start.cluster), last - first, max(a.bound, b.bound))


def _moved(span: Span, by: Affine) -> Span:
    """The span of the cluster so far on."""
    return replace(span, start=_at(span.start, by), limit=None)


def _at(value: Affine, by: Affine) -> Affine:
    return value + by * value.cluster


