# Tests: test/passes/lower/tree/test_chains.py
"""Pieces of several layers that follow each other in the cores: as large as NRAM and WRAM hold, in the fewest cycles.

A piece of the last layer's result decides what of the others it takes.  Matrix and vector units, and the copies beside
them, work on pieces that follow each other at the same time; so a chain takes what its busiest engine takes, and what
the first piece and the last one take by themselves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.program import ELEMENT_BYTES, Element, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import size_of
from frustum.passes.lower.tree.kernels.kernel import Kernel, Want
from frustum.passes.lower.tree.kernels.products import ProductKernel
from frustum.passes.lower.tree.loop_spans import Made
from frustum.passes.lower.tree.pieces import PieceCosts
from frustum.passes.lower.tree.spans import span_of

CUT = 2
"""A chain's pieces are cut along so many axes of the last result, the longest. 2026-11-28."""
PIECES = 4096
"""More pieces than this a core does not make of one chain. 2026-11-28."""


@dataclass(frozen=True)
class Chain:
    """Kernels of layers one behind the other, how a piece of the last result is cut, the axis along which cores share
    it, loops over pieces from the outermost, and cycles."""

    kernels: tuple[Kernel, ...]
    extents: Mapping[Axis, int]
    dealt: Axis | None
    order: tuple[Axis, ...]
    counts: tuple[int, ...]
    cycles: float

    @property
    def stages(self) -> list[int]:
        """Of each layer: another engine takes what is made a pass later."""
        found = [0]
        for before, kernel in itertools.pairwise(self.kernels):
            found.append(found[-1] + (is_on_matrix(before) is not is_on_matrix(kernel)))
        return found

    def copies(self, number: int, *, leaves: bool) -> int:
        """So many buffers the result of a layer has, for its readers that are passes behind; where it leaves the core it
        does so a pass later."""
        if not self.counts:
            return 1
        made, stages = self.kernels[number].layer.result, self.stages
        readers = [k for k, kernel in enumerate(self.kernels) if k > number and made in tensors_of(kernel)]
        return 1 + max([int(leaves), *(stages[k] - stages[number] for k in readers)])


def is_on_matrix(kernel: Kernel) -> bool:
    return isinstance(kernel, ProductKernel) and not kernel.on_vector


def tensors_of(kernel: Kernel) -> set[Tensor]:
    """What a kernel takes."""
    return {piece.tensor for want in kernel.wants for piece in kernel.layer.operands[want.operand].pieces}


