"""Units are cut smaller where a tensor that moves between them may stay in SRAM then: the same numbers, fewer bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement import check_agreement
from attention_nets import made_by_heads
from networks import Net
from searches import with_sram
from stops import modules_at_stops, run_module
from xdsl.dialects.builtin import f32
from xdsl.utils.test_value import create_ssa_value

from frustum.backend.pipeline import Choices, Edit
from frustum.dialects import graph
from frustum.dialects.isa.program import Affine
from frustum.dialects.isa.sync import ExternalOp
from frustum.dialects.module import RESERVED, number_of
from frustum.dialects.tile import TensorView
from frustum.dialects.unit import Partition
from frustum.passes.analysis.regions import Region
from frustum.passes.analysis.unit_layers import Input
from frustum.passes.plan.unit_ops import units_of
from frustum.passes.tile.leave_room import is_own_part, smaller_tiles

LEFT_OUT = (Edit("without", "frustum-tile-leave-room"),)


def turned_around(first=8, channels=16, count=2):
    """So many convolutions and one more, with channels and columns changing places before the last."""
    net = Net()
    x = net.input(1, first, 32, 32)
    for _ in range(count):
        x = net.conv(x, channels)
    return net.module(net.conv(net.layer(graph.TransposeOp(x, (0, 3, 2, 1))), 8))


def in_dram(modules):
    """Bytes of the tensors between units in DRAM."""
    tensors = [op for op in modules["fixed"].walk() if isinstance(op, ExternalOp)]
    return sum(op.bytes.value.data for op in tensors if op.class_.data == "intermediate")


@pytest.mark.slow
def test_a_tensor_stays_beside_smaller_tiles():
    module, inputs = turned_around(32, 32, 1)
    where, found = with_sram("edge", 112), {}
    without = modules_at_stops(module.clone(), where, Choices(dtype="f16", policy="optimal", edits=LEFT_OUT))
    modules = modules_at_stops(module, where, Choices(dtype="f16", policy="optimal"))
    assert in_dram(modules) == 0 < in_dram(without)
    for stop in ("typed", "tiled", "placed", "fixed"):
        found[stop] = run_module(modules[stop], inputs, checked=stop == "fixed")
    check_agreement(found, "f16")


@pytest.mark.slow
def test_nothing_changes_where_all_has_room():
    module, _ = turned_around()
    modules = modules_at_stops(module, "edge", Choices(dtype="f16", policy="optimal"))
    assert in_dram(modules) == 0
    without = modules_at_stops(turned_around()[0], "edge", Choices(dtype="f16", policy="optimal", edits=LEFT_OUT))
    for one, other in zip(units_of(modules["tiled"]), units_of(without["tiled"]), strict=True):
        assert one.partition == other.partition
    assert any(number_of(unit, RESERVED, 0) for unit in units_of(modules["tiled"]))


def test_presets_are_left_as_they_are():
    modules = modules_at_stops(turned_around()[0], with_sram("edge", 48), Choices(dtype="f16", policy="none"))
    assert not any(RESERVED in unit.attributes for unit in units_of(modules["tiled"]))


PARTS = [
    # strides, starts, extents, part; whether clusters read parts of so many bytes of it, one behind the other
    ((0, 1, 0, 16), (0, 0, 0, Affine(0, (0, 0, 0, 2), 8)), (1, 16, 1, 2), 512, True),
    ((0, 1, 0, 16), (0, 0, 0, Affine(0, (0, 0, 0, 2), 8)), (1, 16, 1, 4), 512, False),
    ((0, 1, 0, 16), (0, Affine(0, (), 4), 0, Affine(0, (0, 0, 0, 2))), (1, 4, 1, 2), 512, False),
    ((0, 1, 0, 16), (0, 0, 0, Affine(-1, (0, 0, 0, 2), 8)), (1, 16, 1, 2), 512, False),
]
"""Rows of their own; the last two rows of the next cluster too; columns of their own; a row before their own."""


@pytest.mark.parametrize(("strides", "starts", "extent", "part", "wanted"), PARTS)
def test_what_each_cluster_reads_alone(strides, starts, extent, part, wanted):
    tensor = create_ssa_value(graph.tensor_type(f32, (1, 32, 16)))
    read = Input(tensor, (1, 16, 1, 32), TensorView(0, strides), 4)
    region = Region(tuple(map(Affine.of, starts)), extent)
    assert is_own_part(read, region, (1, 1, 1, 4), part) == wanted


def test_tiles_are_halved_where_they_are_not_dealt():
    found = set(smaller_tiles(Partition((1, 6, 1, 4), 1, 2)))
    assert {(cut.tile, cut.depth) for cut in found} == {
        ((1, 6, 1, 4), 1), ((1, 6, 1, 2), 1), ((1, 6, 1, 1), 1), ((1, 6, 1, 2), 2), ((1, 6, 1, 1), 2)
    }  # fmt: skip
    assert not list(smaller_tiles(Partition((1, 6, 1, 4), 1, 2, "exchange")))


@pytest.mark.slow
@pytest.mark.soak
def test_a_unit_that_reads_what_is_in_sram_leaves_room_for_parts():
    """Attention reads what lies in SRAM by heads; its result, read by rows, has room beside smaller tiles."""
    module, inputs = made_by_heads()
    where, choices = with_sram("default", 80), Choices(dtype="f32", policy="optimal")
    left_out = modules_at_stops(made_by_heads()[0], where, replace(choices, edits=LEFT_OUT))
    modules = modules_at_stops(module, where, choices)
    assert in_dram(modules) == 0 < in_dram(left_out)
    found = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in ("typed", "fixed")}
    check_agreement(found, "f32")
