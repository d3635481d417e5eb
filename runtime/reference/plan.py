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
from dataclasses import dataclass, field

import numpy as np

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Box, Layer
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.plan.check import PlanError, check_plan, operands_of, with_copies
from frustum.dialects.plan.ranges import Fresh, Held, Range, Ranged, Spans, is_empty, without
from frustum.dialects.plan.tree import Compute, Loop, Node, Resident, Sequence, nodes_in
from frustum.runtime.kernels import Array
from frustum.runtime.reference.axes import Fetch
from frustum.runtime.reference.plan_layers import Points, channels_of, finished, kind_of
from frustum.runtime.reference.plan_stores import Clock, Store, Tile, points_of

Kept = tuple[tuple[int, Tensor, Axis, Range], ...]
"""Of buffers, by `id` of residency or compute, positions that later passes of rolling loops outside read."""


class AbsentElement(PlanError):
    """A layer reads an element that the plan has not brought to where it looks."""


@dataclass
class Run:
    """What a plan made: every tensor's elements as they were made last; and what it copied.

    `sram_bytes`: the most that lay in buffers at a time and was used later, without tiles of what is streamed.
    """

    values: dict[Tensor, Array] = field(default_factory=dict)
    is_made: dict[Tensor, Array] = field(default_factory=dict)
    """Elements that nobody reads may never be made."""
    read_bytes: int = 0
    write_bytes: int = 0
    sram_bytes: int = 0
    points: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def run_plan(
    network: AxisNetwork, plan: Node, arrays: Mapping[str, Array], *, is_checked: bool = True
) -> Run:
    """`arrays`: inputs and weights by the names of their tensors.  PlanError where the tree is no plan of the network
    (unless it is not checked), or reads what is not there."""
    if is_checked:
        check_plan(network, plan)
    machine = _Machine(with_copies(network, plan), plan, arrays)
    machine.visit(plan, {name: {} for name in machine.layers}, {}, (), {})
    return machine.finished()


