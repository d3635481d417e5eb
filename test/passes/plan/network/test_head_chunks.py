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


@pytest.mark.slow
@pytest.mark.soak
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


PLANE = 8
"""Rows and columns."""


def planes(*, normed=False, is_joint=False, is_plain=False):
    """The same with channels first: products of a map, or of its norm, and the map added again behind; `is_plain`: of
    the map times numbers of channels, as a norm of plain layers ends."""
    net = Net()
    x = net.conv(net.input(1, WIDTH, PLANE, PLANE), WIDTH)
    scales = [net.weight(WIDTH, 1, 1) for _ in range(2)]
    read = net.layer(g.NormaliseOp(x, *scales, axes=(1, 2, 3), epsilon=1e-5, groups=HEADS)) if normed else x
    if is_plain:
        numbers = [net.layer(g.UnaryOp("relu", net.input(1, WIDTH, 1, 1))) for _ in range(2)]
        read = net.binary("mul", net.binary("sub", x, numbers[0]), numbers[1])
    made = [net.conv(read, (3 if is_joint else 1) * WIDTH, 1) for _ in range(1 if is_joint else 3)]
    rows = [net.layer(g.ReshapeOp(each, (1, g.shape_of(each)[1], PLANE * PLANE))) for each in made]
    numbers = {"heads": (HEADS, HEADS), "sizes": (SIZE, SIZE), "scale": SIZE**-0.5, "is_channels_first": True}
    firsts = (0, WIDTH, 2 * WIDTH) if is_joint else (0, 0, 0)
    heads = net.layer(g.AttentionOp(*(rows * 3)[:3], firsts=firsts, **numbers))
    back = net.layer(g.ReshapeOp(heads, (1, WIDTH, PLANE, PLANE)))
    return net.module(net.conv(back, WIDTH, 1, residual=x))


def attentions(network):
    return [op for op in network.walk() if isinstance(op, g.AttentionOp)]


WAYS = [({}, False), ({"is_apart": True}, False), ({"is_normed": True}, True)]


@pytest.mark.slow
@pytest.mark.parametrize("is_joint", [False, True])
@pytest.mark.parametrize(("way", "normed"), WAYS)
def test_chunks_of_planes_compute_the_same_and_are_undone(way, normed, is_joint):
    """Of SRAM that holds the map and the queries, keys and values of some heads; `is_apart`: not those of one."""
    module, given = planes(normed=normed, is_joint=is_joint)
    (wanted,) = run_module(module, given).values()
    network, plan = planned(module, 64)
    before, own = str(network), PLANE * PLANE * SIZE * 4
    beside = PLANE * PLANE * WIDTH * 4 + (2 if "is_apart" in way else 6) * own
    made = heads_in_chunks(plan.order, plan.units, module, int(beside / 0.94) + 1, **way)
    assert made
    network.verify()
    parts = attentions(network)
    assert len(parts) == (HEADS if "is_apart" in way else HEADS // 2) and all(op.is_of_planes for op in parts)
    assert all((op.q is not op.k) is ("is_apart" in way) and op.k is op.v for op in parts)
    norms = [op for op in network.walk() if isinstance(op, g.NormaliseOp)]
    assert not norms
    (got,) = run_module(module, given).values()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    for change in reversed(made):
        change.undo()
    assert str(network) == before


@pytest.mark.slow
def test_layers_element_by_element_are_made_again_for_each_chunk():
    module, given = planes(is_plain=True)
    (wanted,) = run_module(module, given).values()
    network, plan = planned(module, 64)
    before = str(network)
    made = heads_in_chunks(plan.order, plan.units, module, 64 << 10, is_normed=True)
    network.verify()
    count = len(attentions(network))
    assert count > 1 and sum(isinstance(op, g.BinaryOp) and op.kind == "sub" for op in network.walk()) == count
    (got,) = run_module(module, given).values()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    for change in reversed(made):
        change.undo()
    assert str(network) == before


@pytest.mark.slow
def test_products_without_a_bias_go_beside_such_with_one():
    net = Net()
    x = net.input(1, ROWS, WIDTH)
    made = [net.layer(g.MatmulOp(x, net.weight(WIDTH, WIDTH), bias)) for bias in (net.weight(WIDTH), None, None)]
    numbers = {"heads": (HEADS, HEADS), "sizes": (SIZE, SIZE), "scale": SIZE**-0.5, "is_merged": True}
    module, given = net.module(net.layer(g.AttentionOp(*made, **numbers)))
    (wanted,) = run_module(module, given).values()
    network, made = chunks(module, 48, False)
    assert made and len(attentions(network)) > 1
    (got,) = run_module(module, given).values()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.slow
def test_no_queries_apart_where_those_of_a_head_fit_too():
    module, _ = planes()
    _, plan = planned(module, 64)
    assert heads_in_chunks(plan.order, plan.units, module, 64 << 10, is_apart=True) == []


@pytest.mark.slow
def test_no_norms_of_their_own_where_nobody_else_reads_the_map():
    module, _ = planes()
    _, plan = planned(module, 64)
    assert heads_in_chunks(plan.order, plan.units, module, 64 << 10, is_normed=True) == []


@pytest.mark.slow
@pytest.mark.soak
def test_a_residual_block_with_attention_moves_little_more_than_it_must():
    """Compiled with the map, and its norm, and what attention reads beside each other in no way in SRAM."""
    module, given = planes(normed=True)
    found = modules_at_stops(module, edge(56), Choices(dtype="f32"))
    (wanted,) = run_module(module, given).values()
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], given, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    units = [op for op in found["fused"].walk() if isinstance(op, UnitOp)]
    said = sum(int(unit.stopped_by.data.split(" DRAM")[0].split()[-1]) for unit in units)
    size = PLANE * PLANE * WIDTH * 4
    weights = 4 * WIDTH * WIDTH * (9 + 4)
    assert said <= weights + 8 * size


@pytest.mark.slow
def test_no_chunks_of_heads_with_masks_of_their_own_or_that_others_read():
    assert chunks(layer(mask=(1, HEADS, ROWS, ROWS))[0], 48, False)[1] == []
    assert chunks(layer(shared=True)[0], 48, False)[1] == []
