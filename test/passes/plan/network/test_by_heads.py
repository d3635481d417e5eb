"""Attention head by head with the products that make what it reads: the same numbers, and nothing between them in DRAM.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks import Net
from stops import modules_at_stops, run_module, target

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.plan.network.layer_order import heads_together, ops_of_section
from frustum.runtime.reference.graph import network_of

pytestmark = pytest.mark.slow

TOLERANCE = {"f32": 1e-5, "f16": 6e-3}


def edge(kib):
    """`edge` with so much SRAM, and less in its cores."""
    whole = target("edge")
    cluster, core = whole.cluster, whole.core
    core = replace(core, nram=replace(core.nram, capacity_bytes=16 << 10))
    cluster = replace(cluster, sram=replace(cluster.sram, capacity_bytes=kib << 10), core=core)
    return replace(whole, chip=replace(whole.chip, cluster=cluster))


def network(rows, heads, size, *, width=96, has_mask=False, has_norm=False, is_joined=False, after=0):
    """A map of `rows` positions, perhaps normalised; three products of it, or one, attention, and perhaps a product
    with `after` channels."""
    net, (queries, groups) = Net(), heads
    x = net.input(1, rows, width)
    mask = net.unary("tanh", net.input(1, 1, 1, rows)) if has_mask else None
    if has_norm:
        x = net.layer(g.NormaliseOp(x, net.weight(width), net.weight(width), axes=(2,), epsilon=1e-5))
    widths = [queries * size, groups * size, groups * size]
    if is_joined:
        weights = net.weight(width, sum(widths), scale=width**-0.5)
        made = [net.layer(g.MatmulOp(x, weights, net.weight(sum(widths))))] * 3
        firsts = (0, widths[0], widths[0] + widths[1])
    else:
        made = [net.layer(g.MatmulOp(x, net.weight(width, w, scale=width**-0.5), net.weight(w))) for w in widths]
        firsts = (0, 0, 0)
    op = g.AttentionOp(*made, mask, heads=heads, sizes=(size, size), firsts=firsts, scale=size**-0.5, is_merged=True)
    y = net.layer(op)
    if after:
        y = net.layer(g.MatmulOp(y, net.weight(widths[0], after, scale=widths[0] ** -0.5), residual=x))
    return net.module(y)


def units_with_attention(module):
    found = [op for op in module.walk() if isinstance(op, UnitOp)]
    return [u for u in found if any(isinstance(op, g.AttentionOp) for op in u.body.walk())]


CASES = [
    ({"heads": (6, 6)}, "f32", 64),
    ({"heads": (6, 6), "has_norm": True, "is_joined": True}, "f16", 40),
    ({"heads": (8, 4), "width": 32, "has_mask": True}, "f16", 28),
    ({"heads": (6, 6), "after": 96, "has_mask": True}, "f16", 44),
]


@pytest.mark.soak(but=1)
@pytest.mark.parametrize(("how", "dtype", "kib"), CASES)
def test_numbers_agree_and_what_is_between_stays_on_chip(how, dtype, kib):
    module, inputs = network(64, size=16, **how)
    found = modules_at_stops(module, edge(kib), Choices(dtype=dtype))
    (unit,) = units_with_attention(found["fused"])
    ops = [op.name.removeprefix("fgraph.") for op in unit.body.block.ops if not isinstance(op, g.WeightOp)]
    assert ops[-5:-1] == ["matmul", "matmul", "matmul", "attention"]
    assert unit.partition.data.tile[1] < how["heads"][0] * 16
    (wanted,) = run_module(module, inputs).values()
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], inputs, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


def test_each_map_and_weight_crosses_the_port_once():
    module, _ = network(64, (6, 6), 16)
    (unit,) = units_with_attention(modules_at_stops(module, edge(40), Choices(dtype="f16"))["fused"])
    said = int(unit.stopped_by.data.split(" DRAM")[0].split()[-1])
    assert said == 2 * (64 * 96 + 64 * 96 + 3 * 96 * 96) + 4 * 3 * 96


def test_products_stand_before_the_attention_that_reads_them():
    module, _ = network(8, (2, 2), 16, width=32, has_mask=True)
    ops = ops_of_section(network_of(module))
    before = [*ops[1:4], ops[0], ops[4]]  # the mask between the products and attention
    assert heads_together(before) == ops


def test_what_others_read_too_is_not_made_head_by_head():
    net = Net()
    x = net.input(1, 8, 32)
    q, k, v = (net.layer(g.MatmulOp(x, net.weight(32, 32))) for _ in range(3))
    op = g.AttentionOp(q, k, v, heads=(2, 2), sizes=(16, 16), scale=0.25, is_merged=True)
    net.layer(op)
    relu = g.UnaryOp(g.ActAttr.of("relu"), v)
    net.layer(relu)
    products = [value.owner for value in (q, k, v)]
    assert layers_of([*products, op]).is_by_heads
    assert not layers_of([*products, relu]).is_by_heads
    assert heads_together([*products, relu, op]) == [products[2], relu, *products[:2], op]
