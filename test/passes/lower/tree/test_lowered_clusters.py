"""Plans over clusters as programs: values in checked mode, bytes of DRAM, and what goes over links."""

import contextlib
from dataclasses import replace

import lowered_plans
import plan_nets
import pytest
import random_plans
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from frustum.backend import targets
from frustum.dialects import graph as g
from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.clusters import clusters_of
from frustum.dialects.plan.count import count
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.plan.tree.trace import fitting_plan

SLOW = {"deadline": None, "suppress_health_check": list(HealthCheck), "phases": [Phase.explicit, Phase.generate]}


def rows_net(net):
    """Two windows over rows, and a mean of what they make."""
    x = net.input(1, 4, 16, 6)
    return net.conv(net.conv(x, 4, 3), 4, 3)


def pooled_net(net):
    x = net.conv(net.input(1, 4, 16, 6), 6, 1)
    return net.layer(g.ReduceOp("mean", x, (2, 3)))


def halved_net(net):
    """A map of which a second unit reads windows."""
    return net.conv(net.conv(net.input(1, 4, 16, 6), 4, 1), 4, 3)


CASES = {
    "recomputed": (rows_net, "for conv_2.y step 4 of 16 over clusters recomputed { compute conv_1, conv_2 }"),
    "exchanged": (rows_net, "for conv_2.y step 4 of 16 over clusters exchanged { compute conv_1, conv_2 }"),
    "exchanged, resident": (
        rows_net,
        "for conv_2.y step 4 of 16 over clusters exchanged { resident conv_1 { compute conv_1 compute conv_2 } }",
    ),
    "fewer ranges than clusters": (
        rows_net, "for conv_2.y step 6 of 16 over clusters recomputed { compute conv_1, conv_2 }"
    ),
    "rolls inside": (
        rows_net,
        "for conv_2.y step 4 of 16 over clusters recomputed { resident x0 for conv_2.y step 1 of 16 rolling "
        "{ compute conv_1, conv_2 } }",
    ),
    "sum": (
        pooled_net, "resident reduce_2 for x0.2 step 4 of 16 over clusters { compute conv_1, reduce_2 }"
    ),
    "sum that waits nowhere": (
        pooled_net, "for x0.2 step 4 of 16 over clusters { compute conv_1, reduce_2 }"
    ),
    "shares": (
        halved_net,
        "resident conv_1 until conv_2 sharded x0.2 for x0.2 step 4 of 16 over clusters { compute conv_1 } "
        "for conv_2.y step 4 of 16 over clusters recomputed { compute conv_2 }",
    ),
    "gathered": (
        halved_net,
        "resident conv_1 until conv_2 for x0.2 step 4 of 16 over clusters { compute conv_1 } "
        "for conv_2.c step 1 of 4 over clusters { compute conv_2 }",
    ),
    "of all clusters alike": (halved_net, "compute conv_1 compute conv_2"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_bytes(name):
    build, text = CASES[name]
    case = lowered_plans.case(build, text)
    moved, counted = lowered_plans.check_lowered(case, lowered_plans.machine("default", clusters=4))
    assert moved == counted


def test_what_clusters_lack_goes_over_links():
    case = lowered_plans.case(*CASES["shares"])
    received = count(case.axes, case.plan).link_bytes
    program = lowered_plans.executable_of(case.module, case.plan, lowered_plans.machine("default", clusters=4))
    assert received == 6 * 4 * 6 * 4, "a row of four channels at each of six borders, in f32"
    assert lowered_plans.link_bytes(program) == received


def test_more_ranges_than_clusters_are_no_plan():
    case = lowered_plans.case(rows_net, "for conv_2.y step 4 of 16 over clusters recomputed { compute conv_1, conv_2 }")
    with pytest.raises(PlanError, match="4 ranges, default has 2 clusters"):
        lowered_plans.check_lowered(case, lowered_plans.machine("default", clusters=2))


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("build", plan_nets.KINDS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("clusters", [2, 4])
def test_searched_plans_run_on_clusters(build, clusters):
    case = lowered_plans.case(build)
    target = lowered_plans.machine("default", 32 * 1024, clusters=clusters)
    case.plan, counted = fitting_plan(case.axes, target.cluster.sram.capacity_bytes, clusters)
    try:
        moved, _ = lowered_plans.check_lowered(case, target)
    except (NotLowered, DoesNotFit) as problem:
        pytest.skip(f"not lowered: {problem}")
    assert moved <= counted.dram_bytes * 1.001


def check(case, kib, cores):
    """Values alone: bytes of plans that nobody would search are those of the cases above."""
    try:
        count(case.axes, case.plan)
    except PlanError:
        assume(False)
    target = lowered_plans.machine("default", kib * 1024, cores, max(2, clusters_of(case.plan)))
    with contextlib.suppress(NotLowered, DoesNotFit):
        lowered_plans.check_lowered(case, target)


@given(random_plans.distributed())
@settings(max_examples=10, **SLOW)
def test_random_plans_of_clusters(case):
    check(case, 64, None)


@pytest.mark.slow
@given(random_plans.distributed(), st.sampled_from([16, 64, 512]), st.sampled_from([None, 1, 2]))
@settings(max_examples=300, **SLOW)
def test_many_random_plans_of_clusters(case, kib, cores):
    check(case, kib, cores)


def test_a_single_cluster_of_a_chip_of_several_has_the_bytes_of_one():
    one, four = (lowered_plans.machine("default", clusters=k) for k in (1, 4))
    case = lowered_plans.case(halved_net, "compute conv_1 compute conv_2")
    assert lowered_plans.check_lowered(case, one) == lowered_plans.check_lowered(case, four)


def test_programs_of_targets_with_several_chips_are_for_one_of_them():
    case = lowered_plans.case(halved_net, "compute conv_1 compute conv_2")
    several = targets.load("manycore")
    one = replace(several, chips=1, chip_link_bytes_per_cycle=None)
    assert lowered_plans.check_lowered(case, several) == lowered_plans.check_lowered(case, one)
