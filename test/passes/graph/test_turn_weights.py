"""Weights of products of several rows are stored by inputs; what one row multiplies, or somebody else reads, stays."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from xdsl.context import Context

from frustum.dialects import graph as g
from frustum.passes.graph.turn_weights import TurnWeights
from frustum.passes.weights import store_of
from frustum.runtime.reference.graph import ReferenceExecutor


@pytest.mark.parametrize(("rows", "is_turned"), [(16, True), (1, False)])
def test_weights_of_several_rows_are_turned(rows, is_turned):
    net = Net()
    module, inputs = net.module(net.dense(net.input(rows, 12), 20, "relu"))
    (before,) = ReferenceExecutor(store_of(module)).run_graph(module, inputs).values()
    TurnWeights().apply(Context(), module)
    module.verify()
    (product,) = [op for op in module.walk() if isinstance(op, g.MatmulOp)]
    assert g.shape_of(product.b) == ((12, 20) if is_turned else (20, 12))
    (after,) = ReferenceExecutor(store_of(module)).run_graph(module, inputs).values()
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


def test_weights_that_something_else_reads_stay():
    net = Net()
    x, w = net.input(4, 12), net.weight(12, 12)
    y = net.layer(g.MatmulOp(net.layer(g.MatmulOp(x, w, trans_b=True)), w))
    module, _ = net.module(y)
    TurnWeights().apply(Context(), module)
    assert [op.trans_b for op in module.walk() if isinstance(op, g.MatmulOp)] == [True, False]
