"""Planes of large maps are pooled by smaller windows where that is faster on several clusters; the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest
from networks import Net
from norm_blocks import planned
from stops import modules_at_stops, run_module, target

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects.unit import UnitOp
from frustum.passes.plan.network.trials.finer_windows import finer_windows

SIZE = 112


def block(kind="avg", window=(8, 28), reduced="mean", channels=8, wide=24):
    """A map, its planes pooled in two steps, and a product of the map times what these give."""
    net = Net()
    x = net.input(4, channels, SIZE, SIZE)

    def conv(x, outputs, inputs, kernel, groups=1):
        weights = net.weight(outputs, inputs, kernel, kernel, scale=(inputs * kernel**2) ** -0.5)
        return net.layer(g.ConvOp(x, weights, None, (1, 1), (kernel // 2,) * 4, (1, 1), groups))

    hidden = conv(net.unary("relu", conv(x, wide, channels, 1)), wide, 1, 3, wide)
    pooled = net.layer(g.PoolOp(kind, hidden, kernel=window, strides=window))
    planes = net.layer(g.ReduceOp(reduced, pooled, (2, 3), True))
    gate = net.unary("sigmoid", conv(planes, wide, wide, 1))
    return net.module(conv(net.binary("mul", hidden, gate), channels, wide, 1))


def windows(module):
    return [tuple(op.kernel) for op in module.walk() if isinstance(op, g.PoolOp)]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_windows_are_half_a_fill_of_lines_and_the_numbers_stay(kind):
    module, given = block(kind, reduced={"avg": "mean"}.get(kind, kind))
    machine = target("default")
    network, plan = planned(module, machine)
    before = str(network)
    (wanted,) = run_module(module, given).values()
    changes = finer_windows(plan.order, module, machine)
    assert windows(module) == [(16, 2)]
    module.verify()
    (got,) = run_module(module, given).values()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * max(1, np.abs(wanted).max()))
    for change in changes:
        change.undo()
    assert str(network) == before


@pytest.mark.slow
@pytest.mark.parametrize("case", [{"window": (8, 4)}, {"kind": "max"}])
def test_others_stay(case):
    """Windows that fill half of the lines, and means of maxima, which other windows change."""
    module, _ = block(**case)
    machine = target("default")
    _, plan = planned(module, machine)
    assert finer_windows(plan.order, module, machine) == []


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("name", "clusters"), [("default", 4), ("edge", 1)])
def test_the_plan_has_them_on_several_clusters(name, clusters):
    """Nothing else is left that reads the map that is pooled: units behind the first store one result each."""
    machine = target(name)
    assert machine.chip.clusters == clusters
    found = modules_at_stops(block(channels=24, wide=144)[0], machine, Choices(dtype="f16"))
    assert set(windows(found["fused"])) == ({(16, 2)} if clusters > 1 else {(8, 28)})
    units = [unit for unit in found["fused"].walk() if isinstance(unit, UnitOp)]
    assert all(len(unit.results) == 1 for unit in units[1:])
