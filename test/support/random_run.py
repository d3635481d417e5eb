"""A random network run in every way: what its graph says, whatever the machine, the policy and the type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from agreement import allowed, check_agreement
from hypothesis import strategies as st
from random_machine import machine_of_seed
from stops import modules_at_stops, run_module, target

from frustum.backend.pipeline import Choices

POLICIES = ("optimal", "optimal", "pyramid", "greedy", "template", "none")


@st.composite
def small_machines(draw):
    """Shipped ones with memories so small that most layers take several tiles, and other numbers of cores."""
    name = draw(st.sampled_from(["edge", "default", "df", "manycore"]))
    whole = target(name)
    core, cluster = whole.core, whole.cluster
    nram, wram = (draw(st.sampled_from([1024, 2048, 4096, 8192])) for _ in range(2))
    core = replace(
        core, nram=replace(core.nram, capacity_bytes=nram), wram=replace(core.wram, capacity_bytes=wram)
    )
    kib = draw(st.sampled_from([3, 4, 6, 8, 12, 16, 32]))
    sram = replace(cluster.sram, capacity_bytes=kib * 1024)
    cluster = replace(cluster, sram=sram, core=core, cores=draw(st.integers(1, 4)))
    clusters = draw(st.integers(1, 3)) if name in ("default", "manycore") else 1
    return replace(whole, chip=replace(whole.chip, cluster=cluster, clusters=clusters))


MACHINES = (
    st.sampled_from(["tiny", "default", "edge", "manycore", "df"])
    | small_machines()
    | small_machines()
    | st.integers(0, 2**31).map(machine_of_seed)
)
WAYS = st.tuples(
    MACHINES,
    st.sampled_from(POLICIES),
    st.sampled_from(["f32", "f32", "f16", "bf16"]),
)
STOPS = ("typed", "fused", "placed", "fixed")


def check_run(network, way):
    """All stops agree, the last one in checked mode; in f32 they also agree with the graph before any pass.  Raises
    DoesNotFit where the machine is too small for a layer."""
    machine, policy, dtype = way
    modules = modules_at_stops(network.module, machine, Choices(dtype=dtype, policy=policy))
    found = {stop: run_module(modules[stop], network.inputs, checked=stop == "fixed") for stop in STOPS}
    numbers = [array for output in found.values() for array in output.values()]
    if dtype == "f16" and not all(np.isfinite(array).all() for array in numbers):
        check_run(network, (machine, policy, "bf16"))  # sums that f16 has no numbers for
        return
    if dtype == "f32":
        found["imported"] = run_module(network.module, network.inputs)
    try:
        check_agreement(found, dtype)
    except AssertionError:
        check_as_exact(network, found, dtype)


def check_as_exact(network, found, dtype):
    """Stops are no further apart than what rounding of the inputs alone does, where sums and powers make it larger."""
    rng = np.random.default_rng(0)
    eps = {"f32": 1e-6, "f16": 2e-3, "bf16": 1.6e-2}[dtype]
    rounded = {
        name: x * (1 + eps * rng.uniform(-1, 1, x.shape)).astype(x.dtype)
        for name, x in network.inputs.items()
    }
    exact, moved = (run_module(network.module, inputs) for inputs in (network.inputs, rounded))
    for name, wanted in exact.items():
        magnitude = float(np.abs(wanted).max(initial=0))
        further = float(np.abs(moved[name] - wanted).max(initial=0))
        for stop, output in found.items():
            assert np.isfinite(output[name]).all(), f"{name} at {stop}"
            apart = float(np.abs(output[name] - wanted).max(initial=0))
            assert apart <= allowed(dtype, magnitude) + 8 * further, f"{name} at {stop}: {apart} apart"
