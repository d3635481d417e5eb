"""Random networks through the whole pipeline with policy optimal, in checked mode, on targets with too little SRAM.

python -m pytest -n 0 test/soak/soak_pipeline.py --hypothesis-profile=soak
"""

from __future__ import annotations

from dataclasses import replace

from agreement import check_agreement
from fusion_networks import fusable
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_network import networks
from stops import machine_of, modules_at_stops, run_module, target

from frustum.backend.pipeline import Choices
from frustum.dialects.target.fit import DoesNotFit

EXAMPLES = 300
TARGETS = ("tiny", "edge", "default", "df", "manycore", "cores1", "cores4")
KIB = (2, 4, 6, 8, 12, 16, 24, 32, 64, None)
WAYS = st.tuples(
    st.sampled_from(TARGETS),
    st.sampled_from(KIB),
    st.sampled_from(["f32", "f32", "f16", "bf16"]),
    st.sampled_from(["auto", "auto", "overlap", "exchange"]),
)
HEALTH = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def target_with(name, kib):
    """A target with less SRAM, also less than its layers need."""
    whole = machine_of(int(name[5:])) if name.startswith("cores") else target(name)
    if kib is None or name == "tiny":
        return whole
    sram = replace(whole.cluster.sram, capacity_bytes=kib * 1024)
    return replace(whole, chip=replace(whole.chip, cluster=replace(whole.cluster, sram=sram)))


def check(network, way):
    name, kib, dtype, borders = way
    try:
        choices = Choices(dtype=dtype, policy="optimal", borders=borders)
        modules = modules_at_stops(network.module, target_with(name, kib), choices)
    except DoesNotFit:
        assume(False)
    check_agreement(
        {
            stop: run_module(modules[stop], network.inputs, checked=stop == "fixed")
            for stop in ("typed", "fused", "placed", "fixed")
        },
        dtype,
    )


@settings(max_examples=EXAMPLES, suppress_health_check=HEALTH)
@given(fusable(10, images=(1, 1, 2, 4, 5)), WAYS)
def test_networks_of_windows_agree_at_all_stops(network, way):
    check(network, way)


@settings(max_examples=EXAMPLES, suppress_health_check=HEALTH)
@given(networks(8), WAYS)
def test_networks_of_all_operations_agree_at_all_stops(network, way):
    check(network, way)
