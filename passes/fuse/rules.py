"""What a fusion rule is, and the table of all rules in the order of their numbers.

A rule has a name and a number, a kind, a judgement with numbers, and what mends a failure.  Rules 1 to 3 order what to
try next; each of the others judges a `Candidate` and says which numbers it compared.  None of them changes anything:
what to do about a failure is data (`Remedy`), carried out by `grow`.
Bytes are those of one cluster, or of one core of it where the text says so.

Source: docs/techniques/tfu.md, "Rules".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from frustum.passes.fuse.candidate import Candidate, Operator

FEWEST_MAIN_LAYERS = 2
PERCENT = 100


class RuleKind(Enum):
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
class Addition:
    """Layers to be added to a unit together; `blocks`: those that the layer opens (backwards: closes), whole."""

    layers: tuple[int, ...]
    is_forward: bool
    blocks: tuple[tuple[int, ...], ...] = ()
    is_block: bool = False


Steps: TypeAlias = Sequence[Addition]


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
    kind: RuleKind
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
    kind: RuleKind,
    *remedies: Remedy,
    threshold: Threshold | None = None,
    needs_plan: bool = False,
    at_closing: bool = False,
) -> Callable[[Callable[..., Verdict | Steps]], Rule]:
    """Register a function as the rule of this number."""

    def register(function: Callable[..., Verdict | Steps]) -> Rule:
        if number in RULES:
            raise ValueError(f"two rules have the number {number}: {RULES[number].name} and {function.__name__}")
        RULES[number] = Rule(number, kind, remedies, function, threshold, needs_plan, at_closing)
        return RULES[number]

    return register


# ---------------------------------------------------------------- the table


@rule(1, RuleKind.SEARCH)
def forward_only(steps: Steps) -> Steps:
    """Grow from the start layer in the direction of inference; what stands before it is left alone."""
    return [step for step in steps if step.is_forward]


@rule(2, RuleKind.SEARCH)
def backward_first(steps: Steps) -> Steps:
    """First take in the layers before the start layer, nearest first, then grow forward."""
    return sorted(steps, key=lambda step: step.is_forward)


@rule(3, RuleKind.SEARCH)
def block_first(steps: Steps) -> Steps:
    """Add a block with one entry and one exit as a whole; only if that fails try the layers of its branches."""
    result: list[Addition] = []
    for step in steps:
        result += [Addition(layers, step.is_forward, is_block=True) for layers in step.blocks]
        result.append(step)
    return result


@rule(4, RuleKind.LEGALITY, Remedy.ADD_LAYERS, Remedy.REMOVE_LAYER)
def single_output(unit: Candidate) -> Verdict:
    """The unit has one output: its last layer's."""
    return at_most(unit.outputs, 1, "outputs")


@rule(5, RuleKind.PROFITABILITY, Remedy.DISSOLVE, at_closing=True)
def two_main_layers(unit: Candidate) -> Verdict:
    """The unit has at least two main layers."""
    found = sum(o.kind == "main" for o in unit.operators)
    return at_least(found, FEWEST_MAIN_LAYERS, "main layers")


@rule(6, RuleKind.PROFITABILITY, Remedy.DISSOLVE, at_closing=True)
def main_main_other(unit: Candidate) -> Verdict:
    """A main layer, a main layer and a layer of another kind follow each other; an activation belongs to its layer."""
    operators = unit.operators
    mains = [(i, o) for i, o in enumerate(operators) if o.kind == "main"]
    seconds = {i for i, o in mains if any(_ends_main(operators, read) for read in o.reads)}
    found = sum(o.kind != "main" and any(r in seconds for r in o.reads) for o in operators)
    return at_least(found, 1, "places where two main layers and another one follow each other")


@rule(7, RuleKind.PROFITABILITY, Remedy.DISSOLVE, at_closing=True)
def scalar_vector(unit: Candidate) -> Verdict:
    """A scalar layer is directly followed by a vector layer."""
    found = sum(o.kind == "vector" and _reads(unit.operators, o, "scalar") for o in unit.operators)
    return at_least(found, 1, "scalar layers with a vector layer behind")


@rule(8, RuleKind.LEGALITY, Remedy.REMOVE_LAYER)
def weights_are_constants(unit: Candidate) -> Verdict:
    """A convolution whose weights are computed leaves the unit."""
    return at_most(unit.computed_weights, 0, "convolutions with computed weights")


@rule(9, RuleKind.LEGALITY, Remedy.REMOVE_LAYER)
def weights_unshared(unit: Candidate) -> Verdict:
    """A convolution whose weights another layer uses too leaves the unit."""
    return at_most(unit.shared_weights, 0, "convolutions with shared weights")


SMALLER_WEIGHTS = (Remedy.SPLIT_COUT, Remedy.COUT_PIECES, Remedy.FEWER_MAPS, Remedy.REMOVE_LAYER)


