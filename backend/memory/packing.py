"""Offsets for buffers of which some must not share memory: dynamic storage allocation by a portfolio of greedy orders.

On the hard cases of minimalloc the best greedy order is 20 to 40 % above the lower bound; buffers of a fused unit are
few and mostly live together, where greedy is optimal or near.  So greedy orders come first, and only a capacity that
none of them meets starts the search: put the buffer at the peak to the front and pack again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import ALIGNMENT_BYTES

ROUNDS = 200
"""Searches beyond this found nothing more on the sizes of our networks."""

LEAST_BYTES = 65536
"""Whoever waits for shared bytes holds up what is behind it: few of them cost nearly as much as many."""


def usable(capacity_bytes: int) -> int:
    """What aligned buffers can take of a memory: what is placed from its end on begins at a multiple too."""
    return capacity_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES


@dataclass(frozen=True)
class Packing:
    """Where each buffer starts, and the first address behind all of them."""

    offsets: tuple[int, ...]
    peak: int


def pack(
    sizes: Sequence[int], meets: Sequence[Sequence[int]], starts: Sequence[int], capacity: int
) -> Packing:
    """The lowest packing found; `meets[n]` are those that must not share bytes with n, `starts` their textual order.

    Sizes and capacity are multiples of the alignment.  The result may exceed the capacity.
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


def pack_apart(
    sizes: Sequence[int],
    meets: Sequence[Sequence[int]],
    wishes: Sequence[Mapping[int, float]],
    starts: Sequence[int],
    capacity: int,
    searches: int = 0,
) -> Packing | int:
    """The packing of two greedy ones in which wishes cost least; if neither stays within the capacity, the first of
    at most `searches` others in which what found no place comes first; else a buffer that finds no place.

    `wishes[n]` are those that n should share no bytes with, and what each shared byte costs; both ways round.  Sizes
    and capacity are multiples of the alignment, and so are the offsets.
    """
    numbers = range(len(sizes))
    orders = (
        sorted(numbers, key=lambda n: (starts[n], -sizes[n])),
        sorted(numbers, key=lambda n: (-sizes[n], starts[n])),
    )
    found = [_place_apart(order, sizes, meets, wishes, capacity) for order in orders]
    order, left = orders[0], found[0][1]
    for _ in range(searches if all(isinstance(each, int) for _, each in found) else 0):
        order = sorted(order, key=lambda n: n != left)
        found.append(_place_apart(order, sizes, meets, wishes, capacity))
        left = found[-1][1]
        if not isinstance(left, int):
            break
    known = [(cost, offsets) for cost, offsets in found if not isinstance(offsets, int)]
    if not known:
        left = found[0][1]
        assert isinstance(left, int)
        return left
    _, offsets = min(known, key=lambda each: each[0])
    peak = max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)
    return Packing(tuple(offsets), peak)


def _place_apart(
    order: Sequence[int],
    sizes: Sequence[int],
    meets: Sequence[Sequence[int]],
    wishes: Sequence[Mapping[int, float]],
    capacity: int,
) -> tuple[float, list[int] | int]:
    """Each buffer in turn at the place that costs least, the lowest of equal ones, with the cost; or the first buffer
    that finds no place."""
    offsets, total = [-1] * len(sizes), 0.0
    for number in order:
        size = sizes[number]
        hard = [(offsets[n], offsets[n] + sizes[n]) for n in meets[number] if offsets[n] >= 0]
        soft = [(offsets[n], offsets[n] + sizes[n], w) for n, w in wishes[number].items() if offsets[n] >= 0]
        free = _first_gap(sorted([*hard, *((a, b) for a, b, _ in soft)]), size)
        if free + size > capacity:
            cost, free = _cheapest(
                np.array(hard).reshape(-1, 2), np.array(soft).reshape(-1, 3), size, capacity
            )
            if free < 0:
                return 0.0, number
            total += cost
        offsets[number] = free
    return total, offsets


def _cheapest(
    hard: NDArray[np.int64], soft: NDArray[np.float64], size: int, capacity: int
) -> tuple[float, int]:
    """The cost and the offset of the best place; offset -1 if there is none.

    The cost is linear between the places where a buffer begins or stops to touch another one, so these are enough.
    """
    ends = np.concatenate([hard, soft[:, :2].astype(np.int64)]).ravel()
    places = np.unique(np.concatenate([[0, capacity - size], ends, ends - size]))
    places = places[(places >= 0) & (places + size <= capacity)]
    begin, end = places[:, None], places[:, None] + size
    places = places[((end <= hard[:, 0]) | (hard[:, 1] <= begin)).all(axis=1)]
    if not places.size:
        return 0.0, -1
    begin = places[:, None]
    shared = np.minimum(begin + size, soft[:, 1]) - np.maximum(begin, soft[:, 0])
    costs = (np.where(shared > 0, shared + LEAST_BYTES, 0) * soft[:, 2]).sum(axis=1)
    best = int(costs.argmin())
    return float(costs[best]), int(places[best])
