"""Networks for units of which rows and columns are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from networks import Net
from units import Group, as_units, layers_in, placed

from frustum.dialects import graph
from frustum.dialects.graph import shape_of
from frustum.dialects.unit import Partition


@dataclass
class Drawn:
    """What was drawn: the network is shown, its weights and inputs are not."""

    module: Any
    inputs: Any
    partition: Partition
    target: str

    def __repr__(self):
        layers = [line for line in str(self.module).splitlines() if "fgraph." in line and "weight" not in line]
        return "\n".join(["", *layers, f"{self.partition} on {self.target}"])


@st.composite
def chains(draw):
    """Windows, pools and sums over skips, in one unit, in steps of a few rows and columns."""
    net = Net(draw(st.integers(0, 9)))
    plane = [draw(st.integers(9, 16)) for _ in "hw"]
    maps = [net.input(draw(st.integers(1, 2)), draw(st.sampled_from([2, 3])), *plane)]
    for _ in range(draw(st.integers(2, 5))):
        maps.append(layer(draw, net, maps))
    made = maps[-1]
    n, c, h, w = shape_of(made)
    rows, columns = draw(st.integers(1, min(h, 4))), draw(st.integers(1, min(w, 5)))
    partition = Partition((draw(st.integers(1, n)), c, rows, columns), 0, draw(st.integers(1, 2)), "raster")
    outputs = [made, *(v for v in maps[1:-1] if not v.uses)]
    return Drawn(*net.module(*outputs), partition, draw(st.sampled_from(["edge", "default"])))


def layer(draw, net, maps):
    x = maps[-1]
    same = [v for v in maps[1:-1] if shape_of(v) == shape_of(x)]
    kind = draw(st.sampled_from(["conv", "conv", "pool", "add" if same else "conv"]))
    if kind == "add":
        return net.binary("add", x, draw(st.sampled_from(same)))
    fits = min(shape_of(x)[2:])
    kernel, stride = draw(st.sampled_from([3, 3, 3, 1, 2, 5] if fits > 5 else [1])), draw(st.sampled_from([1, 1, 2]))
    pads = tuple(draw(st.integers(0, (kernel - 1) // 2)) for _ in range(4))
    if kind == "conv":
        return net.conv(x, draw(st.integers(1, 4)), kernel, strides=(stride, stride), pads=pads)
    return net.layer(graph.PoolOp("max", x, kernel=(kernel, kernel), strides=(stride, stride), pads=pads))


def one_unit(module, target, partition):
    """All layers in one unit, at stop `placed`."""
    return placed(as_units(module, target, [Group(tuple(range(len(layers_in(module)))), partition)]))


def vgg_like(width=16):
    net = Net(3)
    x = net.input(1, 2, 16, width)
    x = net.pool("max", net.conv(net.conv(x, 3, 3), 3, 3))
    x = net.pool("max", net.conv(net.conv(x, 4, 3), 4, 3))
    return net.module(net.conv(x, 5, 3))
