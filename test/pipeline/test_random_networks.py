"""Random small networks: all ways of running agree, in every type, on every target, fused or not."""

from __future__ import annotations

from agreement import check_agreement
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_network import GRAPHS, networks
from random_run import WAYS as ALL_WAYS
from random_run import check_run
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.dialects.target.fit import DoesNotFit

WAYS = st.tuples(
    st.sampled_from(["tiny", "tiny", "default", "edge", "manycore", "df"]),
    st.sampled_from(["pyramid", "greedy", "template", "none"]),
    st.sampled_from(["f32", "f32", "bf16", "f16"]),
)

MOST = max(200, settings().max_examples)


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


@settings(suppress_health_check=list(HealthCheck), max_examples=MOST)
@given(networks(3, GRAPHS), ALL_WAYS)
def test_random_graphs_of_all_layers_agree_on_any_machine(network, way):
    """Attention, normalisations, products of maps, moves; 3,000 in test/soak/soak_graphs.py."""
    try:
        check_run(network, way)
    except DoesNotFit:
        assume(False)
