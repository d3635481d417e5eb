"""Planes that clusters share are reduced where their rows are: no map is sent to all, and the numbers are right."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from norm_blocks import planned
from stops import modules_at_stops, run_module, target

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.passes.plan.network.trials.planes_by_rows import planes_by_rows

CHANNELS, WIDE, SIZE = 16, 96, 48
TOLERANCE = {"f32": 1e-5, "f16": 4e-3, "bf16": 4e-2}


def block(kind="mean", axes=(2, 3)):
    """A map, what is known of each of its planes, and a product of the map times that."""
    net = Net()
    x = net.input(1, CHANNELS, SIZE, SIZE)

    def conv(x, outputs, inputs, kernel):
        weights = net.weight(outputs, inputs, kernel, kernel, scale=(inputs * kernel**2) ** -0.5)
        return net.layer(g.ConvOp(x, weights, None, (1, 1), (kernel // 2,) * 4, (1, 1)))

    wide = net.unary("relu", conv(x, WIDE, CHANNELS, 3))
    planes = net.layer(g.ReduceOp(kind, wide, axes))
    if kind == "sum":
        planes = net.unary("affine", planes, SIZE**-2.0, 0.0)
    gate = net.unary("sigmoid", conv(planes, WIDE, WIDE, 1))
    return net.module(conv(net.binary("mul", wide, gate), CHANNELS, WIDE, 1))


def reductions(module):
    return [tuple(op.axes) for op in module.walk() if isinstance(op, g.ReduceOp)]


@pytest.mark.slow
@pytest.mark.soak(but=3)
@pytest.mark.parametrize("kind", ["mean", "max", "min", "sum"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_rows_are_reduced_first_and_the_numbers_are_right(kind, dtype):
    module, given = block(kind)
    found = modules_at_stops(module, target("default"), Choices(dtype=dtype))
    assert reductions(found["typed"]) == [(2, 3)]
    assert reductions(found["fused"]) == [(3,), (2,)]
    (wanted,) = run_module(module, given).values()
    for stop in ("fused", "placed", "fixed"):
        (got,) = run_module(found[stop], given, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


@pytest.mark.slow
def test_one_cluster_has_all_rows():
    found = modules_at_stops(block()[0], target("edge"), Choices(dtype="f16"))
    assert reductions(found["fused"]) == [(2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "axes", "share"), [("mean", (2, 3), 1), ("variance", (2, 3), 0), ("mean", (1, 2), 0), ("mean", (3,), 0)]
)
def test_what_is_reduced_by_rows_and_that_is_undone(kind, axes, share):
    net = Net()
    module, _ = net.module(net.layer(g.ReduceOp(kind, net.unary("relu", net.input(1, WIDE, SIZE, SIZE)), axes)))
    machine = target("default")
    network, plan = planned(module, machine)
    before = str(network)
    made = planes_by_rows(plan.order, module, machine, plan.cycles)
    assert (len(made), str(network) != before) == (share, bool(share))
    for each in made:
        each.undo()
    assert str(network) == before


def test_small_maps_are_sent():
    module, _ = block()
    machine = target("default")
    _, plan = planned(module, machine)
    assert planes_by_rows(plan.order, module, machine, 100 * plan.cycles) == []
