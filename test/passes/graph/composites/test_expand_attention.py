"""Attention written as plain layers computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import aimed, run_module, target
from xdsl.context import Context

from frustum.dialects import graph as g
from frustum.dialects.module import CARRY
from frustum.passes.graph.composites.expand_attention import ExpandAttention


@pytest.mark.parametrize("rows, keys", [((5,), (7,)), ((5, 2), (3, 4))])
def test_channels_come_first(rows, keys):
    net = Net()
    q, k, v = net.input(2, 24, *rows), net.input(2, 15, *keys), net.input(2, 9, *keys)
    op = g.AttentionOp(q, k, v, heads=(4, 2), sizes=(6, 4), firsts=(0, 3, 1), scale=0.4, is_channels_first=True)
    module, inputs = net.module(net.layer(op))
    plain = module.clone()
    ExpandAttention().apply(Context(), plain)
    plain.verify()
    assert not any(isinstance(each, g.AttentionOp) for each in plain.walk())
    for wanted, got in zip(run_module(module, inputs).values(), run_module(plain, inputs).values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("causal_from", [None, 2, -2])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_plain_layers_compute_the_same(heads, causal_from, is_merged):
    net = Net()
    q, k = net.input(2, 5, 40), net.input(2, heads[1], 7, 6)
    v, mask = net.input(2, 7, 4 * heads[1] + 1), net.input(2, 1, 5, 7)
    op = g.AttentionOp(
        q, k, v, mask, heads=heads, sizes=(6, 4), firsts=(3, 0, 1), scale=0.4, softcap=1.5,
        causal_from=causal_from, is_merged=is_merged,
    )  # fmt: skip
    module, inputs = net.module(net.layer(op))
    plain = module.clone()
    ExpandAttention().apply(Context(), plain)
    plain.verify()
    assert not any(isinstance(each, g.AttentionOp) for each in plain.walk())
    for wanted, got in zip(run_module(module, inputs).values(), run_module(plain, inputs).values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("causal_from", "has_zeros"), [(0, False), (-1, True)])
def test_rows_are_multiplied_by_zero_where_some_see_no_key(causal_from, has_zeros):
    net = Net()
    q, k, v = (net.input(1, 1, 4, 8) for _ in range(3))
    op = g.AttentionOp(q, k, v, heads=(1, 1), sizes=(8, 8), scale=1.0, causal_from=causal_from)
    module, _ = net.module(net.layer(op))
    ExpandAttention().apply(Context(), module)
    assert any(isinstance(each, g.BinaryOp) and each.kind == "mul" for each in module.walk()) == has_zeros


@pytest.mark.parametrize(("keys", "is_wide"), [(4, True), (1024, False)])
def test_scores_are_wide_where_that_costs_hardly_anything(keys, is_wide):
    net = Net()
    q, k, v = net.input(1, 1, keys, 32), net.input(1, 1, keys, 32), net.input(1, 1, keys, 32)
    module, _ = net.module(net.layer(g.AttentionOp(q, k, v, heads=(1, 1), sizes=(32, 32), scale=0.2)))
    module = aimed(module, target("edge"))
    ExpandAttention("f16", "auto").apply(Context(), module)
    (op,) = [each for each in module.walk() if isinstance(each, g.AttentionOp)]
    assert (CARRY in op.attributes) == is_wide


def test_scores_are_not_wide_where_cores_alone_have_much_more_to_do():
    """Windows of 49 rows wait for DRAM if they are alone; in a network they may find their maps in SRAM."""
    net = Net()
    q, k, v = (net.input(16, 49, 96) for _ in range(3))
    module, _ = net.module(net.layer(g.AttentionOp(q, k, v, heads=(3, 3), sizes=(32, 32), scale=0.2, is_merged=True)))
    module = aimed(module, target("default"))
    ExpandAttention("f16", "auto").apply(Context(), module)
    (op,) = [each for each in module.walk() if isinstance(each, g.AttentionOp)]
    assert CARRY not in op.attributes
