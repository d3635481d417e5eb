"""Bands of rows with a hidden map in chunks: what is between is never in DRAM, weights are read once for each band, the
numbers are right, and the network is as it was where that is no better."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from agreement import check_agreement
from networks import Net
from searches import with_sram
from stops import modules_at_stops, run_module
from xdsl.context import Context

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects.module import PART_OF_SUM, TARGET
from frustum.dialects.target import to_attribute
from frustum.dialects.unit import UnitOp
from frustum.passes.graph.choose_forms import ChooseForms
from frustum.passes.plan import model
from frustum.passes.plan.network.optimal import plan_network
from frustum.passes.plan.network.trials.row_bands import in_bands
from frustum.runtime.reference.graph import network_of

pytestmark = pytest.mark.slow

ROWS, WIDTH, HIDDEN, KIB = 192, 64, 128, 26


def mlp(*outer, rows=ROWS, norm=True, product=False, post=False, count=1):
    """A norm, a product, a function and a product, and what the norm reads; behind a `product` with a residual, and
    before a norm `post`; so many of them."""
    net = Net()
    x = net.input(*outer, rows, WIDTH)

    def normalised(value):
        numbers = {"scale": net.weight(WIDTH), "shift": net.weight(WIDTH)}
        return net.layer(g.NormaliseOp(value, **numbers, axes=(len(outer) + 1,), epsilon=1e-5))

    def dense(value, width, made, **others):
        return net.layer(g.MatmulOp(value, net.weight(width, made, scale=width**-0.5), net.weight(made), **others))

    if product:
        x = dense(net.layer(g.UnaryOp("relu", x)), WIDTH, WIDTH, residual=x)
    for _ in range(count):
        made = dense(normalised(x) if norm else x, WIDTH, HIDDEN, act=g.ActAttr.of("gelu"))
        made = dense(made, HIDDEN, WIDTH, residual=x if norm else None)
        x = normalised(made) if post else made
    return net.module(x)


CASES = [
    (partial(mlp), KIB),
    (partial(mlp, norm=False), KIB),
    (partial(mlp, 1, rows=251, product=True, post=True), 37),
    (partial(mlp, 2, rows=125), KIB),
    (partial(mlp, norm=False, post=True, count=2), KIB),
]


@pytest.mark.soak
@pytest.mark.parametrize(("build", "kib", "dtype"), [(*CASES[0], "f32"), (*CASES[2], "f16")])
def test_maps_cross_the_port_once_and_weights_once_for_each_band(build, kib, dtype):
    module, given = build()
    size = 4 if dtype == "f32" else 2
    found = modules_at_stops(module, with_sram("edge", kib * size // 2), Choices(dtype=dtype))
    fused = found["fused"]
    bands = len({op.start for op in fused.walk() if isinstance(op, g.PartOp)})
    assert bands > 2 and any(PART_OF_SUM in op.attributes for op in fused.walk())
    units = [op for op in fused.walk() if isinstance(op, UnitOp)]
    said = sum(int(unit.stopped_by.data.split(" DRAM")[0].split()[-1]) for unit in units)
    (x,) = given.values()
    weights = {op.key.data: op for op in module.walk() if isinstance(op, g.WeightOp)}
    read = sum(int(np.prod(g.shape_of(op.result))) for op in weights.values())
    assert said <= 1.05 * (2 * x.size + bands * read) * size
    results = {stop: run_module(found[stop], given, checked=stop == "fixed") for stop in ("typed", "placed", "fixed")}
    if dtype == "f32":
        check_agreement(results, dtype)
    (wanted,), (got,) = results["typed"].values(), results["fixed"].values()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=8e-3 * max(1, np.abs(wanted).max()))


@pytest.mark.soak
def test_bands_of_what_another_unit_has_left_in_dram():
    """Read by others too, it is made as a whole."""
    net = Net()
    x = net.layer(g.UnaryOp("relu", net.input(1, ROWS, WIDTH)))
    made = net.layer(g.MatmulOp(x, net.weight(WIDTH, HIDDEN, scale=WIDTH**-0.5), act=g.ActAttr.of("gelu")))
    made = net.layer(g.MatmulOp(made, net.weight(HIDDEN, WIDTH, scale=HIDDEN**-0.5), residual=x))
    module, given = net.module(x, made)
    found = modules_at_stops(module, with_sram("edge", KIB), Choices(dtype="f16"))
    parts = [op for op in found["fused"].walk() if isinstance(op, g.PartOp)]
    assert len(parts) > 2 and all(isinstance(g.root_of(op.x).owner, UnitOp) for op in parts)
    wanted, got = (run_module(found[stop], given, checked=stop == "fixed") for stop in ("typed", "fixed"))
    for each, other in zip(wanted.values(), got.values(), strict=True):
        np.testing.assert_allclose(other, each, rtol=0, atol=8e-3 * max(1, np.abs(each).max()))


def planned(module, kib=2 * KIB):
    machine = with_sram("edge", kib)
    module.attributes[TARGET] = to_attribute(machine)
    ChooseForms().apply(Context(), module)
    network = network_of(module)
    return network, plan_network(network, machine)


@pytest.mark.parametrize(("build", "kib"), CASES)
def test_bands_are_undone(build, kib):
    module, given = build()
    (wanted,) = run_module(module, given).values()
    network, plan = planned(module, 2 * kib)
    before = str(network)
    made = in_bands(plan.order, plan.units, module, 2 * kib << 10, share=model.BAND_SHARE)
    network.verify()
    (got,) = run_module(module, given).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    products = [op for op in network.walk() if isinstance(op, g.MatmulOp)]
    assert len({op.b for op in products}) < len(products) / 2  # bands read the same weights
    for change in reversed(made):
        change.undo()
    network.verify()
    assert str(network) == before


def of_other_rows():
    """What is added is the same for all of the outermost axis: a band of rows is no band of that."""
    net = Net()
    x = net.input(4, ROWS // 4, WIDTH)
    made = net.layer(g.MatmulOp(x, net.weight(WIDTH, HIDDEN), act=g.ActAttr.of("gelu")))
    other = net.layer(g.UnaryOp("relu", net.input(1, ROWS // 4, WIDTH)))
    return net.module(net.layer(g.BinaryOp("add", net.layer(g.MatmulOp(made, net.weight(HIDDEN, WIDTH))), other)))


def test_none_where_sram_holds_all_rows_or_weights_outweigh_the_hidden_map():
    for rows, kib in ((ROWS, 1024), (48, 24)):
        module, _ = mlp(rows=rows)
        network, plan = planned(module, kib)
        before = str(network)
        assert in_bands(plan.order, plan.units, module, kib << 10, share=model.HIDDEN_SHARE) == []
        assert str(network) == before


def test_what_is_read_in_other_rows_is_behind_the_bands():
    module, _ = of_other_rows()
    network, plan = planned(module)
    in_bands(plan.order, plan.units, module, 2 * KIB << 10, share=model.HIDDEN_SHARE)
    network.verify()
    assert sum(isinstance(op, g.BinaryOp) for op in network.walk()) == 1
    assert any(isinstance(op, g.PartOp) for op in network.walk())
