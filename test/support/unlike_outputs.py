"""Random networks whose outputs have unlike shapes: maps, their reshapes, what is made of either."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from networks import Net
from random_network import (
    Drawn,
    binary,
    concat,
    conv,
    cut,
    pad,
    pool,
    reduce,
    resize,
    softmax,
    transpose,
    unary,
)

from frustum.dialects import graph
from frustum.dialects.graph import shape_of

MOST_ELEMENTS, MOST_EXTENT = 4000, 500


def reshape(draw, net, x, maps):
    """The same elements in four other extents."""
    left, shape = math.prod(shape_of(x)), []
    for _ in range(3):
        shape.append(draw(st.sampled_from([n for n in range(1, 65) if left % n == 0])))
        left //= shape[-1]
    shape = draw(st.permutations([*shape, left]))
    return net.layer(graph.ReshapeOp(x, tuple(shape))) if max(shape) <= MOST_EXTENT else x


LAYERS = (unary, unary, conv, pool, binary, concat, cut, pad, resize, reduce, softmax, transpose, reshape, reshape)


@st.composite
def unlike_outputs(draw, layers=6):
    """What nobody reads is an output, and some of what is read."""
    net = Net(draw(st.integers(0, 99)))
    size = st.integers(3, 12)
    source = net.input(draw(st.integers(1, 2)), 2 * draw(st.integers(1, 3)), draw(size), draw(size))
    maps = [source]
    for _ in range(draw(st.integers(2, layers))):
        x = draw(st.sampled_from(maps))
        if math.prod(shape_of(x)) <= MOST_ELEMENTS:
            maps.append(draw(st.sampled_from(LAYERS))(draw, net, x, maps))
    made = [value for value in dict.fromkeys(maps) if value is not source] or [net.unary("relu", source)]
    outputs = [value for value in made if not value.uses or draw(st.integers(0, 2)) == 0]
    return Drawn(*net.module(*outputs))
