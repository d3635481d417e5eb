"""Hidden maps in chunks: weights of an MLP are read once, what is between is never whole, the numbers are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from networks import Net
from stops import modules_at_stops, run_module, target
from xdsl.context import Context

from frustum.backend.executables import unit_facts
from frustum.backend.pipeline import Choices
from frustum.dialects import graph as g
from frustum.dialects import tile as t
from frustum.dialects.module import PART_OF_SUM, TARGET
from frustum.dialects.target import to_attribute
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.module import node_name
from frustum.passes.graph.choose_forms import ChooseForms
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.hidden_chunks import in_chunks, through_dram
from frustum.passes.plan.network.kept import NOTHING, WHOLE, KeptMap
from frustum.passes.plan.network.optimal import plan_network
from frustum.runtime.reference.graph import network_of

ROWS, WIDTH, HIDDEN = 48, 96, 384
TOLERANCE = {"f32": 6e-6, "f16": 8e-3}


def edge(kib):
    """The target with so much SRAM."""
    whole = target("edge")
    cluster = replace(whole.cluster, sram=replace(whole.cluster.sram, capacity_bytes=kib << 10))
    return replace(whole, chip=replace(whole.chip, cluster=cluster))


def mlp(kind="plain", *, act=None, residual=True):
    """A product, a function and a product; `gated`: two products, one of which opens the other; `silu`: a function that
    takes two layers."""
    net = Net()
    x = net.layer(g.UnaryOp("relu", net.input(ROWS, WIDTH)))
    wide = [net.weight(WIDTH, HIDDEN, scale=WIDTH**-0.5) for _ in range(2)]
    if kind == "plain":
        made = net.layer(g.MatmulOp(x, wide[0], net.weight(HIDDEN), act=g.ActAttr.of("gelu")))
    else:
        made = net.layer(g.MatmulOp(x, wide[0]))
        made = net.layer(g.BinaryOp("mul", made, net.layer(g.UnaryOp("sigmoid", made))))
    if kind == "gated":
        made = net.layer(g.BinaryOp("mul", made, net.layer(g.MatmulOp(x, wide[1]))))
    numbers = {"residual": x if residual else None, "act": act and g.ActAttr.of(act)}
    down = g.MatmulOp(made, net.weight(HIDDEN, WIDTH, scale=HIDDEN**-0.5), net.weight(WIDTH), **numbers)
    return net.module(net.layer(down))


def compiled(module, dtype, kib, carry="auto"):
    return modules_at_stops(module, edge(kib), Choices(dtype=dtype, carry=carry))


@pytest.mark.slow
def test_rows_dealt_to_clusters_read_weights_once_too():
    """Of each cluster's rows the hidden map, 1.5 MiB of 2, does not fit beside what comes in and goes out."""
    rows, width, hidden = 1024, 768, 3072
    net = Net()
    x = net.input(rows, width)
    made = net.layer(g.MatmulOp(x, net.weight(width, hidden), act=g.ActAttr.of("gelu")))
    module, _ = net.module(net.layer(g.MatmulOp(made, net.weight(hidden, width), residual=x)))
    found = modules_at_stops(module, target("default"), Choices(dtype="f16"))["fused"]
    assert any(PART_OF_SUM in op.attributes for op in found.walk())
    units = [op for op in found.walk() if isinstance(op, UnitOp)]
    said = sum(int(unit.stopped_by.data.split(" DRAM")[0].split()[-1]) for unit in units)
    assert said <= 1.15 * (2 * rows * width + 2 * width * hidden) * 2


CASES = [("plain", None, True), ("plain", "relu", False), ("silu", None, True), ("gated", None, True)]


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize(("kind", "act", "residual"), CASES)
@pytest.mark.parametrize(("dtype", "kib"), [("f32", 52), ("f16", 28)])
def test_weights_and_maps_cross_the_port_once_and_the_hidden_map_never(dtype, kib, kind, act, residual):
    """SRAM holds what comes in and goes out, but neither the hidden map nor, where one product makes it, a second
    result."""
    module, given = mlp(kind, act=act, residual=residual)
    found = compiled(module, dtype, kib + (kind == "gated") * (12 if dtype == "f32" else 8))
    units = [op for op in found["fused"].walk() if isinstance(op, UnitOp)]
    said = sum(int(unit.stopped_by.data.split(" DRAM")[0].split()[-1]) for unit in units)
    matrices = 3 if kind == "gated" else 2
    vectors = 4 * (WIDTH + HIDDEN * (kind == "plain"))
    assert said <= (2 * ROWS * WIDTH + matrices * WIDTH * HIDDEN) * (4 if dtype == "f32" else 2) + vectors
    computed = [op for op in found["placed"].walk() if isinstance(op, t.ComputeOp)]
    assert any(op.map.data.in_place for op in computed) or kind == "gated"
    parts = [op for op in computed if PART_OF_SUM in op.attributes]
    sums = [op for op in computed if op.tensors and op.tensors[0].type.get_shape()[-1] == WIDTH]
    assert len(parts) == len(sums) - 1 > 0
    assert {each.get("carry", "") for each in unit_facts(found["fixed"])} == {"", dtype}
    (wanted,) = run_module(module, given).values()
    for stop in ("placed", "fixed"):
        (got,) = run_module(found[stop], given, checked=stop == "fixed").values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


