# Tests: test/dialects/plan/test_rates.py
"""Ranges of clusters: how far each axis of a class goes while the one that a loop names goes on by a position.

A layer's range is where the windows of its reader begin, so that what clusters send each other are borders alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class, links_of
from frustum.dialects.axes.network import Layer

Rates = Mapping[Axis, Fraction]
"""Positions of each axis of a class for one of the axis that a loop names."""


def rates_of(axis: Axis, group: Class, layers: Sequence[Layer]) -> Rates:
    """The rates of all axes of a class, from the last layer back: as windows move; in proportion to extents where no
    later layer reads along the class."""
    found = {axis: Fraction(1)}
    for layer in reversed(layers):
        own = next(iter(group & set(layer.axes)), None)
        if own is None:
            continue
        rate = found.setdefault(own, Fraction(own.extent, axis.extent))
        for _, read, link in links_of(layer):
            if link.axis is own and read in group and link.stride > 0:
                found.setdefault(read, rate * link.stride)
    return {own: found.get(own, Fraction(own.extent, axis.extent)) for own in group}


def ranges_of(edges: Sequence[int], own: Axis, axis: Axis, rates: Rates) -> list[tuple[int, int]]:
    """Ranges of an axis between edges of the one that a loop names; the last one ends where the axis does."""
    rate = rates.get(own, Fraction(own.extent, axis.extent))
    ends = [own.extent if edge == axis.extent else min(math.ceil(edge * rate), own.extent) for edge in edges]
    return list(pairwise(ends))


def steps_of_class(
    axis: Axis, group: Class, layers: Sequence[Layer], clusters: int, *, may_idle: bool = False
) -> dict[Axis, int]:  # fmt: skip
    """How far apart ranges of clusters begin along each axis, where all of a class go on together: so that the one with
    the most of an axis has the least, and the last one no more than others if that may be; and before that, unless it
    `may_idle`, that no cluster has nothing."""
    rates = rates_of(axis, group, layers)
    whole = math.lcm(*(rate.denominator for rate in rates.values()))
    shares = [own.extent / (clusters * rate) for own, rate in rates.items()]
    first, last = math.floor(min(shares) / whole), math.ceil(max(shares) / whole)

    def steps(step: int) -> dict[Axis, int]:
        return {own: min(own.extent, int(step * rate)) for own, rate in rates.items()}

    def badness(step: int) -> tuple[bool, float, bool]:
        found = steps(step)
        is_idle = not may_idle and any(each * (clusters - 1) >= own.extent for own, each in found.items())
        most = {own: longest(own, each, clusters) for own, each in found.items()}
        is_uneven = any(most[own] > each for own, each in found.items())
        return is_idle, max(each / own.extent for own, each in most.items()), is_uneven

    return steps(min((whole * k for k in range(max(1, first), max(1, last) + 1)), key=badness))


def longest(axis: Axis, step: int, clusters: int) -> int:
    """Positions of the cluster that has the most, where ranges begin so far apart: what is left the last one has."""
    return min(axis.extent, max(step, axis.extent - step * (clusters - 1)))


def edges_of(axis: Axis, step: int, clusters: int) -> tuple[int, ...]:
    """Where ranges of clusters begin, and the end of the last one."""
    return (*range(0, min(axis.extent, step * clusters), step), axis.extent)
