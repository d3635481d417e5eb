"""Two resources: the DRAM stream with what it may bring ahead, and the chain of layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frustum.backend import targets
from frustum.passes.plan.makespan import UnitWork, added_cycles, first_places, port_cycles, room_of, times_of
from frustum.passes.plan.model import AHEAD, LAST_PART, START_CYCLES

DEFAULT = targets.load("default")
LATENCY = DEFAULT.chip.dram.latency_cycles


def unit(work=0, weights=0, loads=0, stores=0, sends=0, passes=1, used=0, early=None):
    return UnitWork(work, sends, weights, loads, stores, passes, used, 8 * weights if early is None else early)


def ends(*units):
    return [round(times.chain) for times in times_of(units, DEFAULT)]


def test_layers_without_loads_follow_each_other():
    assert ends(unit(1000), unit(2000, sends=300)) == [START_CYCLES + 1000, START_CYCLES + 3300]


def test_weights_come_while_units_before_are_made():
    long, loading = unit(50_000), unit(1000, weights=40_000)
    assert ends(long, loading) == [START_CYCLES + 50_000, START_CYCLES + 51_000]


def test_a_unit_waits_for_the_last_of_its_weights():
    assert ends(unit(1000, weights=40_000)) == [40_000 + LATENCY + LAST_PART * 1000]


def test_streamed_weights_leave_little_behind_them():
    assert ends(unit(10_000, weights=40_000, early=16)) == [40_000 + LATENCY]


def test_a_map_comes_before_anything_is_made_of_it():
    assert ends(unit(10_000, loads=2000)) == [2000 + LATENCY + 10_000]


def test_weights_of_a_unit_that_loads_a_map_come_before_that_map_is_made():
    long, loading = unit(50_000), unit(1000, weights=40_000, loads=100)
    assert ends(long, loading)[1] == START_CYCLES + 50_000 + 100 + LATENCY + 1000


def test_of_several_tiles_only_the_first_comes_before_anything():
    (end,) = ends(unit(100_000, loads=20_000, passes=10))
    assert end == 2000 + LATENCY + 100_000


def test_where_nothing_is_free_weights_wait_for_the_unit_before():
    capacity = room_of(DEFAULT)
    full, loading = unit(50_000, used=capacity), unit(1000, weights=40_000)
    assert first_places([full, loading], capacity) == [0, 1]
    assert ends(full, loading)[1] == START_CYCLES + 50_000 + 40_000 + LATENCY + LAST_PART * 1000


def test_weights_are_no_more_than_a_few_units_ahead():
    units = [unit(100) for _ in range(AHEAD + 3)] + [unit(weights=10)]
    assert first_places(units, 1 << 40)[-1] == 3


numbers = st.integers(0, 100_000)
works = st.builds(
    UnitWork, numbers, numbers, numbers, numbers, numbers, st.integers(1, 9), st.integers(0, 3 << 20), numbers
)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(works, min_size=1, max_size=12))
def test_what_units_add_is_what_all_take(units):
    added, times = added_cycles(units, DEFAULT), times_of(units, DEFAULT)
    assert all(cycles >= 0 for cycles in added)
    assert sum(added) == pytest.approx(times[-1].chain, abs=len(units))
    chains, streams = [t.chain for t in times], [t.stream for t in times]
    assert chains == sorted(chains)
    assert streams == sorted(streams)
    assert times[-1].chain >= sum(u.work + u.sends for u in units)
    assert times[-1].chain >= sum(u.weights + u.loads for u in units)


@settings(max_examples=50)
@given(st.lists(works, min_size=1, max_size=6), st.integers(0, 5))
def test_more_work_never_ends_sooner(units, which):
    which %= len(units)
    more = [replace(u, work=u.work + 1000) if k == which else u for k, u in enumerate(units)]
    assert times_of(more, DEFAULT)[-1].chain >= times_of(units, DEFAULT)[-1].chain


def test_the_port_serves_whole_chunks():
    assert port_cycles(4096, DEFAULT) == 41
    assert port_cycles(2 * 4096 + 102, DEFAULT) == 83
    assert port_cycles(0, DEFAULT) == 0
