"""Attention of any shape, on machines of any size, computes at every stop what the graph says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attention_nets import attention, check
from hypothesis import given, settings
from hypothesis import strategies as st
from stops import target

pytestmark = pytest.mark.slow

LIMIT = settings().max_examples // 4


@st.composite
def machines(draw):
    """Shipped ones with other sizes of memories, and other numbers of cores and clusters."""
    name = draw(st.sampled_from(["edge", "default", "df", "manycore"]))
    whole = target(name)
    core, cluster = whole.core, whole.cluster
    nram, wram = (draw(st.sampled_from([8192, 16384, 65536])) for _ in range(2))
    core = replace(
        core, nram=replace(core.nram, capacity_bytes=nram), wram=replace(core.wram, capacity_bytes=wram)
    )
    sram = replace(cluster.sram, capacity_bytes=draw(st.sampled_from([8192, 16384, 65536, 262144])))
    cluster = replace(cluster, sram=sram, core=core, cores=draw(st.integers(1, 4)))
    clusters = draw(st.integers(1, 3)) if name in ("default", "manycore") else 1
    return replace(whole, chip=replace(whole.chip, cluster=cluster, clusters=clusters))


@st.composite
def layers(draw):
    """A network of one layer, with its inputs."""
    groups, share = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 1, 2, 4]))
    sizes = draw(st.sampled_from([4, 8, 16, 12])), draw(st.sampled_from([8, 16, 24]))
    batch, rows = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 2, 7, 16, 40]))
    keys, rest = draw(st.sampled_from([1, 5, 16, 48, 100])), {}
    if draw(st.booleans()):
        whole = (batch, groups * share, rows, keys)
        full = draw(st.tuples(*[st.booleans()] * 4))
        rest["mask"] = tuple(size if is_full else 1 for size, is_full in zip(whole, full, strict=True))
    rest["softcap"] = draw(st.sampled_from([0.0, 0.0, 1.5]))
    rest["causal_from"] = draw(st.sampled_from([None, None, 0, keys - rows, 3]))
    rest["is_apart"], rest["is_merged"] = draw(st.booleans()), draw(st.booleans())
    rest["is_channels_first"] = not rest["is_apart"] and draw(st.booleans())
    return attention((groups * share, groups), sizes, rows, keys, batch=batch, **rest)


@settings(max_examples=LIMIT)
@given(layers(), machines(), st.sampled_from(["f32", "f16", "bf16"]))
def test_every_stop_agrees(network, machine, dtype):
    check(*network, machine, dtype)
