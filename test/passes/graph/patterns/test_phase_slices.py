"""Slices of all phases of a map side by side are its phases; a convolution reads them in order."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import aimed, run_module
from xdsl.context import Context

from frustum.dialects import graph
from frustum.passes.graph.find_phases import FindPhases

CHANNELS = 3


def sliced(net, x, a, b, steps=(2, 2)):
    """Every second row, then every second column, from a and b on: as ONNX writes it, one axis at a time."""
    n, c, h, w = graph.shape_of(x)
    rows = net.layer(graph.SliceOp(x, (0, 0, a, 0), (n, c, h // steps[0], w), (1, 1, steps[0], 1)))
    size = (n, c, h // steps[0], w // steps[1])
    return net.layer(graph.SliceOp(rows, (0, 0, 0, b), size, (1, 1, 1, steps[1])))


def found(places, *, reads=True, groups=1, steps=(2, 2)):
    net = Net()
    x = net.unary("relu", net.input(2, CHANNELS, 4, 6))
    side = net.layer(graph.ConcatOp([sliced(net, x, *place, steps) for place in places], 1))
    module, inputs = net.module(net.conv(side, 8, groups=groups) if reads else net.unary("neg", side))
    result = aimed(module, "edge")
    FindPhases().apply(Context(), result)
    result.verify()
    np.testing.assert_allclose(run_module(result, inputs)["y0"], run_module(module, inputs)["y0"], atol=1e-6)
    return [op.factor for op in result.walk() if isinstance(op, graph.SpaceToDepthOp)]


FOCUS = [(0, 0), (1, 0), (0, 1), (1, 1)]
NATURAL = [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("places", "options", "factors"),
    [
        (NATURAL, {"reads": False}, [(2, 2)]),
        (FOCUS, {}, [(2, 2)]),
        (FOCUS, {"reads": False}, []),  # nobody can read them in another order
        (FOCUS, {"groups": 4}, []),
        ([(0, 0), (0, 1), (0, 2)], {"steps": (1, 3), "reads": False}, [(1, 3)]),
        ([(0, 0), (0, 1), (1, 0), (1, 0)], {}, []),  # one phase twice
        (NATURAL[:2], {}, []),  # half of them
    ],
)
def test_phases_are_found(places, options, factors):
    assert found(places, **options) == factors
