"""Policy optimal moves no more DRAM bytes than any preset, modelled and counted (zoo: test/soak/soak_policies.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fusion_networks import fusable
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from policies import PRESETS, moved
from stops import target

from frustum.dialects import graph
from frustum.dialects.target.fit import DoesNotFit

NEVER = 1 << 60


def with_sram(name, kib):
    whole = target(name)
    sram = replace(whole.cluster.sram, capacity_bytes=kib * 1024)
    return replace(whole, chip=replace(whole.chip, cluster=replace(whole.cluster, sram=sram)))


def check(module, aim):
    """How much more moves where nothing is fused."""
    optimal = moved(module, aim, "optimal")
    presets = [moved_or_never(module, aim, policy) for policy in PRESETS]
    assert optimal[0] == optimal[1]
    for kind in (0, 1):
        assert optimal[kind] <= min(bytes_[kind] for bytes_ in presets)
    return presets[PRESETS.index("none")][0] - optimal[0]


def moved_or_never(module, aim, policy):
    try:
        return moved(module, aim, policy)
    except DoesNotFit:
        return NEVER, NEVER


def residual(net, x):
    for _ in range(3):
        x = net.binary("add", x, net.conv(net.conv(x, 8, act="relu"), 8), act="relu")
    return net.pool("max", x)


def mobile(net, x):
    for _ in range(3):
        y = net.conv(net.conv(x, 24, 1, act="relu"), 24, groups=24, act="relu")
        x = net.binary("add", x, net.conv(y, 8, 1))
    return net.pool("avg", x)


def inception(net, x):
    for _ in range(2):
        c = net.conv(net.pool("max", x, 3, 1, pads=(1, 1, 1, 1)), 4, 1)
        x = net.layer(graph.ConcatOp([net.conv(x, 4, 1), net.conv(net.conv(x, 4, 1), 8), c], 1))
    return x


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", ["default", "edge"])
@pytest.mark.parametrize("build", [residual, mobile, inception])
def test_blocks_of_known_networks(build, name):
    net = Net()
    module = net.module(build(net, net.conv(net.input(1, 3, 32, 32), 8)))[0]
    assert check(module, with_sram(name, 16)) > 0


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=5)
@given(fusable(6), st.sampled_from(["default", "edge", "units4"]), st.sampled_from([8, 16, 32]))
def test_random_networks(case, name, kib):
    try:
        check(case.module, with_sram(name, kib))
    except DoesNotFit as error:
        assert moved_or_never(case.module, with_sram(name, kib), "none")[0] == NEVER, error
