"""A stream of inputs through a chain of pieces on several chips: when each result is there, and the runs themselves.

While a piece works on input n, those before it on other chips work on later inputs.  Each piece takes the inputs in
order, a chip runs one piece at a time, of those that could start the one with the earliest input.  A value for another
chip is moved as soon as it is made, by the inter-chip DMA of the chip it is on, one value at a time.  A move holds the
DRAM ports at both ends: a piece that runs meanwhile is taken to need the port just then, and takes longer by as much.
What a piece takes for one input is what the emulator measured for it alone; its weights are loaded again for each.
Every input has buffers of its own in DRAM.  Source: docs/techniques/output-split.md, "A stream over chips".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from frustum.dialects.choices import Mode
from frustum.dialects.extents import ceil_div
from frustum.dialects.target import Target
from frustum.dialects.target.durations import TransferCycles, link_engine, transfer_cycles
from frustum.runtime.failures import UsageError
from frustum.runtime.host.inputs import HostArray
from frustum.runtime.model.chain import Chain, HostPiece
from frustum.runtime.model.execution import PieceWork, RanChain, execute_chain, works_of
from frustum.runtime.progress import Progress


@dataclass(frozen=True)
class StreamTimes:
    """When all outputs of each input are there, in cycles, and the bytes that go from chip to chip for all of them."""

    results: tuple[int, ...]
    moved_bytes: int

    @property
    def cycles_per_input(self) -> float:
        """Between results, from the first to the last; of a single input what it takes."""
        if len(self.results) == 1:
            return float(self.results[0])
        return (self.results[-1] - self.results[0]) / (len(self.results) - 1)

    @property
    def figures(self) -> dict[str, Any]:
        """As the report has them."""
        return {
            "inputs": len(self.results),
            "latency_cycles": self.results[0],
            "cycles_per_input": self.cycles_per_input,
            "total_cycles": self.results[-1],
            "moved_between_chips_bytes": self.moved_bytes,
        }


@dataclass
class _Running:
    piece: int
    input: int
    stop: int


@dataclass(frozen=True)
class _Move:
    """A value of an input from chip to chip."""

    value: str
    input: int
    source: int
    destination: int
    cycles: TransferCycles
    size_bytes: int


@dataclass
class _Stream:
    """The stream as it goes on: what each chip and each inter-chip DMA does, and which values are where."""

    pieces: Sequence[PieceWork]
    target: Target
    inputs: int
    now: int = 0
    following: list[int] = field(default_factory=list)
    """Of each piece the input that it takes next."""
    running: dict[int, _Running] = field(default_factory=dict)
    moving: dict[int, tuple[_Move, int]] = field(default_factory=dict)
    """By the chip that sends: a move, and when the link is free again."""
    waiting: dict[int, deque[_Move]] = field(default_factory=dict)
    arriving: list[tuple[int, _Move]] = field(default_factory=list)
    there: set[tuple[str, int, int]] = field(default_factory=set)
    """Values of inputs that are in the DRAM of a chip."""
    done: dict[int, int] = field(default_factory=dict)
    moved_bytes: int = 0

    def run(self) -> StreamTimes:
        self.following = [0] * len(self.pieces)
        while self._start() or self._advance():
            pass
        assert all(number == self.inputs for number in self.following), "every piece has had every input"
        return StreamTimes(tuple(self.done[n] for n in range(self.inputs)), self.moved_bytes)

    def _start(self) -> bool:
        """Start what can start now; whether anything did."""
        started = False
        for chip in dict.fromkeys(piece.chip for piece in self.pieces):
            if chip in self.running:
                continue
            ready = [
                (number, k)
                for k, number in enumerate(self.following)
                if self.pieces[k].chip == chip and number < self.inputs and self._is_there(k, number)
            ]
            if ready:
                number, k = min(ready)
                held = sum(self._rest(move, free, chip) for move, free in self.moving.values())
                self.running[chip] = _Running(k, number, self.now + self.pieces[k].cycles + held)
                self.following[k] += 1
                started = True
        for chip, queue in self.waiting.items():
            if queue and chip not in self.moving:
                move = queue.popleft()
                self.moving[chip] = move, self.now + int(move.cycles.engine)
                self.moved_bytes += move.size_bytes
                for end, port in ((chip, move.cycles.source_port), (move.destination, move.cycles.destination_port)):
                    if end in self.running:
                        self.running[end].stop += int(port)
                started = True
        return started

    def _rest(self, move: _Move, free: int, chip: int) -> int:
        """How long a move that is under way still holds the DRAM port of a chip."""
        if chip not in (move.source, move.destination):
            return 0
        port = int(move.cycles.source_port if chip == move.source else move.cycles.destination_port)
        return ceil_div(port * (free - self.now), max(1, int(move.cycles.engine)))

    def _is_there(self, piece: int, number: int) -> bool:
        made = {name for each in self.pieces for name in each.outputs}
        chip = self.pieces[piece].chip
        return all((name, number, chip) in self.there for name in self.pieces[piece].inputs if name in made)

    def _advance(self) -> bool:
        """Go to the next cycle in which something ends; whether there is one."""
        ends = [each.stop for each in self.running.values()]
        ends += [free for _, free in self.moving.values()] + [at for at, _ in self.arriving]
        if not ends:
            return False
        self.now = min(ends)
        for chip, running in list(self.running.items()):
            if running.stop == self.now:
                del self.running[chip]
                self._finish(running)
        for chip, (move, free) in list(self.moving.items()):
            if free == self.now:
                del self.moving[chip]
                self.arriving.append((free + move.cycles.latency, move))
        for each in [each for each in self.arriving if each[0] == self.now]:
            self.arriving.remove(each)
            self.there.add((each[1].value, each[1].input, each[1].destination))
        return True

    def _finish(self, running: _Running) -> None:
        """A piece is done with an input: its results are there, and go to the chips that read them."""
        piece, number = self.pieces[running.piece], running.input
        self.done[number] = max(self.done.get(number, 0), self.now)
        for value, size_bytes in piece.outputs.items():
            self.there.add((value, number, piece.chip))
            readers = [each.chip for each in self.pieces[running.piece + 1 :] if value in each.inputs]
            for chip in dict.fromkeys(readers):
                if chip != piece.chip:
                    dram, link = self.target.chip.dram, link_engine(self.target, "chip")
                    cycles = transfer_cycles(self.target, link, dram, dram, size_bytes, size_bytes, size_bytes)
                    move = _Move(value, number, piece.chip, chip, cycles, size_bytes)
                    self.waiting.setdefault(piece.chip, deque()).append(move)


def stream_times(pieces: Sequence[PieceWork], target: Target, inputs: int) -> StreamTimes:
    """When the results of so many inputs are there, one after the other through the pieces."""
    return _Stream(pieces, target, inputs).run()


def times_of(chain: Chain, ran: RanChain, inputs: int) -> StreamTimes:
    """The same with what a run of the chain took; UsageError where the values of all inputs do not fit into DRAM."""
    works = works_of(chain, ran)
    for chip in {each.chip for each in works}:
        held = sum(size for each in works if each.chip == chip for size in each.outputs.values())
        if held * inputs > chain.target.chip.dram.capacity_bytes:
            raise UsageError(
                f"error: --stream {inputs}: the results of so many inputs, {held * inputs:,} B, are more than the DRAM"
                f" of chip {chip} holds"
            )
    return stream_times(works, chain.target, inputs)


def check_streams(chain: Chain) -> None:
    """UsageError where pieces run on the host: nobody says when it would have time for the next input."""
    hosted = [each for piece in chain.pieces if isinstance(piece, HostPiece) for each in piece.fallbacks]
    if hosted:
        raise UsageError(f"error: --stream: layer '{hosted[0].name}' ({hosted[0].op}) runs on the host")


def execute_stream(
    chain: Chain, inputs: Sequence[Mapping[str, HostArray]], mode: Mode, checked: bool, progress: Progress | None = None
) -> tuple[RanChain, dict[str, HostArray], list[dict[str, HostArray]]]:
    """The run of the first input, outputs with a leading axis for the stream, and those of each input.

    What is counted and timed does not depend on numbers: the others are computed alone.
    """
    first = execute_chain(chain, inputs[0], mode, checked, progress)
    if mode == "timing":
        return first, {}, []
    others = [execute_chain(chain, each, "functional", checked, progress) for each in inputs[1:]]
    seconds = sum(each.seconds for each in (first, *others))
    outputs = [dict(each.outputs) for each in (first, *others)]
    joined: dict[str, HostArray] = {name: np.stack([each[name] for each in outputs]) for name in chain.outputs}
    return replace(first, seconds=seconds), joined, outputs


def split_inputs(given: Mapping[str, HostArray], inputs: int, file: str) -> list[dict[str, HostArray]]:
    """The arrays of each input from arrays of all, which have a leading axis for the stream."""
    for name, array in given.items():
        if not isinstance(array, np.ndarray) or array.ndim < 1 or len(array) != inputs:
            found = f"{array.dtype} {'x'.join(map(str, array.shape))}" if isinstance(array, np.ndarray) else "no array"
            raise UsageError(
                f"{file}: error: input '{name}': found {found}, expected a leading axis of {inputs}, one entry for"
                " each input of --stream"
            )
    return [{name: np.asarray(array)[n] for name, array in given.items()} for n in range(inputs)]
