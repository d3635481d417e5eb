"""What cores take for a nest of pieces: computing, copies between SRAM and the cores, and what of both shows.

Copies of pieces have two buffers each, so that they overlap with computing inside a run of the loop that moves them;
at every restart of such a loop its first load, and before it the last store of the run before, are waited for: copies
of a core are in order.  The matrix unit is busy for whole fills of its lines.  All sizes may be numpy arrays.
Source: docs/techniques/machine.md, "Transfers" and "Matrix unit" (the sums over row pieces are bounds from above); the
numbers are those of `durations.matrix_work`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from math import gcd

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import ceil_div
from frustum.dialects.isa.line_buffer_plan import Pair, Windows
from frustum.dialects.target import MatrixUnit, Target
from frustum.dialects.target.durations import matrix_work
from frustum.passes.plan.model import PIECE_CYCLES

Ints = NDArray[np.int64]
BITS = 21
"""Of each extent where three are packed into one number."""


@dataclass(frozen=True)
class Moves:
    """How often something is copied, and how often nothing is computed meanwhile."""

    times: Ints
    restarts: Ints
    is_stored: bool = False


def moves(counts: Sequence[Ints], by: Collection[int], *, is_stored: bool = False) -> Moves:
    """The copies of what the loops numbered `by` move; `counts` are the passes of all loops from the outermost on.

    A result is stored behind all loops inside the last that moves it, and what these load waits for that.
    """
    before = [np.ones_like(counts[0])]
    for count in counts:
        before.append(before[-1] * count)
    times = restarts = before[0]
    found = np.zeros(len(counts[0]), np.bool_)
    is_inside = found.copy()
    for k in range(len(counts) - 1, -1, -1):
        runs = counts[k] > 1
        if k in by:
            here = runs & ~found
            times = np.where(here, before[k + 1], times)
            restarts = np.where(here, np.where(is_inside & is_stored, before[k + 1], before[k]), restarts)
            found = found | here
        is_inside = is_inside | (runs & ~found)
    return Moves(times, restarts, is_stored)


def copy_cycles(target: Target, size_bytes: Ints, run_bytes: Ints | int, cores: int) -> Ints:
    """One copy between SRAM and a core, while all cores do the same."""
    sram, engine = target.cluster.sram, target.core.mvdma
    run = np.maximum(run_bytes, 1)
    padded = size_bytes * np.maximum(sram.minimum_run_bytes, run) // run
    return np.maximum(
        ceil_div(size_bytes, engine.bytes_per_cycle), ceil_div(padded * cores, sram.port_bytes_per_cycle)
    )


def bus_cycles(target: Target, size_bytes: Ints, run_bytes: Ints | int) -> Ints:
    """One broadcast from SRAM to all cores of a cluster."""
    sram, run = target.cluster.sram, np.maximum(run_bytes, 1)
    padded = size_bytes * np.maximum(sram.minimum_run_bytes, run) // run
    return np.maximum(
        ceil_div(size_bytes, target.cluster.bus.bytes_per_cycle), ceil_div(padded, sram.port_bytes_per_cycle)
    )


def load_cycles(target: Target, size_bytes: Ints, run_bytes: Ints) -> Ints:
    """One copy from DRAM to SRAM."""
    dram, run = target.chip.dram, np.maximum(run_bytes, 1)
    padded = size_bytes * np.maximum(dram.minimum_run_bytes, run) // run
    engine = target.cluster.gdma.bytes_per_cycle
    return np.maximum(ceil_div(size_bytes, engine), ceil_div(padded, dram.port_bytes_per_cycle))


def nest_cycles(
    target: Target,
    compute: Ints,
    pieces: Ints,
    copies: Sequence[tuple[Moves, Ints]],
    by_bus: Sequence[tuple[Moves, Ints]] = (),
) -> Ints:
    """Cycles of a nest: `compute` in all and `copies` of a core, with what comes `by_bus` beside them, with the cycles
    of each, of which the longest is waited for, and what does not overlap at restarts; `pieces` in all."""
    latency = target.cluster.sram.latency_cycles + target.core.nram.latency_cycles
    none = np.zeros_like(compute)

    def moved(what: Iterable[tuple[Moves, Ints]]) -> Ints:
        return reduce(np.add, [m.times * cycles for m, cycles in what], none)

    def exposed(what: Iterable[tuple[Moves, Ints]]) -> Ints:
        return reduce(np.add, [m.restarts * (cycles + latency * (cycles > 0)) for m, cycles in what], none)

    stored = exposed(copy for copy in copies if copy[0].is_stored)
    shown = np.maximum(exposed(copies), exposed(by_bus) + stored)
    restarts = reduce(np.maximum, [m.restarts for m, _ in (*copies, *by_bus)])
    busiest = np.maximum(moved(copies), moved(by_bus))
    return np.maximum(compute + shown, busiest + restarts * ceil_div(compute, pieces)) + PIECE_CYCLES * pieces


def clipped(extent: Ints | int, piece: Ints, count: Ints, dealt: int) -> list[tuple[Ints, Ints]]:
    """Extents of the pieces along a dimension and how many there are of each, for the core with the most work."""
    last = extent - (count - 1) * piece if dealt == 1 else np.minimum(piece, extent)
    return [(piece, count - 1), (np.maximum(last, 0), np.ones_like(count))]


# ---------------------------------------------------------------- the matrix unit


@dataclass(frozen=True)
class Kernel:
    """Of a convolution: extents, strides and dilations (rows, columns), bytes of an element of the map."""

    extent: Pair
    strides: Pair
    dilations: Pair
    element_bytes: int


def busy_cycles(unit: MatrixUnit, kernel: Kernel, images: Ints, rows: Ints, columns: Ints) -> Ints:
    """Cycles for one input channel and up to `unit.channels` output channels; others take as many times that.

    Windows of all rows and images of a piece follow each other in the lines, in the cheaper of the modes `split`
    and `continuous`.
    """
    packed = (images << 2 * BITS) | (rows << BITS) | columns
    sizes, place = np.unique(packed, return_inverse=True)
    return np.array(_busy(unit, kernel, tuple(sizes.tolist())), np.int64)[place]


@lru_cache(maxsize=4096)
def _busy(unit: MatrixUnit, kernel: Kernel, packed: tuple[int, ...]) -> tuple[int, ...]:
    sizes = np.array(packed, np.int64)
    images, rows, columns = sizes >> 2 * BITS, (sizes >> BITS) & ((1 << BITS) - 1), sizes & ((1 << BITS) - 1)
    span = (kernel.extent[1] - 1) * kernel.dilations[1] + 1
    length = (columns - 1) * kernel.strides[1] + span
    size = kernel.element_bytes
    windows = Windows(kernel.extent, kernel.strides, kernel.dilations, 1, size, (0, 0, 0, size), 0)
    work = windows.convolution(images, rows, columns, 1, 1)
    distance = kernel.strides[0] * length  # a piece has its rows one after the other
    straddling = np.maximum(ceil_div(distance - columns * kernel.strides[1], kernel.strides[1]), 0)
    split = matrix_work(unit, work, "split").busy_cycles
    run = replace(work, straddling=straddling, runs=images)
    continuous = matrix_work(unit, run, "continuous").busy_cycles
    return tuple(np.minimum(split, continuous).tolist())


def filling_heights(width: int, lines: int) -> list[int]:
    """Rows of a width whose windows fill 1, 2 or 4 times the lines as far as they can, and those that fill some."""
    return sorted({lines * fills // width for fills in (1, 2, 4)} - {0} | {lines // gcd(lines, width)})
