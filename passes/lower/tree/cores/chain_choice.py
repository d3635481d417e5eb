# Tests: test/passes/lower/tree/test_chains.py
"""Pieces of several layers that follow each other in the cores: as large as NRAM and WRAM hold, in the fewest cycles.

A piece of the last layer's result decides what of the others it takes.  Matrix and vector units, and the copies beside
them, work on pieces that follow each other at the same time; so a chain takes what its busiest engine takes, and what
the first piece and the last one take by themselves.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import ELEMENT_BYTES, Element, Span
from frustum.dialects.target.durations import address_cycles, vector_cycles
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.cores.links import matched, tensors_of, wants_of
from frustum.passes.lower.tree.cores.piece_costs import Extents, PieceCosts, units_of
from frustum.passes.lower.tree.kernels.kernel import Kernel, Want
from frustum.passes.lower.tree.kernels.products import ProductKernel
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.pieces import halves
from frustum.passes.lower.tree.signatures import Signature
from frustum.passes.lower.tree.spans import FAR as UNBOUNDED
from frustum.passes.lower.tree.spans import Spans, span_of, step_at, through

CUT = 2
"""A chain's pieces are cut along so many axes of the last result, the longest. 2026-11-28."""
PIECES = 4096
"""More pieces than this a core does not make of one chain. 2026-11-28."""
NEAR = 4
"""Of pieces whose extents are quarters so many are good ones, between which others are looked for. 2026-11-29."""
FAR = 1.5
"""Ways that take so many times the cycles of the best one so far are not looked at further. 2026-11-29."""


@dataclass(frozen=True)
class ChainPiece:
    """Of a piece of a chain the spans of all layers, and their axes that some pass or core clips."""

    spans: Made
    clipped: Mapping[str, frozenset[Axis]]


PartOf: TypeAlias = Callable[[Mapping[Axis, int], Axis | None, Mapping[Axis, int]], ChainPiece | None]


@dataclass(frozen=True)
class CoreChain:
    """Kernels of layers one behind the other, how a piece of the last layer is cut, the axis along which cores share
    it, loops over pieces from the outermost, cycles, and the axis along which the innermost loop sums."""

    kernels: tuple[Kernel, ...]
    extents: Mapping[Axis, int]
    dealt: Axis | None
    order: tuple[Axis, ...]
    counts: tuple[int, ...]
    cycles: float
    summed: Axis | None = None

    @cached_property
    def stages(self) -> list[int]:
        """Of each layer: other units take what is made a pass later."""
        found = list[int]()
        for kernel in self.kernels:
            makers = zip(self.kernels, found, strict=False)
            read = ((each, stage) for each, stage in makers if wants_of(kernel, each.layer.result))
            later = (stage + (units_of(each) != units_of(kernel)) for each, stage in read)
            found.append(max(later, default=0))
        return found

    @property
    def repeats(self) -> bool:
        """Whether a layer makes a product once more."""
        return any(kernel.repeats for kernel in self.kernels)

    def repeated_by(self, number: int) -> int | None:
        """The place of the layer that makes the product at a place once more."""
        made = self.kernels[number].layer.result
        return next((k for k, each in enumerate(self.kernels) if each.repeats and wants_of(each, made)), None)

    def copies_in(self, number: int) -> int:
        """So many buffers operands have that come a pass ahead, for what makes a product once more a pass later."""
        again = self.repeated_by(number)
        return 2 if again is None else 2 + self.stages[again] - self.stages[number]

    def copies(self, number: int, *, leaves: bool) -> int:
        """So many buffers the result of a layer has, for its readers that are passes behind; it leaves the core a pass
        later."""
        if not self.counts:
            return 1
        made, stages = self.kernels[number].layer.result, self.stages
        readers = [k for k, kernel in enumerate(self.kernels) if k > number and wants_of(kernel, made)]
        return 1 + max([int(leaves), *(stages[k] - stages[number] for k in readers)])


