"""A series of layers as pieces of about equal cost, one for each chip, found by compiling candidates and counting.

What a layer costs in a piece is not known before the piece is compiled: the first estimate is its share of the whole's
cycles, and each compiled piece corrects those of its layers.  Source: docs/techniques/output-split.md,
"A stream over chips".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from frustum.backend.file.executable import Executable
from frustum.backend.trials import Trials
from frustum.passes.analysis.module import target_of
from frustum.passes.analysis.series import Range

Floats = NDArray[np.float64]
ROUNDS = 3
"""Partitions that are compiled at most; their pieces that were compiled before cost nothing."""
ENOUGH = 1.08
"""A partition whose costliest piece is at most so many times the mean of its pieces is not improved."""


def even(costs: Sequence[float], crossing: Sequence[float], pieces: int) -> list[Range]:
    """The partition into so many ranges (fewer, of fewer layers) whose costliest is least.

    `crossing`: what it costs the pieces on both sides to hand over what crosses the cut behind each layer but the last.
    """
    pieces = min(pieces, len(costs))
    before = np.concatenate([[0.0], np.cumsum(costs)])
    across = np.concatenate([[0.0], crossing, [0.0]])
    best = before + across  # of the layers before each position in one piece
    steps: list[NDArray[np.int64]] = []
    for _ in range(1, pieces):
        last = before[None, :] - before[:, None] + across[None, :] + across[:, None]
        found = np.maximum(best[:, None], np.where(np.tri(len(before), dtype=bool), np.inf, last))
        steps.append(found.argmin(axis=0))
        best = found.min(axis=0)
    stops = [len(costs)]
    for step in reversed(steps):
        stops.append(int(step[stops[-1]]))
    return list(pairwise([0, *reversed(stops)]))


def balanced(
    estimate: Sequence[float], crossing: Sequence[float], pieces: int, cost: Callable[[Range], int | None]
) -> list[Range] | None:
    """The best partition of those that were tried; None where none fits.

    `cost` compiles a piece and says what it takes; None where it does not fit, and layers of such a piece are taken to
    be dearer.
    """
    costs: Floats = np.maximum(np.asarray(estimate, np.float64), 1.0)
    best: tuple[float, list[Range]] | None = None
    seen: set[tuple[Range, ...]] = set()
    for _ in range(ROUNDS):
        ranges = even(costs.tolist(), crossing, pieces)
        if tuple(ranges) in seen:
            break
        seen.add(tuple(ranges))
        found = [cost(each) for each in ranges]
        for (start, stop), cycles in zip(ranges, found, strict=True):
            costs[start:stop] *= 2.0 if cycles is None else max(cycles, 1) / costs[start:stop].sum()
        known = [cycles for cycles in found if cycles is not None]
        if len(known) < len(found):
            continue
        loads = [
            cycles + sum(crossing[at - 1] for at in each if 0 < at < len(costs))
            for each, cycles in zip(ranges, known, strict=True)
        ]
        if best is None or max(loads) < best[0]:
            best = max(loads), ranges
        if max(loads) <= ENOUGH * sum(loads) / len(loads):
            break
    return None if best is None else best[1]


def for_chips(trials: Trials, chips: int) -> list[Range] | None:
    """A piece of the network for each chip, so that they take about as long; None where no partition fits."""
    series, whole = trials.layers.series, trials.layers.whole
    if trials.error(whole) is None:
        found = trials.count(whole).layers
        estimate = [float(found[name].cycles) if name in found else 0.0 for name in series.names]
    else:
        estimate = [float(cost) for cost in series.cost]
    _, size = series.crossing(whole)
    crossing = (size / target_of(trials.module).chip.dram.port_bytes_per_cycle).tolist()

    def cost(piece: Range) -> int | None:
        error = trials.error(piece)
        cycles = None if error is not None else trials.cost(piece).cycles
        trials.say(f"split: {trials.describe(piece)}: {error if cycles is None else f'{cycles:,} cycles'}")
        return cycles

    ranges = balanced(estimate, crossing, chips, cost)
    if ranges is not None:
        trials.say(f"split: {len(ranges)} pieces of about equal cost, for a stream over chips")
    return ranges


def within_the_whole(trials: Trials, ranges: Sequence[Range]) -> list[Executable]:
    """The executables, with no higher peaks on chip than the uncut network wherever that goes."""
    found = [trials.known(piece) for piece in ranges]
    if len(ranges) == 1 or trials.error(trials.layers.whole) is not None:
        return found
    most = trials.measured(trials.known(trials.layers.whole))
    for number, (piece, executable) in enumerate(zip(ranges, found, strict=True)):
        if not trials.is_within(executable, most):
            again = trials.capped(piece, most)
            how = "needs more on chip than" if again is None else "compiled with the memory of"
            trials.say(f"split: {trials.describe(piece)} {how} the uncut network")
            found[number] = again or executable
    return found
