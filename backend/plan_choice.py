# Tests: test/backend/test_plan_choice.py
"""The machine chooses between plans: each becomes a program, and a run of it is counted.

Source: docs/ir-plan.md, "Which plan".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import Rewriter

from frustum.backend.pipeline import Choices, Run, passes_to, stop_of, stops_after
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.plan.text.apply import plans_of

PLANNED = "fused"
"""The stop at which networks have plans."""
PLANS = 5
"""Of each network so many are judged at most: a compilation takes as long as their programs. 2026-11-29."""
NEAR = 1.02
"""A plan within 2 % of the fewest cycles takes nearly as long. 2026-11-29."""


def may_choose(module: ModuleOp, choices: Choices, stop: str | None) -> bool:
    """Whether plans are still to be found, and the fewest cycles are asked for."""
    is_open = choices.is_tree and choices.plan is None and choices.optimise == "time"
    return is_open and PLANNED in stops_after(stop or stop_of(module))


def with_best_plan(
    module: ModuleOp, choices: Choices, run: Run, stop: str | None, cost: Callable[[int, ModuleOp], tuple[int, int]]
) -> tuple[ModuleOp, int]:  # fmt: skip
    """The module at stop `fused`, with those plans whose program takes the fewest cycles, and their number; `cost`
    counts these and DRAM bytes, of the plans of a number.  Of those that take nearly as long the one that moves the
    fewest is taken.  Plans of which no program is made, or none that fits, are left out; where that is so of all, the
    first one stays, and whoever goes on is told.
    """
    after = stops_after(stop or stop_of(module))
    run.advance(module, after[: after.index(PLANNED)], choices)
    run.apply_all(module, passes_to(PLANNED, replace(choices, plans=PLANS)))
    names = [plan.network_name for plan in plans_of(module)]
    found = [_only(module.clone(), number) for number in range(max(map(names.count, names), default=1))]
    costs = dict[int, tuple[int, int]]()
    for number, each in enumerate(found if len(found) > 1 else ()):
        with suppress(DoesNotFit, NotLowered):
            costs[number] = cost(number, each.clone())
    most = NEAR * min((cycles for cycles, _ in costs.values()), default=0)
    near = (number for number, (cycles, _) in costs.items() if cycles <= most)
    best = min(near, key=lambda number: costs[number][::-1], default=0)
    run.arrived(PLANNED, found[best], choices)
    return found[best], best


def _only(module: ModuleOp, number: int) -> ModuleOp:
    """Of the plans of each network the one of this number, or the last."""
    plans = plans_of(module)
    for name in dict.fromkeys(plan.network_name for plan in plans):
        own = [plan for plan in plans if plan.network_name == name]
        for plan in own:
            if plan is not own[min(number, len(own) - 1)]:
                Rewriter.erase_op(plan)
    return module
