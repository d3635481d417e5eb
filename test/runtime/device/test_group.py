"""Equal work runs at once: how many calls serve the cores of a row."""

import numpy as np

from frustum.dialects.isa import program as p
from frustum.runtime.device.expand import expand
from frustum.runtime.device.group import group

A = p.Affine
CAPACITIES = (1 << 20, 1 << 16, 1 << 14, 1 << 14)


def tile_copy(start, extent, bound, engine="mvdma", memory="sram", **moves):
    one = p.Span(A(), 1, 1)
    box = p.Box.of(one, one, p.Span(start, extent, bound), p.Span(A(), 8, 8))
    src = p.View("f32", A(0, **moves), (0, 0, 32, 4), memory)
    return p.Copy(engine=engine, src_view=src, dst_view=p.View("f32", A(), (0, 0, 32, 4), "nram"), box=box)


def calls_of(copy, clusters=4, cores=4, count=1):
    expanded = expand(p.Program((p.Repeat(count, (copy,)),)), clusters, cores)
    return group(expanded, expanded.core, CAPACITIES, np.arange(len(expanded.core)))


def leads(calls):
    return [tuple(lead) for lead in calls.lead.tolist()]


def test_equal_boxes_on_all_cores_are_one_call_with_two_axes():
    calls = calls_of(tile_copy(A(0, core=2), 2, 8, core=64))
    assert leads(calls) == [(4, 4)]
    assert calls.step[0, :, 0].tolist() == [1 << 16, 64]  # SRAM by cluster, row by core
    assert calls.step[0, :, 1].tolist() == [4 << 14, 1 << 14]  # every core its NRAM


def test_one_call_for_each_pass():
    calls = calls_of(tile_copy(A(0, core=2), 2, 8, core=64), count=5)
    assert calls.row.tolist() == [0, 1, 2, 3, 4] and set(leads(calls)) == {(4, 4)}


def test_borders_split_off_their_cores():
    """Tiles of 2 rows over [-1, 31) of 28: the first and the last active one are cut to a row, one core is idle."""
    calls = calls_of(tile_copy(A(-1, cluster=8, core=2), 2, 28, "iodma", "dram", cluster=256, core=64))
    assert sorted(leads(calls)) == [(1, 1), (1, 1), (1, 13)]  # whole tiles are one progression in DRAM and NRAM


def test_a_progression_broken_by_clusters_falls_into_blocks():
    """As before with tiles in SRAM: within a cluster the step differs from that between clusters."""
    calls = calls_of(tile_copy(A(-1, cluster=8, core=2), 2, 28, cluster=8, core=64))
    assert sorted(leads(calls)) == [(1, 1), (1, 1), (1, 2), (1, 3), (2, 4)]


def test_calls_reach_exactly_the_addresses_of_their_units():
    """Boxes [0, 4), [0, 4), [0, 4), [1, 4) of tiles that begin at -2, -1, 0, 1: the progression goes backwards."""
    one = p.Span(A(), 1, 1)
    box = p.Box.of(one, one, one, p.Span(A(-2, core=1), 20, 30, A(4)))
    src = p.View("f32", A(), (0, 0, 0, 4), "sram")
    copy = p.Copy(engine="mvdma", src_view=src, dst_view=p.View("f32", A(), (0, 0, 0, 4), "nram"), box=box)
    calls = calls_of(copy, clusters=1)
    assert leads(calls) == [(1, 3), (1, 1)]
    assert calls.base[:, 0].tolist() == [8, 0] and calls.step[0, 1, 0] == -4


def test_idle_units_have_no_call():
    assert leads(calls_of(tile_copy(A(0, core=2), 2, 4))) == [(4, 2)]
    assert leads(calls_of(tile_copy(A(9), 2, 4))) == []
