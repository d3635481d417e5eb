# Tests: test/dialects/plan/test_clusters.py
"""Plans over clusters: the passes of each cluster, what each one has of a tensor, and what it receives over links.

Outside distributed loops all clusters do the same.  Inside, each has its range of the loop's class, and all make their
n-th passes at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, product
from types import MappingProxyType
from typing import NamedTuple

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.boxes import add, elements, meet, subtract
from frustum.dialects.plan.check import PlanError, title
from frustum.dialects.plan.occupancy import Measured, Place
from frustum.dialects.plan.ranges import Fresh, Range, Ranged, Spans, is_empty, without
from frustum.dialects.plan.rates import ranges_of, rates_of
from frustum.dialects.plan.tree import (
    Compute,
    Halo,
    Loop,
    Node,
    Over,
    Part,
    Resident,
    Sequence,
    layers_in,
    nodes_in,
)
from frustum.dialects.target import Target


def clusters_of(plan: Node) -> int:
    """How many clusters a plan is for: the most ranges of a distributed loop."""
    return max((node.passes for node in distributed_in(plan)), default=1)


def distributed_in(plan: Node) -> Iterator[Loop]:
    return (node for node in nodes_in(plan) if isinstance(node, Loop) and node.over is Over.CLUSTERS)


def linked_clusters(target: Target) -> int:
    """How many clusters a plan that is searched is for: all, or one where they have no links."""
    return 1 if target.cluster.cdma is None else target.chip.clusters


class NotExchanged(PlanError):
    """A cluster needs rows of others that none of them has at that moment."""


def check_clusters(plan: Node, target: Target) -> None:
    """PlanError where a loop has more ranges than the machine has clusters."""
    clusters = target.chip.clusters
    for node in distributed_in(plan):
        if node.passes > clusters:
            raise PlanError(
                f"for {node.axis} over clusters: {node.passes} ranges, {target.name} has {clusters} "
                f"cluster{'s' * (clusters > 1)}: take a larger step, or plan for another target",
                node,
            )


class Side(NamedTuple):
    """Clusters that make the same pass: all of them, or one in a distributed loop.

    `own`: the cluster's range of each axis of the loop's class.  `begins`: where its sums over the class begin, of each
    layer that has such.
    """

    clusters: tuple[int, ...]
    spans: Spans
    fresh: Fresh
    own: Mapping[Axis, Range] = MappingProxyType({})
    begins: Mapping[str, tuple[Axis, int]] = MappingProxyType({})
    is_exchanged: bool = False

    def since(self, layer: Layer) -> Box:
        """The layer's ranges, counted from where the cluster's sum begins."""
        span = self.spans[layer.name]
        if layer.name not in self.begins:
            return span
        axis, first = self.begins[layer.name]
        low, high = span[axis]
        return {**span, axis: (low - first, high - first)}


Taken = list[tuple[Side, Box]]
"""What of a tensor sides touch at one moment."""


def sides_of(plan: Ranged, loop: Loop, side: Side, around: Iterable[Loop]) -> tuple[Side, ...]:
    """One for each range of a distributed loop in which there is something to do."""
    axis, group, inside = plan.known_class(loop)
    for other in around:
        if other.halo is Halo.ROLLING and plan.known_class(other)[1] & group:
            raise PlanError(
                f"for {loop.axis} over clusters: rows of for {other.axis} around it roll from cluster to cluster; "
                "put the rolling loop inside",
                loop,
            )
    if loop.halo is Halo.ROLLING:
        raise PlanError(f"for {loop.axis} over clusters rolling: rows cannot roll; recompute or exchange halos", loop)
    is_exchanged, found = loop.halo is Halo.EXCHANGED, []
    axes = {layer.name: own for layer in inside for own in group & set(layer.axes)}
    rates = rates_of(axis, group, inside)
    ranges = {own: ranges_of(loop.edges, own, axis, rates) for own in group}
    for k, edges in enumerate(pairwise(loop.edges)):
        here = plan.pass_spans(axis, group, inside, edges, side.spans, is_exchanged, rates)
        if all(is_empty({own: here[name][own]}) for name, own in axes.items()):
            continue
        begins = {
            name: (own, here[name][own][0] if side.spans[name].get(own, (0, 0))[0] == 0 else 0)
            for name, own in axes.items() if own not in plan.layers[name].result.axes
        }  # fmt: skip
        own_ranges = {own: edges[k] for own, edges in ranges.items()}
        found.append(Side((k,), {**side.spans, **here}, side.fresh, own_ranges, begins, is_exchanged))
    return tuple(found)


def shares_of(plan: Ranged, resident: Resident, node: Sequence, count: int) -> tuple[Axis, list[Range]]:
    """The axis of a sharded residency, and each cluster's range of it: of the loop that makes the tensor, if it is over
    the axis; else equal ones."""
    tensor = plan.tensors[resident.tensor]
    axis = next(axis for axis in tensor.axes if axis.name == resident.sharded)
    maker = plan.network.maker.get(tensor)
    for child in node.children[resident.first : resident.last + 1]:
        for loop in distributed_in(child):
            named, group, inside = plan.known_class(loop)
            if maker is not None and maker.name in layers_in(loop) and axis in group:
                own = ranges_of(loop.edges, axis, named, rates_of(named, group, inside))
                return axis, [*own, *[(axis.extent, axis.extent)] * (count - len(own))]
    step = -(-axis.extent // count)
    return axis, [(min(k * step, axis.extent), min((k + 1) * step, axis.extent)) for k in range(count)]


# ------------------------------------------------------------ what clusters have


def sums_over_clusters(plan: Ranged, node: Node, layer: Layer) -> bool:
    """Whether clusters have sums of their parts of a layer inside a node."""
    for loop in distributed_in(node):
        _, group, inside = plan.known_class(loop)
        if layer in inside:
            return bool(group & {axis for axis in layer.axes if axis not in layer.result.axes})
    return False


@dataclass(eq=False)
class Holding:
    """What each cluster has of a tensor at a place: of a residency, or handed on inside a compute.

    `shares`: the range of an axis that each cluster holds; none: each holds all.  `summed`: clusters that have sums of
    their part of a distributed class.  `is_local`: each cluster has all that it reads.  `rolls`: what earlier passes
    had may be gone.
    """

    place: int
    tensor: Tensor
    has: list[list[Box]]
    is_read: bool = True
    is_read_later: bool = False
    resident: Resident | None = None
    shares: tuple[Axis, list[Range]] | None = None
    summed: set[int] = field(default_factory=set)
    is_local: bool = False
    is_outside: bool = True
    rolls: bool = False

    @property
    def part(self) -> Part | None:
        return self.resident.part if self.resident else None

    def wanted(self, cluster: int, box: Box) -> Box:
        """What of a box the cluster holds in the end."""
        found = self.parted(box)
        if self.shares is not None:
            axis, ranges = self.shares
            found[axis] = meet(found[axis], ranges[cluster])
        return found

    def parted(self, box: Box) -> Box:
        found = dict(box)
        if self.part is not None:
            axis = next(a for a in found if a.name == self.part.axis)
            found[axis] = meet(found[axis], (self.part.start, self.part.stop))
        return found

    def spread(self, taken: Taken) -> Taken:
        """What the clusters of each side want: shares."""
        if self.shares is None:
            return taken
        wanted = [
            (side._replace(clusters=(k,)), self.wanted(k, box)) for side, box in taken for k in side.clusters
        ]
        return [(side, box) for side, box in wanted if not is_empty(box)]

    def fill(self, taken: Taken) -> None:
        for side, box in taken:
            for k in side.clusters:
                self.add(k, self.wanted(k, box))

    def add(self, cluster: int, box: Box) -> None:
        if elements(box):
            add(self.has[cluster], box)


class Links:
    """Counts what clusters receive from each other."""

    walk: Measured
    count: int
    lies: dict[Tensor, list[Holding]]

    def __init__(self, walk: Measured) -> None:
        self.walk, self.count = walk, clusters_of(walk.plan)
        self.lies = defaultdict(list)
        """Of each tensor where it is resident, outermost first."""
        self.rolled: dict[tuple[int, Tensor], Holding] = {}
        """Places whose rows roll."""

    def begin(self, loop: Loop) -> None:
        """A rolling loop begins: nothing of its rows is there."""
        inside = {id(each) for each in nodes_in(loop)}
        inside |= {id(r) for each in nodes_in(loop) if isinstance(each, Sequence) for r in each.residents}
        self.rolled = {key: each for key, each in self.rolled.items() if key[0] not in inside}

    # ------------------------------------------------------------ places

    def at_resident(self, resident: Resident, node: Sequence, tensor: Tensor, side: Side) -> Holding:
        """A residency that begins; `side`: one of those that it begins for."""
        if side.own and resident.sharded:
            raise PlanError(
                f"{title(resident)}: sharded {resident.sharded} inside a loop over clusters, where each holds what it "
                "needs: leave it out, or state the residency outside",
                resident,
            )
        if resident.part and resident.sharded:
            raise PlanError(
                f"{title(resident)}: a part is not sharded {resident.sharded}; shard all of it, or no part", resident
            )
        found = self._place(id(resident), tensor, side)
        found.resident, found.is_local = resident, bool(side.own) and not side.is_exchanged
        found.is_outside = not side.own
        spanned = node.children[resident.first : resident.last + 1]
        found.is_read, found.is_read_later = (self.walk.is_read(resident, each) for each in (spanned, spanned[1:]))
        if resident.sharded:
            found.shares = shares_of(self.walk, resident, node, self.count)
        return found

    def _place(self, place: int, tensor: Tensor, side: Side) -> Holding:
        does_roll = any(own == place for own, _ in side.fresh)
        if (place, tensor) in self.rolled and does_roll:
            found = self.rolled[place, tensor]
            found.rolls = bool(side.own)
            return found
        found = Holding(place, tensor, [[] for _ in range(self.count)])
        if does_roll:
            self.rolled[place, tensor] = found
        return found

    def hand_on(self, node: Compute, own: Iterable[Tensor], side: Side) -> None:
        """What layers of a compute hand each other, where clusters exchange halos."""
        self.enter(self._place(id(node), tensor, side) for tensor in own if side.is_exchanged)

    def enter(self, holdings: Iterable[Holding | None]) -> None:
        for holding in holdings:
            if holding is not None:
                self.lies[holding.tensor].append(holding)

    def leave(self, places: Iterable[Resident | Compute]) -> None:
        for place in map(id, places):
            for holdings in self.lies.values():
                holdings[:] = [each for each in holdings if each.place != place]

    # ------------------------------------------------------------ what is made

    def made(self, layer: Layer, made: Taken) -> None:
        """Parts of a result go to all places of it."""
        is_sum = any(layer.name in side.begins for side, _ in made)
        holdings = self.lies.get(layer.result, ())
        outside = [each for each in holdings if each.is_outside]
        if is_sum and len(outside) > 1 and outside[-1].resident is not None:
            raise PlanError(
                f"{title(outside[-1].resident)}: it is resident twice around a loop over clusters that sums it; "
                "leave one out",
                outside[-1].resident,
            )
        for holding, (side, box) in product(holdings, made):
            if is_sum and holding.is_outside:
                holding.summed |= set(side.clusters)
            for k in side.clusters:
                is_shared = is_sum or not side.own
                holding.add(k, holding.wanted(k, box) if is_shared else holding.parted(box))
                self._note(holding, holding.parted(box) if side.own else holding.wanted(k, box))

    def end(self, loop: Loop, side: Side) -> None:
        """A distributed loop is done: its sums that are whole now are added."""
        for layer in self.walk.known_class(loop)[2]:
            for holding in [each for each in self.lies.get(layer.result, ()) if each.summed]:
                if (box := whole_sum(layer, side.spans[layer.name])) is not None:
                    self.settle(holding, [(side, box)])

    def settle(self, holding: Holding, taken: Taken) -> None:
        """The layers that make a tensor are done: sums of clusters are added, and each gets what it did not make."""
        wanted = [(k, holding.wanted(k, box)) for side, box in taken for k in side.clusters]
        if holding.summed:
            box = holding.parted(taken[0][1])
            self.reduce(holding.tensor, box, len(holding.summed))
            if holding.is_read:
                self._receive(holding.tensor, sum(elements(own) for _, own in wanted) - elements(box))
            holding.summed = set()
        elif not holding.is_read_later:
            return
        else:
            lacking = [self._take(holding, k, own) for k, own in wanted if not holding.is_local]
            if holding.shares and any(lacking):  # what was made for others goes
                boxes = [box for _, box in taken]
                holding.has = [[piece for each in has for piece in subtract(each, boxes)] for has in holding.has]
        for other in self.lies[holding.tensor]:
            for k, own in wanted:
                other.add(k, other.wanted(k, own))

    def reduce(self, tensor: Tensor, box: Box, clusters: int) -> None:
        """Reduce-scatter: each cluster receives the sums of all others for its share."""
        self._receive(tensor, (clusters - 1) * elements(box), self.walk.bits(tensor))

    # ------------------------------------------------------------ what is read

    def read(self, tensor: Tensor, taken: Taken, place: Place | None = None) -> None:
        """Clusters look for boxes where the tensor is resident, innermost first, and receive what they have not.

        `place`: where slices of it pass, if no residency takes them.
        """
        for side, box in taken:
            for holding in reversed(self.lies.get(tensor, ())):
                for k in () if holding.is_local else side.clusters:
                    self._look(holding, k, box, place)
                if holding.part is None or is_empty(box := without(box, (holding.part,))):
                    break

    def _look(self, holding: Holding, cluster: int, box: Box, place: Place | None) -> None:
        need = holding.parted(box)
        lacking = self._take(holding, cluster, need)
        if lacking and holding.shares is None:
            holding.add(cluster, need)
            self._note(holding, need)
        elif lacking and place is not None:
            self.walk.note(place, holding.tensor, _extents(lacking))

    def _take(self, holding: Holding, cluster: int, need: Box) -> list[Box]:
        """Counts and gives what a cluster has not."""
        lacking = subtract(need, holding.has[cluster])
        others = [box for k, has in enumerate(holding.has) if k != cluster and not holding.rolls for box in has]
        self._receive_boxes(holding.tensor, cluster, lacking, others)
        return lacking

    def exchange(self, tensor: Tensor, loads: Taken) -> None:
        """Halos of what all load at one moment from DRAM: each cluster loads its own range and receives the rest."""
        own = [(side, own_part(side, box)) for side, box in loads]
        for (side, box), (_, mine) in zip(loads, own, strict=True):
            others = [each for other, each in own if other is not side]
            self._receive_boxes(tensor, side.clusters[0], subtract(box, [mine]), others)

    def _receive_boxes(self, tensor: Tensor, cluster: int, lacking: list[Box], others: list[Box]) -> None:
        """Boxes of which neighbours have each element."""
        for box in lacking:
            for absent in subtract(box, others):
                where = ", ".join(f"{axis.name} {low}" for axis, (low, _) in absent.items())
                raise NotExchanged(
                    f"{tensor.name}: no other cluster has {where} when cluster {cluster} needs it: make the tensor "
                    "resident around the passes inside the loop over clusters, or recompute the halo"
                )
            self._receive(tensor, elements(box))

    def _receive(self, tensor: Tensor, count: int, bits: int | None = None) -> None:
        self.walk.counted.link_bytes += -(-count * (bits or tensor.element_bits) // 8)

    def _note(self, holding: Holding, box: Box) -> None:
        self.walk.note(holding.place, holding.tensor, box)


def whole_sum(layer: Layer, span: Box) -> Box | None:
    """What of a result passes have summed to the end."""
    for axis in layer.combine:
        if axis not in layer.result.axes and span.get(axis, (0, axis.extent))[1] < axis.extent:
            return None
    return {axis: span.get(axis, (0, axis.extent)) for axis in layer.result.axes}


def own_part(side: Side, box: Box) -> Box:
    """What of a box lies in the cluster's own range."""
    return {axis: meet(own, side.own.get(axis, own)) for axis, own in box.items()}


def _extents(boxes: list[Box]) -> Box:
    """A box as large as several along the axis in which they differ; around them where they differ in more."""
    first, *others = boxes
    found = dict(first)
    unlike = [axis for axis in first if any(box[axis] != first[axis] for box in others)]
    for axis in unlike:
        ends = [box[axis] for box in boxes]
        low, high = min(a for a, _ in ends), max(b for _, b in ends)
        found[axis] = (low, high) if len(unlike) > 1 else (0, sum(b - a for a, b in ends))
    return found
