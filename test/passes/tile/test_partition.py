"""What is said when nothing fits: the node, the memory, the bytes."""

from dataclasses import replace

import pytest
from networks import Net
from xdsl.context import Context

from frustum.backend import targets
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.tile.partition import PartitionUnits


def edge_with(memory: str, capacity_bytes: int):
    target = targets.load("edge")
    cluster = target.cluster
    if memory == "sram":
        cluster = replace(cluster, sram=replace(cluster.sram, capacity_bytes=capacity_bytes))
    else:
        small = replace(getattr(cluster.core, memory), capacity_bytes=capacity_bytes)
        cluster = replace(cluster, core=replace(cluster.core, **{memory: small}))
    return replace(target, chip=replace(target.chip, cluster=cluster))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("memory", "capacity_bytes", "kernel", "says"),
    [
        ("nram", 256, 7, "more than 256 B, available 256 B of NRAM"),
        ("nram", 256, 9, "its smallest piece does not fit: needed 328 B, available 256 B of NRAM"),
        ("wram", 256, 9, "its smallest piece does not fit: needed 328 B, available 256 B of WRAM"),
        ("sram", 1024, 3, "its smallest piece does not fit: needed 4640 B, available 1024 B of SRAM"),
    ],
)
def test_the_memory_that_is_too_small_is_named(memory, capacity_bytes, kernel, says):
    net = Net()
    x = net.input(1, 64, 16, 16)
    module, _ = net.module(net.conv(x, 64, kernel))
    module.attributes[TARGET] = to_attribute(edge_with(memory, capacity_bytes))
    FuseLayers(policy="none").apply(Context(), module)
    with pytest.raises(DoesNotFit, match=rf"unit u0: node 'conv_1' \(fgraph.conv\): .*{says}"):
        PartitionUnits().apply(Context(), module)
