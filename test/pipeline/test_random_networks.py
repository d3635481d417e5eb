"""Random small networks: all ways of running agree, in every type, on every target, fused or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement import check_agreement
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from networks import Net
from random_network import GRAPHS, Drawn, networks
from random_run import WAYS as ALL_WAYS
from random_run import check_run
from stops import modules_at_stops, run_module, target

from frustum.backend.pipeline import Choices
from frustum.dialects import graph
from frustum.dialects.functions import Border
from frustum.dialects.target.fit import DoesNotFit

WAYS = st.tuples(
    st.sampled_from(["tiny", "tiny", "default", "edge", "manycore", "df"]),
    st.sampled_from(["pyramid", "greedy", "template", "none"]),
    st.sampled_from(["f32", "f32", "bf16", "f16"]),
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(networks(), WAYS)
def test_stops_of_random_networks_agree(network, way):
    target, policy, dtype = way
    modules = modules_at_stops(network.module, target, Choices(dtype=dtype, policy=policy))
    check_agreement(
        {
            stop: run_module(modules[stop], network.inputs, checked=stop == "fixed")
            for stop in ("typed", "fused", "placed", "fixed")
        },
        dtype,
    )


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck), max_examples=2 * settings().max_examples)
@given(networks(3, GRAPHS), ALL_WAYS)
def test_random_graphs_of_all_layers_agree_on_any_machine(network, way):
    """Attention, normalisations, products of maps, moves; 3,000 in test/soak/soak_graphs.py."""
    try:
        check_run(network, way)
    except DoesNotFit:
        assume(False)


@pytest.mark.slow
def test_a_border_that_wraps_may_follow_a_pool_in_a_core():
    """Each of its channels comes from its own; the search stopped at it."""
    net = Net()
    x = net.input(1, 6, 10, 7)
    y = net.layer(graph.BorderOp(Border.REFLECT, x, (1, 0), (1, 0)))
    pool = {"kernel": (2, 4), "strides": (2, 2), "pads": (0, 2, 0, 0), "dilations": (1, 2), "ceil_pads": (0, 1)}
    y = net.layer(graph.BorderOp(Border.WRAP, net.layer(graph.PoolOp("max", y, **pool)), (0, 0), (0, 0)))
    z = net.unary("relu", x)
    z = net.layer(graph.ConcatOp([z, z], 3))
    whole = target("edge")
    core, sram = whole.core, replace(whole.cluster.sram, capacity_bytes=3072)
    small = {name: replace(getattr(core, name), capacity_bytes=2048) for name in ("nram", "wram")}
    cluster = replace(whole.cluster, sram=sram, core=replace(core, **small), cores=2)
    machine = replace(whole, chip=replace(whole.chip, cluster=cluster))
    check_run(Drawn(*net.module(y, z)), (machine, "optimal", "f32"))
