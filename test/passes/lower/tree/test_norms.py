"""Norms and softmax of which no core holds all that a statistic is of, or whose statistics a plan keeps."""

import lowered_plans
import numpy as np
import pytest
from lowered_plans import case

from frustum.dialects import graph as g


def layer_norm(net):
    return net.layer(g.NormaliseOp(net.input(1, 6, 10, 9), net.weight(1, 1, 1, 9), net.weight(1, 1, 1, 9), axes=(2, 3),
                                   epsilon=1e-3))  # fmt: skip


def mean_square_norm(net):
    return net.layer(g.NormaliseOp(net.input(1, 6, 10, 9), None, None, axes=(2, 3), epsilon=1e-3, rms=True))


def group_norm(net):
    x = net.input(1, 6, 10, 9)
    channels = net.weight(1, 6, 1, 1), net.weight(1, 6, 1, 1)
    return net.layer(g.NormaliseOp(x, *channels, axes=(1, 2, 3), groups=3, epsilon=1e-3, act=g.ActAttr.of("relu")))


def softmax(net):
    return net.layer(g.SoftmaxOp(net.input(1, 6, 10, 9), 2))


NORMS = {"normalise_1": (layer_norm, mean_square_norm, group_norm), "softmax_1": (softmax,)}
CASES = [(build, name) for name, builds in NORMS.items() for build in builds]
PLANS = {
    "kept": "resident {0}.sums {{ compute {0}.sums }} compute {0}",
    "through DRAM": "{{ compute {0}.sums }} compute {0}",
    "sums in parts": "resident {0}.sums for x0.2 step 4 {{ compute {0}.sums }} compute {0}",
    "both in parts": "resident {0}.sums for x0.2 step 4 {{ compute {0}.sums }} for x0.2 step 3 {{ compute {0} }}",
    "operand kept": "resident x0, {0}.sums {{ compute {0}.sums }} compute {0}",
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(("build", "layer"), CASES)
def test_statistics_are_kept(build, layer, name):
    found = case(build, PLANS[name].format(layer))
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved == claimed


@pytest.mark.parametrize(("build", "layer"), CASES)
def test_one_instruction_reads_its_operand_once(build, layer):
    found = case(build, f"compute {layer}.sums, {layer}")
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved < claimed


def large_norm(net):
    return net.layer(g.NormaliseOp(net.input(1, 4, 100, 200), None, None, axes=(1, 2, 3), groups=2, epsilon=1e-3))


def large_softmax(net):
    return net.layer(g.SoftmaxOp(net.input(1, 2, 40000), 2))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("build", "layer"), [(large_norm, "normalise_1"), (large_softmax, "softmax_1")])
def test_no_core_holds_all_of_what_is_reduced(build, layer):
    """That takes 160,000 bytes, a core of `edge` has 65,536."""
    found = case(build, f"compute {layer}.sums, {layer}")
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved == claimed


@pytest.mark.parametrize("name", ["kept", "sums in parts", "both in parts"])
def test_squares_of_a_large_mean_do_not_cancel(name):
    """With mean 1000 and deviation 1 half of f32's digits are gone in a square."""
    found = case(layer_norm, PLANS[name].format("normalise_1"))
    found.inputs = {key: x + np.float32(1000) for key, x in found.inputs.items()}
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved == claimed