def numbered(chain: CoreChain, ways: Sequence[Sequence[Kernel]], sign: Signature) -> tuple[Any, ...]:
    """A chain with numbers in place of its kernels, each among those of its layer, and axes."""
    kernels = tuple(
        next(k for k, each in enumerate(way) if each is kernel)
        for way, kernel in zip(ways, chain.kernels, strict=True)
    )
    extents = tuple((sign.number(axis), extent) for axis, extent in chain.extents.items())
    dealt, summed = (None if axis is None else sign.number(axis) for axis in (chain.dealt, chain.summed))
    return kernels, extents, dealt, tuple(map(sign.number, chain.order)), chain.counts, chain.cycles, summed


def chain_of(known: tuple[Any, ...], ways: Sequence[Sequence[Kernel]], sign: Signature) -> CoreChain:
    """The chain of these layers that is `numbered` so."""
    numbers, extents, dealt, order, counts, cycles, summed = known
    axes: Sequence[Axis] = sign.things
    return CoreChain(
        tuple(way[k] for way, k in zip(ways, numbers, strict=True)), {axes[k]: extent for k, extent in extents},
        None if dealt is None else axes[dealt], tuple(axes[k] for k in order), counts, cycles,
        None if summed is None else axes[summed],
    )  # fmt: skip


