"""Orders where clusters have parts of their own: numbers, whichever clusters hand to each other what they load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks import Net
from stops import aimed, machine_of, run_module, target
from xdsl.context import Context

import frustum
from frustum.backend.pipeline import Choices, Run
from frustum.dialects import tile as t
from frustum.passes.tile.assign_order import AssignOrder, is_shared_out
from frustum.passes.tile.orders import ORDERS

BANDS = tuple(f"bands{{bands={depth},direction={way}}}" for depth, way in ((2, "top-down"), (3, "left-right")))
WORDS = tuple(order for order in ORDERS if order != "bands") + BANDS


def one_window(images, rows, columns):
    """A convolution whose input has borders between whatever parts of it are made apart."""
    net = Net(1)
    return net.module(net.conv(net.input(images, 2, rows, columns), 1, 3, pads=(1, 1, 1, 1)))


def two_windows(rows, columns):
    net = Net(2)
    a = net.conv(net.input(1, 2, rows, columns), 3, 3, pads=(1, 1, 1, 1))
    return net.module(net.pool("max", a, 3, 1, pads=(1, 1, 1, 1)))


def check(module, inputs, machine, **options):
    made = frustum.compile(module, machine, "f32", split="never", **options)
    found = frustum.run(made, inputs, checked=True, mode="functional").outputs
    for name, array in run_module(module, inputs).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("order", WORDS)
def test_clusters_that_hand_inputs_over_keep_their_parts(order):
    check(*one_window(2, 5, 26), "manycore", order=order, policy="none")


@pytest.mark.slow
@pytest.mark.parametrize("order", BANDS)
def test_tiles_of_a_part_with_one_row_are_made(order):
    """One map stays in SRAM, and each cluster has one row of two tiles, of which bands are deeper."""
    check(*two_windows(16, 26), "manycore", order=order)


def small(clusters, sram_kib):
    """`default` with less SRAM, so that units are cut."""
    whole = target("default")
    sram = replace(whole.cluster.sram, capacity_bytes=sram_kib * 1024)
    return replace(whole, chip=replace(whole.chip, clusters=clusters, cluster=replace(whole.cluster, sram=sram)))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("order", ["column-major", "mirrored", BANDS[0]])
def test_parts_of_several_tiles_are_gone_through_in_the_order(order):
    module, inputs = one_window(1, 24, 40)
    machine = small(3, 4)
    placed = aimed(module, machine)
    Run().advance(placed, ["typed", "fused", "tiled"], Choices(policy="none"))
    Run().advance(placed, ["placed"], Choices(policy="none"))
    (unit,) = (op for op in placed.walk() if isinstance(op, t.UnitOp))
    assert any(isinstance(op, t.SendOp) for op in unit.body.block.ops) and not is_shared_out(unit, 3)
    before = unit.tile_counts
    AssignOrder("bands", 2, "top-down").apply(Context(), placed)
    assert unit.tile_counts == before and before[2] * before[3] > 1
    assert unit.sweeps is not None
    for sweep in unit.sweeps.data:
        assert list(sweep.positions(0)) == list(sweep.positions(2)), "clusters are in step"
    check(module, inputs, machine, order=order, policy="none")


@pytest.mark.parametrize("clusters", [2, 3])
def test_clusters_that_send_nothing_go_through_one_grid(clusters):
    machine = small(clusters, 4)
    machine = replace(machine, chip=replace(machine.chip, cluster=replace(machine.cluster, cdma=None)))
    check(*one_window(1, 8, 120), machine, order="serpentine", policy="none")


def test_what_nobody_hands_over_is_dealt_as_the_order_says():
    module, _ = one_window(1, 24, 40)
    machine = machine_of(16)
    placed = aimed(module, replace(machine, chip=replace(machine.chip, cluster=replace(machine.cluster, cdma=None))))
    Run().advance(placed, ["typed", "fused", "tiled", "placed"], Choices(policy="none"))
    (unit,) = (op for op in placed.walk() if isinstance(op, t.UnitOp))
    assert is_shared_out(unit, 4) and not is_shared_out(unit, 1)
