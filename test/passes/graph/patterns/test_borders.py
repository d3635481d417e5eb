"""Concatenations of a map with slices of it are borders where they show what mirrors or repeats its ends."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import run_module
from xdsl.utils.exceptions import VerifyException

from frustum.dialects import graph
from frustum.passes.graph.patterns.borders import find_borders


def joined(net, x, axis, *runs):
    """Runs (start, size, step) of x along an axis, one behind the other; x itself where there is None."""
    parts = []
    for run in runs:
        shape = graph.shape_of(x)
        if run is None:
            parts.append(x)
            continue
        starts, sizes, steps = [0] * 4, list(shape), [1] * 4
        starts[axis], sizes[axis], steps[axis] = run
        parts.append(net.layer(graph.SliceOp(x, tuple(starts), tuple(sizes), tuple(steps))))
    return net.layer(graph.ConcatOp(parts, axis))


def found(build):
    net = Net()
    module, inputs = net.module(net.unary("relu", build(net, net.unary("neg", net.input(1, 2, 5, 6)))))
    wanted = run_module(module, inputs)["y0"]
    find_borders(module)
    module.verify()
    np.testing.assert_array_equal(run_module(module, inputs)["y0"], wanted)
    return [(op.low, op.high, op.mode) for op in module.walk() if isinstance(op, graph.BorderOp)]


@pytest.mark.parametrize(
    ("axis", "runs", "border"),
    [
        (2, [(2, 2, -1), None, (3, 1, -1)], ((2, 0), (1, 0), "reflect")),
        (2, [(2, 3, -1), (1, 4, 1), (3, 2, -1)], ((2, 0), (2, 0), "reflect")),  # runs as long as they can be
        (3, [(0, 1, 1), (0, 1, 1), None], ((0, 2), (0, 0), "edge")),
        (3, [None, (5, 1, 1)], ((0, 0), (0, 1), "edge")),
        (2, [(3, 2, 1), None, (0, 1, 1)], ((2, 0), (1, 0), "wrap")),
        (3, [None, None], ((0, 0), (0, 6), "wrap")),  # twice
        (2, [None, None, None], None),  # three times
        (2, [(2, 2, -1), None, (4, 1, 1)], None),  # one end mirrored, the other repeated
        (1, [(0, 1, 1), None], None),  # along channels
        (2, [(0, 2, 1), (3, 2, 1)], None),  # leaves a row out
    ],
)
def test_a_border_is_found(axis, runs, border):
    assert found(lambda net, x: joined(net, x, axis, *runs)) == ([] if border is None else [border])


def test_borders_of_rows_and_columns_are_one():
    def both(net, x, columns=((1, 1, 1), None, (4, 1, 1))):
        return joined(net, joined(net, x, 2, (1, 1, 1), None, (3, 1, 1)), 3, *columns)

    assert found(both) == [((1, 1), (1, 1), "reflect")]
    repeated = found(lambda net, x: both(net, x, ((0, 1, 1), None)))
    assert repeated == [((1, 0), (1, 0), "reflect"), ((0, 1), (0, 0), "edge")]


@pytest.mark.parametrize(("low", "mode"), [((5, 0), "reflect"), ((-1, 0), "edge"), ((6, 0), "wrap")])
def test_borders_must_be_there(low, mode):
    with pytest.raises(VerifyException, match="has no borders of"):
        graph.BorderOp(mode, Net().input(1, 2, 5, 6), low, (0, 0)).verify()
