"""The machine chooses between plans of policy `tree`."""

from __future__ import annotations

import lowered_plans
import pytest
from xdsl.dialects.builtin import ModuleOp

from frustum.backend.compile import built
from frustum.backend.pipeline import Choices, Run
from frustum.backend.plan_choice import PLANS, with_best_plan
from frustum.dialects.module import TARGET
from frustum.dialects.plan.dialect import tree_of
from frustum.dialects.target import to_attribute
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.plan.text import search
from frustum.passes.plan.text.apply import plans_of
from frustum.passes.plan.tree.trace import good_plans
from frustum.passes.plan.tree.wishes import Wishes
from frustum.runtime.machine import Machine
from frustum.runtime.model.build import count_run

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
def module(target, plans, monkeypatch):
    """The network, of which these plans are found."""
    monkeypatch.setattr(search, "good_plans", lambda *wanted: [(plan, None) for plan in plans])
    found: ModuleOp = lowered_plans.case(rows).module.clone()
    found.attributes[TARGET] = to_attribute(target)
    return found


def chosen(module, cost):
    return tree_of(plans_of(with_best_plan(module, TIME, Run(), "typed", cost)[0])[0])


def test_there_are_several_plans_and_the_pass_leaves_as_many_as_are_wanted(plans):
    assert 1 < len(plans) <= PLANS
    assert all(a != b for k, a in enumerate(plans) for b in plans[:k])


@pytest.mark.parametrize(
    ("costs", "best"),
    [
        ({0: (300, 9), 1: (200, 9)}, 1),
        ({0: (200, 9), 1: (300, 1)}, 0),
        ({0: (200, 9), 1: (203, 8)}, 1),  # nearly as long
        ({0: (200, 9), 1: (207, 8)}, 0),
    ],
)
def test_the_fewest_cycles_or_nearly_so_with_fewer_bytes(costs, best, module, plans):
    assert chosen(module, lambda number, own: costs.get(number, (1000, 0))) == plans[best]


@pytest.mark.parametrize("error", [NotLowered("no"), DoesNotFit("it", "here", "2 B", "1 B", "sram")])
def test_plans_without_a_program_are_left_out(error, module, plans):
    def cost(number, own):
        if number == 0:
            raise error
        return 1, 1

    assert chosen(module, cost) == plans[1]


def test_where_there_is_no_program_at_all_the_first_plan_stays(module, plans):
    def cost(number, own):
        raise NotLowered("no")

    assert chosen(module, cost) == plans[0]


def test_a_run_takes_no_more_cycles_than_with_any_of_the_plans(module, plans, target):
    """Each plan given by hand, and the choice of the compilation."""
    found = built(module, TIME, Run(), "typed", count_run).executable
    own = [lowered_plans.executable_of(lowered_plans.case(rows).module, plan, target) for plan in plans]
    best, *others = (Machine(each).run({}, "timing").timeline.times.total for each in (found, *own))
    assert best <= 1.02 * min(others)
