"""Normalisations in the place of what they read: one map in SRAM where there were two, and the numbers are right."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from norm_blocks import HIDDEN, ROWS, WIDTH, block, edge, planned
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects import tile as t
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.module import node_name
from frustum.passes.plan.network.trials.norms_in_place import is_restorable, norms_in_place

TOLERANCE = {"f32": 1e-5, "f16": 1.2e-2, "bf16": 8e-2}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("how", [{}, {"rms": True}, {"scale": False, "bias": False}])
@pytest.mark.parametrize(("dtype", "kib"), [("f16", 26), ("bf16", 26), ("f32", 52)])
def test_one_map_is_in_sram_and_crosses_the_port_at_the_ends_alone(dtype, kib, how):
    """SRAM has no room for the rows beside what they are made of: all but the hidden map crosses the port once."""
    module, given = block(**how)
    found = modules_at_stops(module, edge(kib), Choices(dtype=dtype))
    units = [op for op in found["fused"].walk() if isinstance(op, UnitOp)]
    said = sum(int(unit.stopped_by.data.split(" DRAM")[0].split()[-1]) for unit in units)
    size = 4 if dtype == "f32" else 2
    elements = ROWS * (3 * WIDTH + 2 * HIDDEN) + WIDTH * (WIDTH + 2 * HIDDEN)
    vectors, few = 4 * (2 * WIDTH + HIDDEN), 64
    assert said <= elements * size + vectors + few
    computed = [op for op in found["placed"].walk() if isinstance(op, t.ComputeOp)]
    kinds = {op.kind.data for op in computed if op.map.data.in_place}
    assert kinds == {"conv", "normalise", "binary"}
    assert any(op.map.data.in_rounds and op.map.data.in_place for op in computed)
    (wanted,) = run_module(module, given).values()
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], given, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


CASES = [
    {}, {"rms": True}, {"trans_b": True}, {"bias": False}, {"shift": False}, {"scale": False}, {"gated": True},
    {"scale": False, "bias": False, "rms": True},
]  # fmt: skip


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("how", CASES)
def test_what_is_made_again_is_what_there_was_and_is_undone(how):
    module, given = block(**how)
    network, plan = planned(module, edge(64))
    (wanted,), before = run_module(module, given).values(), str(network)
    (made,) = norms_in_place(plan.order, plan.units, module, 64 << 10)
    network.verify()
    (op,) = [each for each in network.walk() if isinstance(each, g.NormaliseOp)]
    assert op.scale is None and op.shift is None
    names = [node_name(each) for each in network.walk() if not isinstance(each, g.WeightOp) and node_name(each)]
    assert len(set(names)) == len(names)
    assert all(use.operation in {made.restored.owner, *made.made} for use in made.x.uses)
    (got,) = run_module(module, given).values()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    made.undo()
    assert str(network) == before
    (got,) = run_module(module, given).values()
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.slow
def test_nothing_is_changed_where_the_operand_does_not_fit_or_nothing_goes_through_dram():
    module, _ = block()
    network, plan = planned(module, edge(64))
    before = str(network)
    assert norms_in_place(plan.order, plan.units, module, 4 * ROWS * WIDTH) == []
    network, plan = planned(module, edge(2048))
    assert norms_in_place(plan.order, plan.units, module, 2048 << 10) == []
    assert str(network) == before


def other(reader):
    """A normalisation and what else there is: its rows are read by no product, or by others too, its operand by nobody,
    or it is of other axes."""
    net = Net()
    x = net.layer(g.UnaryOp("relu", net.input(ROWS, WIDTH)))
    axes = (0,) if reader == "columns" else (1,)
    scale = net.weight(ROWS, 1) if reader == "scale of rows" else net.weight(WIDTH)
    rows = net.layer(g.NormaliseOp(x, scale, axes=axes, epsilon=1e-5))
    made = net.layer(g.MatmulOp(rows, net.weight(WIDTH, WIDTH), residual=rows if reader == "residual" else None))
    again = () if reader == "nobody" else (net.layer(g.BinaryOp("add", made, x)),)
    added = (net.layer(g.UnaryOp("relu", rows)),) if reader == "function" else ()
    outputs = {"output": (x,), "rows": (rows,)}.get(reader, ())
    module, _ = net.module(*(again or (made,)), *added, *outputs)
    return next(op for op in module.walk() if isinstance(op, g.NormaliseOp))


@pytest.mark.parametrize(
    "reader", ["nobody", "residual", "function", "output", "rows", "columns", "scale of rows"]
)
def test_no_normalisation_is_restored_whose_rows_others_read_or_whose_operand_nobody_does(reader):
    assert is_restorable(other("product"))
    assert not is_restorable(other(reader))


@pytest.mark.slow
def test_one_with_a_function_behind_stays():
    """What its operand was made of cannot be made again of the function's results."""
    module, _ = block()
    (op,) = [each for each in module.walk() if isinstance(each, g.NormaliseOp)]
    assert is_restorable(op)
    op.act = g.ActAttr.of("silu")
    assert not is_restorable(op)
