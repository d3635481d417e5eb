"""What cores take for a nest of pieces: computing, copies between SRAM and the cores, and what of both shows.

Copies of pieces have two buffers each, so that they overlap with computing inside a run of the loop that moves them;
at every restart of such a loop its first load, and before it the last store of the run before, are waited for: copies
of a core are in order.  The matrix unit is busy for whole fills of its lines.  All sizes may be numpy arrays.
Source: docs/techniques/machine.md, "Transfers" and "Matrix unit" (the sums over row pieces are bounds from above); the
numbers are those of `durations.matrix_work`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from math import gcd
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import Int, ceil_div
from frustum.dialects.isa.line_buffer_plan import Pair, Windows
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.target import MatrixUnit, Target
from frustum.dialects.target.durations import matrix_work
from frustum.dialects.tile import Residency
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


Copies: TypeAlias = Sequence[tuple[Moves, Ints]]
"""With the cycles of each."""
UNSEEN: Any = None
"""In a target what nobody asks for: who does gets an error, not a number."""


@lru_cache(maxsize=1024)
def seen_by_pieces(target: Target, residency: Residency, loops: int) -> Target:
    """The target with what the search for pieces asks for alone, so that machines which differ in nothing else share
    answers: DRAM only where weights come meanwhile (streamed ones, and those of a unit of one pass, whose pieces may
    have all loops), the size of SRAM only where it holds chunks of them."""
    is_streamed = residency == "stream"
    has_dram = is_streamed or (residency == "unit" and loops == MAX_LOOPS)
    chip, cluster = target.chip, target.cluster
    sram = cluster.sram if is_streamed else replace(cluster.sram, capacity_bytes=UNSEEN)
    gdma, dram = (cluster.gdma, chip.dram) if has_dram else (UNSEEN, UNSEEN)
    cluster = replace(
        cluster, sram=sram, gdma=gdma, cdma=UNSEEN, instruction_memory_bytes=UNSEEN, event_slots=UNSEEN
    )
    links = {"host_link_bytes_per_cycle": UNSEEN, "chip_link_bytes_per_cycle": UNSEEN}
    own = {"name": "", "modelled_on": "", "clock_hz": UNSEEN, "chips": UNSEEN, "alignment_bytes": UNSEEN,
           "host": UNSEEN, "options": UNSEEN}  # fmt: skip
    return replace(target, **own, **links, chip=replace(chip, clusters=UNSEEN, dram=dram, cluster=cluster))


@lru_cache(maxsize=1024)
def seen_by_attention(target: Target) -> Target:
    """The same of attention, which asks how fast its results leave."""
    seen, chip = seen_by_pieces(target, "core", MAX_LOOPS), target.chip
    return replace(seen, chip=replace(seen.chip, clusters=chip.clusters, dram=chip.dram))


@dataclass(frozen=True)
class Nest:
    """Cycles of computing in all, in so many pieces; copies of a core, and what comes by the bus beside them."""

    compute: Ints
    pieces: Ints
    copies: Copies
    by_bus: Copies = ()

    def of(self, k: int, before: Moves | None = None) -> Nest:
        """Candidate number k alone, where what moves as `before` says came before if it comes once."""

        def one(what: Copies) -> list[tuple[Moves, Ints]]:
            found = []
            for m, cycles in what:
                times, restarts = m.times[k : k + 1], m.restarts[k : k + 1]
                shown = np.where(times > 1, restarts, 0) if m is before else restarts
                found.append((Moves(times, shown, m.is_stored), cycles[k : k + 1]))
            return found

        return Nest(self.compute[k : k + 1], self.pieces[k : k + 1], one(self.copies), one(self.by_bus))


class Loops(NamedTuple):
    """Of nested loops, from the outermost on: how often each begins, and how often it goes, 0 where it has one pass;
    and how often what is inside all of them is done."""

    begun: list[Ints]
    gone: list[Ints]
    total: Ints

    @staticmethod
    def of(counts: Sequence[Ints]) -> Loops:
        """With so many passes each time."""
        before = [np.ones_like(counts[0]), *itertools.accumulate(counts, np.multiply)]
        runs = [count > 1 for count in counts]
        begun, gone = ([each * is_loop for each, is_loop in zip(of, runs, strict=False)] for of in (before, before[1:]))
        return Loops(begun, gone, before[-1])


def moves(loops: Loops, by: Collection[int], *, is_stored: bool = False) -> Moves:
    """The copies of what the loops numbered `by` move.

    A result is stored behind all loops inside the last that moves it, and what these load waits for that.
    """
    one = np.ones_like(loops.total)  # the innermost that runs says, which is begun and goes most often
    times, restarts = (reduce(np.maximum, [of[k] for k in by], one) for of in (loops.gone, loops.begun))
    if is_stored:
        restarts = np.where(loops.total > times, times, restarts)
    return Moves(times, restarts, is_stored)


def copy_cycles(target: Target, size_bytes: Ints, run_bytes: Ints | int, cores: int) -> Ints:
    """One copy between SRAM and a core, while all cores do the same."""
    sram, engine = target.cluster.sram, target.core.mvdma
    run = np.maximum(run_bytes, 1)
    padded = size_bytes * np.maximum(sram.minimum_run_bytes, run) // run
    return np.maximum(
        ceil_div(size_bytes, engine.bytes_per_cycle), ceil_div(padded * cores, sram.port_bytes_per_cycle)
    )


def bus_waits(target: Target, by_bus: Copies, copies: Copies) -> Ints:
    """How long chunks that come by the bus wait for those that cores load meanwhile, in all: each for one of these."""
    chunk, cores = target.transfers.chunk_bytes, target.cluster.cores
    rates = target.cluster.bus.bytes_per_cycle, target.core.mvdma.bytes_per_cycle
    chunks = sum(m.times * (m.restarts > 0) * ceil_div(cycles * rates[0], chunk) for m, cycles in by_bus)
    return sum(
        np.minimum(chunks, m.times * (m.restarts > 0) * ceil_div(cycles * rates[1], chunk))
        * (first_wait(target, cycles) // max(cores - 1, 1))
        for m, cycles in copies
        if not m.is_stored
    )


def port_share(target: Target, by_bus: Ints) -> Ints:
    """How much longer copies that fill the port take, for what comes by the bus in so many cycles meanwhile."""
    cores, port = target.cluster.cores, target.cluster.sram.port_bytes_per_cycle
    is_full = cores * target.core.mvdma.bytes_per_cycle >= port
    return by_bus * target.cluster.bus.bytes_per_cycle // port * is_full


def last_wait(target: Target, copy: Ints) -> Ints:
    """How long a copy of so many cycles and several chunks waits where cores that copy one after the other fill the
    port: the last, smaller chunks of all stand behind each other before the next copies begin."""
    cores, chunk, port = target.cluster.cores, target.transfers.chunk_bytes, target.cluster.sram.port_bytes_per_cycle
    engine = target.core.mvdma.bytes_per_cycle
    size = copy * engine
    is_full = (cores > 1) & (cores * engine >= port) & (size > chunk)
    return ceil_div(size % chunk * cores, port) * is_full


def first_wait(target: Target, copy: Ints) -> Ints:
    """How long the last core waits for the first chunk of a copy of so many cycles, while the others begin theirs."""
    first = np.minimum(copy * target.core.mvdma.bytes_per_cycle, target.transfers.chunk_bytes)
    return (target.cluster.cores - 1) * ceil_div(first, target.cluster.sram.port_bytes_per_cycle)


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


def nest_cycles(target: Target, nest: Nest) -> Ints:
    """Cycles of a nest as searches compare them: the longest of computing and copies, and what does not overlap at
    restarts, and something for each piece."""
    compute, pieces = nest.compute, nest.pieces
    latency = target.cluster.sram.latency_cycles + target.core.nram.latency_cycles
    none = np.zeros_like(compute)

    def moved(what: Copies) -> Ints:
        return reduce(np.add, [m.times * cycles for m, cycles in what], none)

    stores = [copy for copy in nest.copies if copy[0].is_stored]
    by_bus = exposed(nest.by_bus, latency, none) + exposed(stores, latency, none)
    shown = np.maximum(exposed(nest.copies, latency, none), by_bus)
    restarts = reduce(np.maximum, [m.restarts for m, _ in (*nest.copies, *nest.by_bus)])
    busiest = np.maximum(moved(nest.copies), moved(nest.by_bus))
    return np.maximum(compute + shown, busiest + restarts * ceil_div(compute, pieces)) + PIECE_CYCLES * pieces


def first_fastest(fits: NDArray[np.bool_], cycles: Ints) -> int:
    """The number of the first of the fastest candidates that fit."""
    return int(np.argmin(np.where(fits, cycles, np.iinfo(np.int64).max)))


def predicted_cycles(target: Target, nest: Nest) -> Ints:
    """The same as what is chosen is predicted: with chunks that wait for others at the port of SRAM.

    From the third piece on, a piece is loaded when the one before the last is computed, behind the store of that one:
    of two pieces at least so much does not overlap.  What never restarts came before.  The bus stores nothing: what
    comes by it waits for free room alone.
    """
    compute, pieces, copies = nest.compute, nest.pieces, nest.copies
    by_bus = [(replace(m, restarts=np.minimum(m.restarts, 1)), cycles) for m, cycles in nest.by_bus]
    latency = target.cluster.sram.latency_cycles + target.core.nram.latency_cycles
    none, each = np.zeros_like(compute), ceil_div(compute, pieces)

    def moved(what: Copies) -> Ints:
        return reduce(np.add, [m.times * cycles * (m.restarts > 0) for m, cycles in what], none)

    def shows(what: Copies) -> Ints:
        return exposed(what, latency, none)

    loads, stores = ([copy for copy in copies if copy[0].is_stored == way] for way in (False, True))
    waited = reduce(np.maximum, [first_wait(target, cycles) for _, cycles in loads], none)
    waited = waited + port_share(target, np.minimum(shows(by_bus), shows(loads)))
    last = reduce(np.add, [(m.times - m.restarts) * last_wait(target, cycles) for m, cycles in loads], none)
    last = np.maximum(last - moved(stores), 0)  # others load while one stores
    last = last + port_share(target, np.minimum(moved(by_bus), moved(loads)))
    shown = np.maximum(shows(copies) + waited, shows(by_bus) + shows(stores))
    restarts = reduce(np.maximum, [m.restarts for m, _ in (*copies, *by_bus)])
    busiest = np.maximum(moved(copies) + last, moved(by_bus) + bus_waits(target, by_bus, copies))
    round_trip = (each + latency + ceil_div(busiest, pieces)) // 2
    late = np.maximum(pieces - 2 * restarts, 0) * np.maximum(round_trip - each, 0)
    return np.maximum(compute + shown + late, busiest + restarts * (each + latency))


def exposed(what: Copies, latency: int, none: Ints) -> Ints:
    """Cycles of copies at restarts, when nothing else goes on."""
    return reduce(np.add, [m.restarts * (cycles + latency * (cycles > 0)) for m, cycles in what], none)


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


def share_of_matrix(channels: Ints, by_vector: Ints, by_matrix: Ints, vector: Int = 0, matrix: Int = 0) -> Ints:
    """Of so many channels of a layer's piece, which either unit of a core would make in these cycles, how many the
    matrix unit makes so that both end together; `vector`, `matrix`: what they have to do beside it.  The vector unit
    makes one at least."""
    ahead = by_vector + vector - matrix
    found = channels * ahead / np.maximum(by_vector + by_matrix, 1)
    return np.clip(found.astype(np.int64), 0, channels - 1)


def busy_cycles(unit: MatrixUnit, kernel: Kernel, images: Ints, rows: Ints, columns: Ints) -> Ints:
    """Cycles for one input channel and up to `unit.channels` output channels; others take as many times that.

    Windows of all rows and images of a piece follow each other in the lines, in the cheaper of the modes `split`
    and `continuous`.
    """
    packed = (images << 2 * BITS) | (rows << BITS) | columns
    sizes, place = np.unique(packed, return_inverse=True)
    return np.array(_busy(unit, kernel, tuple(sizes.tolist())), np.int64)[place.reshape(packed.shape)]


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
