"""The rules, in the order of their numbers.

Rules 1 to 3 order what to try next; each of the others judges a `Candidate` and says which numbers it compared.  None
of them changes anything: what to do about a failure is data (`Remedy`), carried out by `grow`.
Bytes are those of one cluster, or of one core of it where the text says so.

Source: docs/techniques/tfu.md, "Rules".
"""

from __future__ import annotations

from frustum.passes.fuse.candidate import Candidate, Operator
from frustum.passes.fuse.rule import (
    Kind,
    Remedy,
    Step,
    Steps,
    Threshold,
    Verdict,
    at_least,
    at_most,
    less_than,
    rule,
)

FEWEST_MAIN_LAYERS = 2
PERCENT = 100


@rule(1, Kind.SEARCH)
def forward_only(steps: Steps) -> Steps:
    """Grow from the start layer in the direction of inference; what stands before it is left alone."""
    return [step for step in steps if step.is_forward]


@rule(2, Kind.SEARCH)
def backward_first(steps: Steps) -> Steps:
    """First take in the layers before the start layer, nearest first, then grow forward."""
    return sorted(steps, key=lambda step: step.is_forward)


@rule(3, Kind.SEARCH)
def block_first(steps: Steps) -> Steps:
    """Add a block with one entry and one exit as a whole; only if that fails try the layers of its branches."""
    result: list[Step] = []
    for step in steps:
        result += [Step(layers, step.is_forward, is_block=True) for layers in step.blocks]
        result.append(step)
    return result


@rule(4, Kind.LEGALITY, Remedy.ADD_LAYERS, Remedy.REMOVE_LAYER)
def single_output(unit: Candidate) -> Verdict:
    """The unit has one output: its last layer's."""
    return at_most(unit.outputs, 1, "outputs")


@rule(5, Kind.PROFITABILITY, Remedy.DISSOLVE, at_closing=True)
def two_main_layers(unit: Candidate) -> Verdict:
    """The unit has at least two main layers."""
    found = sum(o.kind == "main" for o in unit.operators)
    return at_least(found, FEWEST_MAIN_LAYERS, "main layers")


@rule(6, Kind.PROFITABILITY, Remedy.DISSOLVE, at_closing=True)
def main_main_other(unit: Candidate) -> Verdict:
    """A main layer, a main layer and a layer of another kind follow each other; an activation belongs to its layer."""
    operators = unit.operators
    mains = [(i, o) for i, o in enumerate(operators) if o.kind == "main"]
    seconds = {i for i, o in mains if any(_ends_main(operators, read) for read in o.reads)}
    found = sum(o.kind != "main" and any(r in seconds for r in o.reads) for o in operators)
    return at_least(found, 1, "places where two main layers and another one follow each other")


@rule(7, Kind.PROFITABILITY, Remedy.DISSOLVE, at_closing=True)
def scalar_vector(unit: Candidate) -> Verdict:
    """A scalar layer is directly followed by a vector layer."""
    found = sum(o.kind == "vector" and _reads(unit.operators, o, "scalar") for o in unit.operators)
    return at_least(found, 1, "scalar layers with a vector layer behind")


@rule(8, Kind.LEGALITY, Remedy.REMOVE_LAYER)
def weights_are_constants(unit: Candidate) -> Verdict:
    """A convolution whose weights are computed leaves the unit."""
    return at_most(unit.computed_weights, 0, "convolutions with computed weights")


@rule(9, Kind.LEGALITY, Remedy.REMOVE_LAYER)
def weights_unshared(unit: Candidate) -> Verdict:
    """A convolution whose weights another layer uses too leaves the unit."""
    return at_most(unit.shared_weights, 0, "convolutions with shared weights")


SMALLER_WEIGHTS = (Remedy.SPLIT_COUT, Remedy.COUT_PIECES, Remedy.FEWER_MAPS, Remedy.REMOVE_LAYER)


