"""Channels of a hidden map that stay: they never cross the port, and the numbers are right."""

from __future__ import annotations

import numpy as np
import pytest
from norm_blocks import HIDDEN, ROWS, WIDTH, block, edge, planned
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects import tile as t
from frustum.dialects.module import PART_OF_SUM
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.module import node_name
from frustum.passes.plan.network.trials.hidden_held import hold_hidden, parts_of

TOLERANCE = {"f32": 1e-5, "f16": 1.2e-2, "bf16": 8e-2}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("dtype", "kib"), [("f16", 30), ("bf16", 30), ("f32", 60)])
def test_channels_that_stay_do_not_cross_the_port(dtype, kib):
    """SRAM has room for one map and a few channels of the hidden one."""
    module, given = block()
    found = modules_at_stops(module, edge(kib), Choices(dtype=dtype, optimise="bytes"))
    units = [op for op in found["fused"].walk() if isinstance(op, UnitOp)]
    said = sum(int(unit.stopped_by.data.split(" DRAM")[0].split()[-1]) for unit in units)
    size, held = 4 if dtype == "f32" else 2, 32
    elements = ROWS * (3 * WIDTH + 2 * (HIDDEN - held)) + WIDTH * (WIDTH + 2 * HIDDEN)
    vectors, few = 4 * (2 * WIDTH + HIDDEN), 64
    assert said <= elements * size + vectors + few
    computed = [op for op in found["placed"].walk() if isinstance(op, t.ComputeOp)]
    assert any(PART_OF_SUM in op.attributes and op.map.data.in_place for op in computed)
    (wanted,) = run_module(module, given).values()
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], given, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"gated": True}, {"trans_b": True}, {"act": "relu"}])
def test_parts_are_the_whole_and_are_undone(how):
    module, given = block(**how)
    network, plan = planned(module, edge(66))
    (wanted,), before = run_module(module, given).values(), str(network)
    (made,) = hold_hidden(plan.order, plan.units, module, 66 << 10)
    network.verify()
    products = [op for op in network.walk() if isinstance(op, g.MatmulOp)]
    sums = [op for op in products if g.shape_of(op.a)[-1] not in (WIDTH, HIDDEN)]
    sizes = [g.shape_of(op.a)[-1] for op in sums]
    assert sum(sizes) == HIDDEN and sizes[0] < sizes[-1]
    assert [PART_OF_SUM in op.attributes for op in sums] == [True] * (len(sums) - 1) + [False]
    assert [op.bias is None for op in sums] == [False] + [True] * (len(sums) - 1)
    assert len({node_name(op) for op in products}) == len(products)
    makers = [op for op in products if g.shape_of(op.result)[-1] in sizes]
    order = {op: k for k, op in enumerate(network.walk())}
    assert max(order[op] for op in makers) < min(order[op] for op in sums)
    (got,) = run_module(module, given).values()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    made.undo()
    assert str(network) == before


def test_nothing_stays_where_there_is_no_room_or_nothing_goes_through_dram():
    module, _ = block()
    network, plan = planned(module, edge(66))
    before = str(network)
    assert hold_hidden(plan.order, plan.units, module, 36 << 10) == []
    network, plan = planned(module, edge(2048))
    assert hold_hidden(plan.order, plan.units, module, 66 << 10) == []
    assert str(network) == before


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 31, 96, 640, 2816, 3071])
@pytest.mark.parametrize("least", [1, 64, 384])
def test_parts_are_powers_of_two_but_for_the_last(channels, least):
    parts = parts_of(channels, least)
    assert sum(parts) == channels
    assert all(part & (part - 1) == 0 for part in parts[:-1])
    assert len(parts) == 1 or parts[-1] >= least
    assert parts_of(2816, 384) == [2048, 768]
