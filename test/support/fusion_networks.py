"""Random networks of windows and branches, for what fuses and cuts them."""

from __future__ import annotations

from hypothesis import strategies as st

from frustum.dialects import graph
from frustum.dialects.graph import shape_of


class Case:
    """A network that is shown as text."""

    def __init__(self, module):
        self.module = module

    def __repr__(self):
        return f"\n{self.module}\n"


def grown(draw, net, x, maps):
    """One more layer on x, perhaps with another of the maps."""
    kind = draw(st.sampled_from(["conv", "conv", "stride", "pool", "relu", "scale", "add", "concat", "whole"]))
    side = shape_of(x)[2]
    alike = [m for m in maps if shape_of(m) == shape_of(x) and m is not x]
    beside = [m for m in maps if shape_of(m)[2:] == shape_of(x)[2:] and m is not x and m.owner is not net.block]
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
    if kind == "whole":
        return net.layer(graph.TransposeOp(x, (0, 1, 3, 2)))
    return net.conv(x, 4, draw(st.sampled_from([1, 3, 5]))) if kind in ("conv", "stride") else net.unary("relu", x)
