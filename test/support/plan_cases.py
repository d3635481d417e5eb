"""Random networks of all layers with machines that are small for them, and their plans beside all others there are."""

from __future__ import annotations

from dataclasses import replace

from brute_force import NEVER, least_bytes
from hypothesis import assume
from hypothesis import strategies as st
from policies import PRESETS
from random_network import GRAPHS, networks
from stops import aimed, target

import frustum
from frustum.backend.pipeline import Choices, Run
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.plan.network.layer_order import ops_of_section, order_of
from frustum.passes.plan.network.optimal import OptimalOptions, is_for_time, plan_network
from frustum.runtime.reference.graph import network_of

TARGETS = ("edge", "default", "df", "manycore")
SIZES_KIB = (3, 4, 6, 8, 12, 16, 24, 48)
DTYPES = ("f32", "f16")


@st.composite
def machines(draw):
    """A shipped one with so little SRAM that most networks take several units, and an element type."""
    where = target(draw(st.sampled_from(TARGETS)))
    sram = replace(where.cluster.sram, capacity_bytes=draw(st.sampled_from(SIZES_KIB)) * 1024)
    where = replace(where, chip=replace(where.chip, cluster=replace(where.cluster, sram=sram)))
    return where, draw(st.sampled_from(DTYPES))


GRAPHS_ON_MACHINES = st.tuples(networks(6, GRAPHS), machines())


def typed(drawn, where, dtype):
    """The network as the planner sees it, in its module; those whose time comes first are not meant."""
    module = aimed(drawn.module, where)
    Run().advance(module, ["typed"], Choices(dtype=dtype))
    network = network_of(module)
    order = order_of(ops_of_section(network), network.terminator.values)
    if is_for_time(order, where):
        assume(False)
    return module, len(order.nodes)


def check_least(case, most_layers):
    """The plan for the fewest bytes moves those of the cheapest of all ways, of a network of at most so many layers."""
    drawn, (where, dtype) = case
    module, layers = typed(drawn, where, dtype)
    if not 0 < layers <= most_layers:
        assume(False)
    plan = plan_network(network_of(module), where, OptimalOptions(optimise="bytes"))
    assert (NEVER if plan is None else plan.dram_bytes) == least_bytes(module, where)


def check_presets(case):
    """No preset moves fewer bytes, as the machine counts them: program and address tables apart."""
    drawn, (where, dtype) = case
    typed(drawn, where, dtype)
    found = {policy: moved_bytes(drawn.module, where, dtype, policy) for policy in ("optimal", *PRESETS)}
    assert found["optimal"] <= min(found.values()), found


def moved_bytes(module, where, dtype, policy):
    """DRAM bytes of a policy's program; `NEVER` where some layer fits in no way."""
    way = {"dtype": dtype, "policy": policy, "optimise": "bytes", "compress_weights": "none"}
    try:
        compiled = frustum.compile(module, where, **way, cache=False)
    except DoesNotFit:
        return NEVER
    dram = frustum.run(compiled, {}, mode="timing").report["dram"]
    return dram["total_bytes"] - dram["other_bytes"]
