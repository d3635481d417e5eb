"""Policy optimal against brute force over all cuts and all options (more of it: test/soak/soak_optimal.py)."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from brute_force import NEVER, least_bytes
from fusion_networks import Case, fusable, grown
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from xdsl.dialects import test as foreign

from frustum.backend import targets
from frustum.dialects import graph
from frustum.dialects.target.fit import DoesNotFit
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.layer import layer_of
from frustum.passes.analysis.module import node_name
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.plan.network import optimal
from frustum.passes.plan.network.candidates import Setting
from frustum.passes.plan.network.cuts import CutSearch, unlike
from frustum.passes.plan.network.kept import place_for
from frustum.passes.plan.network.known_prices import KnownPrices
from frustum.passes.plan.network.layer_order import ops_of_section, order_of, orders
from frustum.passes.plan.network.optimal import OptimalOptions, plan_network
from frustum.passes.plan.network.prices import Rows
from frustum.passes.plan.network.units import fuse_optimal
from frustum.passes.plan.unit import Budget, plan_unit
from frustum.runtime.reference.graph import network_of

EDGE, DEFAULT = targets.load("edge"), targets.load("default")


def with_sram(target, size):
    cluster = target.chip.cluster
    sram = replace(cluster.sram, capacity_bytes=size)
    return replace(target, chip=replace(target.chip, cluster=replace(cluster, sram=sram)))


@st.composite
def cases(draw, layers):
    net = Net()
    size = draw(st.sampled_from([8, 16]))
    maps = [net.input(1, draw(st.sampled_from([2, 8])), size, size)]
    for _ in range(draw(st.integers(2, layers))):
        maps.append(grown(draw, net, maps[-1 - draw(st.integers(0, min(2, len(maps) - 1)))], maps))
    return Case(net.module(*[m for m in maps[1:] if not m.uses])[0])


def listed(module):
    network = network_of(module)
    return order_of(ops_of_section(network), network.terminator.values)


SIZES = st.sampled_from([12, 16, 24, 48])
"""KiB of SRAM.  In less, weights are streamed in smaller chunks than the search counts with (docs/optimal.md)."""
TARGETS = st.sampled_from(["edge", "default", "units4", "manycore"])


def is_least(module, target):
    """The plan moves just the bytes of the cheapest of all ways through."""
    plan = plan_network(network_of(module), target, OptimalOptions(optimise="bytes"))
    return (NEVER if plan is None else plan.dram_bytes) == least_bytes(module, target)


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=12, derandomize=True)  # always the same; new ones are in test/soak/soak_optimal.py
@given(st.one_of(fusable(5), cases(4)), TARGETS, SIZES)
def test_no_way_through_a_small_network_is_cheaper(case, target, kib):
    assert is_least(case.module, with_sram(targets.load(target), kib * 1024))


@pytest.mark.slow
@pytest.mark.parametrize("kib", [8, 24])
def test_a_map_that_is_both_factors_of_a_product(kib):
    """It is loaded twice, once in each form, whoever reads the product."""
    net = Net()
    x = net.input(2, 4, 10, 6)
    y = net.layer(graph.MatmulOp(x, x, trans_b=True))
    y = net.binary("add", y, net.unary("relu", y))
    assert is_least(net.module(y)[0], with_sram(EDGE, kib * 1024))


@pytest.mark.slow
def test_a_map_that_one_reader_takes_in_another_form_stays_for_the_other():
    """It is stored for the one, and read in SRAM by the other, whoever comes first."""
    net = Net()
    x = net.input(2, 4, 6, 6)
    y = net.layer(graph.MatmulOp(x, net.weight(2, 4, 6, 5)))
    module, _ = net.module(net.conv(y, 3), net.layer(graph.MatmulOp(y, net.weight(5, 7))))
    assert is_least(module, with_sram(EDGE, 6 * 1024))


@pytest.mark.slow
@pytest.mark.soak
def test_all_ways_through_fourteen_layers():
    """Residual blocks with a pool between; 2^13 ways to cut."""
    net = Net()
    x = net.conv(net.input(1, 4, 16, 16), 8)
    for block in range(4):
        y = net.conv(net.conv(x, 8), 8)
        x = net.binary("add", x, y)
        if block == 1:
            x = net.pool("max", x)
    module = net.module(x)[0]
    assert len(listed(module).nodes) == 14
    assert is_least(module, with_sram(EDGE, 4 * 1024))


def test_an_output_that_stays_is_stored_too(monkeypatch):
    """And counted: a pooled map is read from SRAM by the unit behind it, and is an output."""
    monkeypatch.setattr(optimal, "orders", lambda network, section: orders(network, section)[:1])
    net = Net()
    x = net.input(1, 3, 8, 8)
    scaled = net.binary("mul", x, net.weight(1, 3, 1, 1))
    first = net.conv(net.binary("mul", x, net.weight(1, 3, 1, 1)), 4)
    pooled = net.pool("max", scaled, 3, 2, pads=(1, 1, 1, 1))
    last = net.binary("mul", pooled, net.weight(1, 3, 1, 1))
    network = network_of(net.module(first, last, pooled)[0])
    plan = plan_network(network, with_sram(EDGE, 2 * 1024), OptimalOptions(optimise="bytes"))
    stays = next(unit for unit in plan.units if unit.kept)
    assert plan.order.maps[min(stays.kept).map].is_output
    assert stays.plan.dram_bytes == stays.bytes
    assert plan.dram_bytes == plan.order.compulsory_bytes


def plans(case, sizes, target=EDGE):
    network = network_of(case.module)
    return [plan_network(network, with_sram(target, size * 1024), OptimalOptions()) for size in sizes]


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=settings().max_examples // 5)
@given(cases(6))
def test_more_sram_never_costs_more_and_nothing_is_below_compulsory(case):
    found = [p.dram_bytes for p in plans(case, [4, 8, 16, 32, 64, 256]) if p is not None]
    assert found == sorted(found, reverse=True)
    picks = any(isinstance(op, graph.PickOp) for op in case.module.walk())  # what is between them is read by nobody
    assert picks or all(b >= listed(case.module).compulsory_bytes for b in found)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 5)
@given(cases(6), st.sampled_from([8, 32]))
def test_never_above_layer_by_layer(case, kib):
    (plan,) = plans(case, [kib])
    if plan is None:
        return
    order, target = listed(case.module), with_sram(EDGE, kib * 1024)
    alone = 0
    for node in order.nodes:
        if node.layer is None or node.is_concat:
            alone += sum(r.bytes for r in node.reads) + order.maps[order.nodes.index(node)].bytes
            continue
        single = plan_unit(layers_of([node.op]), target, Budget(kib * 1024))
        alone += NEVER if single is None else single.dram_bytes
    assert plan.dram_bytes <= alone


def residual_chain(blocks):
    net = Net()
    x = net.conv(net.input(1, 4, 32, 32), 8)
    for block in range(blocks):
        y = net.conv(net.conv(x, 8), 8)
        x = net.binary("add", x, y)
        if block % 50 == 49 and graph.shape_of(x)[2] > 4:
            x = net.pool("max", x)
    return net.module(x)[0]


@pytest.mark.slow
@pytest.mark.soak
def test_time_is_linear_in_layers():
    target = with_sram(EDGE, 16 * 1024)
    seconds = []
    for blocks in (30, 90):
        network = network_of(residual_chain(blocks))
        started = time.process_time()
        assert plan_network(network, target) is not None
        seconds.append(time.process_time() - started)
    assert seconds[1] < 6 * seconds[0]
    assert seconds[1] < 40


@pytest.mark.slow
@pytest.mark.parametrize(("target", "kib", "stays"), [(EDGE, 16, False), (DEFAULT, 40, True)])
def test_what_is_written_is_what_was_planned(target, kib, stays):
    module = residual_chain(3)
    module.body.block.insert_op_before(foreign.TestOp(), module.body.block.first_op)
    network = network_of(module)
    target = with_sram(target, kib * 1024)
    plan = plan_network(network, target)
    fuse_optimal(network, target)
    module.verify()
    units = [op for op in network.walk() if isinstance(op, UnitOp)]
    assert [len(u.body.block.ops) > 0 for u in units] == [True] * len(plan.units)
    kept = 0
    for unit, planned in zip(units, plan.units, strict=True):
        assert unit.partition.data == planned.plan.partition
        assert "DRAM bytes" in unit.stopped_by.data
        assert len(unit.kept) == len(planned.kept)
        kept += len(unit.kept)
        layers = [op for op in unit.body.block.ops if not isinstance(op, graph.WeightOp)][:-1]
        assert all("frustum.map" in op.attributes for op in layers)
    assert (kept > 0) == stays
    assert isinstance(module.body.block.first_op, foreign.TestOp)


def test_maps_stay_only_where_it_is_allowed():
    network = network_of(residual_chain(2))
    assert (
        any(u.kept for u in plan_network(network, EDGE).units)
        or len(plan_network(network, EDGE).units) == 1
    )
    assert not any(u.kept for u in plan_network(network, EDGE, OptimalOptions(keep=False)).units)


@pytest.mark.slow
def test_orders_are_orders_in_which_the_layers_can_run():
    net = Net()
    x = net.conv(net.input(1, 4, 8, 8), 4)
    a, b = net.conv(net.conv(x, 2), 4), net.unary("relu", net.conv(x, 4))
    network = network_of(net.module(net.binary("add", a, b))[0])
    found = orders(network)
    assert len(found) > 1
    for ops in found:
        assert sorted(map(id, ops)) == sorted(map(id, ops_of_section(network)))
        for i, op in enumerate(ops):
            assert all(o.owner in ops[:i] for o in op.operands if o.owner in ops)


@pytest.mark.slow
def test_a_small_map_follows_a_large_one_at_once():
    """Of a pooling and the convolution behind it only the small map is there when others read what both began with; a
    convolution of a map that is no larger than what it was made of waits."""
    net = Net()
    x = net.conv(net.input(1, 16, 8, 8), 16)
    window = net.conv(net.conv(x, 8), 8)
    projected = net.conv(net.pool("max", x, 3, 1, pads=(1, 1, 1, 1)), 4)
    network = network_of(net.module(window, projected)[0])
    by_levels = orders(network)[-1]
    assert [op.result.type.get_shape()[1] for op in by_levels] == [16, 8, 16, 4, 8]


def all_ways(setting, first=0, maps=frozenset()):
    """Bytes and cycles of every way through the layers from `first` on: all groups, shapes and maps that stay."""
    order, found = setting.order, []
    if first == len(order.nodes):
        return [(0, 0)]
    for stop in range(first + 1, len(order.nodes) + 1):
        groups = [prices for prices in KnownPrices().before(setting, stop, [first])]
        groups += [KnownPrices().of_channels(setting, stop)] if stop == first + 1 else []
        for prices in filter(None, groups):
            number = prices.number_of(maps)
            for k, stay in enumerate(prices.candidates.stays if number >= 0 else ()):
                free = setting.capacity - setting.size(maps) - setting.size(stay)
                if free < 0:
                    continue
                row = Rows(*(np.array([x]) for x in (number, k, free, NEVER)))
                priced = prices.priced(row, for_time=True)
                own = set(zip(priced.moved.tolist(), priced.cycles.tolist(), strict=True))
                left = frozenset(m for m in maps | stay if order.maps[m.map].last_use >= stop)
                rest = all_ways(setting, stop, left) if own else []
                found += [(a + x, b + y) for a, b in own for x, y in rest]
    best, least = [], NEVER
    for bytes_, cycles in sorted(set(found)):
        if cycles < least:
            best.append((bytes_, cycles))
            least = cycles
    return best


@pytest.mark.slow
@pytest.mark.parametrize(("target", "kib"), [(EDGE, 12), (EDGE, 24), (DEFAULT, 12)])
def test_the_fastest_way_within_a_number_of_bytes_is_that_of_brute_force(target, kib):
    """By the search's own costs, for every number of bytes that makes a difference."""
    net = Net()
    x = net.conv(net.input(1, 4, 16, 16), 8)
    y = net.conv(net.conv(x, 16), 8)
    order = listed(net.module(net.conv(net.binary("add", x, y), 8))[0])
    setting = Setting(order, with_sram(target, kib * 1024), kib * 1024)
    expected = all_ways(setting)
    assert expected
    for bytes_, cycles in expected:
        found = CutSearch(setting, bound=bytes_, within_bound=True).solve()
        assert found.bytes <= bytes_ and found.cycles <= cycles


