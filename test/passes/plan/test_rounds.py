"""Products in rounds of input channels: fewer bytes than any tile that holds all channels, and the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks import Net
from stops import modules_at_stops, run_module, target

from frustum.backend.executables import unit_facts
from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects import tile as t
from frustum.dialects.tile import ConvLayer
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.project import layers_of
from frustum.passes.plan.rounds import may_round
from frustum.passes.plan.unit import Budget, cheapest, plan_unit
from frustum.runtime.reference.graph import network_of

TOLERANCE = {"f32": 3e-6, "f16": 4e-3, "bf16": 3e-2}


def with_sram(name, sram_bytes, core_bytes=8 << 10):
    """A target with so many bytes in each cluster, and so many in each core of NRAM and of WRAM."""
    whole = target(name)
    cluster, core = whole.cluster, whole.core
    core = replace(
        core,
        nram=replace(core.nram, capacity_bytes=core_bytes),
        wram=replace(core.wram, capacity_bytes=core_bytes),
    )
    cluster = replace(cluster, sram=replace(cluster.sram, capacity_bytes=sram_bytes), core=core)
    return replace(whole, chip=replace(whole.chip, cluster=cluster))


def product(rows, inputs, outputs, *, bias=True, residual=False, act=None):
    """A network of one product of `rows` positions."""
    net = Net()
    x, added = net.input(rows, inputs), net.input(rows, outputs) if residual else None
    numbers = {"bias": net.weight(outputs) if bias else None, "residual": added}
    act = act and g.ActAttr.of(act)
    weights = net.weight(inputs, outputs, scale=inputs**-0.5)
    return net.module(net.layer(g.MatmulOp(x, weights, act=act, **numbers)))


def unit_of(module):
    (op,) = [op for op in network_of(module).walk() if isinstance(op, g.MatmulOp)]
    return layers_of([op])


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(160, 640, 96), (130, 700, 100), (96, 512, 192)])
def test_map_and_weights_are_read_once_for_each_large_tile(rows, inputs, outputs):
    machine = with_sram("edge", 48 << 10)
    unit, budget = unit_of(product(rows, inputs, outputs)[0]), Budget(48 << 10)
    plain, plan = cheapest(unit, machine, budget), plan_unit(unit, machine, budget)
    assert plan.maps[0].in_rounds and plan.dram_bytes < 0.6 * plain.dram_bytes
    assert plan.cost.sram.total_bytes <= 48 << 10


def test_what_is_added_takes_no_room_beside_the_result():
    """SRAM holds the result, but not what is added too: all the same everything is read once."""
    rows, inputs, outputs = 64, 640, 192
    unit = unit_of(product(rows, inputs, outputs, residual=True)[0])
    plan = plan_unit(unit, with_sram("edge", 80 << 10), Budget(80 << 10))
    assert plan.maps[0].in_rounds and plan.partition.tile == (1, outputs, 1, rows)
    assert plan.dram_bytes == 4 * (rows * (inputs + 2 * outputs) + (inputs + 1) * outputs)
    assert 4 * rows * outputs < plan.cost.sram.total_bytes <= 80 << 10


def test_what_fits_at_once_has_no_rounds():
    plan = plan_unit(unit_of(product(32, 64, 32)[0]), target("edge"), Budget(512 << 10))
    assert not plan.maps[0].in_rounds


def test_products_of_integers_and_of_groups_have_no_rounds():
    unit = unit_of(product(32, 64, 32)[0])
    assert may_round(unit)
    (layer,) = unit.layers
    assert isinstance(layer.kind, ConvLayer)
    for other in (
        replace(layer, kind=replace(layer.kind, groups=2)),
        replace(layer, accumulator_bytes=8),
        replace(layer, out_dims=(2, *layer.out_dims[1:])),
    ):
        assert not may_round(replace(unit, layers=[other]))


@pytest.mark.slow
@pytest.mark.soak(but=4)
@pytest.mark.parametrize(("name", "kib", "dtype"), [("edge", 16, "f32"), ("edge", 8, "bf16"), ("default", 12, "f16")])
@pytest.mark.parametrize("how", [{"residual": True}, {"act": "relu"}, {"bias": False, "act": "tanh"}])
def test_numbers_agree(name, kib, dtype, how):
    module, inputs = product(70 if name == "edge" else 130, 200, 72, **how)
    (wanted,) = run_module(module, inputs).values()
    found = modules_at_stops(module, with_sram(name, kib << 10, 4 << 10), Choices(dtype=dtype))
    maps = [op.map.data for op in found["placed"].walk() if isinstance(op, t.ComputeOp)]
    assert any(each.in_rounds for each in maps)
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], inputs, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


def two_products(rows, inputs, hidden, outputs, *, residual=False):
    """One behind the other; perhaps something is added to what the first makes."""
    net = Net()
    x, added = net.input(rows, inputs), net.input(rows, hidden) if residual else None
    made = net.layer(g.MatmulOp(x, net.weight(inputs, hidden, scale=inputs**-0.5), residual=added))
    return net.module(net.layer(g.MatmulOp(made, net.weight(hidden, outputs, scale=hidden**-0.5))))


@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("kib", "dtype"), [(36, "f32"), (20, "f16")])
def test_a_result_of_rounds_stays_for_a_product_that_is_cut_by_channels(kib, dtype, residual):
    """Neither product's maps fit SRAM together, and all of them, and all weights, cross the port once."""
    sizes = rows, inputs, hidden, outputs = 96, 400, 64 if not residual else 40, 300
    module, given = two_products(*sizes, residual=residual)
    machine = with_sram("edge", kib * (3 if residual else 2) << 9, 4 << 10)
    found = modules_at_stops(module, machine, Choices(dtype=dtype))
    first, second = [op for op in found["fused"].walk() if isinstance(op, UnitOp)]
    assert list(first.kept) == [0] and not list(second.kept)
    made, read = [op.map.data for op in found["placed"].walk() if isinstance(op, t.ComputeOp)]
    assert made.in_rounds and not read.in_rounds
    assert second.partition.data.tile[1] < outputs and second.partition.data.tile[3] == rows
    elements = rows * (inputs + outputs + hidden * residual) + hidden * (inputs + outputs)
    size = 4 if dtype == "f32" else 2
    said = [int(unit.stopped_by.data.split(" DRAM")[0].split()[-1]) for unit in (first, second)]
    assert sum(said) == elements * size
    (wanted,) = run_module(module, given).values()
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], given, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


CARRIES = [("auto", "f16", "f16"), ("f32", "f16", ""), ("f32", "f32", "f32")]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("carry", "dtype", "waits"), CARRIES)
def test_sums_wait_in_no_narrower_type_than_asked(carry, dtype, waits):
    found = modules_at_stops(product(160, 640, 96)[0], with_sram("edge", 48 << 10), Choices(dtype=dtype, carry=carry))
    assert "".join(fact.get("carry", "") for fact in unit_facts(found["fixed"])) == waits
