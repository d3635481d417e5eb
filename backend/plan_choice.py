# Tests: test/backend/test_plan_choice.py
"""The machine chooses between plans: each becomes a program, and a run of it is counted.

Source: docs/ir-plan.md, "Which plan".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import DiagnosticException

from frustum.backend.cost import Cost
from frustum.backend.pipeline import TYPED, Choices, Run, passes_to, stop_of, stops_after
from frustum.dialects.choices import TREE
from frustum.dialects.errors import Error
from frustum.dialects.graph import AttentionOp, ProductOp, RecurrenceOp
from frustum.dialects.graph.declaration import LayerOp
from frustum.dialects.module import POLICY
from frustum.passes.plan.text.apply import plans_of

PLANNED = "fused"
"""The stop at which networks have plans."""
PLANS = 5
"""Of each network so many are judged at most: a compilation takes as long as their programs. 2026-11-29."""
FEW = 3
"""The same where the layers have been planned in another way too. 2026-11-29."""
LAYERS = 400
"""There so many layers are written at most, in all plans together, but for one plan: some 30 seconds. 2026-11-30."""
NEAR = 1.02
"""A plan within 2 % of the fewest cycles takes nearly as long. 2026-11-29."""
MORE = 1.01
"""So many times the bytes of layers that are planned in another way plans as trees may move. 2026-11-29."""
ROUGH = 1.2
"""Plans that are judged to take up to so many times the cycles become programs: the evaluator's are 0.8 to 1.2 times
those of the emulator, 1.03 in the median of 12 plans on `default`. 2026-11-30."""
WORK = 60_000
"""The effort of a search for plans beside others: some ten seconds. 2026-11-30."""


WRITTEN_OUT = 8
"""Times the products that a tree has: planning them one by one takes long (an LSTM of 64 steps 16 s, 2 as a tree).
2026-11-29."""


@dataclass(frozen=True, eq=False)
class PlannedModule:
    """A module of which a program may be made: with which choices, and the stop where it is."""

    module: ModuleOp
    choices: Choices
    stop: str


def may_choose(module: ModuleOp, choices: Choices, stop: str | None) -> bool:
    """Whether plans are still to be found, and the fewest cycles are asked for."""
    is_open = choices.is_tree and choices.plan is None and choices.optimise == "time"
    return is_open and PLANNED in stops_after(stop or stop_of(module))


def candidates_of(module: ModuleOp, choices: Choices, run: Run, stop: str | None) -> list[PlannedModule]:
    """The module at stop `fused` with plans that are judged to be good, the best first.  Raises what keeps a network
    from having any, such as `DoesNotFit`."""
    after = stops_after(stop or stop_of(module))
    run.advance(module, after[: after.index(PLANNED)], choices)
    run.apply_all(module, passes_to(PLANNED, choices))
    names = [plan.network_name for plan in plans_of(module)]
    several = range(max(map(names.count, names), default=1))
    return [PlannedModule(_only(module.clone(), number), choices, PLANNED) for number in several]


def typed_for_trees(imported: ModuleOp, choices: Choices, run: Run) -> ModuleOp | None:
    """An imported module at stop `typed`, as plans as trees are made of; None where it has none."""
    module = imported.clone()
    module.attributes[POLICY] = StringAttr(TREE)
    with suppress(Error, DiagnosticException):
        run.advance(module, (TYPED,), replace(choices, policy=TREE))
        return module
    return None


def is_written_out(imported: ModuleOp, tree: ModuleOp) -> bool:
    """Whether the other planner would see so many products, step by step and phase by phase, that a network is planned
    as a tree alone."""
    return products_in(imported, is_unrolled=True) > WRITTEN_OUT * products_in(tree, is_unrolled=False)


def products_in(op: Operation, *, is_unrolled: bool) -> int:
    """Products of an operation and below it; with loops once, or step by step."""
    own = isinstance(op, ProductOp) + 2 * isinstance(op, AttentionOp)
    inside = (each for region in op.regions for block in region.blocks for each in block.ops)
    below = sum(products_in(each, is_unrolled=is_unrolled) for each in inside)
    return own + below * (op.steps if is_unrolled and isinstance(op, RecurrenceOp) else 1)


def candidates_beside(tree: ModuleOp, choices: Choices, run: Run, cost: Cost | None) -> list[PlannedModule]:
    """The same of layers that are planned in another way too, and whose run costs so much; None: they do not fit.
    Plans that are judged to take more than `ROUGH` times the cycles are left out, and so is what keeps a network
    from having any."""
    layers = sum(isinstance(op, LayerOp) for op in tree.walk())
    own = replace(choices, policy=TREE, plans=max(1, min(FEW, LAYERS // max(1, layers))), work=WORK)
    if cost is not None:
        own = replace(own, most=(int(MORE * cost.data_bytes), int(ROUGH * cost.cycles)))
    with suppress(Error, DiagnosticException):
        return candidates_of(tree.clone(), own, run, TYPED)
    return []


def best_of(costs: Sequence[Cost | None], *, is_bound: bool = False) -> int:
    """The candidate whose run takes the fewest cycles; of those that take nearly as long the one with the least cycles
    times bytes: it may take longer by no greater part than it moves fewer bytes.  None: there is no program; where that
    is so of all, it is the first one, and whoever goes on is told.
    `is_bound`: the first is planned in another way, and others move hardly more bytes.
    """
    known = {number: cost for number, cost in enumerate(costs) if cost is not None}
    if is_bound and 0 in known:
        most_bytes = MORE * known[0].data_bytes
        known = {number: cost for number, cost in known.items() if cost.data_bytes <= most_bytes}
    most = NEAR * min((cost.cycles for cost in known.values()), default=0)
    near = (number for number, cost in known.items() if cost.cycles <= most)
    return min(near, key=lambda number: known[number].dram_bytes * known[number].cycles, default=0)


def _only(module: ModuleOp, number: int) -> ModuleOp:
    """Of the plans of each network the one of this number, or the last."""
    plans = plans_of(module)
    for name in dict.fromkeys(plan.network_name for plan in plans):
        own = [plan for plan in plans if plan.network_name == name]
        for plan in own:
            if plan is not own[min(number, len(own) - 1)]:
                Rewriter.erase_op(plan)
    return module