@pytest.mark.slow
def test_an_input_of_the_network_that_all_chunks_read_stays_in_sram():
    net = Net()
    x = net.input(ROWS, WIDTH)
    made = net.layer(g.MatmulOp(x, net.weight(WIDTH, HIDDEN, scale=WIDTH**-0.5), act=g.ActAttr.of("gelu")))
    module, given = net.module(net.layer(g.MatmulOp(made, net.weight(HIDDEN, WIDTH, scale=HIDDEN**-0.5))))
    found = compiled(module, "f16", 28)
    copies = [op for op in found["fused"].walk() if isinstance(op, g.UnaryOp)]
    assert [op.act.kind for op in copies] == ["identity"]
    units = [op for op in found["fused"].walk() if isinstance(op, UnitOp)]
    said = sum(int(unit.stopped_by.data.split(" DRAM")[0].split()[-1]) for unit in units)
    assert said == 2 * (2 * ROWS * WIDTH + 2 * WIDTH * HIDDEN)
    (wanted,), (got,) = (run_module(each, given).values() for each in (module, found["fixed"]))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE["f16"] * max(1, np.abs(wanted).max()))


@pytest.mark.slow
def test_sums_that_are_to_wait_in_f32_do_not_wait_in_f16():
    found = compiled(mlp()[0], "f16", 32, carry="f32")
    assert not any(PART_OF_SUM in op.attributes for op in found["fused"].walk())
    assert "f16" not in {each.get("carry", "") for each in unit_facts(found["fixed"])}


def planned(module, machine):
    module.attributes[TARGET] = to_attribute(machine)
    ChooseForms().apply(Context(), module)
    network = network_of(module)
    return network, plan_network(network, machine)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", ["plain", "gated"])
def test_chunks_are_undone(kind):
    module, _ = mlp(kind)
    network, plan = planned(module, edge(64))
    before = str(network)
    (made,) = in_chunks(plan.order, plan.units, module, 64 << 10)
    network.verify()
    count = sum(isinstance(op, g.MatmulOp) for op in network.walk())
    assert count % (3 if kind == "gated" else 2) == 0 and count >= 4
    names = [node_name(op) for op in network.walk() if isinstance(op, g.MatmulOp)]
    assert len(set(names)) == count  # parts are not what the model calls so
    assert node_name(made.made[-1]) == node_name(made.instead_of[0][0])
    made.undo()
    assert str(network) == before


@pytest.mark.slow
def test_no_chunks_where_what_is_around_them_does_not_fit_or_somebody_else_reads_the_hidden_map():
    module, _ = mlp()
    _, plan = planned(module, edge(64))
    assert in_chunks(plan.order, plan.units, module, 2 * ROWS * WIDTH * 4) == []
    net = Net()
    x = net.layer(g.UnaryOp("relu", net.input(ROWS, WIDTH)))
    made = net.layer(g.MatmulOp(x, net.weight(WIDTH, HIDDEN)))
    module, _ = net.module(net.layer(g.MatmulOp(made, net.weight(HIDDEN, WIDTH))), made)
    _, plan = planned(module, edge(64))
    assert in_chunks(plan.order, plan.units, module, 64 << 10) == []


@pytest.mark.slow
def test_a_hidden_map_is_made_in_chunks_wherever_something_of_it_goes_through_dram():
    """Of a gated one perhaps one of both products alone, what comes of them staying."""
    module, _ = mlp("gated")
    _, plan = planned(module, edge(64))
    order = plan.order
    (hidden,) = {each.sums: each for each in through_dram(order, plan.units)}.values()
    for out in (None, *hidden.makers, hidden.sums):
        stays = [NOTHING if node.op is out else frozenset({KeptMap(k, WHOLE)}) for k, node in enumerate(order.nodes)]
        units = [UnitChoice(k, k + 1, 0, 0, 0, kept=kept) for k, kept in enumerate(stays)]
        assert [each.sums for each in through_dram(order, units)] == [hidden.sums] * (out in hidden.makers)
        size = ROWS * HIDDEN * 4
        assert [each.sums for each in through_dram(order, units, size)] == [hidden.sums]  # large enough in any case
        assert len(through_dram(order, units, size + 1)) == (out in hidden.makers)
