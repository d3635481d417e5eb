"""Attention of parts of one map: it stays in SRAM, and the numbers are right."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from norm_blocks import edge, planned
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects.module import JOINT
from frustum.dialects.unit import UnitOp
from frustum.passes.plan.network.trials.joint_maps import joint_maps

ROWS, KEYS, WIDTH, HEADS = 48, 80, 64, 4
TOLERANCE = {"f32": 1e-5, "f16": 8e-3, "bf16": 6e-2}


def layer(kind):
    """Queries, keys and values are one map (`self`), or keys and values (`cross`), or each their own (`apart`); two
    products make it, so that they do not go head by head with attention."""
    net = Net()
    x = net.input(1, ROWS, WIDTH)
    y = x if kind == "self" else net.input(1, KEYS, WIDTH)

    def made(value, parts):
        one, other = (g.MatmulOp(value, net.weight(WIDTH, parts * WIDTH, scale=WIDTH**-0.5)) for _ in range(2))
        return net.binary("mul", net.layer(one), net.layer(other))

    if kind == "self":
        read, firsts = (made(x, 3),) * 3, (0, WIDTH, 2 * WIDTH)
    elif kind == "cross":
        read, firsts = (made(x, 1), *(made(y, 2),) * 2), (0, 0, WIDTH)
    else:
        read, firsts = (made(x, 1), made(y, 1), made(y, 1)), (0, 0, 0)
    size = WIDTH // HEADS
    own = g.AttentionOp(*read, heads=(HEADS, HEADS), sizes=(size, size), firsts=firsts, scale=0.25, is_merged=True)
    return net.module(net.layer(own))


@pytest.mark.slow
@pytest.mark.soak(but=2)
@pytest.mark.parametrize("kind", ["self", "cross"])
@pytest.mark.parametrize(("dtype", "kib"), [("f16", 64), ("bf16", 64), ("f32", 128)])
def test_what_attention_reads_parts_of_never_crosses_the_port(kind, dtype, kib):
    module, given = layer(kind)
    found = modules_at_stops(module, edge(kib), Choices(dtype=dtype))
    units = [op for op in found["fused"].walk() if isinstance(op, UnitOp)]
    said = sum(int(unit.stopped_by.data.split(" DRAM")[0].split()[-1]) for unit in units)
    maps = (2 * ROWS if kind == "self" else 2 * ROWS + KEYS) * WIDTH
    assert said == (maps + 2 * 3 * WIDTH * WIDTH) * (4 if dtype == "f32" else 2)
    assert any(JOINT in op.attributes for op in found["fused"].walk())
    (wanted,) = run_module(module, given).values()
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], given, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["self", "cross", "apart"])
def test_maps_are_seen_whole_where_parts_of_them_are_read_and_that_is_undone(kind):
    module, _ = layer(kind)
    network, plan = planned(module, edge(128))
    before = str(network)
    made = joint_maps(plan.order, plan.units, module, 128 << 10)
    assert len(made) == (kind != "apart")
    (op,) = [each for each in network.walk() if isinstance(each, g.AttentionOp)]
    assert (JOINT in op.attributes) == bool(made)
    assert joint_maps(plan.order, plan.units, module, 128 << 10) == []
    for each in made:
        each.undo()
    assert str(network) == before
    assert joint_maps(plan.order, plan.units, module, 1024) == []
