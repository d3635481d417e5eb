"""The machine chooses between plans."""

from __future__ import annotations

from dataclasses import replace

import lowered_plans
import plan_nets
import pytest
from xdsl.dialects.builtin import ModuleOp

from frustum.backend import compile, plan_choice
from frustum.backend.compile import built
from frustum.backend.cost import Cost, total
from frustum.backend.pipeline import STOPS, Choices, Run
from frustum.backend.plan_choice import (
    MORE,
    PLANS,
    ROUGH,
    best_of,
    candidates_beside,
    candidates_of,
    typed_for_trees,
)
from frustum.dialects.module import TARGET
from frustum.dialects.plan.dialect import tree_of
from frustum.dialects.target import to_attribute
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.plan.text import search
from frustum.passes.plan.text.apply import plans_of
from frustum.passes.plan.tree.good_plans import good_plans
from frustum.passes.plan.tree.wishes import Wishes
from frustum.runtime.machine import Machine
from frustum.runtime.model.build import count_run

FREE = Choices("f32", "optimal", is_free=True)
TIME = Choices("f32", "tree")
KIB = 40


def rows(net):
    """Maps that are larger than the memory of 40 KiB."""
    x = net.conv(net.input(1, 8, 48, 48), 8, act="relu")
    return net.pool("max", net.conv(x, 8, act="relu"))


@pytest.fixture(scope="module")
def target():
    return lowered_plans.machine(sram_bytes=KIB << 10)


@pytest.fixture(scope="module")
def plans(target):
    axes = lowered_plans.case(rows).axes
    return [tree for tree, _ in good_plans(axes, KIB << 10, 1, Wishes("time", target))]


@pytest.fixture
def module(target):
    found: ModuleOp = lowered_plans.case(rows).module.clone()
    found.attributes[TARGET] = to_attribute(target)
    return found


def costs_of(*pairs):
    return [None if pair is None else Cost(*pair) for pair in pairs]


def test_there_are_several_plans_and_the_pass_leaves_as_many_as_are_wanted(module, plans):
    assert 1 < len(plans) <= PLANS
    assert all(a != b for k, a in enumerate(plans) for b in plans[:k])
    found = candidates_of(module, replace(TIME, plans=2), Run(), "typed")
    assert [tree_of(*plans_of(each.module)) for each in found] == plans[:2]


@pytest.mark.parametrize(
    ("costs", "best"),
    [
        ([(300, 9), (200, 9)], 1),
        ([(200, 9), (300, 1)], 0),
        ([(200, 9), (203, 8)], 1),  # nearly as long
        ([(200, 9000), (203, 8990)], 0),  # a longer run for hardly fewer bytes
        ([(200, 9), (207, 8)], 0),
        ([(200, 9), (200, 9), (199, 9)], 2),
        ([None, (200, 9)], 1),  # no program is made of the first
        ([None, None], 0),
        ([], 0),
    ],
)
def test_the_fewest_cycles_or_nearly_so_with_fewer_bytes(costs, best):
    assert best_of(costs_of(*costs)) == best


@pytest.mark.parametrize(
    ("costs", "best"),
    [
        ([(300, 1000), (200, 1010)], 1),
        ([(300, 1000), (200, 1011)], 0),  # it moves more
        ([(300, 1000), (200, 1011), (250, 900)], 2),
        ([None, (200, 1011)], 1),
    ],
)
def test_beside_layers_that_are_planned_in_another_way_trees_move_hardly_more(costs, best):
    assert best_of(costs_of(*costs), is_bound=True) == best


@pytest.mark.parametrize(
    ("costs", "best"),
    [
        ([(300, 1000, 100), (200, 1300, 400)], 1),  # 900 bytes without code, both
        ([(300, 1000, 100), (200, 1309, 400)], 1),
        ([(300, 1000, 100), (200, 1310, 400)], 0),  # 910 are more
        ([(300, 1000, 400), (200, 1000, 100)], 0),  # 900 beside 600
        ([(300, 1000, 100), (200, 1300, 400), (200, 1200, 300)], 2),  # of those that are left all bytes count
    ],
)
def test_beside_layers_that_are_planned_in_another_way_code_is_left_out(costs, best):
    assert best_of(costs_of(*costs), is_bound=True) == best