@dataclass(frozen=True)
class ChainChoice:
    """All ways to cut a chain.

    `ways`: kernels of each layer; `part`: a piece with such extents of the last one's result, dealt along an axis, in
    so many passes of each, or None where there are none; `made`: their spans as a whole; `leaving`: what
    leaves the core; `early`: whether loops around let operands come a pass ahead.
    """

    code: Code
    ways: Sequence[Sequence[Kernel]]
    part: PartOf
    made: Made
    elements: Mapping[Tensor, Element]
    leaving: frozenset[Tensor]
    early: bool
    summed: Axis | None = None

    def best(self) -> list[CoreChain]:
        """Of each set of axes that pieces have several positions of, and axis that cores share, the way with the fewest
        cycles; the best first."""
        found = dict[tuple[Any, ...], CoreChain]()
        for chain in self.candidates(KnownSpans(self.part)):
            several = frozenset(axis for axis, extent in chain.extents.items() if extent > 1)
            key = *map(id, chain.kernels), chain.dealt, several
            if key not in found or chain.cycles < found[key].cycles:
                found[key] = chain
        return sorted(found.values(), key=lambda chain: chain.cycles)

    def candidates(self, known: KnownSpans) -> Iterator[CoreChain]:
        """With the first kernel of each layer; then with others of one layer at a time, beside the best so far."""
        best, least = tuple(way[0] for way in self.ways if way), math.inf
        if len(best) < len(self.ways):
            return
        tried = set[tuple[int, ...]]()
        for number, way in enumerate(self.ways):
            for kernel in way:
                kernels = (*best[:number], kernel, *best[number + 1 :])
                if (key := tuple(map(id, kernels))) in tried:
                    continue
                tried.add(key)
                for chain in self.of_kernels(kernels, known):
                    yield chain
                    if chain.cycles < least:
                        best, least = kernels, chain.cycles

    def of_kernels(self, kernels: tuple[Kernel, ...], known: KnownSpans) -> Iterator[CoreChain]:
        whole = {axis: span_of(self.made[kernels[-1].layer.name], axis) for axis in kernels[-1].layer.result.axes}
        free = [axis for axis, span in whole.items() if span.extent > 1]
        free.sort(key=lambda axis: -whole[axis].extent)
        for dealt in free if self.code.cores > 1 else [None]:
            first = [] if dealt is None else [dealt]
            cut = [*dict.fromkeys([*first, *free])][: CUT + len(first)]
            if self.summed is not None:
                whole[self.summed] = span_of(self.made[kernels[-1].layer.name], self.summed)
                cut.append(self.summed)
            yield from self.cut(kernels, whole, dealt, cut, known)

    def cut(
        self, kernels: tuple[Kernel, ...], whole: Mapping[Axis, Span], dealt: Axis | None, cut: Sequence[Axis],
        known: KnownSpans,
    ) -> Iterator[CoreChain]:  # fmt: skip
        """Of these axes extents by quarters, then those between the best ones by halves."""
        own = {axis: ceil_div(whole[axis].extent, self.code.cores if axis is dealt else 1) for axis in cut}
        steps = [halves(own[axis]) for axis in cut]
        least, latency = self.least_bytes(kernels[-1], whole, cut), self.least_cycles(kernels)
        tried, good = set[tuple[int, ...]](), list[tuple[float, tuple[int, ...]]]()

        def at(place: tuple[int, ...]) -> CoreChain | None:
            tried.add(place)
            found = {axis: step[k] for axis, step, k in zip(cut, steps, place, strict=True)}
            size = least * math.prod(extent for axis, extent in found.items() if axis is not self.summed)
            counts = {axis: ceil_div(own[axis], extent) for axis, extent in found.items()}
            passes = math.prod(counts.values())
            is_far = passes > PIECES or passes * latency > known.most
            order = tuple(sorted((axis for axis in cut if counts[axis] > 1), key=self.place_in(counts)))
            is_summed = self.summed is None or self.summed in order
            if size > self.code.target.core.nram.capacity_bytes or is_far or not is_summed:
                return None
            parts = known.of(found, dealt, {axis: counts[axis] for axis in order})
            chain = CoreChain(kernels, found, dealt, order, tuple(counts[axis] for axis in order), 0.0, self.summed)
            cycles = None if parts is None else self.cycles(chain, parts, known.most)
            if cycles is None:
                return None
            known.most = min(known.most, FAR * cycles)
            good.append((cycles, place))
            return replace(chain, cycles=cycles)

        coarse = itertools.product(*({*range(0, len(step), 2), len(step) - 1} for step in steps))
        yield from filter(None, map(at, sorted(coarse, key=sum)))
        for _, (*best,) in sorted(good)[:NEAR]:
            near = ({max(k - 1, 0), k, min(k + 1, len(step) - 1)} for k, step in zip(best, steps, strict=True))
            around = itertools.product(*near)
            yield from filter(None, map(at, sorted({*around} - tried)))

    def least_bytes(self, last: Kernel, whole: Mapping[Axis, Span], cut: Sequence[Axis]) -> int:
        """Of a piece of one position along each of these axes the bytes of the last result."""
        rest = math.prod(span.extent for axis, span in whole.items() if axis not in cut)
        return rest * size_of(self.elements[last.layer.result]) * last.planes

    def least_cycles(self, kernels: Sequence[Kernel]) -> int:
        """No piece takes fewer: instructions wait for their memories."""
        target, users = self.code.target, Counter(unit for kernel in kernels for unit in units_of(kernel))
        waits = max(users.values()) * target.core.nram.latency_cycles
        return max(waits, 0 if self.summed else target.cluster.sram.latency_cycles)

    def place_in(self, counts: Mapping[Axis, int]) -> Callable[[Axis], tuple[bool, int]]:
        """Where the loop over an axis stands: that over sums inside, others by their passes."""
        return lambda axis: (axis is self.summed, counts[axis])

    def cycles(self, chain: CoreChain, piece: ChainPiece, most: float) -> float | None:
        """Of the busiest core; None where a piece does not fit, or it takes more than the most."""
        if not all(is_sayable(kernel, piece) for kernel in chain.kernels):
            return None
        account, core = ChainAccount(self, chain, piece.spans), self.code.target.core
        for number in range(len(chain.kernels)):
            if not account.add(number) or account.passes * max(account.engines.values()) > most:
                return None
            if (
                account.room["nram"] > core.nram.capacity_bytes
                or account.room["wram"] > core.wram.capacity_bytes
            ):
                return None
        begins = math.prod(chain.counts[:-1])
        first = account.first + account.engines["mvdma"]
        return (account.passes - begins) * max(account.engines.values()) + begins * first + account.once + account.wait


