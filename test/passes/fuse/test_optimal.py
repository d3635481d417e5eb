"""Policy optimal against brute force over all cuts and all options, with groups costed one by one by `project`."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from fusion_networks import Case, grown
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from xdsl.dialects import test as foreign

from frustum.backend import targets
from frustum.dialects import graph
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.footprint import footprint
from frustum.passes.analysis.project import project
from frustum.passes.analysis.traffic import loaded_elements
from frustum.passes.analysis.unit_layers import layers_of
from frustum.passes.fuse.listing import listing_of, network_ops, orders
from frustum.passes.fuse.optimal import OptimalOptions, fuse_optimal, plan_network
from frustum.passes.fuse.search import FORM_BITS, Search, chunk_bytes
from frustum.passes.fuse.sweep import ROLL, Sweep
from frustum.passes.tile.plan_unit import Budget, plan_unit
from frustum.runtime.reference import network_of

EDGE, DEFAULT = targets.load("edge"), targets.load("default")
NEVER = 1 << 60


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
    return Case(net.module(maps[-1])[0])


class Brute:
    """All ways through a network: every cut, every set of maps that stay, every shape, every number of streamed
    weights."""

    def __init__(self, listing, target, keep=True):
        self.listing, self.target, self.keep = listing, target, keep
        self.capacity = target.cluster.sram.capacity_bytes
        self.groups = {}
        for stop, node in enumerate(listing.nodes, 1):
            if node.layer is not None:
                for group in Sweep(listing, target, stop).groups(NEVER):
                    self.groups[group.first, stop] = group

    def least(self, first=0, kept=frozenset()):
        count = len(self.listing.nodes)
        if first == count:
            return 0
        found = NEVER
        for stop in range(first + 1, count + 1):
            for cost, stay in self.ways(first, stop, kept):
                left = {m for m in kept | stay if self.listing.maps[m].last_use >= stop}
                found = min(found, cost + self.least(stop, frozenset(left)))
        return found

    def ways(self, first, stop, kept):
        node, maps = self.listing.nodes[first], self.listing.maps
        alone = stop == first + 1
        if alone and node.layer is None:
            yield sum(r.bytes for r in node.reads) + maps[first].bytes, frozenset()
            return
        if alone and node.is_concat and all(maps[r.map].needs_dram for r in node.reads if r.map in kept):
            parts = {r.map for r in node.reads}
            others = {k for m in parts for k in maps[m].users if self.listing.nodes[k].is_concat} - {first}
            is_place = not others and len(parts) == len(node.reads) and not any(maps[m].is_output for m in parts)
            yield 0 if is_place else 2 * maps[first].bytes, frozenset()
        if alone and not kept and not node.is_concat:
            plan = plan_unit(layers_of([node.op]), self.target, Budget(self.capacity))
            if plan is not None:
                yield plan.dram_bytes, frozenset()
        group = self.groups.get((first, stop))
        if (alone and node.is_concat) or group is None or any(
            b.map in kept and not b.can_stay and not maps[b.map].needs_dram for b in group.inputs
        ):
            return
        may_stay = [b.map for b in group.outputs if self.keep and b.can_stay and self.is_read_behind(b.map, stop)]
        for size in range(len(may_stay) + 1):
            for stay in itertools.combinations(may_stay, size):
                cost = self.cost(group, kept, frozenset(stay))
                if cost < NEVER:
                    yield cost, frozenset(stay)

    def is_read_behind(self, number, stop):
        readers = [self.listing.nodes[k] for k in self.listing.maps[number].users if k >= stop]
        return any(r.joins for node in readers for r in node.reads if r.map == number)

    def cost(self, group, kept, stay):
        nodes, maps = self.listing.nodes[group.first : group.stop], self.listing.maps
        free = self.capacity - sum(-(-maps[m].bytes // 16) * 16 for m in kept | stay)
        ops = [n.op for n in nodes]
        here = {maps[b.map].number for b in group.inputs if b.map in kept and b.can_stay}
        value = {m: self.listing.nodes[m].op.results[0] for m in here}
        unit = layers_of(ops, [self.listing.nodes[b.map].op.results[0] for b in group.outputs], set(value.values()))
        weights = sorted((n.weight_bytes for n in nodes if n.weight_bytes), reverse=True)
        found = NEVER
        for k in np.flatnonzero(group.valid):
            late = max([int(group.late[k]), *(int(b.late[k]) for b in group.inputs if b.map not in here)])
            is_roll = group.shapes.mode[k] == ROLL
            steps = late + int(group.behind[k]) if is_roll else int(group.shapes.counts[1][k])
            partition = group.shapes.partition(int(k), group.channels, steps)
            projection = project(unit, partition, 1)
            assert projection.counts[2] == steps
            needs = footprint(unit, partition, projection, [None] * len(ops), {m - group.first for m in stay})
            needed = needs.total_bytes - needs.weight_bytes + sum(n.vector_bytes for n in nodes)
            order = (1, 0, 3, 2) if is_roll else (1, 0, 2, 3)
            moved = sum(n.vector_bytes for n in nodes) + sum(
                loaded_elements(region, own.dims, projection.counts, 1, order) * own.element_bytes
                for own, region in zip(unit.inputs, projection.inputs, strict=True)
                if not own.resident
            )
            moved += sum(maps[b.map].bytes for b in group.outputs if b.map not in stay or maps[b.map].needs_dram)
            passes = projection.counts[0] * projection.counts[2] * projection.counts[3]
            for streamed in range(len(weights) + 1):
                chunk = 2 * min(weights[0], chunk_bytes(self.capacity)) if streamed else 0
                if needed + sum(weights[streamed:]) + chunk <= free:
                    found = min(found, moved + sum(weights) + (passes - 1) * sum(weights[:streamed]))
        return found


def listed(module):
    network = network_of(module)
    return listing_of(network_ops(network), network.terminator.values)


SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24])


@settings(max_examples=25)
@given(cases(5), SIZES)
def test_no_way_through_a_small_network_is_cheaper(case, kib):
    listing, target = listed(case.module), with_sram(EDGE, kib * 1024)
    solution = Search(listing, target, kib * 1024).solve()
    expected = Brute(listing, target).least()
    assert (NEVER if solution is None else solution.bytes) == expected


@pytest.mark.parametrize("kib", [2, 4, 8, 16])
def test_all_cuts_of_fourteen_layers(kib):
    """Residual blocks with a pool between; 2^13 ways to cut."""
    net = Net()
    x = net.conv(net.input(1, 4, 16, 16), 8)
    for block in range(4):
        y = net.conv(net.conv(x, 8), 8)
        x = net.binary("add", x, y)
        if block == 1:
            x = net.pool("max", x)
    listing, target = listed(net.module(x)[0]), with_sram(EDGE, kib * 1024)
    assert len(listing.nodes) == 14
    brute = Brute(listing, target, keep=False)
    cost = {
        (i, j): min((c for c, _ in brute.ways(i, j, frozenset())), default=NEVER)
        for i in range(14)
        for j in range(i + 1, 15)
    }
    expected = min(
        sum(cost[i, j] for i, j in itertools.pairwise((0, *cut, 14)))
        for size in range(14)
        for cut in itertools.combinations(range(1, 14), size)
    )
    assert Search(listing, target, kib * 1024, keep=False).solve().bytes == expected


def plans(case, sizes, target=EDGE):
    network = network_of(case.module)
    return [plan_network(network, with_sram(target, size * 1024), OptimalOptions()) for size in sizes]


@settings(max_examples=10)
@given(cases(6))
def test_more_sram_never_costs_more_and_nothing_is_below_compulsory(case):
    found = [p.dram_bytes for p in plans(case, [4, 8, 16, 32, 64, 256]) if p is not None]
    assert found == sorted(found, reverse=True)
    assert all(b >= listed(case.module).compulsory_bytes for b in found)


@settings(max_examples=10)
@given(cases(6), st.sampled_from([8, 32]))
def test_never_above_layer_by_layer(case, kib):
    (plan,) = plans(case, [kib])
    if plan is None:
        return
    listing, target = listed(case.module), with_sram(EDGE, kib * 1024)
    alone = 0
    for node in listing.nodes:
        if node.layer is None or node.is_concat:
            alone += sum(r.bytes for r in node.reads) + listing.maps[listing.nodes.index(node)].bytes
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


def test_time_is_linear_in_layers():
    target = with_sram(EDGE, 16 * 1024)
    seconds = []
    for blocks in (30, 90):
        network = network_of(residual_chain(blocks))
        started = time.perf_counter()
        assert plan_network(network, target) is not None
        seconds.append(time.perf_counter() - started)
    assert seconds[1] < 6 * seconds[0]
    assert seconds[1] < 40


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
        assert unit.partition.data == planned.realised.partition
        assert "DRAM bytes" in unit.stopped_by.data
        assert len(unit.kept) == len(planned.step.kept)
        kept += len(unit.kept)
        layers = [op for op in unit.body.block.ops if not isinstance(op, graph.WeightOp)][:-1]
        assert all("frustum.map" in op.attributes for op in layers)
    assert (kept > 0) == stays
    assert isinstance(module.body.block.first_op, foreign.TestOp)


def test_maps_stay_only_where_it_is_allowed():
    network = network_of(residual_chain(2))
    assert any(u.step.kept for u in plan_network(network, EDGE).units) or len(plan_network(network, EDGE).units) == 1
    assert not any(u.step.kept for u in plan_network(network, EDGE, OptimalOptions(keep=False)).units)


def test_orders_are_orders_in_which_the_layers_can_run():
    net = Net()
    x = net.conv(net.input(1, 4, 8, 8), 4)
    a, b = net.conv(net.conv(x, 4), 4), net.unary("relu", net.conv(x, 4))
    network = network_of(net.module(net.binary("add", a, b))[0])
    found = orders(network)
    assert len(found) > 1
    for ops in found:
        assert sorted(map(id, ops)) == sorted(map(id, network_ops(network)))
        for i, op in enumerate(ops):
            assert all(o.owner in ops[:i] for o in op.operands if o.owner in ops)


def test_a_map_that_stays_is_counted_while_it_stays():
    """Each of three maps fits beside nothing else: none may stay."""
    net = Net()
    x = net.conv(net.input(1, 4, 16, 16), 4, 1)
    y = net.conv(x, 4, 1)
    listing = listed(net.module(net.binary("add", net.unary("neg", y), x))[0])
    size = listing.maps[0].bytes
    small = Search(listing, with_sram(EDGE, size), size).solve()
    assert not any(m >> FORM_BITS == 0 for step in small.steps for m in step.kept)
