"""Which buffers had a buffer's bytes before it, and which have them by turns with it.

A buffer's first write waits for the last uses of the buffers before it at its bytes.  These waited for those before
them in turn: so only the latest buffer at each byte counts, and a map from addresses to latest buffers finds all in
about linear time, however many buffers share an address one after the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from frustum.backend.waits.loop_tree import Instruction
from frustum.dialects.isa.program import Memory

Place = tuple[Memory, int, int]
"""Memory, first byte, first byte behind."""


def aliases_of(instructions: Sequence[Instruction], places: Mapping[int, Place]) -> dict[int, list[int]]:
    """For each buffer those that the uses of its bytes have to wait for.

    `places` has every buffer that the instructions of a section use.  A buffer is in use from the first to the last
    child of the program that accesses it.  Of two buffers with bytes in common that are in use one after the other,
    the later one has the earlier one, unless a third had all these bytes between them; two that are in use at the
    same time have each other.  A buffer that nothing in the section writes comes beside the others at its bytes and
    not after them: its reads wait for no reads.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    written: set[int] = set()
    for instruction in instructions:
        child = instruction.path[0].position
        for access in instruction.accesses:
            first.setdefault(access.buffer, child)
            last[access.buffer] = max(child, last.get(access.buffer, child))
            if access.writes:
                written.add(access.buffer)
    found: dict[int, list[int]] = {}
    latest: dict[Memory, _Latest] = {}
    for child, group in groupby(sorted(first, key=first.__getitem__), key=first.__getitem__):
        members = list(group)
        before = [latest.setdefault(places[b][0], _Latest()).under(*places[b][1:]) for b in members]
        for buffer, others in zip(members, before, strict=True):
            if others:
                found[buffer] = sorted(others)
        for buffer in members:
            memory, start, stop = places[buffer]
            for other in latest[memory].under(start, stop):
                if last[other] >= child:
                    _add(found, buffer, other)
                    _add(found, other, buffer)
            latest[memory].put(buffer, start, stop, partial(_stays, last, child if buffer in written else 0))
    return found


def _stays(last: Mapping[int, int], child: int, buffer: int) -> bool:
    """Whether a buffer is still in use at a child of the program."""
    return last[buffer] >= child


def _add(found: dict[int, list[int]], buffer: int, other: int) -> None:
    known = found.setdefault(buffer, [])
    if other not in known:
        known.append(other)


@dataclass
class _Latest:
    """The latest buffers at every byte of one memory: those at `held[n]` from `edges[n]` to the next edge."""

    edges: list[int] = field(default_factory=lambda: [0])
    held: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])

    def under(self, start: int, stop: int) -> set[int]:
        """The latest buffers at any of these bytes."""
        low = bisect_right(self.edges, start) - 1
        high = bisect_left(self.edges, stop)
        return set().union(*self.held[low:high])

    def put(self, buffer: int, start: int, stop: int, stays: Callable[[int], bool]) -> None:
        """Make a buffer the latest at its bytes, beside those that stay."""
        low, high = self._cut(start), self._cut(stop)
        for n in range(low, high):
            kept = (other for other in self.held[n] if stays(other))
            self.held[n] = frozenset((buffer, *kept))
        self._join(low, high)

    def _cut(self, address: int) -> int:
        """The number of the piece that starts here."""
        n = bisect_left(self.edges, address)
        if n == len(self.edges) or self.edges[n] != address:
            self.edges.insert(n, address)
            self.held.insert(n, self.held[n - 1])
        return n

    def _join(self, low: int, high: int) -> None:
        """Forget edges between pieces with the same buffers."""
        for n in range(high - 1, low, -1):
            if self.held[n] == self.held[n - 1]:
                del self.edges[n], self.held[n]


__all__ = ["Place", "aliases_of"]
