"""Softmax written as plain layers computes the same, and is written so only where it does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from programs import machine
from stops import aimed, run_module
from xdsl.context import Context

from frustum.dialects import graph as g
from frustum.passes.graph.composites.expand_softmax import ExpandSoftmax, _SoftmaxExpansion
from frustum.passes.weights import store_of


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("most", [1, 3, 12])
@pytest.mark.parametrize(("clusters", "sram_bytes"), [(1, 1 << 20), (2, 256)])
def test_plain_layers_compute_the_same(axis, most, clusters, sram_bytes):
    net = Net()
    module, inputs = net.module(net.layer(g.SoftmaxOp(net.input(6, 12, 4), axis)))
    plain = module.clone()
    (found,) = [each for each in plain.walk() if isinstance(each, g.SoftmaxOp)]
    _SoftmaxExpansion(found, store_of(plain), target=machine(clusters, 1, capacity=sram_bytes), most=most).run()
    plain.verify()
    (wanted,), (got,) = (run_module(each, inputs).values() for each in (module, plain))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("columns", "is_left"), [(100, True), (100_000, False)])
def test_what_fits_is_left(columns, is_left):
    net = Net()
    module, _ = net.module(net.layer(g.SoftmaxOp(net.input(4, columns), 1)))
    module = aimed(module, "edge")
    ExpandSoftmax().apply(Context(), module)
    assert any(isinstance(each, g.SoftmaxOp) for each in module.walk()) == is_left
