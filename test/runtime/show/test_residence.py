"""Buffers reach as high as the report says, lie in time, and every write on chip is inside one."""

import numpy as np
from shown import shown

from frustum.dialects.isa.program import MEMORIES
from frustum.runtime.show.residence import accesses, residences


def test_buffers_reach_the_report_peaks():
    run = shown()
    peaks = dict.fromkeys(MEMORIES[1:], 0)
    for each in residences(run.timeline):
        peaks[each.memory] = max(peaks[each.memory], each.end)
    assert peaks == run.report.data["peak_bytes"]


def test_buffers_lie_in_the_run_and_hold_every_write():
    run = shown()
    found = residences(run.timeline)
    assert all(0 <= each.start < each.stop <= run.timeline.total_cycles for each in found)
    assert all(0 <= each.address < each.end for each in found)
    of = {}
    for each in found:
        of.setdefault((each.memory, each.place, each.layer, each.unit), []).append(each)
    seen = accesses(run.timeline)
    writes = np.flatnonzero(seen.is_write)
    assert len(writes)
    for k in writes.tolist():
        mine = of[MEMORIES[seen.kind[k]], seen.place[k], seen.layer[k], seen.unit[k]]
        assert any(
            each.address <= seen.low[k] and seen.end[k] <= each.end and each.start <= seen.start[k] < each.stop
            for each in mine
        )


def test_a_map_stays_until_its_last_reader():
    """Whoever made the first map, its bytes in SRAM or NRAM are there as long as somebody reads them."""
    run = shown()
    found, seen = residences(run.timeline), accesses(run.timeline)
    reads = np.flatnonzero(seen.is_write == 0)
    for k in reads.tolist():
        here = [each for each in found if (each.memory, each.place) == (MEMORIES[seen.kind[k]], seen.place[k])]
        there = [each for each in here if each.address <= seen.low[k] < each.end]
        assert any(each.start <= seen.start[k] and seen.stop[k] <= each.stop for each in there)
