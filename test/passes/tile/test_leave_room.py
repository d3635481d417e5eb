"""Units are cut smaller where a tensor that moves between them may stay in SRAM then: the same numbers, fewer bytes."""

from __future__ import annotations

from agreement import check_agreement
from networks import Net
from searches import with_sram
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices, Edit
from frustum.dialects import graph
from frustum.dialects.isa.sync import ExternalOp
from frustum.dialects.module import RESERVED, number_of
from frustum.passes.plan.unit_ops import units_of

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


def test_a_tensor_stays_beside_smaller_tiles():
    module, inputs = turned_around(32, 32, 1)
    where, found = with_sram("edge", 112), {}
    without = modules_at_stops(module.clone(), where, Choices(dtype="f16", policy="optimal", edits=LEFT_OUT))
    modules = modules_at_stops(module, where, Choices(dtype="f16", policy="optimal"))
    assert in_dram(modules) == 0 < in_dram(without)
    for stop in ("typed", "tiled", "placed", "fixed"):
        found[stop] = run_module(modules[stop], inputs, checked=stop == "fixed")
    check_agreement(found, "f16")


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
