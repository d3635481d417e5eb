"""More SRAM never costs more DRAM bytes in the model; of equal bytes, at most 1 % more cycles.

Cycles may rise where bytes fall: policy optimal buys bytes with cycles.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from networks import Net
from stops import aimed

from frustum.dialects import graph
from frustum.passes.analysis.module import target_of
from frustum.passes.fuse.optimal import plan_network
from frustum.runtime.reference import network_of

SIZES_KIB = (64, 128, 192, 256, 384, 512, 1024, 2048, 8192)


def chain(net):
    x = net.input(1, 16, 56, 56)
    for channels in (24, 32, 48):
        x = net.pool("max", net.conv(net.conv(x, channels, act="relu"), channels, act="relu"))
    return x


def residual(net):
    x = net.conv(net.input(1, 8, 48, 48), 32, act="relu")
    for _ in range(3):
        y = net.conv(net.conv(x, 32, act="relu"), 32)
        x = net.layer(graph.BinaryOp("add", x, y, act=graph.ActAttr.of("relu")))
    return x


def with_sram(target, kib):
    sram = replace(target.cluster.sram, capacity_bytes=kib * 1024)
    return replace(target, chip=replace(target.chip, cluster=replace(target.cluster, sram=sram)))


@pytest.mark.parametrize("build", [chain, residual])
@pytest.mark.parametrize("target_name", ["edge", "default"])
def test_more_sram_never_costs_more(build, target_name):
    net = Net()
    module = aimed(net.module(build(net))[0], target_name)
    target = target_of(module)
    plans = [plan_network(network_of(module), with_sram(target, kib)) for kib in SIZES_KIB]
    assert all(plan is not None for plan in plans)
    assert plans[0].dram_bytes > plans[-1].dram_bytes
    for less, more in pairwise(plans):
        assert more.dram_bytes <= less.dram_bytes
        assert more.dram_bytes >= more.listing.compulsory_bytes
        assert more.cycles <= 1.01 * less.cycles or more.dram_bytes < less.dram_bytes
