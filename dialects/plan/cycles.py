# Tests: test/dialects/plan/test_cycles.py
"""Cycles and energy of a plan on a machine, from the boxes of every pass.

Of each node the engines are added up: the DRAM port, links, matrix units, vector units, copies to and from cores.  A
loop around one child takes what its busiest engine takes, and what its first pass takes beside that.  Children of a
sequence come one after the other, and so does what is loaded before them.  In a compute what streams and what cores do
overlap but for the first slice; layers that hand each other all that they make may follow each other in the cores.
What a layer waits for first comes while the DRAM port was idle before.
Figures of the machine are those of `layer_cycles.py`; none is fitted to a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.check import PlanError, check_plan, with_copies
from frustum.dialects.plan.clusters import Side, Taken, clusters_of
from frustum.dialects.plan.core_chains import LONGEST, ChainCycles, handed_on
from frustum.dialects.plan.count import CountingWalk, bytes_of
from frustum.dialects.plan.layer_cycles import (
    ClusterCycles,
    LayerCycles,
    MatrixProduct,
    crossing_pj,
    products_of,
)
from frustum.dialects.plan.occupancy import Counted, Occupancy, Place
from frustum.dialects.plan.ranges import Held, is_empty
from frustum.dialects.plan.streams import Stream, StreamCycles, StreamedLayer
from frustum.dialects.plan.tree import Compute, Loop, Node, Part, Sequence
from frustum.dialects.target import Target
from frustum.dialects.target.durations import port_bytes
from frustum.dialects.target.fit import HOLES

DRAM, LINKS, MATRIX, VECTOR, COPIES = ENGINES = range(5)
"""Places in lists of cycles of engines."""


@dataclass
class EngineWork:
    """What a part of a plan takes: cycles of each engine, and cycles from its beginning to its end; `own_loads`: cycles
    of the DRAM port for what no child loads or stores, and `own_bytes` its bytes."""

    engines: list[float] = field(default_factory=lambda: [0.0] * len(ENGINES))
    cycles: float = 0.0
    own_loads: float = 0.0
    own_bytes: int = 0
    steady: float = 0.0
    """Cycles of a further pass, for which what comes first has come meanwhile."""

    def add(self, other: EngineWork) -> None:
        """Another part behind this one."""
        self.engines = [a + b for a, b in zip(self.engines, other.engines, strict=True)]
        self.cycles += other.cycles
        self.steady += other.steady


KnownLayers: TypeAlias = dict[tuple[object, ...], tuple[LayerCycles, StreamCycles]]
"""What parts of layers take, by all that it depends on in one network and machine."""


@dataclass(frozen=True, eq=False)
class TimedLayer:
    """A layer of a compute: what comes for it in slices, bytes of SRAM that are free meanwhile, and what it takes of
    the clusters of each side."""

    layer: Layer
    streams: tuple[Stream, ...]
    room: int
    found: list[tuple[Side, LayerCycles, StreamCycles]]

    @cached_property
    def engines(self) -> LayerCycles:
        """The most of each."""
        own = [each for _, each, _ in self.found]
        matrix, vector = max(each.matrix for each in own), max(each.vector for each in own)
        return LayerCycles(matrix, vector, max(each.copies for each in own))

    @cached_property
    def way(self) -> StreamCycles:
        """The most of each."""
        ways = [way for _, _, way in self.found]
        steady = max(way.steady for way in ways)
        return StreamCycles(steady, max(way.cycles for way in ways) - steady, max(way.port for way in ways))

    @property
    def longest(self) -> Side:
        """The side that takes the most cycles."""
        return max(self.found, key=lambda each: each[2].steady)[0]


def timed(network: AxisNetwork, plan: Node, target: Target, known: KnownLayers | None = None) -> Counted:
    """The count of a plan, with what it takes on a machine.  `known`: what was found for other plans.  PlanError where
    it is none of the network, or for clusters with links that the machine has not."""
    check_plan(network, plan)
    own = with_copies(network, plan)
    sizes = CountingWalk(own, plan)
    sizes.run()
    walk = _TimedWalk(own, plan, target, sizes, {} if known is None else known)
    walk.run()
    walk.counted.at_ease = Counted()
    Occupancy(walk, target.chip.dram.minimum_run_bytes, walk.counted.at_ease).peak(plan, ())
    walk.counted.cycles = math.ceil(walk.now.cycles)
    return walk.counted


class _TimedWalk(CountingWalk):
    """A count that adds up cycles too."""

    target: Target
    now: EngineWork
    known: KnownLayers

    def __init__(
        self, network: AxisNetwork, plan: Node, target: Target, sizes: CountingWalk, known: KnownLayers
    ) -> None:  # fmt: skip
        super().__init__(network, plan)
        self.taken: Mapping[tuple[int, str], int] = sizes.beside
        self.rolling: Container[tuple[int, int, Tensor]] = sizes.stays
        self.streaming: list[Stream] | None = None
        self.capacity: int = target.cluster.sram.capacity_bytes
        self.target, self.now = target, EngineWork()
        self.cluster = ClusterCycles(target.cluster)
        self.products: dict[str, tuple[MatrixProduct, ...]] = {
            name: tuple(products_of(layer)) for name, layer in self.layers.items()
        }
        self.known = known
        self.in_chains: dict[tuple[object, ...], LayerCycles] = {}
        self.idle, self.room = 0.0, 0
        """Of what ran last the cycles in which the DRAM port was idle, and bytes of SRAM that were free."""
        self.first: dict[int, EngineWork] = {}
        """Of the body of each loop that runs its first pass."""
        self.clusters = clusters_of(plan)

    def visit(self, node: Node, sides: tuple[Side, ...], held: Held) -> None:
        with self.part(node) as work:
            super().visit(node, sides, held)
            if isinstance(node, Sequence):
                work.cycles += work.own_loads + self.target.chip.dram.latency_cycles * (work.own_loads > 0)
                room = self.capacity - self.capacity // HOLES - self.taken.get((id(node), ""), self.capacity)
                # a second copy of what is loaded has room: it comes a pass ahead
                is_ahead = work.own_bytes <= room and not self.is_in_one_ring(node)
                work.steady = max(work.steady, *work.engines) if is_ahead else work.steady + work.own_loads
        self.first.setdefault(id(node), work)

    def is_in_one_ring(self, node: Sequence) -> bool:
        """Whether a resident rolls along a loop further out: then all passes of the loops inside that one share a ring,
        into which nothing comes ahead."""
        own = [(id(each), self.tensors[each.tensor]) for each in node.residents]
        return any((id(loop), place, tensor) in self.rolling for loop in self.around[:-1] for place, tensor in own)

    def loop(self, node: Loop, sides: tuple[Side, ...], held: Held) -> None:
        self.first.pop(id(node.body), None)
        super().loop(node, sides, held)
        if id(node.body) in self.first:  # what a pass begins with comes during the one before
            first = self.first[id(node.body)]
            self.now.cycles = max(self.now.steady, *self.now.engines) + first.cycles - first.steady

    @contextmanager
    def part(self, node: Node) -> Iterator[EngineWork]:
        """What is added meanwhile is of this node, and of the one around it."""
        outer, self.now, links = self.now, EngineWork(), self.counted.link_bytes
        yield self.now
        received = self.counted.link_bytes - links
        if received:
            cdma = self.target.cluster.cdma
            if cdma is None:
                raise PlanError(f"clusters receive {received} B of each other; {self.target.name} has no links", node)
            self.now.engines[LINKS] = received / (cdma.bytes_per_cycle * self.clusters)
            self.now.cycles = max(self.now.cycles, self.now.engines[LINKS])
        self.counted.taken[id(node)] += self.now.cycles
        outer.add(self.now)
        self.now = outer

    # ------------------------------------------------------------ the DRAM port

    def load(self, tensor: Tensor, taken: Taken, bits: int | None = None) -> None:
        before = self.counted.dram_bytes
        super().load(tensor, taken, bits)
        self.crosses(tensor, taken, self.counted.dram_bytes - before)

    def store(self, layer: Layer, taken: Taken) -> None:
        before = self.counted.dram_bytes
        super().store(layer, taken)
        self.crosses(layer.result, taken, self.counted.dram_bytes - before)

    def crosses(self, tensor: Tensor, taken: Taken, size: int) -> None:
        """Bytes cross the DRAM port; short runs take as long as the least."""
        if not size:
            return
        chip = self.target.chip
        if self.streaming is not None:
            self.streaming.append(Stream(tensor, taken[0][1], size))
            self.counted.energy_pj += size * crossing_pj(self.target)
            return
        run = run_bytes(tensor, taken[0][1])
        cycles = port_bytes(chip.dram, run, size / run) / chip.dram.port_bytes_per_cycle
        self.now.engines[DRAM] += cycles
        self.now.own_loads += cycles
        self.now.own_bytes += size
        self.counted.energy_pj += size * crossing_pj(self.target)

    # ------------------------------------------------------------ layers

    def compute(self, node: Compute, sides: tuple[Side, ...], held: Held) -> None:
        self.flows: dict[str, list[Stream]] = {}
        self.begun: set[str] = set()
        super().compute(node, sides, held)
        own, parts = set(self.own(node, held)), list[TimedLayer]()
        for name in node.layers:
            layer, streams = self.layers[name], tuple(self.flows.get(name, []))
            room = self.capacity - self.taken.get((id(node), name), 0)
            some = [side for side in sides if not is_empty(side.spans[name])]
            found = [(side, *self.layer(layer, side, own, streams, room)) for side in some]
            if found:
                parts.append(TimedLayer(layer, streams, room, found))
        while parts:
            parts = parts[self.chain_or_layer(node, parts, own) :]

    def chain_or_layer(self, node: Compute, parts: list[TimedLayer], own: set[Tensor]) -> int:
        """Adds the longest chain that takes less than its layers one by one, or one layer; of how many layers."""
        latency, restart = self.target.chip.dram.latency_cycles, self.cluster.restart
        for count in range(min(len(parts), LONGEST), 1, -1):
            chain = self.chain(node, parts[:count], own)
            if chain is None:
                continue
            port = sum(part.way.port for part in parts[:count])
            whole, begins = chain.cycles + restart, latency * (port > 0)
            alone = sum(each.way.cycles + restart + latency * bool(each.streams) for each in parts[:count])
            if begins + port + whole < alone:  # all that comes is there before the first piece
                self.add(parts[:count], chain.engines, max(whole, port), begins + min(whole, port))
                return count
        (part,) = parts[:1]
        first = part.way.first + latency * bool(part.streams)
        self.add([part], part.engines, part.way.steady + restart, first)
        return 1

    def chain(self, node: Compute, parts: list[TimedLayer], own: set[Tensor]) -> ChainCycles | None:
        """None where these layers do not follow each other in the cores: nothing that they hand on stays from pass to
        pass, and no sums go on."""
        layers = [part.layer for part in parts]
        inside = handed_on(self.network, layers, own)
        if inside is None or any(layer.name in self.begun for layer in layers):
            return None
        made = [layer.result for layer in layers[:-1]]
        if any((id(loop), id(node), tensor) in self.rolling for loop in self.around for tensor in made):
            return None
        cycles = list[LayerCycles]()
        for layer, side in zip(layers, (part.longest for part in parts), strict=True):
            extents, stored = self.crossing(layer, side, lambda tensor, reader: tensor in inside)
            key = layer.name, *extents.values(), *stored.values()
            if key not in self.in_chains:
                self.in_chains[key] = self.cluster.of(layer, self.products[layer.name], extents, stored)
            cycles.append(self.in_chains[key])
        return ChainCycles.of(self.target.cluster, cycles)

    def add(self, parts: list[TimedLayer], engines: LayerCycles, steady: float, first: float) -> None:
        """Layers of a compute.  What they wait for first comes while the port was idle before, where it has room, and
        no layer before makes it."""
        port = sum(part.way.port for part in parts)
        own = {DRAM: port, MATRIX: engines.matrix, VECTOR: engines.vector, COPIES: engines.copies}
        for engine, cycles in own.items():
            self.now.engines[engine] += cycles
        results = {part.layer.result for part in parts}
        streams = (stream.tensor for part in parts for stream in part.streams if stream.tensor not in results)
        has_room = first * self.target.chip.dram.port_bytes_per_cycle <= self.room
        if has_room and not any(tensor in self.network.maker for tensor in streams):
            first -= min(first, self.idle)
        self.idle, self.room = max(0.0, steady + first - port), min(part.room for part in parts)
        self.now.steady += steady
        self.now.cycles += steady + first

    def bring(self, tensor: Tensor, taken: Taken, parts: tuple[Part, ...] | None, place: Place | None = None) -> None:
        """What a layer of a compute reads comes in slices."""
        if isinstance(place, tuple):
            self.streaming = self.flows.setdefault(place[1], [])
        super().bring(tensor, taken, parts, place)
        self.streaming = None

    def make(self, node: Compute, layer: Layer, made: Taken, own: set[Tensor], held: Held) -> None:
        """So goes its result."""
        self.streaming = self.flows.setdefault(layer.name, [])
        super().make(node, layer, made, own, held)
        self.streaming = None
        if any(self.continues(layer, side.since(layer)) for side, _ in made):
            self.begun.add(layer.name)

    def layer(
        self, layer: Layer, side: Side, own: set[Tensor], streams: tuple[Stream, ...], room: int
    ) -> tuple[LayerCycles, StreamCycles]:  # fmt: skip
        """What one cluster takes for a layer's part of a pass: its engines, and together."""
        extents, stored = self.crossing(layer, side, lambda tensor, reader: self.stays_in_core(tensor, reader, own))
        energy_pj = self.cluster.energy_pj(layer, math.prod(extents.values()), sum(stored.values()))
        self.counted.energy_pj += energy_pj * len(side.clusters)
        goes_on, boxes_ = layer.name in self.begun, tuple((s.tensor.name, *s.box.values()) for s in streams)
        room = min(room, sum(each.size for each in streams))  # no way takes more
        key = layer.name, room, goes_on, boxes_, *extents.values(), *stored.values()
        if key not in self.known:
            products = self.products[layer.name]
            way = StreamedLayer(self.target, layer, products, extents, stored, streams, room, goes_on)
            self.known[key] = self.cluster.of(layer, products, extents, stored), way.best()
        return self.known[key]

    def crossing(
        self, layer: Layer, side: Side, stays: Callable[[Tensor, Layer], bool]
    ) -> tuple[dict[Axis, int], dict[int, float]]:  # fmt: skip
        """Positions of the axes of a layer's part, and bytes of each operand, and of the result (-1), that go through
        SRAM; `stays`: of a tensor and its reader whether it does not."""
        span = side.spans[layer.name]
        extents = {axis: high - low for axis in layer.axes for low, high in [span.get(axis, (0, axis.extent))]}
        boxes = layer.part(span)
        stored = {k: float(sum(bytes_of(t.element_bits, box) for t, box in each)) for k, each in enumerate(boxes)}
        made: Box = {axis: span.get(axis, (0, axis.extent)) for axis in layer.result.axes}
        stored[-1] = float(bytes_of(self.bits(layer.result), made))
        for k, each in enumerate(boxes):
            if each and all(stays(tensor, layer) for tensor, _ in each):
                stored[k] = 0.0
        readers = self.network.readers.get(layer.result)
        if readers and all(stays(layer.result, reader) for reader in readers):
            stored[-1] = 0.0
        return extents, stored

    def stays_in_core(self, tensor: Tensor, reader: Layer, own: set[Tensor]) -> bool:
        """Whether the vector unit hands a tensor to itself: it does not go through SRAM."""
        maker = self.network.maker.get(tensor)
        return tensor in own and maker is not None and not maker.macs and not reader.macs


def run_bytes(tensor: Tensor, box: Box) -> int:
    """Bytes of a box that lie one behind the other in DRAM."""
    run = 1
    for axis in reversed(tensor.axes):
        low, high = box.get(axis, (0, axis.extent))
        run *= high - low
        if high - low < axis.extent:
            break
    return max(1, run * tensor.element_bits // 8)
