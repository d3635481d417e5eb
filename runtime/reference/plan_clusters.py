# Tests: test/runtime/reference/test_plan_clusters.py
"""The memories of a machine that runs a plan: DRAM, and of each cluster its SRAM; and what goes between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Box, Layer
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.plan.check import PlanError, sum_bits_of
from frustum.dialects.plan.clusters import Side, clusters_of, own_part
from frustum.dialects.plan.ranges import Held, Range, Ranged, is_empty, without
from frustum.dialects.plan.tree import Node, Part, Resident
from frustum.runtime.kernels import Array
from frustum.runtime.reference.plan_layers import Points, channels_of, finished, kind_of
from frustum.runtime.reference.plan_stores import Clock, Store, points_of

Kept = tuple[tuple[int, Tensor, Axis, Range], ...]
"""Of buffers, by `id` of residency or compute, positions that later passes of rolling loops outside read."""


class AbsentElement(PlanError):
    """A layer reads an element that the plan has not brought to where it looks."""


@dataclass
class PlanRun:
    """What a plan made: every tensor's elements as they were made last; and what it copied.

    `sram_bytes`: the most that lay in buffers of a cluster at a time and was used later, without tiles of what is
    streamed.
    """

    values: dict[Tensor, Array] = field(default_factory=dict)
    is_made: dict[Tensor, Array] = field(default_factory=dict)
    """Elements that nobody reads may never be made."""
    read_bytes: int = 0
    write_bytes: int = 0
    link_bytes: int = 0
    sram_bytes: int = 0
    points: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Lane(NamedTuple):
    """Clusters that make the same pass, and what of it stays for later ones."""

    side: Side
    kept: Kept


class Filling(NamedTuple):
    """What a cluster is to have of a tensor in a store."""

    cluster: int
    side: Side
    store: Store
    box: Box


class Sram:
    """The SRAM of a cluster."""

    machine: ClusterMemories
    clock: Clock

    def __init__(self, machine: ClusterMemories) -> None:
        self.machine, self.clock = machine, Clock()
        self.buffers: dict[tuple[int, Tensor], Store] = {}
        """Of residents, and of what layers of a compute hand each other."""
        self.active: dict[Tensor, list[tuple[Resident, Store]]] = defaultdict(list)
        """Residents of each tensor, outermost first."""

    def buffer(self, place: int, tensor: Tensor) -> Store:
        if (place, tensor) not in self.buffers:
            self.buffers[place, tensor] = self.machine.store(tensor, self.clock)
        return self.buffers[place, tensor]


class ClusterMemories(Ranged):
    """DRAM and clusters; every copy between them is counted."""

    run: PlanRun
    dram: dict[Tensor, Store]
    made: dict[Tensor, Store]
    clusters: list[Sram]
    sum_bits: dict[str, int]

    def __init__(self, network: AxisNetwork, plan: Node, arrays: Mapping[str, Array]) -> None:
        super().__init__(network, plan)
        self.run = PlanRun()
        self.dram = {tensor: self.store(tensor) for tensor in network.tensors}
        self.made = {tensor: self.store(tensor) for tensor in network.maker}
        """Every element as it was made last, which nobody reads."""
        self.clusters = [Sram(self) for _ in range(clusters_of(plan))]
        self.shares: dict[int, tuple[Axis, list[Range]]] = {}
        """Of sharded residencies, by `id`."""
        self.summed: dict[int, set[int]] = {}
        """Of residencies the clusters that have sums of their part of a distributed class."""
        self.not_made: dict[tuple[int, int], NDArray[np.bool_]] = {}
        """Of clusters and residencies the sums that go on, as they were loaded."""
        self.is_outside: dict[int, bool] = {}
        """Whether a residency began outside distributed loops."""
        self.readers: dict[int, tuple[bool, bool]] = {}
        """Whether layers read a resident, and whether some in later children do."""
        self.sum_bits = sum_bits_of(plan)
        for tensor, store in self.dram.items():
            if tensor.kind in (Kind.INPUT, Kind.WEIGHT):
                store.fill(arrays[tensor.name])

    def store(self, tensor: Tensor, clock: Clock | None = None) -> Store:
        maker = self.network.maker.get(tensor)
        return Store(tensor, channels_of(maker), points_of(maker), clock)

    # ------------------------------------------------------------ counts

    def count_reads(self, tensor: Tensor, boxes: Iterable[tuple[int, Box]]) -> None:
        """Boxes, each with its cluster: DRAM sends what several read alike to all."""
        self.run.read_bytes += _bytes(tensor, _elements_of(boxes))

    def count_writes(self, tensor: Tensor, boxes: Iterable[tuple[int, Box]]) -> None:
        self.run.write_bytes += _bytes(tensor, _elements_of(boxes))

    def count_links(self, tensor: Tensor, elements: int) -> None:
        self.run.link_bytes += _bytes(tensor, elements)

    def count_sums(self, tensor: Tensor, elements: int) -> None:
        bits = max(self.sum_bits.get(tensor.name, 0), tensor.element_bits)
        self.run.link_bytes += -(-elements * bits // 8)

    # ------------------------------------------------------------ residencies

    def parted(self, resident: Resident, box: Box) -> Box:
        return dict(box) if resident.part is None else _clipped(box, resident.part)

    def wanted(self, resident: Resident, cluster: int, box: Box) -> Box:
        """What of a box a cluster holds: of its part, its share."""
        found = self.parted(resident, box)
        if id(resident) in self.shares:
            axis, ranges = self.shares[id(resident)]
            low, high = ranges[cluster]
            found[axis] = max(found[axis][0], low), min(found[axis][1], high)
        return found

    def bring(self, tensor: Tensor, wants: list[Filling], held: Held) -> None:
        """What residents outside have comes from there, or from those of other clusters; the rest from DRAM."""
        parts, loads = held.get(tensor), list[tuple[int, Box]]()
        for cluster, side, store, box in wants:
            self.clusters[cluster].clock.now += 1
            rest = without(box, parts or ())
            if parts != () and not is_empty(rest):
                own = own_part(side, rest) if side.is_exchanged else rest
                store.copy(self.dram[tensor], own)
                loads.append((cluster, own))
        self.count_reads(tensor, loads)
        for cluster, side, store, box in wants:
            if side.is_exchanged and parts != ():
                for other in wants:
                    self.count_links(tensor, store.receive(other.store, without(box, parts or ())))
            for _, outer in self.clusters[cluster].active[tensor]:
                store.overlay(outer, box)
            self.gather(tensor, cluster, box, store)

    def gather(self, tensor: Tensor, cluster: int, box: Box, into: Store | None = None) -> Store | None:
        """Elements that residents of the cluster do not have come from other clusters: to stay in the resident, or if
        that is a share, into another store."""
        for resident, own in reversed(self.clusters[cluster].active[tensor]):
            need = self.parted(resident, box)
            if not is_empty(need):
                target = own if id(resident) not in self.shares else into
                if target is None and not own.has(need):
                    target = into = self.store(tensor)
                    into.overlay(own, need)
                elif target is not None and target is into:
                    target.overlay(own, need)
                if target is not None:
                    self.receive(target, cluster, id(resident), need)
            if resident.part is None or is_empty(box := without(box, (resident.part,))):
                break
        return into

    def receive(self, store: Store, cluster: int, place: int, box: Box) -> int:
        """Elements of a box that the store has not come from the same place in other clusters."""
        count = 0
        for k, other in enumerate(self.clusters):
            if k != cluster and (place, store.tensor) in other.buffers:
                count += store.receive(other.buffers[place, store.tensor], box)
        self.count_links(store.tensor, count)
        return count

    # ------------------------------------------------------------ after the maker

    def settle(self, resident: Resident, tensor: Tensor, taken: list[tuple[Side, Box]]) -> None:
        """Sums of clusters are added; each cluster gets what it is to have and did not make."""
        if self.summed[id(resident)]:
            self.add_sums(resident, tensor, self.parted(resident, taken[0][1]), taken[0][0])
            return
        received = 0
        for k in taken[0][0].clusters if len(self.clusters) > 1 else ():
            mask = self.not_made.pop((k, id(resident)), None)
            if mask is not None:
                self.clusters[k].buffer(id(resident), tensor).drop((...,), mask)
        if not self.readers[id(resident)][1]:
            return
        for side, box in taken:
            for k in side.clusters:
                store = self.clusters[k].buffer(id(resident), tensor)
                received += self.receive(store, k, id(resident), self.wanted(resident, k, box))
        for side, box in taken if received and id(resident) in self.shares else ():
            for k in side.clusters:
                store = self.clusters[k].buffer(id(resident), tensor)
                store.only(box, self.wanted(resident, k, box))

    def add_sums(self, resident: Resident, tensor: Tensor, box: Box, side: Side) -> None:
        """Each cluster gets what it is to have of the sum of all, if they have any."""
        stores = [self.clusters[k].buffer(id(resident), tensor) for k in sorted(self.summed[id(resident)])]
        if not stores or is_empty(box):
            return
        self.summed[id(resident)] = set()
        state, done = self.merged(tensor, stores, box)
        self.count_sums(tensor, (len(stores) - 1) * state[0].size)
        given = 0
        for k in side.clusters:
            self.clusters[k].clock.now += 1
            store, want = self.clusters[k].buffer(id(resident), tensor), self.wanted(resident, k, box)
            store.only(box, want)
            if not is_empty(want):
                part = _inside(state, box, want)
                store.write(want, part, done)
                given += part[0].size
        self.count_links(tensor, (given - state[0].size) * self.readers[id(resident)][0])

    def merged(self, tensor: Tensor, stores: list[Store], box: Box) -> tuple[Array, int]:
        """The sums of several clusters in a box, finished if they are whole; and how many points they have."""
        layer = self.network.maker[tensor]
        place = stores[0].place(box)
        states = [(store.values[(slice(None), *place)].copy(), store.done[place]) for store in stores]
        for store in stores:
            store.used[place] = store.clock.now if store.clock else 0
        return self.sum_of(layer, box, [(values, int(done.flat[0])) for values, done in states])

    def sum_of(self, layer: Layer, box: Box, states: list[tuple[Array, int]]) -> tuple[Array, int]:
        def fetch(tensor: Tensor, flat: Array) -> Array:
            return np.asarray(self.made.get(tensor, self.dram[tensor]).values[0].reshape(-1)[flat])

        points = Points(layer, box, lambda channel: fetch)
        (state, done), *rest = [each for each in states if each[1]]
        for other, count in rest:
            state, done = kind_of(layer).merge(points, state, other), done + count
        if done == points_of(layer):
            state = finished(points, state)
            self.made[layer.result].write(box, state, done)
        return state, done

    def save(self, resident: Resident, tensor: Tensor, taken: list[tuple[Side, Box]], held: Held) -> None:
        """Residents outside have had the elements when they were made; DRAM gets the rest."""
        parts = held.get(tensor)
        rests = [(side, rest) for side, box in taken if not is_empty(rest := without(box, parts or ()))]
        if parts == () or not rests:
            return
        layer, (first, rest) = self.network.maker[tensor], rests[0]
        if layer.name in first.begins:
            stores = [self.clusters[k].buffer(id(resident), tensor) for side, _ in rests for k in side.clusters]
            state, done = self.merged(tensor, stores, rest)
            self.count_sums(tensor, (len(stores) - 1) * state[0].size)
            self.dram[tensor].write(rest, state, done)
        else:
            for side, rest in rests:
                (k, *others) = side.clusters
                self.dram[tensor].copy(self.clusters[k].buffer(id(resident), tensor), rest)
                for k in others:
                    self.dram[tensor].overlay(self.clusters[k].buffer(id(resident), tensor), rest)
        self.count_writes(tensor, [(side.clusters[0], rest) for side, rest in rests])


def _clipped(box: Box, part: Part) -> Box:
    axis = next(a for a in box if a.name == part.axis)
    low, high = box[axis]
    return {**box, axis: (max(low, part.start), min(high, part.stop))}


def _inside(state: Array, box: Box, part: Box) -> Array:
    """What of channels of a box lies in a smaller one."""
    places = (slice(part[axis][0] - low, part[axis][1] - low) for axis, (low, _) in box.items())
    return np.asarray(state[(slice(None), *places)])


def _elements_of(boxes: Iterable[tuple[int, Box]]) -> int:
    """Boxes that several clusters have alike count once."""
    times = Counter((cluster, tuple(sorted((id(axis), ends) for axis, ends in box.items()))) for cluster, box in boxes)
    most = Counter[tuple[tuple[int, Range], ...]]()
    for (_, box), count in times.items():
        most[box] = max(most[box], count)
    total = 0
    for ends, count in most.items():
        total += count * int(np.prod([max(0, high - low) for _, (low, high) in ends], dtype=np.int64))
    return total


def _bytes(tensor: Tensor, elements: int) -> int:
    return -(-elements * tensor.element_bits // 8)