@rule(10, RuleKind.CAPACITY, *SMALLER_WEIGHTS)
def weights_fit_wram(unit: Candidate) -> Verdict:
    """Each layer's weights <= W, or W / n by Cout over the cores, or pieces of Cout over time, each <= W / 2."""
    worst = max(unit.weights, key=lambda weights: weights.sub_map, default=None)
    if worst is not None and worst.sub_map > unit.wram_bytes and worst.group > unit.wram_bytes // 2:
        return at_most(worst.group, unit.wram_bytes // 2, "bytes of half the WRAM for one output channel")
    return at_most(unit.sub_weight_bytes, unit.wram_bytes, "bytes of WRAM")


@rule(11, RuleKind.PROFITABILITY, Remedy.STOP, threshold=Threshold(100, (50, 75, 100, 125, 150)), needs_plan=True)
def redundancy(unit: Candidate, threshold: int) -> Verdict:
    """Large-map mode: bytes loaded from DRAM more than once are at most `threshold` % of those loaded once."""
    more = 0 if unit.is_small else unit.loaded_bytes - unit.once_bytes
    return at_most(round(PERCENT * more / max(1, unit.once_bytes), 1), threshold, "% loaded again")


@rule(12, RuleKind.CAPACITY, Remedy.SPLIT_FINER, Remedy.REMOVE_LAYER)
def in_out_fit(unit: Candidate) -> Verdict:
    """in + out < S, or max(in, out) < S where the output may overwrite the input: of the unit map that is wanted."""
    if unit.may_overwrite:
        found = max(unit.wanted_in_bytes, unit.wanted_out_bytes)
        return less_than(found, unit.sram_bytes, "bytes of SRAM for the larger of input and output")
    found = unit.wanted_in_bytes + unit.wanted_out_bytes
    return less_than(found, unit.sram_bytes, "bytes of SRAM for input and output")


@rule(13, RuleKind.CAPACITY, *SMALLER_WEIGHTS, needs_plan=True)
def weights_and_buffers(unit: Candidate) -> Verdict:
    """Small-map mode: W_i + IN1 + IN2 <= S."""
    found = unit.sub_weight_bytes + unit.in_bytes + unit.buffer_bytes
    return in_small_mode(unit, found, unit.sram_bytes, "bytes of SRAM for weights, maps and buffers")


@rule(14, RuleKind.CAPACITY, *SMALLER_WEIGHTS, needs_plan=True)
def load_stage(unit: Candidate) -> Verdict:
    """Small-map mode: SubIN_i + W_i + IN2 <= S."""
    found = unit.load_bytes + unit.buffer_bytes
    return in_small_mode(unit, found, unit.sram_bytes, "bytes of SRAM while a sub-map is loaded")


@rule(15, RuleKind.CAPACITY, *SMALLER_WEIGHTS, needs_plan=True)
def store_stage(unit: Candidate) -> Verdict:
    """Small-map mode: SubOUT_i + W_i+1 + IN2 <= S."""
    found = unit.store_bytes + unit.buffer_bytes
    return in_small_mode(unit, found, unit.sram_bytes, "bytes of SRAM while a sub-map is stored")


@rule(16, RuleKind.CAPACITY, *SMALLER_WEIGHTS, needs_plan=True)
def adjacent_weights(unit: Candidate) -> Verdict:
    """Small-map mode: W_i + W_i+1 <= W: the weights of two neighbouring sub-maps are in WRAM together."""
    return in_small_mode(unit, unit.adjacent_weight_bytes, unit.wram_bytes, "bytes of WRAM for two sub-maps")


@rule(17, RuleKind.CAPACITY, Remedy.SPLIT_SUB_MAPS, Remedy.REMOVE_LAYER)
def sub_map_fits_nram(unit: Candidate) -> Verdict:
    """The bytes of a sub-map that is wanted <= NR."""
    return at_most(unit.wanted_sub_map_bytes, unit.nram_bytes, "bytes of NRAM")


@rule(
    18,
    RuleKind.PROFITABILITY,
    Remedy.FEWER_MAPS,
    Remedy.STOP,
    threshold=Threshold(16, range(1, 4097)),
    needs_plan=True,
)
def map_count(unit: Candidate, threshold: int) -> Verdict:
    """Small-map mode: the unit map holds at most `threshold` images of the batch."""
    return in_small_mode(unit, unit.maps, threshold, "maps")


@rule(19, RuleKind.PROFITABILITY, Remedy.STOP, threshold=Threshold(4, (3, 4, 5, 6)))
def stride_redundancy(unit: Candidate, threshold: int) -> Verdict:
    """Kernels reach at most `threshold` beyond their strides, summed; layers of whole blocks do not count."""
    return at_most(max(unit.borders), threshold, "rows or columns of borders")


def in_small_mode(unit: Candidate, found: float, limit: float, what: str) -> Verdict:
    """`found <= limit`, which need not be so in large-map mode."""
    verdict = at_most(found, limit, what)
    return verdict if unit.is_small else Verdict(True, verdict.found, verdict.relation, verdict.limit, what)


def _ends_main(operators: tuple[Operator, ...], place: int) -> bool:
    """A main layer, or the activation of one."""
    operator = operators[place]
    return operator.kind == "main" or (operator.is_activation and _reads(operators, operator, "main"))


def _reads(operators: tuple[Operator, ...], operator: Operator, kind: str) -> bool:
    return any(operators[read].kind == kind for read in operator.reads)