class _Machine(Ranged):
    def __init__(self, network: AxisNetwork, plan: Node, arrays: Mapping[str, Array]) -> None:
        super().__init__(network, plan)
        self.run, self.clock = Run(), Clock()
        self.dram = {tensor: self.store(tensor) for tensor in network.tensors}
        self.made = {tensor: self.store(tensor) for tensor in network.maker}
        """Every element as it was made last, which nobody reads."""
        self.buffers: dict[tuple[int, Tensor], Store] = {}
        """Of residents, and of what layers of a compute hand each other."""
        self.active: dict[Tensor, list[tuple[Resident, Store]]] = defaultdict(list)
        """Residents of each tensor, outermost first."""
        self.where: list[str] = []
        for tensor, store in self.dram.items():
            if tensor.kind in (Kind.INPUT, Kind.WEIGHT):
                store.fill(arrays[tensor.name])

    def store(self, tensor: Tensor, clock: Clock | None = None) -> Store:
        maker = self.network.maker.get(tensor)
        return Store(tensor, channels_of(maker), points_of(maker), clock)

    def finished(self) -> Run:
        for tensor, store in self.dram.items():
            if tensor.is_output and (store.done < store.total).any():
                raise AbsentElement(f"{tensor.name}, an output, is not whole in DRAM: {_first(store)} is not there")
        for store in self.buffers.values():
            store.keep(())
        self.run.sram_bytes = self.clock.most_bits() // 8
        self.run.values = {tensor: store.values[0] for tensor, store in self.made.items()}
        self.run.is_made = {tensor: store.done > 0 for tensor, store in self.made.items()}
        return self.run

    # ------------------------------------------------------------ nodes

    def visit(self, node: Node, spans: Spans, fresh: Fresh, kept: Kept, held: Held) -> None:
        match node:
            case Compute():
                self.compute(node, spans, kept, held)
            case Loop():
                self.loop(node, spans, fresh, kept, held)
            case Sequence():
                self.sequence(node, spans, fresh, kept, held)

    def loop(self, node: Loop, spans: Spans, fresh: Fresh, kept: Kept, held: Held) -> None:
        passes, moving = self.passes(node, spans)
        rolling = [each for each in moving if each.new]
        inside = {id(each) for each in nodes_in(node)}
        inside |= {id(r) for each in nodes_in(node) if isinstance(each, Sequence) for r in each.residents}
        for k, here in enumerate(passes):
            new = {(each.place, each.axis): each.new[k] for each in rolling}
            old, later = (
                tuple((m.place, m.tensor, m.axis, m.stays[at]) for m in rolling if at < len(passes))
                for at in (k, k + 1)
            )
            self.where.append(f"{node.axis} {node.edges[k]}:{node.edges[k + 1]}")
            self.visit(node.body, here, {**fresh, **new}, (*kept, *old, *later), held)
            self.where.pop()
            for (place, tensor), store in self.buffers.items():
                if rolling and place in inside:
                    store.keep(_of((*kept, *later), place, tensor))

    # ------------------------------------------------------------ residents

    def sequence(self, node: Sequence, spans: Spans, fresh: Fresh, kept: Kept, held: Held) -> None:
        if node.subsets:
            raise PlanError("a sequence on subsets: only children in order are run", node)
        for k, child in enumerate(node.children):
            made, begun = set(self.made_in(child)), []
            for resident in node.residents:
                if resident.first == k:
                    tensor = self.tensors[resident.tensor]
                    store = self.buffer(id(resident), tensor)
                    box = self.new_box(tensor, node, resident, spans, fresh)
                    if box is not None and (tensor not in made or self.is_begun(tensor, spans)):
                        self.load(store, box, held)
                    begun.append((resident, store, box))
            for resident, store, _ in begun:
                self.active[store.tensor].append((resident, store))
            self.visit(child, spans, fresh, kept, self.held_at(node, k, held))
            for resident, store, box in begun:
                if box is not None and store.tensor in made and self.leaves(store.tensor, node, resident):
                    self.save(store, box, held)
            self.end([r for r in node.residents if r.last == k], kept)

    def buffer(self, place: int, tensor: Tensor) -> Store:
        if (place, tensor) not in self.buffers:
            self.buffers[place, tensor] = self.store(tensor, self.clock)
        return self.buffers[place, tensor]

    def load(self, store: Store, box: Box, held: Held) -> None:
        """What residents outside have comes from there, the rest from DRAM."""
        self.clock.now += 1
        parts = held.get(store.tensor)
        rest = {} if parts == () else without(box, parts or ())
        if parts != () and not is_empty(rest):
            self.read(store.tensor, store.copy(self.dram[store.tensor], rest))
        for _, other in self.active[store.tensor]:
            store.overlay(other, box)

    def save(self, store: Store, box: Box, held: Held) -> None:
        """Residents outside have had the elements when they were made; DRAM gets the rest."""
        parts = held.get(store.tensor)
        if parts != () and not is_empty(rest := without(box, parts or ())):
            self.write(store.tensor, self.dram[store.tensor].copy(store, rest))

    def end(self, residents: list[Resident], kept: Kept) -> None:
        for resident in residents:
            tensor = self.tensors[resident.tensor]
            self.active[tensor] = [each for each in self.active[tensor] if each[0] is not resident]
            self.buffers[id(resident), tensor].keep(_of(kept, id(resident), tensor))

    def read(self, tensor: Tensor, elements: int) -> None:
        self.run.read_bytes += _bytes(tensor, elements)

    def write(self, tensor: Tensor, elements: int) -> None:
        self.run.write_bytes += _bytes(tensor, elements)

    # ------------------------------------------------------------ layers

    def compute(self, node: Compute, spans: Spans, kept: Kept, held: Held) -> None:
        own = {tensor: self.buffer(id(node), tensor) for tensor in self.own(node, held)}
        last = {t: name for name in node.layers for t in operands_of(self.layers[name])}
        for name in node.layers:
            layer, span = self.layers[name], spans[name]
            ended = [tensor for tensor in own if last[tensor] == name]
            if not is_empty(span):
                self.clock.now += 2
                part = _Part(self, layer, span, own, held)
                part.make()
                self.run.points[name] += math.prod(b - a for a, b in map(part.points.range_of, layer.axes))
            for tensor in ended:
                own[tensor].keep(_of(kept, id(node), tensor))