class KnownSpans:
    """Spans of all layers of a chain that are known, and the most cycles of ways that are looked at."""

    def __init__(self, part: PartOf) -> None:
        self.part: PartOf = part
        self.known: dict[tuple[Any, ...], ChainPiece | None] = {}
        self.most: float = math.inf

    def of(self, extents: Mapping[Axis, int], dealt: Axis | None, counts: Mapping[Axis, int]) -> ChainPiece | None:
        """What `ChainChoice.part` says."""
        key = dealt, *extents.items(), *counts.items()
        if key not in self.known:
            self.known[key] = self.part(extents, dealt, counts)
        return self.known[key]


def is_sayable(kernel: Kernel, piece: ChainPiece) -> bool:
    """Whether instructions can say a piece: of axes in one dimension the outermost alone may be clipped."""
    if kernel.may_split:
        return True
    spans, clipped = piece.spans[kernel.layer.name], piece.clipped[kernel.layer.name]
    for group in kernel.groups():
        live = [axis for axis in group if axis in clipped or span_of(spans, axis).extent > 1]
        if not clipped.isdisjoint(live[1:]):
            return False
    return True


class ChainAccount:
    """What a piece of a chain takes: cycles of engines, bytes of a core's memories; `first`: of what works, one after
    the other; `once`: cycles of what comes before all pieces, and `wait` until the last of it is there."""

    def __init__(self, choice: ChainChoice, chain: CoreChain, parts: Made) -> None:
        self.choice: ChainChoice = choice
        self.chain: CoreChain = chain
        self.parts: Made = parts
        self.code: Code = choice.code
        self.passes: int = math.prod(chain.counts)
        self.engines: dict[str, float] = {"matrix": 0.0, "vector": 0.0, "mvdma": 0.0, "bus": 0.0}
        self.room: dict[str, float] = {"nram": 0.0, "wram": 0.0}
        self.first: float = 0.0
        self.once: float = 0.0
        self.wait: float = 0.0
        self.made: set[Tensor] = {kernel.layer.result for kernel in chain.kernels[:-1]}
        self.inner: int = chain.counts[-1] if chain.summed else 1
        self.level: int = choice.code.depth + len(chain.counts) - 1

    def add(self, number: int) -> bool:
        """A layer; false where a piece has not all that it needs all of, or is no product that is made once more."""
        kernel, layer = self.chain.kernels[number], self.chain.kernels[number].layer
        spans = {axis: span_of(self.parts[layer.name], axis) for axis in layer.axes}
        whole = self.choice.made[layer.name]
        if (
            any(spans[axis].extent < span_of(whole, axis).extent for axis in kernel.whole)
            and not kernel.is_online
        ):
            return False
        times = 1 + (self.chain.repeated_by(number) is not None)
        if times > 1 and not kernel.may_repeat:
            return False
        costs = PieceCosts(self.code, kernel, spans, self.choice.elements)
        extents = {axis: np.array([span.extent]) for axis, span in spans.items()}
        latency = self.code.target.core.nram.latency_cycles
        computing = {unit: _number(cycles) for unit, cycles in costs.of_units(extents).items()}
        if "matrix" in computing:
            computing["matrix"] = max(computing["matrix"], self.addresses(kernel, spans))
        computing = {unit: times * (cycles + latency) for unit, cycles in computing.items()}
        for unit, cycles in computing.items():
            self.engines[unit] += cycles
        self.first += max(computing.values())
        for want in kernel.wants:
            if self.made.isdisjoint(tensors_of(layer, want)):
                self.operand(costs, want, extents, spans, whole, self.chain.copies_in(number))
        self.result(number, costs, extents, spans)
        return True

    def result(self, number: int, costs: PieceCosts, extents: Extents, spans: Spans) -> None:
        """What a layer makes, and what it needs beside that."""
        kernel, elements = self.chain.kernels[number], self.choice.elements
        layer, core = kernel.layer, self.code.target.core
        for scratch in kernel.scratch:
            element = scratch.element or elements[layer.operands[0].pieces[0].tensor]
            size = math.prod(spans[axis].extent for axis in scratch.axes) * ELEMENT_BYTES[element] + 16
            self.room["nram"] += size * (1 if scratch.plane is None else 2)
        size = math.prod(spans[axis].extent for axis in layer.result.axes) * size_of(elements[layer.result])
        size, leaves = size * kernel.planes + 16, layer.result in self.choice.leaving
        self.room["nram"] += size * self.chain.copies(number, leaves=leaves)
        is_sum = bool(self.chain.summed) and number == len(self.chain.kernels) - 1
        times, is_weighed = 1 / self.inner if is_sum else 1.0, bool(layer.macs and kernel.scratch)
        if is_sum or is_weighed:
            points = math.prod(spans[axis].extent for axis in layer.result.axes)
            self.room["nram"] += points * ELEMENT_BYTES["f32"]
            if is_weighed:  # sums of passes before, or those of all, by a factor
                self.engines["vector"] += _number(vector_cycles(core.vector, 1, points, ELEMENT_BYTES["f32"]))
        if leaves:
            port = _number(costs.crossing(size, costs.run_out(extents))[1]) * self.code.cores
            latency = self.code.target.cluster.sram.latency_cycles
            self.engines["mvdma"] += times * (max(size / core.mvdma.bytes_per_cycle, port) + latency)

    def addresses(self, kernel: Kernel, spans: Spans) -> float:
        """Cycles of the matrix unit for addresses that no table holds: of windows that reach beyond what lies in the
        core, where padding would have addresses of other positions."""
        if not isinstance(kernel, ProductKernel) or self.lies(kernel, spans):
            return 0.0

        def count(axes: Iterable[Axis]) -> int:
            return math.prod(spans[axis].extent for axis in axes)

        own = kernel.factors
        box = count(kernel.images), count(kernel.rows), count(kernel.columns), count(own.sums)
        return float(address_cycles(self.code.target.core.matrix, box, count(own.taps), count(own.groups)))

    def lies(self, kernel: ProductKernel, spans: Spans) -> bool:
        """Whether a layer of the chain makes all positions that the windows of a product reach."""
        want = next(want for want in kernel.wants if want.operand == kernel.factors.lines)
        makers = [each.layer for each in self.chain.kernels[:-1] if each.layer.result in tensors_of(kernel.layer, want)]
        for maker in makers:
            (piece,) = kernel.layer.operands[want.operand].pieces
            for coordinate, axis in zip(want.dims, matched(want, piece) or (), strict=True):
                if through(coordinate, UNBOUNDED, spans).extent > span_of(self.parts[maker.name], axis).extent:
                    return False
        return True

    def operand(
        self, costs: PieceCosts, want: Want, extents: Extents, spans: Spans, whole: Spans, copies: int
    ) -> None:  # fmt: skip
        """What comes from SRAM: of each piece its part, or all of it before."""
        moves = is_moved(want, spans, whole)
        several, cluster = bool(self.chain.counts), self.code.target.cluster
        size = _number(costs.bytes_of(want, extents))
        is_double = moves if several else self.choice.early
        self.room[want.memory] += (size + 16) * (copies if is_double and several else 1 + is_double)
        is_own = self.chain.dealt is not None and moves
        port = _number(costs.crossing(size, costs.run_in(want, extents))[1]) * (
            self.code.cores if is_own else 1
        )
        speed = cluster.core.mvdma.bytes_per_cycle if is_own else cluster.bus.bytes_per_cycle
        is_streamed, latency = moves and several, cluster.sram.latency_cycles
        cycles = max(size / speed, port) + latency * is_streamed
        if self.chain.summed is not None and not any(step_at(spans[axis], self.level) for axis in want.axes):
            cycles /= self.inner
        if is_streamed:
            self.engines["mvdma" if is_own else "bus"] += cycles
        else:  # these come one after the other, and share one latency
            self.once += cycles
            self.wait = latency


def is_moved(want: Want, spans: Spans, whole: Spans) -> bool:
    """Whether a piece has a part of an operand."""
    return any(spans[axis].extent < span_of(whole, axis).extent for axis in want.axes)


def _number(value: Any) -> float:
    return float(np.asarray(value).item())
