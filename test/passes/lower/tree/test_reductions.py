"""Reductions of which a core holds a part at a time, and that passes of a loop make part by part."""

import lowered_plans
import pytest
from lowered_plans import case

from frustum.dialects import graph as g

PLANS = {
    "at once": "compute reduce_1",
    "results in parts": 'for x0.1 step 3 { compute reduce_1 }',
    "sums in parts": "resident reduce_1 for x0.2 step 4 { compute reduce_1 }",
    "sums in parts of parts": "resident reduce_1 for x0.2 step 4 { for x0.3 step 5 { compute reduce_1 } }",
}


def reduced(kind, shape, axes):
    return lambda net: net.layer(g.ReduceOp(kind, net.input(*shape), axes=axes))


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("name", PLANS)
def test_parts_of_a_reduction_are_joined(kind, name):
    found = case(reduced(kind, (1, 5, 9, 10), (2, 3)), PLANS[name])
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved == claimed


@pytest.mark.parametrize("kind", ["mean", "max"])
def test_a_core_holds_a_part_of_what_is_reduced(kind):
    """One channel takes 80,000 bytes, a core of `edge` 65,536."""
    found = case(reduced(kind, (1, 2, 100, 200), (2, 3)), "compute reduce_1")
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved == claimed
