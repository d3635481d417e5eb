"""A bound on the cycles of any program for a network on a machine, and what binds.

From what the network asks at least (`passes/analysis/least_work.py`) and the machine's numbers alone.  The bound is the
greatest of

- `DRAM port`: the compulsory bytes, weights in the smallest form they may be stored in, and the latency of the
  first load and of the last store;
- `matrix passes`: the fewest passes or line-buffer writes of all products, dealt evenly to all cores; depthwise layers
  are shared with the vector units so that both end together;
- `vector unit`: pooling, normalisation, softmax, reductions and the highest scores of attention, dealt evenly;
- `weights first`: no product can begin before all weights are there that every element of its operand needs;
- `no room to load ahead`: as long as a layer is not finished, the weights of layers two products behind it are still
  needed, so that at most as many of them as the memories on chip hold can be there already.  It takes layers to use
  each weight with all positions of their map: one that loads its weights again for parts of the map is not bounded so.
- `dependent steps`: each step of a recurrence begins when the one before is done.  One core makes the products of a
  step, or several do, which send each other their parts through SRAM.

Source: docs/report.md, "The bound".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from math import ceil
from operator import and_, or_
from typing import Any, NamedTuple, TypeVar

from frustum.dialects.extents import ceil_div
from frustum.dialects.target import Target

DRAM_PORT, MATRIX, VECTOR = "DRAM port", "matrix passes", "vector unit"
WEIGHTS_FIRST, NO_ROOM = "weights first", "no room to load ahead"
STEPS = "dependent steps"
ROOFLINE = "roofline"
MOST = 256
"""Sets of weights, or layers, that a term looks at."""
T = TypeVar("T")
NEITHER, BEHIND, FAR_BEHIND = range(3)
"""Where a layer is, seen from another: elsewhere, behind it, behind it with a product between them."""


@dataclass
class Work:
    """Of some layers: cycles of all matrix units, of all vector units, and of what either may do (matrix, vector)."""

    matrix: float = 0.0
    vector: float = 0.0
    either: list[tuple[float, float]] = field(default_factory=list)

    def add(self, layer: Layer) -> None:
        if layer.matrix and layer.vector and not layer.together:
            self.either.append((layer.matrix, layer.vector))
        else:
            self.matrix += layer.matrix
            self.vector += layer.vector

    def join(self, other: Work) -> None:
        self.matrix, self.vector = self.matrix + other.matrix, self.vector + other.vector
        self.either += other.either

    def cycles(self, cores: int) -> float:
        """Of all cores until the last is done, with what may be shared shared at best."""
        left, right = self.matrix, self.vector + sum(vector for _, vector in self.either)
        for matrix, vector in sorted(self.either, key=lambda each: each[0] / each[1]):
            if left + matrix > right - vector:
                part = max(0.0, (right - left) / (matrix + vector))
                return max(left + part * matrix, right - part * vector) / cores
            left, right = left + matrix, right - vector
        return max(left, right) / cores


class Layer(NamedTuple):
    """A layer's facts; `reads`: numbers of earlier layers (None: a network input)."""

    reads: tuple[int | None, ...]
    mix: str
    weights: tuple[str, ...]
    matrix: float
    vector: float
    operands: int = 0
    """How many of what it reads are factors of its products with weights; those come first."""
    together: bool = False
    """Whether it takes both units, not either."""
    chain: tuple[int, float, bool] = (0, 0.0, False)
    """Of a recurrence its steps, cycles of the products by which each waits for the one before, and whether these
    have rows or groups that need nothing of each other."""


class Bound(NamedTuple):
    """At least so many cycles, and the name of the term."""

    cycles: int
    by: str
    terms: dict[str, int]


def bound(
    target: Target,
    compulsory_bytes: int,
    layers: Sequence[Layer],
    weight_bytes: Mapping[str, int],
    roofline: float,
) -> Bound:
    """The bound of a network.  `weight_bytes`: of each weight, as it crosses the port; `roofline` is one, too."""
    cores, dram = target.total_cores, target.chip.dram
    rate = target.chips * dram.port_bytes_per_cycle
    whole, products = Work(), Work()
    for layer in layers:
        whole.add(layer)
        if layer.matrix:
            products.add(layer)
    computes = whole.cycles(cores) > 0  # else what comes may go at once
    terms = {
        DRAM_PORT: compulsory_bytes / rate + (1 + computes) * dram.latency_cycles,
        MATRIX: products.cycles(cores),
        VECTOR: whole.cycles(cores),
        WEIGHTS_FIRST: _weights_first(layers, weight_bytes, rate, cores),
        NO_ROOM: _no_room(layers, weight_bytes, rate, cores, on_chip_bytes(target)),
        STEPS: max((_in_steps(layer, target) for layer in layers), default=0.0),
        ROOFLINE: roofline,
    }
    found = {name: ceil(cycles - 1e-6) for name, cycles in terms.items()}
    by = max(found, key=lambda name: found[name])
    return Bound(found[by], by, found)


def _in_steps(layer: Layer, target: Target) -> float:
    """Steps, each of which takes the products of one core, or those of all while the parts of others come; of several
    rows or groups each core may have its own."""
    steps, work, are_apart = layer.chain
    sent = 0 if are_apart else 2 * target.cluster.sram.latency_cycles
    return steps * (min(work, max(work / target.total_cores, sent)) + target.core.nram.latency_cycles * (work > 0))


