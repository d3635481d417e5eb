"""Sizes of memory and of networks: bytes never rise with SRAM, one search says what many do, and no size is a cliff."""

import math
from itertools import pairwise

import numpy as np
import pytest
from plan_nets import KINDS, case
from sweeps import CLIFFS

from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.plan.tree.good_plans import fitting_plan
from frustum.passes.plan.tree.search import searched, searches
from frustum.passes.plan.tree.units import LEVELS

SIZES = 13
NETWORKS = {build.__name__: build for build in KINDS}
APART = {"mlp": 0.15, "conv_stack": 0.038, "residual": 0.03, "pools": 0.073, "depthwise": 0.03, "unet": 0.043,
         "transposed": 0.022}  # fmt: skip
"""Where the curve and a search for one of its sizes are further apart than 0.5 %: the levels of the larger memory are
coarser (residual, pools: 7 % at a quarter of it), or the search for one size is worse (conv_stack, -3.6 %; mlp, -14 %
at a quarter of the larger memory, since sums that wait in DRAM are no plan)."""
NEAR = 0.005
STEEP = {"tokens of attention": 0.058, "channels of a perceptron": 0.14}
"""Where neighbours are further apart than 3 %: from 254 to 255 tokens; from 64 to 65 channels, since steps are whole
multiples of 16."""
STEP = 0.03


def moved(net, capacity):
    """DRAM bytes of the plan; infinite where none is found."""
    try:
        return fitting_plan(net, capacity)[1].dram_bytes
    except DoesNotFit:
        return math.inf


def axes_of(name):
    net = case(NETWORKS[name]).axes
    return net, sum(tensor.size_bytes for tensor in net.tensors)


SOME = "mlp", "conv_stack", "pools"
REST = "residual", "depthwise", "unet", "transposed"
"""Searches of attention and dense take minutes."""


def check_rises(name):
    net, total = axes_of(name)
    sizes = sorted(int(total * 2 ** (-k / 3)) for k in range(SIZES))
    found = [moved(net, size) for size in sizes]
    assert found[-1] == net.compulsory_bytes
    assert found == sorted(found, reverse=True), list(zip(sizes, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_bytes_never_rise_with_sram(name):
    check_rises(name)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", REST)
def test_bytes_of_more_networks_never_rise(name):
    check_rises(name)


def check_curve(name):
    net, total = axes_of(name)
    curve = np.minimum.reduce([s.curve for s in searches(net, total // 2, range(LEVELS + 1), 1)])
    assert (curve[1:] <= curve[:-1] * (1 + 1e-9)).all()
    off = {}
    for level in range(8, LEVELS + 1, 8):
        own = searched(net, total // 2 * level // LEVELS).curve[LEVELS]
        if np.isfinite(own) or np.isfinite(curve[level]):
            off[level] = abs(curve[level] / own - 1) if np.isfinite(own) and np.isfinite(curve[level]) else math.inf
    least = min(level for level, each in off.items() if math.isfinite(each))
    worst = max(each for level, each in off.items() if level >= least)
    assert worst <= APART.get(name, NEAR), off


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_curve_and_separate_searches_agree(name):
    check_curve(name)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", REST)
def test_curves_of_more_networks_agree(name):
    check_curve(name)


def check_steps(name, sizes):
    _, capacity, make = CLIFFS[name]
    nets = [make(size) for size in sizes]
    ratios = [moved(net, capacity) / net.compulsory_bytes for net in nets]
    assert min(ratios) >= 1.0
    steps = [abs(b / a - 1) if math.isfinite(a + b) else math.inf for a, b in pairwise(ratios)]
    assert max(steps) <= STEEP.get(name, STEP), dict(zip(sizes, ratios, strict=True))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", CLIFFS)
def test_neighbours_move_about_as_much(name):
    """Some sizes around the middle, where powers of two are."""
    sizes = CLIFFS[name][0]
    middle = next(size for size in sizes if size % 32 == 0)
    check_steps(name, range(middle - 1, middle + 2))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", CLIFFS)
def test_all_neighbours_move_about_as_much(name):
    check_steps(name, CLIFFS[name][0])
