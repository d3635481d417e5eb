"""Units leave SRAM for parts of what several of them load: fewer bytes cross the port, and the numbers are right."""

from __future__ import annotations

import pytest
from agreement import check_agreement
from networks import Net
from searches import with_sram
from squeezed import squeezed
from stops import modules_at_stops, run_module

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.sync import AllocOp, ExternalOp
from frustum.dialects.module import RESERVED, TENSOR, number_of
from frustum.dialects.unit import UnitOp
from frustum.passes.lower.through_cores import Flow, loaded_bytes
from frustum.passes.plan.model import HELD_PART_AT_LEAST, KEPT_SRAM_SHARE
from frustum.passes.plan.network.optimal import OptimalOptions, plan_network
from frustum.passes.plan.network.trials.parts_beside import (
    is_dearer,
    moved_bytes,
    moved_tensors,
    used_bytes,
    with_parts,
    with_room,
)
from frustum.runtime.reference.graph import network_of

pytestmark = pytest.mark.slow

KIB = 40


def input_bytes(module):
    """That all loads of inputs read."""
    tensors = [op for op in module.walk() if isinstance(op, ExternalOp) and op.class_.data == "input"]
    copies = [(each, use.operation) for each in tensors for use in each.buffer.uses]
    return sum(loaded_bytes(Flow(each, [], [op]), 1) for each, op in copies if isinstance(op, CopyOp))


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_part_of_an_input_is_loaded_once(dtype):
    module, given = squeezed()
    where = with_sram("edge", KIB * (2 if dtype == "f32" else 1))
    modules = modules_at_stops(module, where, Choices(dtype=dtype, policy="optimal"))
    units = [op for op in modules["fused"].walk() if isinstance(op, UnitOp)]
    reserved = min(number_of(unit, RESERVED, 0) for unit in units)
    assert reserved > 0
    once = 8 * 48 * 48 * (4 if dtype == "f32" else 2)
    assert input_bytes(modules["lowered"]) <= 2 * once - reserved // 2
    held = [op for op in modules["lowered"].walk() if isinstance(op, AllocOp) and TENSOR in op.attributes]
    assert any(op.attributes[TENSOR].data.endswith(".held") for op in held)
    found = {stop: run_module(modules[stop], given, checked=stop == "fixed") for stop in ("typed", "placed", "fixed")}
    check_agreement(found, dtype)


def planned(kib=KIB):
    module, _ = squeezed()
    where = with_sram("edge", kib)
    network = network_of(modules_at_stops(module, where, Choices(dtype="f16", policy="optimal"))["typed"])
    return lambda share: plan_network(network, where, OptimalOptions(sram=share)), kib << 10


@pytest.mark.soak
def test_what_is_reserved_fits_beside_the_units():
    plan, sram_bytes = planned()
    found = with_parts(plan(1.0), sram_bytes)
    for unit, reserved in zip(found.units, found.reserved, strict=True):
        assert not reserved or reserved + used_bytes(unit, sram_bytes) <= KEPT_SRAM_SHARE * sram_bytes
    most = sum(each.size * each.saved for each in moved_tensors(found))
    assert 0 <= found.held_bytes <= most and moved_bytes(found) == found.dram_bytes - found.held_bytes
    assert not found.held_bytes or found.held_bytes >= HELD_PART_AT_LEAST * found.dram_bytes


def test_fewest_bytes_are_taken_and_none_for_more_cycles_than_these_are_worth():
    plan, sram_bytes = planned()
    start = plan(1.0)
    for is_for_bytes in (True, False):
        found = with_room(start, plan, sram_bytes, is_for_bytes=is_for_bytes)
        assert moved_bytes(found) <= moved_bytes(with_parts(start, sram_bytes))
        assert is_for_bytes or not is_dearer(found, start)


def test_networks_of_moves_are_left_alone():
    """What a move costs is not known before instructions are made."""
    net = Net()
    x = net.conv(net.input(1, 8, 32, 32), 16)
    module, _ = net.module(net.conv(net.layer(g.TransposeOp(x, (0, 3, 2, 1))), 8))
    where, asked = with_sram("edge", 24), []
    network = network_of(modules_at_stops(module, where, Choices(dtype="f16", policy="optimal"))["typed"])
    plan = plan_network(network, where)
    assert any(node.layer is None for node in plan.order.nodes)
    assert with_room(plan, asked.append, 24 << 10, is_for_bytes=True) is plan
    assert not asked