@pytest.mark.slow
@pytest.mark.parametrize("optimise", ["time", "bytes", "energy"])
def test_a_plan_has_the_least_of_what_is_asked(optimise):
    figures = {"time": "cycles", "bytes": "dram_bytes", "energy": "energy_pj"}
    plan = plan_network(network_of(residual_chain(3)), with_sram(EDGE, 6 * 1024), OptimalOptions(optimise=optimise))
    said = plan.alternatives
    assert plan.figures() == said[optimise]
    assert said[optimise][figures[optimise]] == min(each[figures[optimise]] for each in said.values())


def test_a_map_that_stays_is_counted_while_it_stays():
    """Each of three maps fits beside nothing else: none may stay."""
    net = Net()
    x = net.conv(net.input(1, 4, 16, 16), 4, 1)
    y = net.conv(x, 4, 1)
    order = listed(net.module(net.binary("add", net.unary("neg", y), x))[0])
    size = order.maps[0].bytes
    small = CutSearch(Setting(order, with_sram(EDGE, size), size)).solve()
    assert not any(m.map == 0 for choice in small.choices for m in choice.kept)


@pytest.mark.slow
def test_given_cuts_are_kept_and_planned_together():
    """The cuts that the search finds, given, come to no more; others are kept as they are given."""
    network, target = network_of(residual_chain(3)), with_sram(EDGE, 6 * 1024)
    plan = plan_network(network, target, OptimalOptions())
    nodes = [node_name(node.op) for node in plan.order.nodes]
    ends = tuple(nodes[unit.stop - 1] for unit in plan.units)
    given = plan_network(network, target, OptimalOptions(ends=ends))
    assert (given.cycles, given.dram_bytes) <= (plan.cycles, plan.dram_bytes)
    last = plan_network(network, EDGE, OptimalOptions(ends=(nodes[-1],)))
    assert [unit.stop for unit in last.units] == [len(nodes)]


