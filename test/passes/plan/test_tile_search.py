"""Searches for the unit map: the worked example, and each order of going."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import Net
from stops import target

from frustum.passes.analysis.project import layers_of
from frustum.passes.plan.tile_search import exhaust, find_tile, fixed, plan_move, shrinking
from frustum.passes.plan.unit import Budget, plan_unit
from frustum.runtime.reference.graph import network_of

SEARCHES = ["fixed", "exhaust", "shrinking", "small-to-large"]
ONE = (1, 1, 1, 1)


def within(elements):
    return lambda tile: tile[0] * tile[1] * tile[2] * tile[3] <= elements


def test_100_kb_into_40_kb():
    """Halving gives 25 KB; 1/2 and then 3/4 give 37.5 KB."""
    whole, least, fits = (1, 1, 100 * 1024, 1), ONE, within(40 * 1024)
    assert find_tile("fixed", whole, least, fits) == (1, 1, 25 * 1024, 1)
    assert find_tile("exhaust", whole, least, fits) == (1, 1, 25 * 1024, 1)
    assert find_tile("shrinking", whole, least, fits) == (1, 1, 37.5 * 1024, 1)
    assert find_tile("small-to-large", whole, least, fits) == (1, 1, 40 * 1024, 1)


def test_fixed_takes_dimensions_in_turn_and_channels_last():
    assert list(fixed((4, 2, 4, 4), ONE)) == [
        (4, 2, 4, 4), (2, 2, 4, 4), (2, 2, 2, 4), (2, 2, 2, 2),
        (1, 2, 2, 2), (1, 2, 1, 2), (1, 2, 1, 1), (1, 1, 1, 1),
    ]  # fmt: skip


def test_exhaust_takes_a_dimension_to_its_end_before_the_next():
    assert list(exhaust((2, 2, 4, 2), ONE)) == [
        (2, 2, 4, 2), (1, 2, 4, 2), (1, 2, 2, 2), (1, 2, 1, 2), (1, 2, 1, 1), (1, 1, 1, 1)
    ]  # fmt: skip


def test_shrinking_comes_to_an_end_with_every_extent_smaller_than_before():
    heights = [tile[2] for tile in shrinking((1, 1, 60, 1), ONE)]
    assert heights[:4] == [60, 30, 22, 18]
    assert heights == sorted(set(heights), reverse=True) and heights[-1] == 1


@pytest.mark.parametrize(
    ("elements", "found"),
    [(40, (2, 2, 3, 3)), (18, (1, 2, 3, 3)), (13, (1, 2, 2, 3)), (5, (1, 2, 1, 2)), (1, ONE), (0, None)],
)
def test_small_to_large_grows_images_then_rows_then_columns(elements, found):
    assert find_tile("small-to-large", (4, 2, 3, 3), ONE, within(elements)) == found


@given(
    st.sampled_from(SEARCHES),
    st.tuples(*[st.integers(1, 40)] * 4),
    st.tuples(*[st.integers(1, 3)] * 4),
    st.integers(1, 9000),
)
def test_what_is_found_fits_and_nothing_is_missed(search, whole, align, elements):
    least = tuple(min(w, a) for w, a in zip(whole, align, strict=True))
    tile = find_tile(search, whole, least, within(elements))
    assert (tile is None) == (not within(elements)(least))
    if tile is not None:
        assert within(elements)(tile)
        assert all(t == w or t % n == 0 for t, w, n in zip(tile, whole, least, strict=True))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ["tiny", "edge", "default"])
def test_units_are_planned_by_a_search(name, search):
    net = Net()
    x = net.conv(net.input(4, 8, 24, 24), 16, act="relu")
    module, _ = net.module(net.conv(x, 8, 1))
    machine = target(name)
    ops = [op for op in network_of(module).body.block.ops if op.name == "fgraph.conv"]
    for layers in ([ops[0]], ops):
        everything = plan_unit(layers_of(layers), machine, Budget(machine.cluster.sram.capacity_bytes))
        budget = Budget(machine.cluster.sram.capacity_bytes, maps=4, search=search)
        searched = plan_unit(layers_of(layers), machine, budget)
        assert (searched is None) == (everything is None)


def test_a_search_grows_the_number_of_images():
    net = Net()
    module, _ = net.module(net.conv(net.input(4, 8, 24, 24), 16, act="relu"))
    ops = [op for op in network_of(module).body.block.ops if op.name == "fgraph.conv"]
    machine = target("edge")
    plans = {
        maps: plan_unit(layers_of(ops), machine, Budget(2**19, maps=maps, search="small-to-large")) for maps in (1, 4)
    }
    assert [plans[maps].partition.tile[0] for maps in (1, 4)] == [1, 4]


def test_a_move_deals_the_dimension_that_it_is_asked_for():
    """The slowest one that gives each cluster something, or the one in which other copies of the move are dealt."""
    assert plan_move((3, 7, 4, 96), 2, 4, 1 << 20).clusters == 1
    asked = plan_move((3, 7, 4, 96), 2, 4, 1 << 20, dealt=0)
    assert (asked.clusters, asked.tile) == (0, (1, 7, 4, 96))