@rule(10, Kind.CAPACITY, *SMALLER_WEIGHTS)
def weights_fit_wram(unit: Candidate) -> Verdict:
    """Each layer's weights <= W, or W / n by Cout over the cores, or pieces of Cout over time, each <= W / 2."""
    worst = max(unit.weights, key=lambda weights: weights.sub_map, default=None)
    if worst is not None and worst.sub_map > unit.wram_bytes and worst.group > unit.wram_bytes // 2:
        return at_most(worst.group, unit.wram_bytes // 2, "bytes of half the WRAM for one output channel")
    return at_most(unit.sub_weight_bytes, unit.wram_bytes, "bytes of WRAM")


@rule(11, Kind.PROFITABILITY, Remedy.STOP, threshold=Threshold(100, (50, 75, 100, 125, 150)), needs_plan=True)
def redundancy(unit: Candidate, threshold: int) -> Verdict:
    """Large-map mode: bytes loaded from DRAM more than once are at most `threshold` % of those loaded once."""
    more = 0 if unit.is_small else unit.loaded_bytes - unit.once_bytes
    return at_most(round(PERCENT * more / max(1, unit.once_bytes), 1), threshold, "% loaded again")


@rule(12, Kind.CAPACITY, Remedy.SPLIT_FINER, Remedy.REMOVE_LAYER)
def in_out_fit(unit: Candidate) -> Verdict:
    """in + out < S, or max(in, out) < S where the output may overwrite the input: of the unit map that is wanted."""
    if unit.may_overwrite:
        found = max(unit.wanted_in_bytes, unit.wanted_out_bytes)
        return less_than(found, unit.sram_bytes, "bytes of SRAM for the larger of input and output")
    found = unit.wanted_in_bytes + unit.wanted_out_bytes
    return less_than(found, unit.sram_bytes, "bytes of SRAM for input and output")


@rule(13, Kind.CAPACITY, *SMALLER_WEIGHTS, needs_plan=True)
def weights_and_buffers(unit: Candidate) -> Verdict:
    """Small-map mode: W_i + IN1 + IN2 <= S."""
    found = unit.sub_weight_bytes + unit.in_bytes + unit.buffer_bytes
    return in_small_mode(unit, found, unit.sram_bytes, "bytes of SRAM for weights, maps and buffers")


@rule(14, Kind.CAPACITY, *SMALLER_WEIGHTS, needs_plan=True)
def load_stage(unit: Candidate) -> Verdict:
    """Small-map mode: SubIN_i + W_i + IN2 <= S."""
    found = unit.load_bytes + unit.buffer_bytes
    return in_small_mode(unit, found, unit.sram_bytes, "bytes of SRAM while a sub-map is loaded")


@rule(15, Kind.CAPACITY, *SMALLER_WEIGHTS, needs_plan=True)
def store_stage(unit: Candidate) -> Verdict:
    """Small-map mode: SubOUT_i + W_i+1 + IN2 <= S."""
    found = unit.store_bytes + unit.buffer_bytes
    return in_small_mode(unit, found, unit.sram_bytes, "bytes of SRAM while a sub-map is stored")


@rule(16, Kind.CAPACITY, *SMALLER_WEIGHTS, needs_plan=True)
def adjacent_weights(unit: Candidate) -> Verdict:
    """Small-map mode: W_i + W_i+1 <= W: the weights of two neighbouring sub-maps are in WRAM together."""
    return in_small_mode(unit, unit.adjacent_weight_bytes, unit.wram_bytes, "bytes of WRAM for two sub-maps")


@rule(17, Kind.CAPACITY, Remedy.SPLIT_SUB_MAPS, Remedy.REMOVE_LAYER)
def sub_map_fits_nram(unit: Candidate) -> Verdict:
    """The bytes of a sub-map that is wanted <= NR."""
    return at_most(unit.wanted_sub_map_bytes, unit.nram_bytes, "bytes of NRAM")


@rule(
    18,
    Kind.PROFITABILITY,
    Remedy.FEWER_MAPS,
    Remedy.STOP,
    threshold=Threshold(16, range(1, 4097)),
    needs_plan=True,
)
def map_count(unit: Candidate, threshold: int) -> Verdict:
    """Small-map mode: the unit map holds at most `threshold` images of the batch."""
    return in_small_mode(unit, unit.maps, threshold, "maps")


@rule(19, Kind.PROFITABILITY, Remedy.STOP, threshold=Threshold(4, (3, 4, 5, 6)))
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
