"""Which tables a convolution may have, and which it gets: cycles first, then bytes, none only where that is faster."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from address_tables import convolutions, small_cache
from networks import Net
from stops import free_addresses, modules_at_stops, target
from xdsl.context import Context

from frustum.backend.pipeline import Choices
from frustum.dialects.isa import ConvOp, ExternalOp
from frustum.dialects.isa.operations import TableOp
from frustum.dialects.isa.tables.stored_table import KEY, read_table
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute
from frustum.dialects.target.durations import address_cycles
from frustum.passes.lower import make_address_tables
from frustum.passes.lower.make_address_tables import MakeAddressTables, demand_of, options_of
from frustum.passes.weights import store_of

UNIT = target("tiny").core.matrix


def lowered(module):
    return modules_at_stops(module, "tiny", Choices(policy="none"))["lowered"]


def ops(module, kind):
    return [op for op in module.walk() if isinstance(op, kind)]


def stored(module):
    names = [op.external_name.data for op in ops(module, ExternalOp) if op.external_name.data.startswith(KEY)]
    return [read_table(store_of(module)[name]) for name in names]


def demands(**rest):
    module, _ = convolutions((8, 8), **rest)
    return [demand_of(op, target("tiny")) for op in ops(lowered(module), ConvOp)]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("rest", [{}, {"kernel": 1}, {"kernel": 5}, {"groups": 8}, {"groups": 2}])
def test_options_are_cycles_against_bytes(rest):
    for demand in demands(**rest):
        options = options_of([demand], UNIT, 1 << 20)
        *tables, none = options
        assert none.part is None and none.size_bytes == 0 and none.cycles == demand.cycles(UNIT, None)
        assert tables and all(option.cycles <= none.cycles for option in tables)
        for fast, small in itertools.pairwise(tables):
            assert fast.cycles < small.cycles and fast.size_bytes > small.size_bytes
        whole = demand.asked.whole
        full = whole.images, whole.rows, whole.columns, whole.channels
        images, rows, columns, channels, _ = demand.sizes.counts
        taps = int(np.prod(whole.kernel))
        best = address_cycles(UNIT, (images, rows, columns, channels), taps, demand.asked.groups, full, has_groups=True)
        least = int((np.maximum(demand.busy_cycles, best) * demand.sizes.times).sum())
        assert options[0].cycles == least


def test_no_table_is_chosen_only_where_it_is_faster():
    """Where computing an address is free, tables still are made as long as reading them is hidden."""
    (demand, *_) = demands()
    free = free_addresses(target("tiny")).core.matrix
    assert options_of([demand], free, 1 << 20)[0].part is not None
    never_busy = replace(demand, busy_cycles=0 * demand.busy_cycles)
    assert options_of([never_busy], free, 1 << 20) == [(None, 0, 0)]
    assert options_of([never_busy], UNIT, 1 << 20)[0].part is not None


def test_what_is_too_large_is_no_option():
    (demand, *_) = demands()
    assert all(option.size_bytes <= 48 for option in options_of([demand], UNIT, 48))
    assert [option.part for option in options_of([demand], UNIT, 16)] == [None]


def test_tables_that_save_nothing_are_left_out_where_program_and_tables_take_too_much(monkeypatch):
    module, _ = convolutions((8, 8), kernel=3)
    low = lowered(module)
    low.attributes[TARGET] = to_attribute(free_addresses(target("tiny")))
    MakeAddressTables().apply(Context(), low)
    assert ops(low, TableOp)
    monkeypatch.setattr(make_address_tables, "OTHER_BYTES", 0)
    MakeAddressTables().apply(Context(), low)
    assert not ops(low, TableOp) and all(op.table is None for op in ops(low, ConvOp))
    low.attributes[TARGET] = to_attribute(free_addresses(target("tiny"), 1024))
    MakeAddressTables().apply(Context(), low)
    assert ops(low, TableOp)  # these save cycles


def test_tables_give_way_where_they_do_not_fit_half_of_the_cache():
    net = Net()
    x = net.input(1, 8, 12, 12)
    branches = [net.conv(x, 8, kernel) for kernel in (1, 3, 5, 7)]
    module, _ = net.module(*branches)
    low = lowered(module)
    MakeAddressTables().apply(Context(), low)
    whole = sum(op.bytes.value.data for op in ops(low, TableOp))
    MakeAddressTables().apply(Context(), small_cache(low, 2 * whole - 32))
    less = sum(op.bytes.value.data for op in ops(low, TableOp))
    assert 0 < less <= whole - 16


def test_none_means_none():
    module, _ = convolutions((8, 8))
    low = lowered(module)
    MakeAddressTables(tables="none").apply(Context(), low)
    assert not ops(low, TableOp) and not stored(low) and all(op.table is None for op in ops(low, ConvOp))


def test_where_every_cycle_counts_a_table_has_the_bases_of_every_group():
    """Steps from group to group would cost; where other work hides them, the smaller table of one group is taken."""
    (demand, *_) = demands()
    whole = replace(demand.asked.whole, channels=1)
    demand = replace(demand, asked=demand.asked._replace(whole=whole, groups=8, group_channels=1))
    demand.sizes.counts[3] = 1
    options = options_of([replace(demand, busy_cycles=0 * demand.busy_cycles)], UNIT, 1 << 20)
    assert options[0].part.groups == 8 and options[1].part.groups == 1
    assert options_of([demand], UNIT, 1 << 20)[0].part.groups == 1