@dataclass(frozen=True)
class ChainChoice:
    """All ways to cut a chain; `ways`: kernels of each layer; `part`: spans of all layers for such extents of the
    last one's result, dealt along an axis, in so many passes of each; None where there are none; `made`: their spans as a whole; `leaving`: what leaves the core; `early`: whether loops around let operands come a pass ahead."""

    code: Code
    ways: Sequence[Sequence[Kernel]]
    part: Callable[[Mapping[Axis, int], Axis | None, Mapping[Axis, int]], Made | None]
    made: Made
    elements: Mapping[Tensor, Element]
    leaving: frozenset[Tensor]
    early: bool

    def best(self) -> Chain | None:
        """The way with the fewest cycles; None where none fits."""
        return min(self.candidates(), key=lambda chain: chain.cycles, default=None)

    def candidates(self) -> Iterator[Chain]:
        for kernels in itertools.product(*self.ways):
            whole = {axis: span_of(self.made[kernels[-1].layer.name], axis) for axis in kernels[-1].layer.result.axes}
            free = [axis for axis, span in whole.items() if span.extent > 1]
            free.sort(key=lambda axis: -whole[axis].extent)
            for dealt in free if self.code.cores > 1 else [None]:
                cut = [*dict.fromkeys([*([] if dealt is None else [dealt]), *free])][: CUT if dealt is None else CUT + 1]
                yield from self.cut(kernels, whole, dealt, cut)

    def cut(
        self, kernels: tuple[Kernel, ...], whole: Mapping[Axis, Span], dealt: Axis | None, cut: Sequence[Axis]
    ) -> Iterator[Chain]:  # fmt: skip
        """Of these axes all extents, by halves."""
        own = {axis: ceil_div(whole[axis].extent, self.code.cores if axis is dealt else 1) for axis in cut}
        for extents in itertools.product(*(_halves(own[axis]) for axis in cut)):
            found = dict(zip(cut, extents, strict=True))
            counts = {axis: ceil_div(own[axis], found[axis]) for axis in cut}
            if math.prod(counts.values()) > PIECES:
                continue
            order = tuple(sorted((axis for axis in cut if counts[axis] > 1), key=lambda axis: counts[axis]))
            parts = self.part(found, dealt, {axis: counts[axis] for axis in order})
            chain = Chain(kernels, found, dealt, order, tuple(counts[axis] for axis in order), 0.0)
            cycles = None if parts is None else self.cycles(chain, parts)
            if cycles is not None:
                yield replace(chain, cycles=cycles)

    def cycles(self, chain: Chain, parts: Made) -> float | None:
        """Of the busiest core; None where a piece does not fit."""
        kernels, dealt, counts = chain.kernels, chain.dealt, chain.counts
        core, cluster = self.code.target.core, self.code.target.cluster
        passes, several = math.prod(counts), bool(counts)
        engines, room = {"matrix": 0.0, "vector": 0.0, "mvdma": 0.0, "bus": 0.0}, {"nram": 0, "wram": 0}
        once, first = 0.0, 0.0
        made = {kernel.layer.result for kernel in kernels[:-1]}
        for number, kernel in enumerate(kernels):
            layer = kernel.layer
            spans = {axis: span_of(parts[layer.name], axis) for axis in layer.axes}
            if any(spans[axis].extent < span_of(self.made[layer.name], axis).extent for axis in kernel.whole):
                return None
            costs = PieceCosts(self.code, kernel, spans, self.elements)
            own = {axis: np.array([span.extent]) for axis, span in spans.items()}
            computing = float(np.asarray(costs.computing(own)).item()) + core.nram.latency_cycles
            engines["matrix" if is_on_matrix(kernel) else "vector"] += computing
            first += computing
            for want in kernel.wants:
                if any(p.tensor in made for p in layer.operands[want.operand].pieces):
                    continue
                size = float(np.asarray(costs.bytes_of(want, own)).item())
                moves = several and self.moves(want, layer.name, spans)
                room[want.memory] += int(size + 16) * (2 if moves or (self.early and not several) else 1)
                port = float(np.asarray(costs.crossing(size, costs.run_in(want, own))[1]).item())
                is_own = dealt is not None and self.moves(want, layer.name, spans)
                speed = core.mvdma.bytes_per_cycle if is_own else cluster.bus.bytes_per_cycle
                cycles = max(size / speed, port * (self.code.cores if is_own else 1)) + cluster.sram.latency_cycles
                engines["mvdma" if is_own else "bus"] += cycles if moves else cycles / passes
                once += 0.0 if moves else cycles
            for scratch in kernel.scratch:
                size = math.prod(spans[axis].extent for axis in scratch.axes) * ELEMENT_BYTES[scratch.element] + 16
                room["nram"] += size * (1 if scratch.plane is None else 2)
            result = math.prod(spans[axis].extent for axis in layer.result.axes)
            size = result * size_of(self.elements[layer.result]) * kernel.planes + 16
            leaves = layer.result in self.leaving
            room["nram"] += size * chain.copies(number, leaves=leaves)
            if not leaves:
                continue
            port = float(np.asarray(costs.crossing(size, costs.run_out(own))[1]).item())
            engines["mvdma"] += max(size / core.mvdma.bytes_per_cycle, port * self.code.cores) + cluster.sram.latency_cycles
        if room["nram"] > core.nram.capacity_bytes or room["wram"] > core.wram.capacity_bytes:
            return None
        begins = math.prod(counts[:-1])
        return passes * max(engines.values()) + begins * (first + engines["mvdma"]) + once

    def moves(self, want: Want, name: str, spans: Mapping[Axis, Span]) -> bool:
        """Whether a piece has a part of an operand."""
        return any(spans[axis].extent < span_of(self.made[name], axis).extent for axis in want.axes)


def _halves(extent: int) -> list[int]:
    found = [extent]
    while found[-1] > 1:
        found.append(ceil_div(found[-1], 2))
    return found
