"""Prices of groups that are equal to others, against the same group grown and priced by itself."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from networks import Net
from xdsl.context import Context

from frustum.backend import targets
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.plan.network.candidates import Candidates, Setting
from frustum.passes.plan.network.known_prices import EqualPrices, KnownPrices, Planned, planned_once
from frustum.passes.plan.network.layer_order import order_of, orders
from frustum.passes.plan.network.optimal import OptimalOptions, plan_network
from frustum.passes.plan.network.prices import FAR, Prices, Rows
from frustum.runtime.reference.graph import network_of

pytestmark = pytest.mark.slow

LONGEST = 5


def blocks(count):
    """Equal residual blocks of two convolutions, and at the end one with other channels."""
    net = Net()
    x = net.conv(net.input(1, 8, 16, 16), 16)
    for _ in range(count):
        x = net.binary("add", net.conv(net.conv(x, 16), 16, 1), x)
    return net.module(net.conv(x, 8, 1))[0]


def settings_of(module, target):
    network = network_of(module)
    found = [order_of(ops, network.terminator.values) for ops in orders(network)]
    return [Setting(order, target, target.cluster.sram.capacity_bytes) for order in found]


def groups(setting, planned):
    known, count = KnownPrices(planned), len(setting.order.nodes)
    for stop in range(1, count + 1):
        yield from known.before(setting, stop, range(stop - 1, max(0, stop - LONGEST) - 1, -1))
        yield from filter(None, [known.of_channels(setting, stop)])


def answers(prices, maps, for_time):
    """What a group says with these maps before it in SRAM, and each set that may stay."""
    number = prices.number_of(maps)
    for k, stay in enumerate(prices.candidates.stays if number >= 0 else ()):
        rows = Rows(*(np.array([x]) for x in (number, k, prices.setting.capacity, FAR)))
        found = prices.priced(rows, for_time=for_time)
        choices = [prices.choice(found, n, 0, prices.set_of(number), stay) for n in range(0, len(found.row), 5)]
        yield stay, int(prices.of_stays[0][k]), int(prices.least_before()[number]), choices


@pytest.mark.parametrize("name", ["default", "edge"])
def test_equal_groups_cost_the_same_with_maps_of_their_own(name):
    planned, equal = Planned(), 0
    for setting in settings_of(blocks(3), targets.load(name)):
        sets = {frozenset(), *(frozenset([kept]) for kept in setting.shares)}
        for prices in groups(setting, planned):
            if not isinstance(prices, EqualPrices):
                continue
            equal += 1
            first, stop = prices.group.first, prices.group.stop
            if prices.group.by_channels:
                own = setting.by_channels(stop)
            else:
                own = next(setting.groups_before(stop).within(setting.capacity, [first], first))
            anew = Prices(Candidates(own, setting))
            for maps in sorted(sets, key=sorted):
                if all(first - LONGEST < kept.map < first for kept in maps):
                    assert list(answers(prices, maps, True)) == list(answers(anew, maps, True))
    assert equal > 10


def test_a_chain_of_equal_blocks_is_planned_as_one_of_few():
    """Groups that are grown do not become more with the blocks."""
    grown = []
    for count in (6, 12):
        (setting, *_), planned = settings_of(blocks(count), targets.load("edge")), Planned()
        assert len(list(groups(setting, planned))) > 4 * 3 * count
        grown.append(sum(prices is not None for prices in planned.prices.values()))
    assert grown[0] == grown[1]


def plans_of_networks():
    """Of networks of one and of different layers, in two types, on two machines, with two settings."""
    found = []
    for count, is_half, name, borders in product((2, 3), (False, True), ("default", "edge"), ("auto", "overlap")):
        module = blocks(count)
        if is_half:
            ConvertType(to="f16").apply(Context(), module)
        plan = plan_network(network_of(module), targets.load(name), OptimalOptions(borders=borders))
        units = [(u.first, u.stop, u.exact_bytes, u.cycles, u.resident, u.kept) for u in plan.units]
        found.append((units, plan.figures(), plan.alternatives))
    return found


@pytest.mark.soak
def test_networks_planned_after_others_have_the_same_plans():
    alone = plans_of_networks()
    assert len({str(figures) for _, figures, _ in alone}) > 4
    with planned_once():
        assert plans_of_networks() == alone
        assert plans_of_networks() == alone  # nothing is left to find out
