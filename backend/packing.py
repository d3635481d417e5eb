"""Offsets for buffers of which some must not share memory: dynamic storage allocation by a portfolio of greedy orders.

On the hard cases of minimalloc the best greedy order is 20 to 40 % above the lower bound; buffers of a fused unit are
few and mostly live together, where greedy is optimal or near.  So greedy orders come first, and only a capacity that
none of them meets starts the search: put the buffer at the peak to the front and pack again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROUNDS = 200
"""Searches beyond this found nothing more on the sizes of our networks."""


@dataclass(frozen=True)
class Packing:
    """Where each buffer starts, and the first address behind all of them."""

    offsets: tuple[int, ...]
    peak: int


def pack(
    sizes: Sequence[int], meets: Sequence[Sequence[int]], starts: Sequence[int], capacity: int
) -> Packing:
    """The lowest packing found; `meets[n]` are those that must not share bytes with n, `starts` their textual order.

    Sizes are multiples of the alignment.  The result may exceed the capacity.
    """
    numbers = range(len(sizes))
    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda n: (-sizes[n], starts[n]),
        lambda n: (starts[n], -sizes[n]),
        lambda n: (-sizes[n] * len(meets[n]), starts[n]),
        lambda n: (-len(meets[n]), -sizes[n], starts[n]),
    )
    orders = [sorted(numbers, key=key) for key in keys]
    packings = [(_greedy(order, sizes, meets), order) for order in orders]
    best, order = min(packings, key=lambda found: found[0].peak)
    return best if best.peak <= capacity else _search(best, order, sizes, meets, capacity)


def _greedy(order: Sequence[int], sizes: Sequence[int], meets: Sequence[Sequence[int]]) -> Packing:
    """Each buffer in turn at the lowest place that those before it leave."""
    offsets = [-1] * len(sizes)
    for number in order:
        taken = sorted((offsets[n], offsets[n] + sizes[n]) for n in meets[number] if offsets[n] >= 0)
        offsets[number] = _first_gap(taken, sizes[number])
    peak = max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)
    return Packing(tuple(offsets), peak)


def _first_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    free = 0
    for start, stop in taken:
        if start - free >= size:
            break
        free = max(free, stop)
    return free


def _search(
    best: Packing, order: Sequence[int], sizes: Sequence[int], meets: Sequence[Sequence[int]], capacity: int
) -> Packing:
    """Packings with the buffers at the peak moved to the front, until one fits or nothing changes."""
    seen = {tuple(order)}
    current, order = best, list(order)
    for _ in range(ROUNDS):
        top = [n for n in order if current.offsets[n] + sizes[n] == current.peak]
        order = top + [n for n in order if n not in top]
        if tuple(order) in seen:
            order = [*order[1:], order[0]]
        if tuple(order) in seen:
            break
        seen.add(tuple(order))
        current = _greedy(order, sizes, meets)
        best = min(best, current, key=lambda packing: packing.peak)
        if best.peak <= capacity:
            break
    return best
