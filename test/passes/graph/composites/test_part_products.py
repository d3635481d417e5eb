"""Queries, keys and values that one product makes are made apart, and the same."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import aimed, run_module
from xdsl.context import Context

from frustum.dialects import graph as g
from frustum.passes.graph.composites.part_products import PartProducts


def network(*, rows=5, width=24, **rest):
    """Attention whose operands are parts of one product."""
    net = Net()
    x, w = net.input(2, rows, 8), net.weight(width, 8)
    packed = net.layer(g.MatmulOp(x, w, net.weight(width), trans_b=True))
    op = g.AttentionOp(packed, packed, packed, heads=(2, 1), sizes=(6, 4), firsts=(2, 14, 20), scale=0.4, **rest)
    return net, packed, net.layer(op)


def parted(module, target="default"):
    module = aimed(module, target)
    PartProducts().apply(Context(), module)
    module.verify()
    return module, [g.shape_of(op.result)[-1] for op in module.walk() if isinstance(op, g.MatmulOp)]


@pytest.mark.parametrize("causal_from", [None, 1])
def test_each_part_has_a_product(causal_from):
    net, _, y = network(causal_from=causal_from, is_merged=True)
    module, inputs = net.module(y)
    made, widths = parted(module)
    assert widths == [12, 6, 4]
    (wanted,), (got,) = (run_module(each, inputs).values() for each in (module, made))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_what_others_read_too_stays():
    net, packed, y = network()
    module, _ = net.module(y, packed)
    assert parted(module)[1] == [24]


def test_what_is_too_large_to_stay_is_left():
    net, _, y = network(rows=6000)
    module, _ = net.module(y)
    assert parted(module, "edge")[1] == [24]
    assert parted(module)[1] == [12, 6, 4]


def test_what_is_made_head_by_head_is_parted_however_large():
    net, _, y = network(rows=3000)
    module, _ = net.module(y)
    assert parted(module, "edge")[1] == [12, 6, 4]
