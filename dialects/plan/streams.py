# Tests: test/dialects/plan/test_streams.py
"""What a layer takes whose operands come from DRAM, or whose result goes there, in slices of one axis.

While cores work on a slice the next one comes.  The fewer positions a slice has, the less of the first one is waited
for; but operands that lack the axis go to the cores with every slice, runs in DRAM are shorter, and sums over the axis
go back and forth where the cores cannot keep them.
Of all axes, and steps that fit the memory, the way with the fewest cycles counts, as in the lowering.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Box, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.extents import ceil_div
from frustum.dialects.plan.layer_cycles import ClusterCycles, Cycles, MatrixProduct
from frustum.dialects.plan.occupancy import SLICE, SLICE_COPIES, plain_links
from frustum.dialects.target import Target


@dataclass(frozen=True)
class Stream:
    """A box of a tensor that crosses the DRAM port, and its bytes."""

    tensor: Tensor
    box: Box
    size: int

    def run(self, axis: Axis | None, step: Cycles) -> Cycles:
        """Bytes that lie one behind the other in DRAM where a slice has so many positions along an axis."""
        run: Cycles = 1
        is_open: Cycles = True
        for own in reversed(self.tensor.axes):
            low, high = self.box.get(own, (0, own.extent))
            extent = np.minimum(step, high - low) if own is axis else high - low
            run = np.where(is_open, run * extent, run)
            is_open = is_open & (extent >= own.extent)
        return np.maximum(1, run * self.tensor.element_bits // 8)


@dataclass(frozen=True)
class StreamCycles:
    """Cycles of a layer: without the first slice, of that one, and of the DRAM port."""

    steady: float
    first: float
    port: float

    @property
    def cycles(self) -> float:
        """Until it is done where nothing is there before."""
        return self.steady + self.first


@dataclass(frozen=True)
class StreamedLayer:
    """A part of a layer, as `ClusterCycles.of` takes it, with what it streams; `room`: bytes of SRAM for slices."""

    target: Target
    layer: Layer
    products: tuple[MatrixProduct, ...]
    extents: Mapping[Axis, int]
    stored: Mapping[int, float]
    streams: Sequence[Stream]
    room: int
    goes_on: bool
    """Whether earlier passes have begun its sums, which lie in SRAM."""

    def best(self) -> StreamCycles:
        """The way that takes the fewest cycles; where none fits, that with the least slices."""
        return min(self.ways(), key=lambda way: way.cycles)

    def ways(self) -> Iterator[StreamCycles]:
        """All axes, and none, with all steps."""
        if not self.streams:
            yield StreamCycles(float(self.cores(None, np.ones(1))[0]), 0.0, 0.0)
            return
        links = [plain_links(self.layer, stream.tensor) for stream in self.streams]
        least: tuple[float, Axis | None, NDArray[Any], list[Axis | None]] | None = None
        do_fit = False
        for axis in (*self.layer.axes, None):
            extent = self.positions(axis)
            if axis is not None and (axis.is_tap or extent == 1):
                continue
            steps = np.array(list(_steps(extent)))
            own = [None if axis is None else each.get(axis) for each in links]
            need = np.zeros(len(steps))
            for stream, along in zip(self.streams, own, strict=True):
                share = 1.0 if along is None else np.minimum(1.0, SLICE_COPIES * steps / extent)
                need = need + stream.size * share
            fitting = steps[need <= self.room]
            if len(fitting):
                do_fit = True
                yield self.of(axis, fitting, own)
            elif least is None or need[-1] < least[0]:
                least = float(need[-1]), axis, steps[-1:], own
        if not do_fit and least is not None:
            yield self.of(*least[1:])

    def positions(self, axis: Axis | None) -> int:
        """Of an axis in the part."""
        return 1 if axis is None else self.extents.get(axis, axis.extent)

    def of(self, axis: Axis | None, steps: NDArray[Any], own: Sequence[Axis | None]) -> StreamCycles:
        """The best of these steps; `own`: the axis of each tensor that it moves."""
        dram = self.target.chip.dram
        counts = ceil_div(self.positions(axis), steps)
        total, first, longest = (np.zeros(len(steps)) for _ in range(3))
        for stream, along in zip(self.streams, own, strict=True):
            run = stream.run(along, steps)
            cycles = stream.size / run * np.maximum(run, dram.minimum_run_bytes) / dram.port_bytes_per_cycle
            total = total + cycles
            first = first + (cycles if along is None else cycles / counts)
            longest = longest if along is None else np.maximum(longest, cycles)
        cores = self.cores(axis, steps)
        # of the copies of a slice one crosses the port and waits for its latency, and cores work on it
        around = np.where(counts > 1, counts * dram.latency_cycles + longest + cores, 0.0) / SLICE_COPIES
        steady = np.maximum(np.maximum(total, cores), around)
        k = int(np.argmin(steady + first))
        return StreamCycles(float(steady[k]), float(first[k]), float(total[k]))

    def cores(self, axis: Axis | None, steps: NDArray[Any]) -> NDArray[Any]:
        """Cycles of the cores for all slices."""
        extent = self.positions(axis)
        counts = ceil_div(extent, steps)
        stored = {
            k: size * (np.minimum(1.0, steps / extent) if self.moves(k, axis) else np.ones(len(steps)))
            for k, size in self.stored.items()
        }  # fmt: skip
        extents = dict(self.extents) if axis is None else {**self.extents, axis: np.minimum(steps, extent)}
        summed = axis is not None and axis in self.layer.combine and axis not in self.layer.result.axes
        cluster = ClusterCycles(self.target.cluster)
        waits: Cycles = 0.0
        if -1 in stored and self.layer.macs:
            stays = summed and self.stays(axis, extent)
            times = 0 if stays else 1 + (self.goes_on or summed)
            if times > 1 or (stays and self.goes_on):  # cores bring them and take them away, and nothing hides it
                waits = (1 if stays else counts) * cluster.carried(stored[-1])
                stored[-1] = 0.0 * stored[-1]
            else:
                stored[-1] = stored[-1] / counts if stays else stored[-1]
        found = cluster.of(self.layer, self.products, extents, stored)
        latency = self.target.cluster.sram.latency_cycles + self.target.core.nram.latency_cycles
        return np.asarray(counts * (found.alone + latency) + waits)

    def moves(self, k: int, axis: Axis | None) -> bool:
        """Whether a slice has a slice of this operand, or of the result."""
        if axis is None:
            return True
        if k < 0:
            return axis in self.layer.result.axes
        pieces = self.layer.operands[k].pieces
        return any(axis in dict(p.refined().terms) for each in pieces for _, p in each.by_leaf if p is not None)

    def stays(self, axis: Axis | None, extent: int) -> bool:
        """Whether cores have room for the result with a few positions of what is summed, twice."""
        moving = sum(self.stored[k] * min(1.0, SLICE / extent) for k in self.stored if k >= 0 and self.moves(k, axis))
        cluster = self.target.cluster
        return (self.stored[-1] + SLICE_COPIES * moving) / cluster.cores <= cluster.core.nram.capacity_bytes


def _steps(extent: int) -> Iterator[int]:
    """From all positions down, by halves: to those of a slice, of which a few are one where that is worth it."""
    step = extent
    while step > SLICE:
        yield step
        step = max(SLICE, math.ceil(step / 2))
    step = min(extent, SLICE)
    while step > SLICE // 4:
        yield step
        step = math.ceil(step / 2)
    yield step
    if step > 1 and extent < SLICE:
        yield 1
