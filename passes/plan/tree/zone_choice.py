# Tests: test/passes/plan/tree/test_zone_choice.py
"""Which class of axes clusters deal of each layer: where its work and what they send each other take the least time.

Layers that no unit takes apart are one *group* with one class, or none: then each cluster makes all of them.  The
choice is a dynamic programme along the order of groups; what is read from further back is as the round before chose it.
Source: the machine's closed forms, `dialects/plan/layer_cycles.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from frustum.dialects.axes.access import link_of
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class, classes_apart, classes_of, why_not
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.recurrence import AxisRecurrence, is_at_own_position
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.plan.layer_cycles import ClusterCycles, products_of
from frustum.dialects.target import Target
from frustum.passes.plan.tree.intervals import LayerInterval, cuts_apart
from frustum.passes.plan.tree.spans import Dealt, Reads
from frustum.passes.plan.tree.zones import Dealing, dealt_of

NONE: Class = frozenset()
"""The class of layers that every cluster makes."""


@dataclass(frozen=True, eq=False)
class LayerGroup:
    """Layers of one class, the classes that they may have, and the cycles that they take with each."""

    layers: tuple[Layer, ...]
    classes: tuple[Class, ...]
    cycles: tuple[float, ...]

    @cached_property
    def results(self) -> frozenset[Tensor]:
        return frozenset(layer.result for layer in self.layers)


def may_be_dealt(group: Class, layers: Sequence[Layer], reads: Reads, clusters: int) -> bool:
    """Whether every cluster can have a range of a class, of all layers that have it, without the others: something each
    where they send each other borders, as much where they join sums."""
    recurrences = [each for each in reads.recurrences if not set(layers).isdisjoint(each.layers)]
    summed: set[Axis] = {axis for layer in layers for axis in layer.combine if layer.macs}
    own = [axis for layer in layers for axis in layer.axes if axis in group]
    is_long = bool(own) and min(axis.extent for axis in group) >= clusters
    if not is_long:
        return False
    sums = [axis for layer in layers for axis in layer.combine if axis in group and axis not in layer.result.axes]
    if any(axis.extent % clusters for axis in sums):  # parts of one size can be joined
        return False
    is_windowed = LayerInterval(reads.network, reads, tuple(layers)).is_windowed(group)
    if is_windowed and not all(has_all_ranges(axis, clusters) for axis in own):
        return False
    return group.isdisjoint(summed) and not any(cuts(group, recurrence) for recurrence in recurrences)


def has_all_ranges(axis: Axis, clusters: int) -> bool:
    """Whether every cluster has something of an axis, where all but the last have as much."""
    return ceil_div(axis.extent, ceil_div(axis.extent, clusters)) == clusters


def cuts(group: Class, recurrence: AxisRecurrence) -> bool:
    """Whether ranges of a class need states of each other."""
    if not any(group & set(layer.axes) for layer in recurrence.layers):
        return False
    if recurrence.axis in group or why_not(group, recurrence.layers):
        return True
    reads = ((layer, tensor) for layer in recurrence.layers for tensor in recurrence.carried)
    return not all(is_at_own_position(layer, tensor, group) for layer, tensor in reads)


class ZoneChoice:
    """The classes of one network on one machine."""

    reads: Reads
    clusters: int
    target: Target
    cluster: ClusterCycles
    groups: list[LayerGroup]
    place: dict[Layer, int]
    """Of each layer the number of its group."""

    def __init__(self, reads: Reads, clusters: int, target: Target) -> None:
        self.reads, self.clusters, self.target = reads, clusters, target
        self.cluster = ClusterCycles(target.cluster)
        self.groups = list(self._groups())
        self.place = {layer: k for k, group in enumerate(self.groups) for layer in group.layers}

    def best(self) -> Dealing:
        """The zones with the fewest cycles: of choices that follow each other from those of each group alone, and from
        one class for as many groups as have it, where these are many."""
        alone = [min(range(len(g.classes)), key=g.cycles.__getitem__) for g in self.groups]
        seen = list[list[int]]()
        for group in (NONE, *self.common()):
            chosen = [
                next((k for k, own in enumerate(g.classes) if own & group), best)
                for g, best in zip(self.groups, alone, strict=True)
            ]  # fmt: skip
            while chosen not in seen:
                seen.append(chosen)
                chosen = self.along(chosen)
        return self.dealing(min(seen, key=self.total))

    def common(self) -> list[Class]:
        """Classes of the network that at least half as many layers have as any other one."""
        layers = self.reads.network.layers
        having = Counter(axis for layer in layers for axis in layer.axes)
        found = {group: sum(having[axis] for axis in group) for group in classes_apart(layers)}
        return [group for group, many in found.items() if 2 * many >= max(found.values())]

    def total(self, chosen: list[int]) -> float:
        """Cycles of all groups, and between them."""
        own = sum(group.cycles[c] for group, c in zip(self.groups, chosen, strict=True))
        pairs = ((j, k) for j in range(len(self.groups)) for k in self.neighbours[j] if k > j)
        return own + sum(self.between(j, chosen[j], k, chosen[k]) for j, k in pairs)

    # ------------------------------------------------------------ groups

    def _groups(self) -> Iterator[LayerGroup]:
        layers, first = tuple(self.reads.network.layers), 0
        for stop in sorted(cuts_apart(self.reads)):
            own = layers[first:stop]
            classes = NONE, *(
                group for group in classes_of(own)
                if may_be_dealt(group, own, self.reads, self.clusters) and not why_not(group, own)
            )  # fmt: skip
            yield LayerGroup(own, classes, tuple(self.cycles(own, group) for group in classes))
            first = stop

    def cycles(self, layers: tuple[Layer, ...], group: Class) -> float:
        """Of one cluster for its range; and what short runs at the DRAM port take."""
        dealt, found = dealt_of(self.reads, group, layers, self.clusters), 0.0
        for layer in layers:
            extents = {axis: dealt.share(axis) for axis in layer.axes}
            stored = {
                k: float(sum(self.share(p.tensor, dealt) for p in operand.pieces))
                for k, operand in enumerate(layer.operands)
            }  # fmt: skip
            stored[-1] = self.share(layer.result, dealt)
            found += float(self.cluster.of(layer, tuple(products_of(layer)), extents, stored).alone)
            outside = {p.tensor for k in layer.operands for p in k.pieces if p.tensor not in self.reads.network.maker}
            found += sum(self.runs_late(tensor, dealt) for tensor in outside)
        return found

    def share(self, tensor: Tensor, dealt: Dealt) -> float:
        """Bytes that a cluster has of a tensor."""
        return math.prod(dealt.share(axis) for axis in tensor.axes) * tensor.element_bits / 8

    def runs_late(self, tensor: Tensor, dealt: Dealt) -> float:
        """Cycles by which the ranges of clusters take longer at the DRAM port than the tensor as a whole."""
        dram = self.target.chip.dram
        size = tensor.size_bytes / dram.port_bytes_per_cycle
        return size * (shortness(tensor, dealt, dram.minimum_run_bytes) - 1)

    # ------------------------------------------------------------ between groups

    def along(self, chosen: list[int]) -> list[int]:
        """The best classes from the first group to the last, where others that read each other are as they were."""
        best, came = [0.0], list[list[int]]()
        for k, group in enumerate(self.groups):
            alone = [group.cycles[c] + self.beside(k, c, chosen) for c in range(len(group.classes))]
            ways = [
                [best[b] + (self.between(k - 1, b, k, c) if k else 0.0) for b in range(len(best))]
                for c in range(len(group.classes))
            ]
            came.append([min(range(len(way)), key=way.__getitem__) for way in ways])
            best = [cost + min(way) for cost, way in zip(alone, ways, strict=True)]
        found = [min(range(len(best)), key=best.__getitem__)]
        for k in range(len(self.groups) - 1, 0, -1):
            found.append(came[k][found[-1]])
        return found[::-1]

    def beside(self, k: int, c: int, chosen: list[int]) -> float:
        """What a group sends and receives but for its neighbours in the order."""
        others = {j for j in self.neighbours[k] if abs(j - k) > 1}
        return sum(
            self.between(k, c, j, chosen[j]) if j > k else self.between(j, chosen[j], k, c) for j in sorted(others)
        )

    @cached_property
    def neighbours(self) -> list[set[int]]:
        """For each group, the groups that read its results and those whose results it reads."""
        found: list[set[int]] = [set() for _ in self.groups]
        for tensor, users in self.reads.users.items():
            if tensor in self.reads.network.maker:
                places = {self.place[layer] for layer in users}
                maker = self.place[self.reads.network.maker[tensor]]
                for other in places - {maker}:
                    found[maker].add(other)
                    found[other].add(maker)
        return found

    def between(self, first: int, b: int, second: int, c: int) -> float:
        """Cycles in which clusters send each other what the first group makes and the second one reads."""
        key = first, b, second, c
        if key not in self._between:
            made, reader, read = self.groups[first].classes[b], self.groups[second], self.groups[second].classes[c]
            found = 0.0
            for tensor in () if made is NONE else self.handed_on(first, second):
                if self.is_in_ranges(tensor, made, reader.layers, read):
                    found += self.borders(tensor, made, reader.layers, read)
                elif not made.isdisjoint(tensor.axes):
                    found += self.sent(tensor) / max(1, len(self.reads.users[tensor]) - 1)
            self._between[key] = found
        return self._between[key]

    @cached_property
    def _between(self) -> dict[tuple[int, int, int, int], float]:
        return {}

    def handed_on(self, first: int, second: int) -> tuple[Tensor, ...]:
        key = first, second
        if key not in self._handed_on:
            own = self.groups[first].results
            read = (t for layer in self.groups[second].layers for t in self.reads.touched[layer])
            self._handed_on[key] = tuple(dict.fromkeys(t for t in read if t in own))
        return self._handed_on[key]

    @cached_property
    def _handed_on(self) -> dict[tuple[int, int], tuple[Tensor, ...]]:
        return {}

    def is_in_ranges(self, tensor: Tensor, made: Class, layers: tuple[Layer, ...], read: Class) -> bool:
        """Whether a cluster reads, apart from borders, only the range of a tensor that it made itself."""
        if made.isdisjoint(tensor.axes):
            return True
        reads = [each for layer in layers for each in self.reads.of[layer] if each.tensor is tensor]
        return all(
            each.position is not None and (link := link_of(each.position)) is not None and link.axis in read
            and each.guard_along(link.axis) is None  # a range of a concatenation is not one of each part
            for each in reads if each.axis in made
        ) and any(each.axis in made for each in reads)  # fmt: skip

    def sent(self, tensor: Tensor) -> float:
        """Cycles in which every cluster sends its range to the others."""
        return self.over_links(tensor.size_bytes / self.clusters * (self.clusters - 1))

    def borders(self, tensor: Tensor, made: Class, layers: tuple[Layer, ...], read: Class) -> float:
        """Cycles in which clusters send each other what windows need beside their ranges of a tensor."""
        dealt, found = Dealt(made | read, self.clusters), 0.0
        for layer in layers:
            for each in self.reads.of[layer]:
                if each.tensor is tensor and each.axis in made and each.position is not None:
                    own = {axis: (0, dealt.share(axis)) for axis in layer.axes if axis in read}
                    low, high = each.position.hull(own)
                    rows = min(max(0, high - low - dealt.share(each.axis)), tensor_rest(each.axis, dealt))
                    found = max(found, rows * self.row_bytes(tensor, each.axis))
        return self.over_links(found) if found else 0.0

    def row_bytes(self, tensor: Tensor, axis: Axis) -> float:
        """Bytes of one position of an axis; short runs take as long as the least."""
        run = math.prod(each.extent for each in tensor.axes[tensor.axes.index(axis) + 1 :]) * tensor.element_bits / 8
        least = self.target.cluster.sram.minimum_run_bytes
        return tensor.size_bytes / axis.extent * max(1.0, least / run)

    def over_links(self, size: float) -> float:
        """Cycles in which a cluster sends so many bytes."""
        cluster = self.target.cluster
        assert cluster.cdma is not None, "clusters without links deal nothing"
        return 2 * self.cluster.restart + size / cluster.cdma.bytes_per_cycle

    # ------------------------------------------------------------ zones

    def dealing(self, chosen: list[int]) -> Dealing:
        """Groups that hand each other ranges are a zone, and those that have an axis in common; where then no layer has
        two axes of it."""
        joined = _Joined(self.groups, self.place, chosen)
        for first in range(len(self.groups)):
            for second in sorted(self.neighbours[first]):
                made, read = joined.classes[first], joined.classes[second]
                if second < first or (NONE in (made, read) and made != read):
                    continue
                reader = self.groups[second].layers
                dealt = [t for t in self.handed_on(first, second) if not made.isdisjoint(t.axes)]
                are_alike = dealt or made == NONE
                if are_alike and all(self.is_in_ranges(t, made, reader, read) for t in dealt):
                    joined.join(first, second)
        first_of = dict[Axis, int]()
        for k, own in enumerate(joined.classes):
            for axis in sorted(own, key=lambda each: each.name):
                joined.join(first_of.setdefault(axis, k), k)
        numbers = {root: n for n, root in enumerate(dict.fromkeys(map(joined.root, range(len(self.groups)))))}
        classes = tuple(frozenset(joined.axes[root]) for root in numbers)
        number = {
            layer: numbers[joined.root(k)] for k, group in enumerate(self.groups) for layer in group.layers
        }  # fmt: skip
        return Dealing(self.clusters, classes, number)


class _Joined:
    """Groups of layers that are one zone."""

    place: Mapping[Layer, int]
    having: dict[Axis, list[Layer]]
    classes: list[Class]
    parent: list[int]
    axes: list[set[Axis]]
    members: list[list[Layer]]

    def __init__(self, groups: Sequence[LayerGroup], place: Mapping[Layer, int], chosen: Sequence[int]) -> None:
        self.place, self.having = place, {}
        for layer in place:
            for axis in layer.axes:
                self.having.setdefault(axis, []).append(layer)
        self.classes = [group.classes[c] for group, c in zip(groups, chosen, strict=True)]
        self.parent = list(range(len(groups)))
        self.axes = [set(own) for own in self.classes]
        self.members = [list(group.layers) for group in groups]

    def root(self, k: int) -> int:
        while self.parent[k] != k:
            k = self.parent[k]
        return k

    def join(self, a: int, b: int) -> None:
        """Makes one of two, where each layer then has one axis that is dealt."""
        a, b = self.root(a), self.root(b)
        if a == b:
            return
        few, many = sorted((a, b), key=lambda k: len(self.members[k]))
        both, new = self.axes[few] | self.axes[many], self.axes[few] - self.axes[many]
        far = (layer for axis in new for layer in self.having.get(axis, ()) if self.root(self.place[layer]) == many)
        asked = *self.members[few], *far
        if all(len(both.intersection(layer.axes)) <= 1 for layer in asked):
            self.parent[few] = many
            self.axes[many] = both
            self.members[many] += self.members[few]


def tensor_rest(axis: Axis, dealt: Dealt) -> int:
    """Positions that a cluster has not."""
    return axis.extent - dealt.share(axis)


def shortness(tensor: Tensor, dealt: Dealt, least_bytes: int) -> float:
    """How much longer than its bytes a tensor takes at the port of DRAM, where each cluster has its range: runs that
    are shorter than the port's shortest take as long as that."""
    places = [k for k, axis in enumerate(tensor.axes) if axis in dealt.axes]
    if not places:
        return 1.0
    run = math.prod(dealt.share(axis) for axis in tensor.axes[places[-1] :]) * tensor.element_bits
    return max(1.0, 8 * least_bytes / run)
