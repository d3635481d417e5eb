# Tests: test/runtime/reference/test_plan.py
"""Runs a plan on values, node by node and pass by pass: what a tree means.

    run = run_plan(network, tree, {"x": image, "w": weights})
    run.values["y"], run.read_bytes

DRAM and every buffer know which elements they hold.  A layer finds the elements that it reads in a buffer, or in the
tiles of DRAM that the plan streams for it; one that lies in neither ends the run (AbsentElement).  Which boxes these
are is what `dialects.plan.count` counts; what lies in them follows from running.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product, zip_longest

import numpy as np

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.check import PlanError, check_plan, operands_of, with_copies
from frustum.dialects.plan.clusters import Side, own_part, shares_of, sides_of, sums_over_clusters, whole_sum
from frustum.dialects.plan.ranges import Held, Range, is_empty, without
from frustum.dialects.plan.tree import Compute, Loop, Node, Over, Resident, Sequence, nodes_in
from frustum.runtime.kernels import Array
from frustum.runtime.reference.axes import Fetch
from frustum.runtime.reference.plan_clusters import (
    AbsentElement,
    ClusterMemories,
    Filling,
    Kept,
    Lane,
    PlanRun,
)
from frustum.runtime.reference.plan_layers import Points, finished, kind_of
from frustum.runtime.reference.plan_stores import Store, Tile, points_of

__all__ = ["AbsentElement", "PlanRun", "run_plan"]


def run_plan(
    network: AxisNetwork, plan: Node, arrays: Mapping[str, Array], *, is_checked: bool = True
) -> PlanRun:
    """`arrays`: inputs and weights by the names of their tensors.  PlanError where the tree is no plan of the network
    (unless it is not checked), or reads what is not there."""
    if is_checked:
        check_plan(network, plan)
    machine = _Machine(with_copies(network, plan), plan, arrays)
    every = Side(tuple(range(len(machine.clusters))), {name: {} for name in machine.layers}, {})
    machine.visit(plan, (Lane(every, ()),), {})
    return machine.finished()


class _Machine(ClusterMemories):
    def __init__(self, network: AxisNetwork, plan: Node, arrays: Mapping[str, Array]) -> None:
        super().__init__(network, plan, arrays)
        self.where: list[str] = []
        self.around: list[Loop] = []

    def finished(self) -> PlanRun:
        for tensor, store in self.dram.items():
            if tensor.is_output and (store.done < store.total).any():
                raise AbsentElement(f"{tensor.name}, an output, is not whole in DRAM: {_first(store)} is not there")
        for cluster in self.clusters:
            for store in cluster.buffers.values():
                store.keep(())
        self.run.sram_bytes = max(cluster.clock.most_bits() for cluster in self.clusters) // 8
        self.run.values = {tensor: store.values[0] for tensor, store in self.made.items()}
        self.run.is_made = {tensor: store.done > 0 for tensor, store in self.made.items()}
        return self.run

    # ------------------------------------------------------------ nodes

    def visit(self, node: Node, lanes: tuple[Lane, ...], held: Held) -> None:
        match node:
            case Compute():
                self.compute(node, lanes, held)
            case Loop():
                self.loop(node, lanes, held)
            case Sequence():
                self.sequence(node, lanes, held)

    def loop(self, node: Loop, lanes: tuple[Lane, ...], held: Held) -> None:
        if node.over is Over.CLUSTERS:
            ((side, kept),) = lanes
            inside = tuple(Lane(own, kept) for own in sides_of(self, node, side, self.around))
            if inside:
                self.visit(node.body, inside, held)
                self.add_all(node, side)
            return
        places = {id(each) for each in nodes_in(node)}
        places |= {id(r) for each in nodes_in(node) if isinstance(each, Sequence) for r in each.residents}
        self.around.append(node)
        edges = max((self.edges(node, lane.side.own) for lane in lanes), key=len)
        for now, ends in zip(zip_longest(*(self.passes_of(node, lane) for lane in lanes)), edges, strict=True):
            made = [each for each in now if each is not None]
            self.where.append(f"{node.axis} {ends[0]}:{ends[1]}")
            self.visit(node.body, tuple(lane for lane, _ in made), held)
            self.where.pop()
            for lane, later in made:
                for k in lane.side.clusters:
                    for (place, tensor), store in self.clusters[k].buffers.items():
                        if later is not None and place in places:
                            store.keep(_of(later, place, tensor))
        self.around.pop()

    def add_all(self, node: Loop, side: Side) -> None:
        """Sums of clusters that are whole now become one."""
        for layer in self.known_class(node)[2]:
            if (box := whole_sum(layer, side.spans[layer.name])) is not None:
                for resident, _ in self.clusters[side.clusters[0]].active[layer.result]:
                    self.add_sums(resident, layer.result, self.parted(resident, box), side)

    def passes_of(self, node: Loop, lane: Lane) -> Iterator[tuple[Lane, Kept | None]]:
        """The passes of a lane, each with what later ones read of it; None: nothing rolls."""
        side, kept = lane
        passes, moving = self.passes(node, side.spans, side.own)
        rolling = [each for each in moving if each.new]
        for k, here in enumerate(passes):
            new = {(each.place, each.axis): each.new[k] for each in rolling}
            old, later = (
                tuple((m.place, m.tensor, m.axis, m.stays[at]) for m in rolling if at < len(passes))
                for at in (k, k + 1)
            )
            inside = side._replace(spans=here, fresh={**side.fresh, **new})
            yield Lane(inside, (*kept, *old, *later)), (*kept, *later) if rolling else None

    # ------------------------------------------------------------ residents

    def sequence(self, node: Sequence, lanes: tuple[Lane, ...], held: Held) -> None:
        if node.subsets:
            raise PlanError("a sequence on subsets: only children in order are run", node)
        for k, child in enumerate(node.children):
            made = set(self.made_in(child))
            begin = [r for r in node.residents if r.first == k]
            begun = [(r, self.tensors[r.tensor], self.begin(node, r, lanes, held, made)) for r in begin]
            clusters = [cluster for lane in lanes for cluster in lane.side.clusters]
            for cluster, (resident, tensor, _) in product(clusters, begun):
                memory = self.clusters[cluster]
                memory.active[tensor].append((resident, memory.buffer(id(resident), tensor)))
            self.visit(child, lanes, self.held_at(node, k, held))
            for resident, tensor, taken in begun:
                if taken and tensor in made:
                    self.settle(resident, tensor, taken)
                    if self.leaves(tensor, node, resident):
                        self.save(resident, tensor, taken, held)
            self.end([r for r in node.residents if r.last == k], lanes)

    def begin(
        self, node: Sequence, resident: Resident, lanes: tuple[Lane, ...], held: Held, made: set[Tensor]
    ) -> list[tuple[Side, Box]]:
        """What of a residency sides touch; loaded if it is not made there, or a sum goes on."""
        tensor, taken, wants = self.tensors[resident.tensor], list[tuple[Side, Box]](), list[Filling]()
        if resident.sharded:
            self.shares[id(resident)] = shares_of(self, resident, node, len(self.clusters))
        self.summed[id(resident)] = set()
        self.is_outside[id(resident)] = not lanes[0].side.own
        spanned = node.children[resident.first : resident.last + 1]
        self.readers[id(resident)] = self.is_read(resident, spanned), self.is_read(resident, spanned[1:])
        for side, _ in lanes:
            box = self.new_box(tensor, node, resident, side.spans, side.fresh)
            stores = {k: self.clusters[k].buffer(id(resident), tensor) for k in side.clusters}
            if box is None:
                continue
            taken.append((side, box))
            if tensor not in made:
                wants += [Filling(k, side, store, self.wanted(resident, k, box)) for k, store in stores.items()]
            elif self.goes_on(tensor, side):
                wants += [Filling(k, side, store, box) for k, store in stores.items()]
        if tensor in made and wants and self.is_sum_of_clusters(tensor, wants[0].side, node.children[resident.first]):
            wants = wants[:1]  # one cluster goes on with the sum, others begin
        self.bring(tensor, [each for each in wants if not is_empty(each.box)], held)
        if tensor in made:
            outside = [each for each in wants if not each.side.own]
            self.not_made |= {(each.cluster, id(resident)): np.array(each.store.done > 0) for each in outside}
        return taken

    def is_sum_of_clusters(self, tensor: Tensor, side: Side, child: Node) -> bool:
        maker = self.network.maker[tensor]
        return maker.name in side.begins or sums_over_clusters(self, child, maker)

    def goes_on(self, tensor: Tensor, side: Side) -> bool:
        maker = self.network.maker[tensor]
        return self.continues(maker, side.since(maker))

    def end(self, residents: list[Resident], lanes: tuple[Lane, ...]) -> None:
        for resident, (side, kept) in product(residents, lanes):
            tensor = self.tensors[resident.tensor]
            for memory in (self.clusters[k] for k in side.clusters):
                memory.active[tensor] = [each for each in memory.active[tensor] if each[0] is not resident]
                memory.buffers[id(resident), tensor].keep(_of(kept, id(resident), tensor))

    # ------------------------------------------------------------ layers

    def compute(self, node: Compute, lanes: tuple[Lane, ...], held: Held) -> None:
        own, last = self.own(node, held), {t: name for name in node.layers for t in operands_of(self.layers[name])}
        for lane in lanes:
            for k in lane.side.clusters:
                for tensor in own:
                    self.clusters[k].buffer(id(node), tensor)
        for name in node.layers:
            layer = self.layers[name]
            parts = [
                _Part(self, layer, node, k, lane.side, own, held)
                for lane in lanes if not is_empty(lane.side.spans[name]) for k in lane.side.clusters
            ]  # fmt: skip
            self.read_all(layer, parts)
            for part in parts:
                part.make(part is parts[0])
                self.run.points[name] += math.prod(b - a for a, b in map(part.points.range_of, layer.axes))
            self.write_all(layer, parts)
            for tensor in (tensor for tensor in own if last[tensor] == name):
                for lane in lanes:
                    for k in lane.side.clusters:
                        self.clusters[k].buffers[id(node), tensor].keep(_of(lane.kept, id(node), tensor))

    def read_all(self, layer: Layer, parts: list[_Part]) -> None:
        """Operands that are streamed come from DRAM, and what clusters do not have from others."""
        read: dict[Tensor, list[tuple[_Part, Box]]] = {}
        for part in parts:
            self.clusters[part.cluster].clock.now += 2
            for tensor, box in self.streams(layer, part.span):
                read.setdefault(tensor, []).append((part, box))
        for tensor, taken in read.items():
            loads = [(part, rest) for part, box in taken if (rest := part.streamed(tensor, box)) is not None]
            owns = [(part, own_part(part.side, rest) if part.side.is_exchanged else rest) for part, rest in loads]
            self.count_reads(tensor, [(part.cluster, own) for part, own in owns])
            for part, rest in loads:
                part.tile(tensor, rest)
                if part.side.is_exchanged:
                    self.count_links(tensor, self.exchanged(tensor, part, rest, owns))
            for part, box in taken:
                part.gather(tensor, box)

    def exchanged(self, tensor: Tensor, part: _Part, rest: Box, loads: list[tuple[_Part, Box]]) -> int:
        """Elements that a cluster does not load itself, each of which another one loads."""
        own, others = (np.zeros(self.dram[tensor].done.shape, bool) for _ in range(2))
        for other, box in loads:
            (own if other is part else others)[self.dram[tensor].place(box)] = True
        lacking = ~own[self.dram[tensor].place(rest)]
        if (lacking & ~others[self.dram[tensor].place(rest)]).any():
            raise AbsentElement(f"{part.layer.name} reads {tensor.name} where no cluster loads it {part.title}")
        return int(lacking.sum())

    def write_all(self, layer: Layer, parts: list[_Part]) -> None:
        result = layer.result
        rests = [(part, part.rest) for part in parts if part.rest is not None]
        self.count_writes(result, [(part.cluster, rest) for part, rest in rests])
        self.count_reads(result, [(part.cluster, rest) for part, rest in rests if part.does_reread])
        if rests and rests[0][0].is_sum:
            (first, rest), box = rests[0], rests[0][0].box
            state, done = self.sum_of(layer, box, [(part.state, part.done) for part, _ in rests])
            self.count_sums(result, (len(rests) - 1) * math.prod(b - a for a, b in rest.values()))
            self.dram[result].write({axis: rest[axis] for axis in box}, first.inside(state, rest), done)
        for part in parts:
            part.write()


class _Part:
    """A part of a layer that a cluster makes in one pass: tiles of what is streamed, and buffers."""

    state: Array
    done: int

    def __init__(
        self, machine: _Machine, layer: Layer, node: Compute, cluster: int, side: Side, own: list[Tensor], held: Held
    ) -> None:
        self.machine, self.layer, self.cluster, self.side, self.held = machine, layer, cluster, side, held
        self.memory, self.span = machine.clusters[cluster], side.spans[layer.name]
        self.place, self.own = id(node), {tensor: self.memory.buffer(id(node), tensor) for tensor in own}
        self.points = Points(layer, self.span, self.fetch)
        self.box = {axis: self.points.range_of(axis) for axis in layer.result.axes}
        self.rest = self.streamed(layer.result, self.box)
        self.tiles: dict[Tensor, list[Tile]] = defaultdict(list)
        self.received: dict[Tensor, list[Store]] = defaultdict(list)
        self.is_sum = layer.name in side.begins
        self.does_reread = False

    @property
    def title(self) -> str:
        return f"(pass: {'; '.join(self.machine.where) or 'no loop'})"

    def tile(self, tensor: Tensor, box: Box) -> None:
        self.tiles[tensor].append(Tile(self.machine.dram[tensor], box))

    def gather(self, tensor: Tensor, box: Box) -> None:
        """Elements that other clusters have, where this one looks."""
        if tensor in self.own:
            self.machine.receive(self.own[tensor], self.cluster, self.place, box)
        elif (store := self.machine.gather(tensor, self.cluster, box)) is not None:
            self.received[tensor].append(store)

    def streamed(self, tensor: Tensor, box: Box) -> Box | None:
        """What of a box lies in DRAM alone."""
        if tensor in self.own or self.held.get(tensor) == ():
            return None
        rest = without(box, self.held.get(tensor, ()))
        return None if is_empty(rest) else rest

    def stores(self, tensor: Tensor) -> list[Store]:
        """Buffers that have the tensor, innermost first."""
        if tensor in self.own:
            return [self.own[tensor]]
        return [*(store for _, store in reversed(self.memory.active[tensor])), *self.received[tensor]]

    # ------------------------------------------------------------ operands

    def fetch(self, channel: int) -> Fetch:
        def elements(tensor: Tensor, flat: Array) -> Array:
            found, done = self.found(tensor, flat, channel)
            total = self.machine.dram[tensor].total
            if (done < total).any():
                at = int(np.argmax(done < total))
                self.refuse(tensor, int(flat[at]), "is not there" if not done[at] else "is not whole yet")
            return found

        return elements

    def found(self, tensor: Tensor, flat: Array, channel: int) -> tuple[Array, Array]:
        """Elements by their numbers in the tensor, and how many points each has; innermost buffers first."""
        found, done = np.full(flat.shape, np.nan), np.zeros(flat.shape, np.int64)
        for store in self.stores(tensor):
            has = store.done.reshape(-1)[flat]
            here = (done == 0) & (has > 0)
            found[here], done[here] = store.values[channel].reshape(-1)[flat[here]], has[here]
            store.used.reshape(-1)[flat[here]] = self.memory.clock.now
        for tile in self.tiles[tensor]:
            missing = np.flatnonzero(done == 0)
            if missing.size:
                inside, places = tile.find(flat[missing])
                found[missing[inside]] = tile.values[channel].reshape(-1)[places]
                done[missing[inside]] = tile.done.reshape(-1)[places]
        return found, done

    def refuse(self, tensor: Tensor, number: int, problem: str) -> None:
        at = np.unravel_index(number, self.machine.dram[tensor].done.shape)
        element = ", ".join(f"{axis.name} {k}" for axis, k in zip(tensor.axes, at, strict=True))
        raise AbsentElement(f"{self.layer.name} reads {tensor.name} at {element}, which {problem} {self.title}")

    # ------------------------------------------------------------ result

    def make(self, is_first: bool) -> None:
        """The numbers of the result; sums that earlier passes have begun go on: those in DRAM in the first of several
        clusters that add theirs."""
        layer, machine = self.layer, self.machine
        kind, result = kind_of(layer), layer.result
        state = kind.part(self.points)
        state = np.broadcast_to(state, (len(state), *self.points.shape))
        wide = [b - a for a, b in (self.points.range_of(x) for x in layer.combine if x not in result.axes)]
        done = math.prod(wide)
        if machine.continues(layer, self.side.since(layer)) and not self.begins_here(is_first):
            before, state_before = self.before()
            state, done = kind.merge(self.points, state_before, state), before + done
            self.memory.clock.now += 1
        elif layer.storage_of is not None:
            self.memory.clock.now += 1  # in the storage of what was just read
        if done > points_of(layer):
            raise PlanError(f"{layer.name} sums {done} points of {points_of(layer)} {self.title}")
        self.state, self.done = state, done

    def begins_here(self, is_first: bool) -> bool:
        """Whether passes outside have begun the sum in another cluster."""
        if not self.is_sum:
            return False
        stores = self.stores(self.layer.result)
        return not is_first if self.rest is not None else not any(s.done[s.place(self.box)].any() for s in stores)

    def before(self) -> tuple[int, Array]:
        """Sums that earlier passes have begun, and how many points they have."""
        result = self.layer.result
        if self.rest is not None:
            self.does_reread = True
            self.tile(result, self.rest)
        channels, shape = kind_of(self.layer).channels, self.points.shape
        store = self.machine.dram[result]
        places = np.ix_(*(np.arange(*ends) for ends in self.box.values()))
        numbers = np.ravel_multi_index(places, store.done.shape).reshape(-1) if places else np.zeros(1, np.int64)
        found = [self.found(result, numbers, channel) for channel in range(channels)]
        done = found[0][1]
        if done.min() != done.max() or not done.min():
            self.refuse(result, int(numbers[int(np.argmin(done))]), "earlier passes have not begun to sum")
        return int(done[0]), np.stack([values.reshape(shape) for values, _ in found])

    def write(self) -> None:
        """Into buffers that hold the result, parts of it too, and DRAM; not sums of several clusters."""
        result, state = self.layer.result, self.state
        if self.done == points_of(self.layer) and not self.is_sum:
            state = finished(self.points, state)
            self.machine.made[result].write(self.box, state, self.done)
        if self.rest is not None and not self.is_sum:
            rest = {axis: self.rest[axis] for axis in self.box}
            self.machine.dram[result].write(rest, self.inside(state, rest), self.done)
        for place, store, box in self.targets():
            store.write(box, self.inside(state, box), self.done)
            if (mask := self.machine.not_made.get((self.cluster, place))) is not None:
                mask[store.place(box)] = False
        self.overwrite()

    def inside(self, state: Array, box: Box) -> Array:
        here = (slice(a - b, c - b) for (a, c), (b, _) in zip(box.values(), self.box.values(), strict=True))
        return np.asarray(state[(slice(None), *here)])

    def targets(self) -> Iterator[tuple[int, Store, Box]]:
        result = self.layer.result
        if result in self.own:
            yield self.place, self.own[result], self.box
            return
        for resident, store in self.memory.active[result]:
            of = self.machine.parted if self.side.own else partial(self.machine.wanted, cluster=self.cluster)
            box = of(resident, box=self.box)
            if self.is_sum and self.machine.is_outside[id(resident)]:
                self.machine.summed[id(resident)].add(self.cluster)
            if not is_empty(box):
                yield id(resident), store, box

    def overwrite(self) -> None:
        """A result in the storage of another tensor takes the places that it has read of it."""
        for resident, _ in self.memory.active[self.layer.result]:
            old = self.machine.tensors.get(resident.storage_of)
            read = [box for boxes in self.layer.part(self.box) for tensor, box in boxes if tensor is old]
            for _, store in self.memory.active[old] if old is not None else ():
                for box in read:
                    store.drop(store.place(box))


def _of(kept: Kept, place: int, tensor: Tensor) -> list[tuple[Axis, Range]]:
    return [(axis, ends) for own, other, axis, ends in kept if own == place and other is tensor]


def _first(store: Store) -> str:
    at = np.argwhere(store.done < store.total)[0]
    return ", ".join(f"{axis.name} {k}" for axis, k in zip(store.tensor.axes, at, strict=True))
