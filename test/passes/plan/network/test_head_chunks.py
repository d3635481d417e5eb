"""Attention some heads at a time: its queries, keys and values stay in SRAM, and the numbers are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks import Net
from stops import modules_at_stops, run_module, target
from xdsl.context import Context

from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects.module import JOINT, PART_OF_SUM, TARGET
from frustum.dialects.target import to_attribute
from frustum.dialects.unit import UnitOp
from frustum.passes.graph.choose_forms import ChooseForms
from frustum.passes.plan.network.head_chunks import heads_in_chunks
from frustum.passes.plan.network.optimal import plan_network
from frustum.runtime.reference.graph import network_of

ROWS, HEADS, SIZE = 64, 8, 16
WIDTH = HEADS * SIZE
TOLERANCE = {"f32": 6e-6, "f16": 8e-3}


def edge(kib):
    """The target with so much SRAM."""
    whole = target("edge")
    cluster = replace(whole.cluster, sram=replace(whole.cluster.sram, capacity_bytes=kib << 10))
    return replace(whole, chip=replace(whole.chip, cluster=cluster))


def layer(groups=HEADS, *, mask=None, shared=False):
    """Queries, keys and values of an input, attention and the product behind it."""
    net = Net()
    x = net.input(1, ROWS, WIDTH)
    widths = [WIDTH, groups * SIZE, groups * SIZE]
    made = [net.layer(g.MatmulOp(x, net.weight(WIDTH, n, scale=WIDTH**-0.5), net.weight(n))) for n in widths]
    added = None if mask is None else net.weight(*mask)
    heads = net.layer(
        g.AttentionOp(*made, added, heads=(HEADS, groups), sizes=(SIZE, SIZE), scale=SIZE**-0.5, is_merged=True)
    )
    out = net.layer(g.MatmulOp(heads, net.weight(WIDTH, WIDTH, scale=WIDTH**-0.5), net.weight(WIDTH)))
    return net.module(out, made[1]) if shared else net.module(out)


def planned(module, kib):
    machine = edge(kib)
    module.attributes[TARGET] = to_attribute(machine)
    ChooseForms().apply(Context(), module)
    network = network_of(module)
    return network, plan_network(network, machine)


def chunks(module, kib, is_summed):
    network, plan = planned(module, kib)
    return network, heads_in_chunks(plan.order, plan.units, module, kib << 10, is_summed=is_summed)


CASES = [("f16", 24, HEADS // 2), ("f32", 48, HEADS), ("f32", 48, HEADS // 2)]


@pytest.mark.parametrize(("dtype", "kib", "groups"), CASES)
def test_numbers_are_right_and_queries_stay_in_sram(dtype, kib, groups):
    module, given = layer(groups)
    found = modules_at_stops(module, edge(kib), Choices(dtype=dtype))
    parts = [op for op in found["fused"].walk() if isinstance(op, g.AttentionOp)]
    assert len(parts) > 1 and all(JOINT in op.attributes for op in parts)
    units = [op for op in found["fused"].walk() if isinstance(op, UnitOp)]
    makers = [unit for unit in units if any(isinstance(x.owner, UnitOp) and unit is x.owner
                                            for other in units for x in other.operands
                                            if any(op in parts for op in other.body.walk()))]  # fmt: skip
    assert any(unit.kept for unit in makers)
    (wanted,) = run_module(module, given).values()
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], given, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("is_summed", [False, True])
def test_chunks_are_undone(is_summed):
    module, _ = layer()
    network, plan = planned(module, 48)
    before = str(network)
    made = heads_in_chunks(plan.order, plan.units, module, (96 if is_summed else 48) << 10, is_summed=is_summed)
    assert made
    network.verify()
    parts = [op for op in network.walk() if isinstance(op, g.AttentionOp)]
    assert len(parts) > 1 and sum(op.heads[0] for op in parts) == HEADS
    assert any(PART_OF_SUM in op.attributes for op in network.walk()) is is_summed
    for change in reversed(made):
        change.undo()
    assert str(network) == before


def test_no_chunks_of_heads_with_masks_of_their_own_or_that_others_read():
    assert chunks(layer(mask=(1, HEADS, ROWS, ROWS))[0], 48, False)[1] == []
    assert chunks(layer(shared=True)[0], 48, False)[1] == []