@pytest.mark.parametrize(
    ("one", "other", "is_better"),
    [
        ((200, 1000, 50), (200, 1000, 100), False),  # they differ in code bytes alone
        ((200, 1000, 100), (200, 1000, 50), False),
        ((199, 1000, 100), (200, 1000, 50), True),
        ((200, 999, 100), (200, 1000, 50), True),
        ((199, 1001, 50), (200, 1000, 100), False),
    ],
)
def test_costs_are_better_by_cycles_or_all_bytes(one, other, is_better):
    assert Cost(*one).is_better(Cost(*other)) == is_better


def test_code_is_no_data_and_adds_up():
    assert Cost(200, 1000, 100).data_bytes == 900
    assert total([Cost(200, 1000, 100), Cost(1, 20, 3)]) == Cost(201, 1020, 103)


def test_plans_that_are_judged_to_take_somewhat_longer_are_candidates(module, monkeypatch):
    """The evaluator is as far off; bytes are counted, and those of a plan have no code."""
    seen = []
    monkeypatch.setattr(plan_choice, "candidates_of", lambda tree, choices, run, stop: seen.append(choices.most) or [])
    assert candidates_beside(module, FREE, Run(), Cost(1000, 5000, 1000)) == []
    assert seen == [(int(MORE * 4000), int(ROUGH * 1000))]
    assert candidates_beside(module, FREE, Run(), None) == []
    assert seen[1] == Choices().most, "beside layers that do not fit any plan is better"


@pytest.fixture(scope="module")
def imported(target):
    """A network of which a plan as a tree takes fewer cycles and bytes than what the other planner finds."""
    found: ModuleOp = lowered_plans.case(plan_nets.transposed).module.clone()
    found.attributes[TARGET] = to_attribute(target)
    return found


def default_run(imported, at_stop=None, **choices):
    """Both planners; and the policy of the executable."""
    own, typed = replace(FREE, **choices), imported.clone()
    run = Run(at_stop)
    run.advance(typed, ["typed"], own)
    tree = typed_for_trees(imported, own, Run()) if own.is_open else None
    found = built(typed, own, run, "typed", count_run, tree=tree).executable
    return Machine(found).run({}, "timing").timeline.times.total, found.manifest["options"]["policy"]


def test_runs_for_which_nothing_is_asked_take_the_better_of_both_planners(imported):
    cycles, policy = default_run(imported)
    assert policy == "tree"
    assert cycles < default_run(imported, is_free=False)[0]


@pytest.mark.parametrize(
    "asked", [{"order": "row-major"}, {"borders": "overlap"}, {"optimise": "bytes"}, {"runs": "none"}]
)
def test_what_is_asked_of_the_other_planner_is_done(asked, imported):
    assert default_run(imported, **asked)[1] == "optimal"


def test_who_is_shown_the_stops_sees_those_of_the_plan_that_is_taken(imported):
    seen = {}
    default_run(imported, lambda stop, module: seen.update({stop: module.clone()}))
    assert all(len(plans_of(seen[stop])) == 1 for stop in ("fused", "tiled", "placed"))
    assert list(seen) == list(STOPS[1:])


@pytest.mark.parametrize("error", [NotLowered("no"), DoesNotFit("it", "here", "2 B", "1 B", "sram")])
def test_plans_without_a_program_are_left_out(error, module, monkeypatch):
    """The first plan has none: one of the others is taken."""
    plain, tried = compile._plain, []

    def refuse(*wanted, **more):
        tried.append(wanted[0])
        if len(tried) == 1:
            raise error
        return plain(*wanted, **more)

    monkeypatch.setattr(compile, "_plain", refuse)
    trials = compile._Choosing(compile._Encoder(Run(), None), count_run)
    found = trials.best(module, TIME, "typed", None)
    costs = [*trials.known.values()]
    assert costs[0] is None and all(costs[1:]) and trials.known[found] is not None


def test_what_has_no_plan_as_a_tree_is_left_to_the_other_planner(imported, monkeypatch):
    def refuse(*wanted):
        raise NotLowered("no")

    monkeypatch.setattr(search, "good_plans", refuse)
    assert default_run(imported)[1] == "optimal"


def test_a_run_takes_no_more_cycles_than_with_any_of_the_plans(module, plans, target):
    """Each plan given by hand, and the choice of the compilation."""
    found = built(module, TIME, Run(), "typed", count_run).executable
    own = [lowered_plans.executable_of(lowered_plans.case(rows).module, plan, target) for plan in plans]
    best, *others = (Machine(each).run({}, "timing").timeline.times.total for each in (found, *own))
    assert best <= 1.02 * min(others)
