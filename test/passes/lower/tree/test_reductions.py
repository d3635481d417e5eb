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


@pytest.mark.parametrize("kind", ["mean", "min"])
@pytest.mark.parametrize("step", [60, 70])
def test_the_last_pass_of_a_loop_has_fewer_pieces(kind, step):
    """With a step of 70 the last of its two pieces has nothing."""
    text = f"resident reduce_1 for x0.2 step {step} {{ compute reduce_1 }}"
    found = case(reduced(kind, (1, 2, 100, 200), (2, 3)), text)
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved == claimed


@pytest.mark.parametrize("kind", ["mean", "max"])
@pytest.mark.parametrize("step", [1, 3])
def test_passes_before_the_first_row_is_whole_reduce_nothing(kind, step):
    def build(net):
        x = net.conv(net.conv(net.input(1, 3, 11, 8), 4, pads=(1, 1, 1, 1)), 4, pads=(1, 1, 1, 1))
        return net.layer(g.ReduceOp(kind, x, axes=(2, 3)))

    loop = f"for conv_2.y step {step} rolling {{ resident x0 compute conv_1, conv_2, reduce_3 }}"
    text = f"resident w, w.1, w.2, w.3, reduce_3 {loop}"
    moved, claimed = lowered_plans.check_lowered(case(build, text), lowered_plans.machine())
    assert moved == claimed