@pytest.mark.slow
def test_cuts_that_no_plan_has_are_refused():
    network = network_of(residual_chain(3))
    with pytest.raises(DoesNotFit, match="cuts: a plan with these cuts does not fit"):
        fuse_optimal(network, with_sram(EDGE, 2 * 1024), OptimalOptions(ends=()))


@pytest.mark.slow
def test_layers_that_may_lie_where_their_operand_did():
    """Each piece of the result needs the same piece of one map: not so attention, convolutions and pooling."""
    net = Net()
    x, numbers = net.input(1, 4, 8, 8), net.input(1, 4, 1, 1)
    norm = net.layer(graph.NormaliseOp(x, net.weight(4, 1, 1), axes=(1, 2, 3), epsilon=1e-5, groups=2))
    attention = graph.AttentionOp(x, x, x, heads=(2, 2), sizes=(2, 2), scale=1.0, is_channels_first=True)
    added = [net.binary("add", x, numbers), net.binary("add", x, norm)]
    works = [net.unary("relu", x), *added, norm, net.layer(graph.SoftmaxOp(x, 3))]
    others = [net.layer(attention), net.conv(x, 4), net.pool("max", x)]
    assert all(place_for(layer_of(value.owner)) is not None for value in works)
    assert all(place_for(layer_of(value.owner)) is None for value in others)


@pytest.mark.slow
def test_of_states_that_hardly_differ_the_fastest_is_looked_at():
    """Of a thousand bytes one is next to nothing: less than that for all that is left out, and not between maps."""
    maps, bytes_ = [0, 0, 0, 0, 1, 1], [10_000, 10_005, 10_009, 10_015, 10_015, 10_400]
    states = np.array([maps, bytes_, [90, 80, 70, 60, 60, 50]], np.int64)
    assert unlike(states, 10_000).tolist() == [2, 3, 4, 5]
    assert unlike(states, 1_000).tolist() == [0, 1, 2, 3, 4, 5]