def unit_bound(target: Target, parts: Sequence[tuple[Layer, float]], weight_bytes: Mapping[str, int]) -> int:
    """The same of a unit that makes these shares of layers: their products, other work and weights alone."""
    work = Work()
    for layer, share in parts:
        work.add(layer._replace(matrix=layer.matrix * share, vector=layer.vector * share))
    loaded = _bytes({name for layer, _ in parts for name in layer.weights}, weight_bytes)
    rate = target.chips * target.chip.dram.port_bytes_per_cycle
    return ceil(max(work.cycles(target.total_cores), loaded / rate) - 1e-6)


def layers_of(facts: Iterable[Mapping[str, Any]]) -> list[Layer]:
    """The layers of all pieces of a network, in order; those that several pieces have count once.  Several layers of
    one piece may have one name: parts of a product."""
    found: list[Layer] = []
    names: dict[tuple[str, int, int], int] = {}
    values: dict[str, int | None] = {}
    for piece in facts:
        numbers: list[int] = []
        seen = Counter[tuple[str, int]]()
        inputs = [values.get(name) for name in piece["inputs"]]

        def source(read: int, numbers: list[int] = numbers, inputs: list[int | None] = inputs) -> int | None:
            return numbers[read] if read >= 0 else inputs[-1 - read]

        for fact in piece["layers"]:
            alike = fact["name"], fact.get("macs", 0)
            key = (*alike, seen[alike])
            seen[alike] += 1
            if fact.get("macs") and key in names:
                numbers.append(names[key])
                continue
            names[key] = len(found)
            numbers.append(len(found))
            found.append(
                Layer(
                    tuple(map(source, fact["reads"])), fact["mix"], tuple(fact.get("weights", ())),
                    fact.get("matrix", 0), fact.get("vector", 0),
                    fact.get("operands", 0), fact.get("together", False), tuple(fact.get("chain", (0, 0.0, False))),
                )
            )  # fmt: skip
        values |= {name: source(number) for name, number in piece["outputs"]}
    return found


def on_chip_bytes(target: Target) -> int:
    """Bytes of all memories on all chips but DRAM."""
    core, cluster = target.core, target.cluster
    own = core.nram.capacity_bytes + core.wram.capacity_bytes
    return target.chips * target.chip.clusters * (cluster.sram.capacity_bytes + cluster.cores * own)


def _weights_first(
    layers: Sequence[Layer], weight_bytes: Mapping[str, int], rate: float, cores: int
) -> float:
    """Of each layer `any_` is what every element of its map needs, `all_` what all channels of a position need; sets of
    weights are integers with a bit for each."""
    bit = {
        name: 1 << k for k, name in enumerate(dict.fromkeys(name for each in layers for name in each.weights))
    }
    any_: list[int] = []
    all_: list[int] = []
    behind: dict[int, Work] = {}
    for layer in layers:
        anys = [0 if read is None else any_[read] for read in layer.reads] or [0]
        whole = reduce(or_, [0 if read is None else all_[read] for read in layer.reads], 0)
        common = reduce(and_ if layer.mix == "beside" else or_, anys)
        if layer.matrix:
            behind.setdefault(reduce(or_, anys[: layer.operands], 0), Work()).add(layer)
        if layer.mix == "all":
            first = [0 if read is None else all_[read] for read in layer.reads[: layer.operands]]
            any_.append(reduce(or_, [*first, *anys[layer.operands :]], 0))
        else:
            any_.append(common)
        all_.append(common if layer.mix == "part" else whole | sum(bit[name] for name in set(layer.weights)))

    def loaded(names: int) -> float:
        return sum(weight_bytes.get(name, 0) for name, its in bit.items() if its & names) / rate

    best = max((loaded(each) for each in _some(all_)), default=0.0)
    for needed in _some([each for each in behind if each]):
        work = Work()
        for each, its in behind.items():
            if needed & each == needed:
                work.join(its)
        best = max(best, loaded(needed) + work.cycles(cores))
    return best


def _some(those: Collection[T]) -> Iterator[T]:
    """All of a few, MOST of many: any of them gives a bound."""
    return islice(those, 0, None, ceil_div(max(1, len(those)), MOST))


def _no_room(
    layers: Sequence[Layer], weight_bytes: Mapping[str, int], rate: float, cores: int, memory_bytes: int
) -> float:
    """The greatest, over all layers p with weights, of the work until p is finished and the loads left then."""
    before: list[int] = []
    for number, layer in enumerate(layers):
        before.append(reduce(or_, [before[read] for read in layer.reads if read is not None], 1 << number))
    if _bytes({name for layer in layers for name in layer.weights}, weight_bytes) <= memory_bytes:
        return 0.0
    best = 0.0
    for number in _some([k for k, layer in enumerate(layers) if layer.matrix and layer.weights]):
        late = _bytes(_unfinished(layers, number), weight_bytes)
        if late > memory_bytes:
            work = Work()
            for each in range(number + 1):
                if before[number] >> each & 1 and layers[each].matrix:
                    work.add(layers[each])
            best = max(best, work.cycles(cores) + (late - memory_bytes) / rate)
    return best


def _unfinished(layers: Sequence[Layer], start: int) -> frozenset[str]:
    """The weights of layers with another product between them and layer `start`; maps side
    by side are behind it if all are: of the others the weights may be done with."""
    state = [NEITHER] * len(layers)
    state[start] = BEHIND
    found: set[str] = set()
    for number in range(start + 1, len(layers)):
        layer = layers[number]
        reads = [NEITHER if read is None else state[read] for read in layer.reads]
        most = min(reads) if layer.mix == "beside" else max(reads, default=NEITHER)
        if most == FAR_BEHIND:
            found.update(layer.weights)
        state[number] = FAR_BEHIND if most and layer.matrix and not layer.together else most
    return frozenset(found)


def _bytes(names: Iterable[str], weight_bytes: Mapping[str, int]) -> int:
    return sum(weight_bytes.get(name, 0) for name in names)
