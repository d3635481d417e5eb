"""Random networks of windows and branches, for what fuses and cuts them."""

from __future__ import annotations

from hypothesis import strategies as st
from networks import Net
from random_network import Drawn

from frustum.dialects import graph
from frustum.dialects.graph import shape_of

MORE = ("conv", "conv", "stride", "pool", "relu", "scale", "add", "concat", "whole", "resize", "pick")


class Case:
    """A network that is shown as text."""

    def __init__(self, module):
        self.module = module

    def __repr__(self):
        return f"\n{self.module}\n"


def grown(draw, net, x, maps):
    """One more layer on x, perhaps with another of the maps."""
    kind = draw(st.sampled_from(MORE))
    side = shape_of(x)[2]
    alike = [m for m in maps if shape_of(m) == shape_of(x) and m is not x]
    beside = [
        m for m in maps if shape_of(m)[2:] == shape_of(x)[2:] and m is not x and m.owner is not net.block
    ]
    if kind == "add" and alike:
        return net.binary("add", x, draw(st.sampled_from(alike)))
    if kind == "concat" and beside and x.owner is not net.block:
        return net.layer(graph.ConcatOp([x, draw(st.sampled_from(beside))], 1))
    if kind == "stride" and side > 3:
        return net.conv(x, 4, 3, strides=(2, 2))
    if kind == "pool" and side > 3:
        return net.pool("max", x)
    if kind == "scale":
        return net.binary("mul", x, net.weight(1, shape_of(x)[1], 1, 1))
    if kind == "resize" and side <= 12:
        return net.layer(
            graph.ResizeOp("nearest", x, tuple(2 * s for s in shape_of(x)[2:]), scale=(0.5, 0.5), offset=(0.0, 0.0))
        )
    if kind == "pick" and side > 3:
        return net.layer(picked(draw, x))
    if kind == "whole":
        return net.layer(graph.TransposeOp(x, (0, 1, 3, 2)))
    return (
        net.conv(x, 4, draw(st.sampled_from([1, 3, 5])))
        if kind in ("conv", "stride")
        else net.unary("relu", x)
    )


KINDS = (
    "conv",
    "conv",
    "pointwise",
    "depthwise",
    "stride",
    "pool",
    "avg",
    "act",
    "scale",
    "add",
    "concat",
    "branches",
)
SHRINKING = ("stride", "pool", "avg")


@st.composite
def fusable(draw, layers=8, images=(1,), sides=(8, 12, 16), channels=(4, 8)):
    """A network of what units fuse: windows, depthwise convolutions, strides, pools, residuals, branches that are
    added or joined along channels; what nobody reads is an output, and sometimes one more map.  `channels` are the
    two numbers of them that convolutions make."""
    net = Net(draw(st.integers(0, 99)))
    sides = st.sampled_from(sides)
    maps = [
        net.input(draw(st.sampled_from(images)), draw(st.sampled_from([2, 3, 8])), draw(sides), draw(sides))
    ]
    count = draw(st.integers(2, layers))
    while net.count < count:
        x = maps[-1] if draw(st.integers(0, 3)) else draw(st.sampled_from(maps))
        maps += windowed(draw, net, x, maps, channels)
    made = [m for m in dict.fromkeys(maps) if m.owner is not net.block]
    outputs = [m for m in made if not m.uses]
    if draw(st.integers(0, 3)) == 0:
        outputs = list(dict.fromkeys([*outputs, draw(st.sampled_from(made))]))
    module, inputs = net.module(*outputs)
    return Drawn(module, inputs)


def windowed(draw, net, x, maps, channels):
    """One more layer, or two branches of layers, on x; all maps made."""
    kind, (height, width) = draw(st.sampled_from(KINDS)), shape_of(x)[2:]
    act, few = draw(st.sampled_from([None, "relu"])), draw(st.sampled_from(channels))
    if kind == "branches":
        return branches(draw, net, x, channels[0], act)
    if kind in ("add", "concat"):
        return joined(draw, net, x, maps, sum(channels), kind, act)
    if kind in SHRINKING and min(height, width) > 3:
        return [shrunk(draw, net, x, kind, few, act)]
    if kind == "depthwise":
        return [net.conv(x, shape_of(x)[1], draw(st.sampled_from([3, 5])), groups=shape_of(x)[1], act=act)]
    if kind == "scale":
        return [net.binary("mul", x, net.weight(1, shape_of(x)[1], 1, 1))]
    if kind == "act":
        return [net.unary(draw(st.sampled_from(["relu", "sigmoid"])), x)]
    kernel = 1 if kind == "pointwise" else 3
    return [net.conv(x, few, kernel, bias=draw(st.booleans()), act=act)]


def branches(draw, net, x, channels, act):
    a = net.conv(x, channels, draw(st.sampled_from([1, 3])), act=act)
    b = net.conv(net.conv(x, channels // 2, 1), channels, 3)
    return [a, b, net.layer(graph.ConcatOp([a, b], 1)) if draw(st.booleans()) else net.binary("add", a, b)]


def joined(draw, net, x, maps, most_channels, kind, act):
    """With another map; nothing where there is none."""
    shape = shape_of(x)
    alike = [m for m in maps if shape_of(m) == shape and m is not x]
    beside = [
        m for m in maps if (*shape_of(m)[:1], *shape_of(m)[2:]) == (*shape[:1], *shape[2:]) and m is not x
    ]
    beside = [m for m in beside if shape_of(m)[1] + shape[1] <= most_channels]
    if kind == "add" and alike:
        return [net.binary("add", x, draw(st.sampled_from(alike)), act=act)]
    if kind == "concat" and beside:
        return [net.layer(graph.ConcatOp([x, draw(st.sampled_from(beside))], 1))]
    return []


def shrunk(draw, net, x, kind, channels, act):
    if kind == "stride":
        return net.conv(x, channels, draw(st.sampled_from([1, 2, 3])), strides=(2, 2), act=act)
    if kind == "avg":
        return net.pool("avg", x, 3, 1, pads=(1,) * 4)
    kernel, stride, pad = draw(st.sampled_from([(2, 2, 0), (3, 2, 1), (3, 1, 1)]))
    return net.pool("max", x, kernel, stride, pads=(pad,) * 4)


def picked(draw, x):
    """Some channels, or every other row and column."""
    n, c, h, w = shape_of(x)
    if c > 1 and draw(st.booleans()):
        return graph.PickOp(x, (0, c // 2, 0, 0), (n, c - c // 2, h, w), (1, 1, 1, 1))
    first = draw(st.integers(0, 1))
    return graph.PickOp(x, (0, 0, first, first), (n, c, (h + 1 - first) // 2, (w + 1 - first) // 2), (1, 1, 2, 2))
