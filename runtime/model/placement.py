"""Which chip runs which piece of a chain, and when: pieces in order, values moved between the DRAMs of chips.

A chip runs one piece at a time.  A piece starts when its chip is free and all its inputs are in the DRAM of that
chip; a value made on another chip is moved there once, as soon as it is made, by the inter-chip DMA of the chip it is
on, which moves one value at a time.  Network inputs are everywhere before the run.  That is a list schedule over
whole pieces with the cycles measured for each alone: pieces overlap where they do not depend on each other, and the
DRAM port that a move shares with a running piece is not slowed down by it.

Pieces of the host run on no chip and take no cycles.  What the device makes for them, and what they make for the
device, crosses the link between host and chip, each value once in each direction, as soon as it is made; the link
carries one value at a time, whichever way it goes.
Source: docs/techniques/machine.md, "Host".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from frustum.dialects.extents import ceil_div
from frustum.dialects.target import Target
from frustum.dialects.target.durations import link_engine, transfer_cycles
from frustum.runtime.failures import UsageError

HOST = -1
"""In the place of a chip."""
WAYS = "one, each, or the number of a chip for every piece, as in 0,0,1,2"


@dataclass(frozen=True)
class PieceWork:
    """A piece as the schedule sees it."""

    inputs: tuple[str, ...]
    outputs: Mapping[str, int]
    """Values that it makes, with their bytes in DRAM."""
    cycles: int
    chip: int = 0


@dataclass(frozen=True)
class Move:
    """A value on its way from one chip's DRAM to another's: cycles [start, stop)."""

    value: str
    size_bytes: int
    source: int
    destination: int
    start: int
    stop: int


@dataclass(frozen=True)
class Crossing:
    """A value on the link between the host and a chip's DRAM: cycles [start, stop), of which the DRAM port is held
    for `port_cycles`."""

    value: str
    size_bytes: int
    chip: int
    to_host: bool
    start: int
    stop: int
    port_cycles: int


@dataclass(frozen=True)
class Schedule:
    """When each piece runs, as cycles [start, stop), the moves between chips, and what crosses to and from the host."""

    pieces: tuple[tuple[int, int], ...]
    moves: tuple[Move, ...]
    crossings: tuple[Crossing, ...] = ()

    @property
    def total_cycles(self) -> int:
        """When the last piece ends."""
        return max((stop for _, stop in self.pieces), default=0)

    def crossing_bytes(self, *, to_host: bool) -> int:
        """Bytes on the host link in one direction; each crosses one DRAM port."""
        return sum(each.size_bytes for each in self.crossings if each.to_host == to_host)

    @property
    def link_cycles(self) -> int:
        """How long the host link is busy."""
        return sum(each.stop - each.start for each in self.crossings)

    @property
    def port_cycles(self) -> int:
        """How long DRAM ports are held for the host."""
        return sum(each.port_cycles for each in self.crossings)

    @property
    def moved_bytes(self) -> int:
        """Bytes that go from chip to chip; each crosses two DRAM ports."""
        return sum(move.size_bytes for move in self.moves)


def chips_of(placement: str, pieces: int, target: Target) -> tuple[int, ...]:
    """The chip of each piece: all on chip 0 (`one`), each on the next (`each`), or as listed; else UsageError."""
    if placement == "one":
        return (0,) * pieces
    if placement == "each":
        return tuple(number % target.chips for number in range(pieces))
    check_placement(placement)
    chips = tuple(int(number) for number in placement.split(","))
    if len(chips) != pieces:
        raise UsageError(f"error: --placement {placement} is of {len(chips)} pieces, and there are {pieces}")
    if not all(0 <= chip < target.chips for chip in chips):
        raise UsageError(f"error: --placement {placement}: {target.name} has chips 0 to {target.chips - 1}")
    return chips


def check_placement(placement: str) -> None:
    """UsageError unless it is one of the ways."""
    if placement not in ("one", "each") and not re.fullmatch(r"\d+(,\d+)*", placement):
        raise UsageError(f"error: --placement {placement!r}: it is {WAYS}")


def schedule(pieces: Sequence[PieceWork], target: Target) -> Schedule:
    """The list schedule of pieces in the order of the chain."""
    return _Scheduler(target).run(pieces)


@dataclass
class _Scheduler:
    target: Target
    ready: dict[tuple[str, int], int] = field(default_factory=dict)
    """Of each value that a piece made and each chip that has it, since when."""
    home: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each such value the chip that made it, and its bytes."""
    free: dict[int, int] = field(default_factory=dict)
    """Of each chip, when it has done its pieces so far."""
    mover_free: dict[int, int] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)

    def run(self, pieces: Sequence[PieceWork]) -> Schedule:
        times = []
        for piece in pieces:
            here = [self._arrival(name, piece.chip) for name in piece.inputs if name in self.home]
            start = max([self.free.get(piece.chip, 0), *here])
            stop = start + piece.cycles
            times.append((start, stop))
            if piece.chip != HOST:
                self.free[piece.chip] = stop
            for name, size_bytes in piece.outputs.items():
                self.home[name] = (piece.chip, size_bytes)
                self.ready[name, piece.chip] = stop
        return Schedule(tuple(times), tuple(self.moves), tuple(self.crossings))

    def _arrival(self, name: str, chip: int) -> int:
        """When a value is in the DRAM of a chip, or in the host's memory; moved there if it was not."""
        source, size_bytes = self.home[name]
        if (name, chip) in self.ready:
            return self.ready[name, chip]
        if HOST in (source, chip):
            self._cross(name, source, chip)
        else:
            start = max(self.ready[name, source], self.mover_free.get(source, 0))
            dram = self.target.chip.dram
            link = link_engine(self.target, "chip")
            moved = transfer_cycles(self.target, link, dram, dram, size_bytes, size_bytes, size_bytes)
            stop = start + int(moved.engine)
            self.mover_free[source] = stop
            self.ready[name, chip] = stop + int(moved.latency)
            self.moves.append(Move(name, size_bytes, source, chip, start, stop + int(moved.latency)))
        return self.ready[name, chip]

    def _cross(self, name: str, source: int, destination: int) -> None:
        """Over the host link; from where a value came to first, other chips get it from each other."""
        _, size_bytes = self.home[name]
        port_cycles = ceil_div(size_bytes, self.target.chip.dram.port_bytes_per_cycle)
        cycles = max(ceil_div(size_bytes, self.target.host_link_bytes_per_cycle), port_cycles)
        start = self._first_gap(self.ready[name, source], cycles)
        to_host = destination == HOST
        chip = source if to_host else destination
        self.crossings.append(Crossing(name, size_bytes, chip, to_host, start, start + cycles, port_cycles))
        self.ready[name, destination] = start + cycles
        if not to_host:
            self.home[name] = destination, size_bytes

    def _first_gap(self, ready: int, cycles: int) -> int:
        """The first cycle from `ready` on from which the link is free for so long."""
        for each in sorted(self.crossings, key=lambda each: each.start):
            if ready + cycles <= each.start:
                break
            ready = max(ready, each.stop)
        return ready
