"""Policy optimal on random networks of up to 14 layers is brute force over all cuts and all options of the pass.

python -m pytest -n 0 test/soak/soak_optimal.py --hypothesis-profile=soak
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from brute_force import NEVER, least_bytes
from fusion_networks import fusable
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from networks import Net

from frustum.backend import targets
from frustum.dialects import graph
from frustum.passes.plan.network.layer_order import ops_of_section, order_of
from frustum.passes.plan.network.optimal import OptimalOptions, is_for_time, plan_network
from frustum.runtime.reference.graph import network_of

MOST_LAYERS = 14
SIZES_KIB = (1, 2, 3, 4, 6, 8, 12, 16, 24)
HEALTH = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def with_sram(name, kib):
    target = targets.load(name)
    sram = replace(target.cluster.sram, capacity_bytes=kib * 1024)
    return replace(target, chip=replace(target.chip, cluster=replace(target.cluster, sram=sram)))


def check(module, target, borders="auto"):
    plan = plan_network(network_of(module), target, OptimalOptions(borders, optimise="bytes"))
    assert (NEVER if plan is None else plan.dram_bytes) == least_bytes(module, target, borders)


def check_small(module, target, borders="auto"):
    """A drawn network, if it is not too large and bytes come first."""
    network = network_of(module)
    order = order_of(ops_of_section(network), network.terminator.values)
    assume(len(order.nodes) <= MOST_LAYERS and not is_for_time(order, target))
    check(module, target, borders)


@settings(max_examples=60, suppress_health_check=HEALTH)
@given(fusable(MOST_LAYERS - 2), st.sampled_from(["edge", "df", "units4"]), st.sampled_from(SIZES_KIB))
def test_one_cluster(case, target, kib):
    check_small(case.module, with_sram(target, kib))


@settings(max_examples=40, suppress_health_check=HEALTH)
@given(fusable(9), st.sampled_from(["default", "manycore"]), st.sampled_from(SIZES_KIB))
def test_clusters(case, target, kib):
    check_small(case.module, with_sram(target, kib))


@settings(max_examples=40, suppress_health_check=HEALTH)
@given(
    fusable(8, images=(2, 4, 5)), st.sampled_from(["edge", "default", "units4"]), st.sampled_from(SIZES_KIB)
)
def test_several_images(case, target, kib):
    check_small(case.module, with_sram(target, kib))


@settings(max_examples=40, suppress_health_check=HEALTH)
@given(
    fusable(8),
    st.sampled_from(["edge", "default"]),
    st.sampled_from(SIZES_KIB),
    st.sampled_from(["overlap", "exchange"]),
)
def test_one_kind_of_borders(case, target, kib, borders):
    check_small(case.module, with_sram(target, kib), borders)


def residual(net, x):
    for _ in range(4):
        x = net.binary("add", x, net.conv(net.conv(x, 8), 8))
    return net.pool("max", x)


def inverted_residual(net, x):
    for _ in range(3):
        y = net.conv(net.conv(x, 16, 1, act="relu"), 16, groups=16, act="relu")
        x = net.binary("add", x, net.conv(y, 8, 1))
    return net.pool("max", x)


def inception(net, x):
    for _ in range(2):
        a, b = net.conv(x, 2, 1), net.conv(net.conv(x, 2, 1), 3)
        c = net.conv(net.pool("max", x, 3, 1, pads=(1, 1, 1, 1)), 3, 1)
        x = net.layer(graph.ConcatOp([a, b, c], 1))
    return net.conv(x, 4, 1)


NETWORKS = {build.__name__: build for build in (residual, inverted_residual, inception)}


@pytest.mark.parametrize("kib", [2, 3, 4, 6, 8, 12, 16])
@pytest.mark.parametrize("name", NETWORKS)
def test_blocks_of_known_networks(name, kib):
    net = Net()
    x = net.conv(net.input(1, 4, 16, 16), 8)
    check(net.module(NETWORKS[name](net, x))[0], with_sram("edge", kib))
