"""Random networks with several inputs and outputs, for splitting: outputs that are also read, skips, pass-through."""

from __future__ import annotations

import random_network
from hypothesis import strategies as st
from networks import Net

from frustum.dialects import graph
from frustum.dialects.graph import shape_of

PLANE = (1, 4, 7, 9)
CHEAP = (
    random_network.conv,
    random_network.pool,
    random_network.unary,
    random_network.binary,
    random_network.concat,
    random_network.reduce,
)


@st.composite
def branching(draw, layers=7, kinds=CHEAP):
    """One to three inputs; any value may be an output, even twice, reshaped, an input or a constant."""
    net = Net(draw(st.integers(0, 99)))
    maps = [net.input(1, draw(st.integers(1, 4)), *PLANE[2:]) for _ in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(2, layers))):
        x = maps[-1] if draw(st.integers(0, 3)) else draw(st.sampled_from(maps))
        maps.append(draw(st.sampled_from(kinds))(draw, net, x, maps))
    unread = [value for value in dict.fromkeys(maps) if not value.uses]
    read = [value for value in maps if value.uses and value.owner is not net.block] or maps
    handed = unread + draw(st.lists(st.sampled_from(read), min_size=1, max_size=3))
    if draw(st.integers(0, 3)) == 0:
        handed.append(draw(st.sampled_from(maps)))
    outputs = [reshaped(net, value) if draw(st.integers(0, 3)) == 0 else value for value in handed]
    if draw(st.integers(0, 7)) == 0:
        outputs.append(net.weight(2, 3))
    return random_network.Drawn(*net.module(*outputs))


def reshaped(net, value):
    count = 1
    for extent in shape_of(value):
        count *= extent
    return net.layer(graph.ReshapeOp(value, (count,)))


def in_order(run, networks, inputs, outputs):
    """What a chain of networks gives; `run(network, its inputs)` gives one's outputs by name."""
    values = dict(inputs)
    for network in networks:
        values |= run(network, {name: values[name] for name in network.inputs})
    return {name: values[name] for name in outputs}
