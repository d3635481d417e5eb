"""Channel shuffles are found where they are one, and give the same elements."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import run_module
from xdsl.context import Context
from xdsl.utils.exceptions import VerifyException

from frustum.dialects import graph
from frustum.passes.graph.find_shuffles import FindShuffles


def shuffled(split, perm, back=None):
    """A network with reshape, transpose, reshape, and how many shuffles are found in it."""
    net = Net()
    x = net.conv(net.input(2, 3, 4, 5), 12)
    turned = net.layer(graph.TransposeOp(net.layer(graph.ReshapeOp(x, split)), perm))
    y = net.layer(graph.ReshapeOp(turned, back or (2, 12, 4, 5)))
    module, inputs = net.module(net.unary("relu", y))
    found = module.clone()
    FindShuffles().apply(Context(), found)
    found.verify()
    wanted, got = run_module(module, inputs), run_module(found, inputs)
    np.testing.assert_array_equal(got["y0"], wanted["y0"])
    return [op.groups for op in found.walk() if isinstance(op, graph.ShuffleOp)]


@pytest.mark.parametrize("split", [(2, 3, 4, 4, 5), (2, 3, 4, 20)])
def test_a_shuffle_is_found(split):
    assert shuffled(split, (0, 2, 1, 3, 4)[: len(split)]) == [3]


@pytest.mark.parametrize(
    ("split", "perm", "back"),
    [
        ((2, 3, 4, 4, 5), (0, 1, 2, 4, 3), None),  # turns the plane
        ((2, 3, 4, 4, 5), (0, 2, 1, 3, 4), (2, 6, 8, 5)),  # another shape
        ((2, 3, 2, 40), (0, 2, 1, 3), None),  # not whole channels
        ((2, 12, 4, 5), (0, 1, 3, 2), None),
    ],
)
def test_others_are_left(split, perm, back):
    assert shuffled(split, perm, back) == []


def test_groups_must_divide_the_channels():
    net = Net()
    op = graph.ShuffleOp(net.input(1, 4, 2, 2), 3)
    with pytest.raises(VerifyException, match=r"fgraph.shuffle: 3 groups of the channels of \(1, 4, 2, 2\)"):
        op.verify()
