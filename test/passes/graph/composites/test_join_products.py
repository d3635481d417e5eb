"""Small products of one operand and one node become one, and give the same."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import aimed, run_module
from xdsl.context import Context

from frustum.dialects import graph as g
from frustum.passes.graph.composites.join_products import JoinProducts


def gates(widths=(24, 24, 24, 24), rows=1, acts=("sigmoid", "tanh", "sigmoid", None), *, bias=True, residual=True):
    """Products of one operand, as the gates of a recurrence are."""
    net = Net()
    x = net.input(rows, 16)
    made = []
    for width, act in zip(widths, acts, strict=True):
        op = g.MatmulOp(
            x, net.weight(16, width), net.weight(width) if bias else None,
            residual=net.input(rows, width) if residual else None, act=None if act is None else g.ActAttr.of(act),
        )
        made.append(net.layer(op))
    for value in made:
        value.owner.location = made[0].owner.location
    return net.module(*made)


def joined(module, inputs, target="default"):
    """The widths of products afterwards; values are the same."""
    found = aimed(module, target)
    JoinProducts().apply(Context(), found)
    found.verify()
    wanted, got = run_module(module, inputs), run_module(found, inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)
    return found, [g.shape_of(op.result)[-1] for op in found.walk() if isinstance(op, g.MatmulOp)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_gates_are_one_product(bias, residual):
    found, widths = joined(*gates(bias=bias, residual=residual))
    assert widths == [96]
    acts = [op.act.kind for op in found.walk() if isinstance(op, g.UnaryOp)]
    assert len(acts) == 2, "gates with the same activation stand side by side"


def test_gates_may_be_of_several_widths():
    assert joined(*gates((24, 8, 16, 40)))[1] == [88]


@pytest.mark.parametrize(
    ("case", "target"),
    [
        (dict(rows=4), "default"),  # cores can share rows
        (dict(widths=(256,) * 4), "default"),  # each has a column for every channel of the cores
        (dict(widths=(130,) * 2, acts=(None,) * 2), "default"),  # one for both would take as many passes
        (dict(widths=(64,) * 4), "edge"),  # four cores of 16 channels
    ],
)
def test_products_that_gain_nothing_stay(case, target):
    module, inputs = gates(**case)
    assert joined(module, inputs, target)[1] == list(case.get("widths", (24,) * 4))


def test_what_is_added_has_to_be_there_before_the_first():
    """The second product adds what is made of the first one."""
    net = Net()
    x = net.input(1, 16)
    first = net.layer(g.MatmulOp(x, net.weight(16, 24), residual=net.input(1, 24)))
    second = net.layer(g.MatmulOp(x, net.weight(16, 24), residual=first))
    second.owner.location = first.owner.location
    assert joined(*net.module(first, second))[1] == [24, 24]


def test_products_of_several_nodes_stay():
    net = Net()
    x = net.input(1, 16)
    made = [net.layer(g.MatmulOp(x, net.weight(16, 24))) for _ in range(2)]
    assert joined(*net.module(*made))[1] == [24, 24]
