"""What a fusion rule is: a name and a number, what kind of rule, a judgement with numbers, and what mends a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from frustum.passes.fuse.candidate import Candidate


class Kind(Enum):
    """What a rule is for."""

    SEARCH = "search"
    """Says what to try next."""
    LEGALITY = "legality"
    CAPACITY = "capacity"
    PROFITABILITY = "profitability"
    """A heuristic; a unit of one layer is exempt."""


class Remedy(Enum):
    """What to do where a rule fails."""

    NONE = "none"
    ADD_LAYERS = "add layers until there is one output"
    REMOVE_LAYER = "remove the layer"
    SPLIT_COUT = "split by Cout over the cores"
    COUT_PIECES = "split by Cout over time, double-buffered"
    FEWER_MAPS = "fewer maps"
    SPLIT_FINER = "split the unit map finer"
    SPLIT_SUB_MAPS = "split the sub-maps finer"
    STOP = "stop growing"
    DISSOLVE = "dissolve the unit"


@dataclass(frozen=True)
class Verdict:
    """What a rule says of a unit: the number found, the limit, how they must stand to each other."""

    holds: bool
    found: float
    relation: str
    limit: float
    what: str
    """Of what the numbers are, units included."""

    def __str__(self) -> str:
        relation = self.relation if self.holds else OPPOSITE[self.relation]
        return f"{self.found:.10g} {relation} {self.limit:.10g} {self.what}"


OPPOSITE = {"<=": ">", "<": ">=", ">=": "<"}


def at_most(found: float, limit: float, what: str) -> Verdict:
    return Verdict(found <= limit, found, "<=", limit, what)


def less_than(found: float, limit: float, what: str) -> Verdict:
    return Verdict(found < limit, found, "<", limit, what)


def at_least(found: float, limit: float, what: str) -> Verdict:
    return Verdict(found >= limit, found, ">=", limit, what)


@dataclass(frozen=True)
class Step:
    """Layers to be added to a unit together; `blocks`: those that the layer opens (backwards: closes), whole."""

    layers: tuple[int, ...]
    is_forward: bool
    blocks: tuple[tuple[int, ...], ...] = ()
    is_block: bool = False


Steps: TypeAlias = Sequence[Step]


@dataclass(frozen=True)
class Threshold:
    """Of a rule: its default, and the values that it may have."""

    default: int
    allowed: range | tuple[int, ...]

    def __str__(self) -> str:
        if isinstance(self.allowed, range):
            return f"{self.allowed.start} to {self.allowed.stop - 1}"
        return ", ".join(map(str, self.allowed))


@dataclass(frozen=True)
class Rule:
    """One rule of the table: judges a candidate unit, or (a search rule) orders what to try next."""

    number: int
    kind: Kind
    remedies: tuple[Remedy, ...]
    function: Callable[..., Verdict | Steps]
    threshold: Threshold | None
    needs_plan: bool
    """Its numbers are those of a unit map; other rules are tested before anything is planned."""
    at_closing: bool
    """Of the finished unit only: a unit that grows cannot have it from the beginning."""

    @property
    def name(self) -> str:
        return self.function.__name__.replace("_", "-")

    @property
    def meaning(self) -> str:
        return (self.function.__doc__ or "").split("\n")[0]

    def judge(self, candidate: Candidate, threshold: int | None) -> Verdict:
        verdict = self.function(candidate) if threshold is None else self.function(candidate, threshold)
        assert isinstance(verdict, Verdict)
        return verdict

    def order(self, steps: Steps) -> Steps:
        """The steps as a search rule wants them."""
        found = self.function(steps)
        assert not isinstance(found, Verdict)
        return found

    def __str__(self) -> str:
        return f"rule {self.number} {self.name}"


RULES: dict[int, Rule] = {}
"""All rules by number."""


def rule(
    number: int,
    kind: Kind,
    *remedies: Remedy,
    threshold: Threshold | None = None,
    needs_plan: bool = False,
    at_closing: bool = False,
) -> Callable[[Callable[..., Verdict | Steps]], Rule]:
    """Register a function as the rule of this number."""

    def register(function: Callable[..., Verdict | Steps]) -> Rule:
        assert number not in RULES, f"two rules have the number {number}"
        RULES[number] = Rule(number, kind, remedies, function, threshold, needs_plan, at_closing)
        return RULES[number]

    return register
