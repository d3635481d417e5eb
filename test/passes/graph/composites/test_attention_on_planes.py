"""Attention of tokens that are positions of planes becomes convolutions and attention of planes: the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from stops import aimed, modules_at_stops, run_module, target
from xdsl.context import Context

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.passes.graph.composites.attention_on_planes import AttentionOnPlanes

CHANNELS, SIZE, HEADS, TEXT = 16, 4, 2, 5
TOKENS = SIZE * SIZE


def rows_of(net, planes):
    flat = net.layer(g.ReshapeOp(planes, (1, CHANNELS, TOKENS)))
    return net.layer(g.TransposeOp(flat, (0, 2, 1)))


def product(net, rows, *, trans_b=False, bias=True, act=None):
    width = g.shape_of(rows)[-1]
    shape = (CHANNELS, width) if trans_b else (width, CHANNELS)
    weights = net.weight(*shape, scale=width**-0.5)
    return net.layer(g.MatmulOp(rows, weights, net.weight(CHANNELS) if bias else None, trans_b=trans_b, act=act))


def block(*, text=False, after=True, act=None, shared=False, back=True, mask=False):
    """Planes as rows, attention to themselves or to other rows, perhaps a product, and back to planes."""
    net = Net()
    planes = net.conv(net.input(1, CHANNELS, SIZE, SIZE), CHANNELS)
    rows = rows_of(net, planes)
    keys = net.input(1, TEXT, 12) if text else rows
    q, k, v = product(net, rows, act=act), product(net, keys, trans_b=True), product(net, keys, bias=False)
    hidden = net.weight(1, 1, TOKENS, g.shape_of(k)[1]) if mask else None
    heads, size = (HEADS, HEADS), CHANNELS // HEADS
    y = net.layer(g.AttentionOp(q, k, v, hidden, heads=heads, sizes=(size, size), scale=0.3, is_merged=True))
    y = product(net, y) if after else y
    if not back:
        return net.module(y)
    flat = net.layer(g.TransposeOp(y, (0, 2, 1)))
    out = net.binary("add", net.layer(g.ReshapeOp(flat, (1, CHANNELS, SIZE, SIZE))), planes)
    return net.module(out, k) if shared else net.module(out)


def written(module):
    module = aimed(module, "edge")
    AttentionOnPlanes().apply(Context(), module)
    module.verify()
    return module, [op for op in module.walk() if isinstance(op, g.AttentionOp)]


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_products_are_convolutions_and_nothing_is_transposed_but_other_rows(text, after):
    module, given = block(text=text, after=after)
    wanted = run_module(module, given)
    module, (attention,) = written(module)
    assert attention.is_of_planes and not attention.is_merged
    moves = [op for op in module.walk() if isinstance(op, g.TransposeOp)]
    assert [g.shape_of(op.x) for op in moves] == [(1, TEXT, 12)] * text
    assert not any(isinstance(op, g.MatmulOp) for op in module.walk())
    for want, got in zip(wanted.values(), run_module(module, given).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


LEFT = [{"act": g.ActAttr.of("relu")}, {"shared": True}, {"back": False}, {"mask": True}]


@pytest.mark.parametrize("kwargs", LEFT, ids=["function", "read by others", "not back", "mask"])
def test_others_are_left(kwargs):
    module, _ = block(**kwargs)
    before = str(module)
    AttentionOnPlanes().apply(Context(), aimed(module, "edge"))
    _, (attention,) = written(module)
    assert attention.is_merged and before.count("fgraph.conv") == str(module).count("fgraph.conv")


@pytest.mark.slow
@pytest.mark.parametrize("text", [False, True])
def test_the_machine_computes_the_same(text):
    module, given = block(text=text)
    (wanted,) = run_module(module, given).values()
    found = modules_at_stops(module, target("edge"), Choices(dtype="f32"))
    assert all(op.is_of_planes for op in found["fused"].walk() if isinstance(op, g.AttentionOp))
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], given, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