class _Part:
    """A part of a layer in one pass: tiles of what is streamed, and buffers."""

    def __init__(
        self, machine: _Machine, layer: Layer, span: Box, own: Mapping[Tensor, Store], held: Held
    ) -> None:
        self.machine, self.layer, self.span, self.own, self.held = machine, layer, span, own, held
        self.points = Points(layer, span, self.fetch)
        self.box = {axis: self.points.range_of(axis) for axis in layer.result.axes}
        self.tiles: dict[Tensor, list[Tile]] = defaultdict(list)
        for tensor, box in machine.streams(layer, span):
            rest = self.streamed(tensor, box)
            if rest is not None and tensor is not layer.result:
                machine.read(tensor, self.tile(tensor, rest).done.size)

    def tile(self, tensor: Tensor, box: Box) -> Tile:
        made = Tile(self.machine.dram[tensor], box)
        self.tiles[tensor].append(made)
        return made

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
        return [store for _, store in reversed(self.machine.active[tensor])]

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
            store.used.reshape(-1)[flat[here]] = self.machine.clock.now
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
        where = "; ".join(self.machine.where) or "no loop"
        raise AbsentElement(f"{self.layer.name} reads {tensor.name} at {element}, which {problem} (pass: {where})")

    # ------------------------------------------------------------ result

    def make(self) -> None:
        layer, machine = self.layer, self.machine
        kind, result = kind_of(layer), layer.result
        state = kind.part(self.points)
        state = np.broadcast_to(state, (len(state), *self.points.shape))
        wide = [b - a for a, b in (self.points.range_of(x) for x in layer.combine if x not in result.axes)]
        done, rest = math.prod(wide), self.streamed(result, self.box)
        is_begun = machine.continues(layer, self.span)
        if is_begun:
            before, state_before = self.before(rest)
            state, done = kind.merge(self.points, state_before, state), before + done
        total = points_of(layer)
        if done > total:
            raise PlanError(f"{layer.name} sums {done} points of {total} (pass: {'; '.join(machine.where)})")
        if done == total:
            state = finished(self.points, state)
            machine.made[result].write(self.box, state, done)
        machine.clock.now += is_begun or layer.storage_of is not None  # in the storage of what was just read
        for store, box in self.targets(rest):
            here = tuple(slice(a - b, c - b) for (a, c), (b, _) in zip(box.values(), self.box.values(), strict=True))
            store.write(box, state[(slice(None), *here)], done)
        if rest is not None:
            machine.write(result, math.prod(b - a for a, b in rest.values()))
        self.overwrite()

    def before(self, rest: Box | None) -> tuple[int, Array]:
        """Sums that earlier passes have begun, and how many points they have."""
        result = self.layer.result
        if rest is not None:
            self.machine.read(result, self.tile(result, rest).done.size)
        channels, shape = kind_of(self.layer).channels, self.points.shape
        store = self.machine.dram[result]
        places = np.ix_(*(np.arange(*ends) for ends in self.box.values()))
        numbers = np.ravel_multi_index(places, store.done.shape).reshape(-1) if places else np.zeros(1, np.int64)
        found = [self.found(result, numbers, channel) for channel in range(channels)]
        done = found[0][1]
        if done.min() != done.max() or not done.min():
            self.refuse(result, int(numbers[int(np.argmin(done))]), "earlier passes have not begun to sum")
        return int(done[0]), np.stack([values.reshape(shape) for values, _ in found])

    def targets(self, rest: Box | None) -> Iterator[tuple[Store, Box]]:
        """Where the result goes: buffers that hold it, parts of it too, and DRAM."""
        result = self.layer.result
        if rest is not None:
            yield self.machine.dram[result], {axis: rest[axis] for axis in self.box}
        if result in self.own:
            yield self.own[result], self.box
            return
        for resident, store in self.machine.active[result]:
            box = dict(self.box)
            if resident.part is not None:
                axis = next(a for a in box if a.name == resident.part.axis)
                low, high = box[axis]
                box[axis] = max(low, resident.part.start), min(high, resident.part.stop)
            if not is_empty(box):
                yield store, box

    def overwrite(self) -> None:
        """A result in the storage of another tensor takes the elements at its places, or all where places differ."""
        result = self.layer.result
        for resident, _ in self.machine.active[result]:
            old = self.machine.tensors.get(resident.storage_of)
            for _, store in self.machine.active[old] if old is not None else ():
                box = self.box if old is not None and old.axes == result.axes else {}
                store.drop(store.place(box))


def _of(kept: Kept, place: int, tensor: Tensor) -> list[tuple[Axis, Range]]:
    return [(axis, ends) for own, other, axis, ends in kept if own == place and other is tensor]


def _first(store: Store) -> str:
    at = np.argwhere(store.done < store.total)[0]
    return ", ".join(f"{axis.name} {k}" for axis, k in zip(store.tensor.axes, at, strict=True))


def _bytes(tensor: Tensor, elements: int) -> int:
    return -(-elements * tensor.element_bits // 8)
