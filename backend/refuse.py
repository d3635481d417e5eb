"""Fuse neighbouring pieces of a network again, to balance the load: four strategies.

Pieces are numbered; a group is a range [start, stop) of them.  Each strategy takes the number of pieces and `fuses`,
which really compiles a candidate group and tells whether that worked, and gives the groups in order.
Source: docs/techniques/output-split.md, "Fused again".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Literal, TypeAlias, get_args

Group: TypeAlias = tuple[int, int]
Fuses: TypeAlias = Callable[[Group], bool]
Strategy: TypeAlias = Literal["conditions", "pairs", "forward", "bidirectional"]

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
FEWEST_RETRIED = 3
"""A failed group of so many pieces or more is tried again with one piece less."""
_LIMIT = re.compile(r"(?P<name>[a-z_]+)=(?P<low>\d*)\.\.(?P<high>\d*)")


@dataclass(frozen=True)
class Load:
    """What a piece adds to the sums of its group."""

    compute: int
    """Multiply-accumulates and element operations."""
    weight_bytes: int
    nodes: int


@dataclass(frozen=True)
class Limits:
    """Of each sum the least and the most that a group may have; None: no bound."""

    compute: tuple[int, int | None] = (0, None)
    weight_bytes: tuple[int, int | None] = (0, None)
    nodes: tuple[int, int | None] = (0, None)


@dataclass(frozen=True)
class Refusal:
    """How pieces are fused again."""

    strategy: Strategy
    limits: Limits = Limits()
    """Of `conditions` only."""

    def groups(self, loads: Sequence[Load], fuses: Fuses) -> list[Group]:
        """The pieces in groups, in order: every piece is in one."""
        if self.strategy == "conditions":
            return by_conditions(loads, self.limits, fuses)
        return _BY_COUNT[self.strategy](len(loads), fuses)


def parse_refusal(text: str) -> Refusal:
    """`pairs`, or `conditions{nodes=2..10,weight_bytes=..65536}`; ValueError says what is wrong."""
    name, brace, rest = text.partition("{")
    strategy = next((each for each in STRATEGIES if each == name), None)
    if strategy is None:
        raise ValueError(f"'{name}' is none of {', '.join(STRATEGIES)}")
    if not brace:
        return Refusal(strategy)
    if strategy != "conditions" or not rest.endswith("}"):
        raise ValueError(f"'{text}': limits are written conditions{{nodes=2..10,weight_bytes=..65536}}")
    return Refusal(strategy, _parse_limits(rest[:-1]))


def _parse_limits(text: str) -> Limits:
    known = [each.name for each in fields(Limits)]
    found: dict[str, tuple[int, int | None]] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part.strip())
        if match is None or match["name"] not in known or match["name"] in found:
            raise ValueError(f"'{part}' is not NAME=LEAST..MOST with a NAME of {', '.join(known)}, each once")
        low, high = int(match["low"] or 0), int(match["high"]) if match["high"] else None
        if high is not None and high < low:
            raise ValueError(f"'{part}': the least is more than the most")
        found[match["name"]] = low, high
    return Limits(**found)


def by_conditions(loads: Sequence[Load], limits: Limits, fuses: Fuses) -> list[Group]:
    """From each piece on the longest group whose sums lie within the limits; where it fails, one piece less."""
    sums = _Sums(loads, limits)
    groups: list[Group] = []
    start = 0
    while start < len(loads):
        stop = sums.longest(start)
        while stop - start > 1 and not (sums.allow(start, stop) and fuses((start, stop))):
            stop = stop - 1 if stop - start >= FEWEST_RETRIED else start + 1
        groups.append((start, stop))
        start = stop
    return groups


class _Sums:
    """Sums over ranges of pieces, against limits."""

    def __init__(self, loads: Sequence[Load], limits: Limits) -> None:
        self._bounds = [getattr(limits, each.name) for each in fields(Limits)]
        self._before = [
            list(accumulate((getattr(load, each.name) for load in loads), initial=0)) for each in fields(Load)
        ]

    def longest(self, start: int) -> int:
        """Where the longest group from here ends whose sums are at most what is allowed; at least one piece."""
        stop, end = start + 1, len(self._before[0]) - 1
        while stop < end and self._at_most(start, stop + 1):
            stop += 1
        return stop

    def allow(self, start: int, stop: int) -> bool:
        """Whether every sum lies within its limits."""
        enough = all(b[stop] - b[start] >= low for b, (low, _) in zip(self._before, self._bounds, strict=True))
        return enough and self._at_most(start, stop)

    def _at_most(self, start: int, stop: int) -> bool:
        pairs = zip(self._before, self._bounds, strict=True)
        return all(high is None or b[stop] - b[start] <= high for b, (_, high) in pairs)


def by_pairs(count: int, fuses: Fuses) -> list[Group]:
    """(1, 2), (3, 4), ...; a pair that fails stays apart."""
    groups: list[Group] = []
    for start in range(0, count, 2):
        stop = min(start + 2, count)
        whole = stop - start < 2 or fuses((start, stop))
        groups += [(start, stop)] if whole else [(start, start + 1), (start + 1, stop)]
    return groups


def forward(count: int, fuses: Fuses) -> list[Group]:
    """The current piece with the next: fused, both are final; else the current one is, and the next is current."""
    groups: list[Group] = []
    start = 0
    while start < count:
        stop = start + 2 if start + 2 <= count and fuses((start, start + 2)) else start + 1
        groups.append((start, stop))
        start = stop
    return groups


def bidirectional(count: int, fuses: Fuses) -> list[Group]:
    """Like `forward`, by turns from both ends towards the middle."""
    first: list[Group] = []
    last: list[Group] = []
    start, stop = 0, count
    while start < stop:
        end = start + 2 if start + 2 <= stop and fuses((start, start + 2)) else start + 1
        first.append((start, end))
        start = end
        if start < stop:
            begin = stop - 2 if start + 2 <= stop and fuses((stop - 2, stop)) else stop - 1
            last.append((begin, stop))
            stop = begin
    return [*first, *reversed(last)]


_BY_COUNT: dict[Strategy, Callable[[int, Fuses], list[Group]]] = {
    "pairs": by_pairs,
    "forward": forward,
    "bidirectional": bidirectional,
}
