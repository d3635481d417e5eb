"""Rows and columns that are both kept, as policy optimal chooses them: where whole rows do not fit SRAM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from brute_force import least_bytes
from networks import Net
from stops import aimed, executable, run_module

from frustum.backend import targets
from frustum.backend.compile import fixed
from frustum.backend.pipeline import Choices, Run
from frustum.dialects import graph
from frustum.passes.plan.network import tile_shapes
from frustum.passes.plan.network.optimal import OptimalOptions, plan_network
from frustum.runtime.machine import Machine
from frustum.runtime.reference.graph import network_of
from frustum.runtime.report.counters import count

EDGE, DEFAULT = targets.load("edge"), targets.load("default")
TIGHT = 60 * 1024
"""SRAM in which two rows of every map of `wide` fit, and not the three or four of rows that roll whole."""


def with_sram(target, size):
    cluster = target.chip.cluster
    sram = replace(cluster.sram, capacity_bytes=size)
    return replace(target, chip=replace(target.chip, cluster=replace(cluster, sram=sram)))


def wide(layers=5):
    """3x3 windows on rows of 4 KiB."""
    net = Net()
    x = net.input(1, 4, 12, 256)
    for _ in range(layers):
        x = net.conv(x, 4)
    return net.module(x)


def planned(module, target, **options):
    return plan_network(network_of(module), target, OptimalOptions(**options))


def borders(plan):
    return {unit.plan.partition.borders for unit in plan.units if unit.plan is not None}


@pytest.mark.slow
def test_whole_rows_that_do_not_fit_are_kept_in_part():
    """Every map crosses DRAM once, where strips of columns read what lies between two of them again."""
    plan = planned(wide()[0], with_sram(EDGE, TIGHT))
    assert borders(plan) == {"raster"}
    assert plan.dram_bytes == plan.order.compulsory_bytes


@pytest.fixture
def without_raster(monkeypatch):
    """What the plans are from shapes of which columns are never kept."""

    def plan(*asked, **options):
        monkeypatch.setattr(tile_shapes, "RASTER_COLUMNS", ())
        tile_shapes.shapes_of.cache_clear()
        return planned(*asked, **options)

    yield plan
    tile_shapes.shapes_of.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("optimise", ["bytes", "time"])
def test_strips_of_columns_move_and_take_more(without_raster, optimise):
    module, target = wide()[0], with_sram(EDGE, TIGHT)
    own, strips = (plan(module, target, optimise=optimise) for plan in (planned, without_raster))
    assert "raster" not in borders(strips)
    assert strips.dram_bytes > own.dram_bytes and strips.cycles > 1.02 * own.cycles


@pytest.mark.slow
@pytest.mark.parametrize("kib", [28, 32, 40])
def test_no_way_through_wide_maps_is_cheaper(kib):
    """Brute force over all cuts and all shapes, raster ones among them."""
    module, target = wide(3)[0], with_sram(EDGE, kib * 1024)
    plan = planned(module, target, optimise="bytes")
    assert plan.dram_bytes == least_bytes(module, target)
    assert ("raster" in borders(plan)) == (kib > 28)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "size"), [(EDGE, 512 * 1024), (DEFAULT, TIGHT)], ids=["rows fit whole", "several clusters"]
)
def test_columns_are_not_kept_where_rows_fit_or_clusters_share_them_out(target, size):
    assert "raster" not in borders(planned(wide()[0], with_sram(target, size)))


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["overlap", "exchange"])
def test_borders_that_are_asked_for_are_what_they_were(asked):
    assert "raster" not in borders(planned(wide()[0], with_sram(EDGE, TIGHT), borders=asked))


@pytest.mark.slow
def test_what_is_chosen_runs_and_moves_what_the_plan_says():
    """In checked mode: the numbers of the untiled network, and the input and the output once each."""
    module, inputs = wide()
    modules = {}
    run = Run(lambda stop, at: modules.__setitem__(stop, at.clone()))
    target = with_sram(EDGE, TIGHT)
    fixed(aimed(module, target), Choices(policy="optimal"), run)
    assert ", raster [" in str(modules["placed"])
    made = executable(modules["fixed"])
    machine = Machine(made)
    result = machine.run(inputs, mode="full", checked=True)
    for name, array in run_module(module, inputs).items():
        np.testing.assert_allclose(np.asarray(result.outputs[name]), array, rtol=1e-4, atol=1e-4)
    counted = count(machine.expanded, machine.target, made.code.page_bytes)
    own = counted.dram_read_bytes + counted.dram_write_bytes - counted.dram_bytes_by_class["other"]
    assert own == planned(module, target).order.compulsory_bytes


@pytest.mark.slow
def test_a_map_that_a_move_makes_is_as_wide_as_its_reader_sees_it():
    net = Net()
    x = net.layer(graph.TransposeOp(net.input(4, 1, 12, 256), (1, 0, 2, 3)))
    y = net.unary("relu", net.layer(graph.SliceOp(x, (0, 3, 0, 0), (1, 4, 12, 256), (1, -1, 1, 1))))
    module, _ = net.module(net.conv(net.conv(y, 4), 4))
    assert planned(module, with_sram(EDGE, 60 << 10)) is not None
