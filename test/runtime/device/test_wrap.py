"""Copies whose operands wrap: against the plain machine, in checked mode, and in time."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_cases import agree

from frustum.dialects.isa import program as p
from frustum.dialects.target import read_target
from frustum.runtime.check.check import RaceError, check
from frustum.runtime.device.expand import expand
from frustum.runtime.device.memory import AccessError
from frustum.runtime.report.counters import count
from frustum.runtime.time.timeline import simulate
from frustum.runtime.time.work import contiguous_bytes

A = p.Affine
ROUTES = {
    "load": ("gdma", "dram", "sram"), "store": ("gdma", "sram", "dram"), "mvdma": ("mvdma", "nram", "sram"),
    "bus": ("bus", "sram", "wram"), "iodma": ("iodma", "dram", "nram"), "cdma": ("cdma", "sram", "sram"),
}  # fmt: skip
PASSES, CLUSTERS, CORES = 5, 2, 3
BEHIND = 1 << 15
"""Where the destination of a cdma begins: behind its source."""

# ------------------------------------------------------------------------------------------ effects


@st.composite
def affines(draw, on_core):
    return A(draw(st.integers(-3, 3)), (draw(st.integers(-2, 3)),), draw(st.integers(0, 2)),
             draw(st.integers(0, 2)) if on_core else 0)  # fmt: skip


@st.composite
def rings(draw, memory, extent, base, on_core):
    """A dense view of dimensions in any order, one of which may wrap; each unit has its own place."""
    wrap = None
    if draw(st.integers(0, 3)):
        dim = draw(st.integers(0, 3))
        wrap = p.Wrap(dim, extent[dim] + draw(st.integers(0, 3)), draw(affines(on_core)))
    strides, step = [0] * 4, 4
    for d in draw(st.permutations(range(4))):
        strides[d] = step
        step *= extent[d] if wrap is None or wrap.dim != d else wrap.size
    cores = CORES if on_core else 1
    places = {"dram": (step * cores, step), "sram": (0, step)}.get(memory, (0, 0))
    offset = A(base, (), places[0], places[1] if on_core else 0)
    return p.View("f32", offset, tuple(strides), memory, wrap=wrap)


@st.composite
def wrapped_copies(draw):
    """A copy whose box moves with loop, cluster and core, forwards or back."""
    engine, source, destination = draw(st.sampled_from([*ROUTES.values()]))
    on_core = engine in p.CORE_ENGINES
    extent = tuple(draw(st.integers(1, 4)) for _ in range(4))
    start, limit = [A() for _ in range(4)], [None] * 4
    bound = [n + draw(st.integers(0, 6)) for n in extent]
    for d in draw(st.sets(st.integers(0, 3), max_size=2)):
        start[d], bound[d] = draw(affines(on_core)), bound[d] + 4
        limit[d] = draw(st.sampled_from([None, A(5)]))
    fill = draw(st.sampled_from([None, None, 7.5]))
    return p.Copy(
        engine=engine, src_view=draw(rings(source, extent, 0, on_core)),
        dst_view=draw(rings(destination, extent, BEHIND if source == destination else 0, on_core)),
        box=p.Box(tuple(start), extent, tuple(bound), tuple(limit)), fill=fill,
        multicast=source == "dram" and not on_core and draw(st.booleans()),
        peer=A(1, (), -1) if engine == "cdma" else None,
    )  # fmt: skip


@pytest.mark.slow
@given(wrapped_copies(), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_random_wrapped_copies_agree_with_the_plain_machine(copy, seed):
    agree(p.Program((p.Repeat(PASSES, (copy,)),)), CLUSTERS, CORES, seed, must_write=False)


@pytest.mark.parametrize("size", [6, 7, 8])
@pytest.mark.parametrize("start", [-2, -1, 3])
def test_a_filled_border_and_a_ring_that_ends_inside_the_map(start, size):
    """Rows `start` to `start + 5` of a map of 6 in a ring that begins anywhere: border, map and end in any order."""
    box = p.Box.of(*[p.Span(A(), 1, 1)] * 2, p.Span(A(start), 6, 6), p.Span(A(-1), 4, 3))
    for phase in range(size):
        around = p.View("f32", A(64), (0, 0, 16, 4), "sram", wrap=p.Wrap(2, size, A(phase)))
        flat = p.View("f32", A(1024), (0, 0, 16, 4), "dram")
        agree(p.Program((p.Copy(engine="gdma", src_view=flat, dst_view=around, box=box, fill=9.0),)), 1, 1)


# ------------------------------------------------------------------------------------------ one ring, by hand

RING = 6
"""Rows of the ring; a row is 4 numbers, and starts at byte 64 of the SRAM."""
KNOWN = (p.External("x", "input", 0, 1024, (64, 4), "f32"),)
CAPACITIES = (4096, 1024, 1024, 1024)
FILE = Path(__file__).parents[3] / "backend" / "targets" / "default.yaml"
DEFAULT = read_target(FILE.read_text(), str(FILE))


def rows_box(start, extent, bound=64):
    """Rows of a map of 4 columns."""
    one = p.Span(A(), 1, 1)
    return p.Box.of(one, one, p.Span(A.of(start), extent, bound), p.Span(A(), 4, 4))


def ring(phase=0, size=RING, row_bytes=16, offset=64):
    return p.View("f32", A(offset), (0, 0, row_bytes, 4), "sram", wrap=p.Wrap(2, size, A.of(phase)))


def rows_of_map(start, memory="dram", offset=0):
    return p.View("f32", A.of(start) * 16 + offset, (0, 0, 16, 4), memory)


def load(start, extent, **other):
    return p.Copy(engine="gdma", src_view=rows_of_map(start), dst_view=ring(), box=rows_box(start, extent), **other)


def move(start, extent, **other):
    return p.Copy(engine="mvdma", src_view=ring(), dst_view=p.View("f32", A(), (0, 0, 16, 4), "nram"),
                  box=rows_box(start, extent), **other)  # fmt: skip


def wait(slot, value, scope="own"):
    return p.Wait(slot, scope, A.of(value))


def sliding(slack):
    """Two rows a pass into a ring of 6; windows of 4 rows (two new ones) out of it, one pass later.  A load of pass i
    waits for the windows of pass i - slack: those of pass i - 1 still need rows that it does not replace, ..."""
    load_rows = load(A(0, (2,)), 2, signal=0, waits=(p.Wait(0, "cores", A(1 - slack, (1,))),))
    window = move(A(-2, (2,)), 4, signal=0, waits=(p.Wait(0, "cluster", A(1, (1,))),), stage=0)
    return p.Program((p.Repeat(8, (load_rows, window)),), KNOWN, layers=("only",))


def test_enough_room_for_the_slack_is_clean_in_checked_mode():
    """Rows 2i and 2i + 1 replace 2i - 6 and 2i - 5; windows up to pass i - 2 need rows from 2i - 6 on: they must be
    done, those of pass i - 1 (from 2i - 4 on) need not be."""
    check(expand(sliding(2), 1, 2), CAPACITIES)


def test_too_much_slack_is_a_race():
    with pytest.raises(RaceError, match=r"copy 0 .* by gdma at loops \[3\] .* address 64 of sram .* copy 1 .* reads"):
        check(expand(sliding(3), 1, 2), CAPACITIES)


def test_only_the_bytes_of_both_pieces_are_touched():
    """Rows 4 to 7 of a ring of 6: its last two and its first two, and a read of rows 2 and 3 finds nobody's bytes."""
    program = p.Program((load(4, 4, signal=0), move(8, 1, waits=(wait(0, 1, "cluster"),))), KNOWN, layers=("only",))
    with pytest.raises(AccessError, match=r"reads address 96 of sram of cluster 0, which no instruction wrote"):
        check(expand(program, 1, 1), CAPACITIES)
    read = move(4, 4, waits=(wait(0, 1, "cluster"),))
    check(expand(p.Program((program.body[0], read), KNOWN), 1, 1), CAPACITIES)


def test_a_box_up_to_the_end_of_its_memory_does_not_leave_it():
    """The ring ends where the SRAM does; in one piece the box would reach two rows further."""
    at_end = (*CAPACITIES[:1], 64 + RING * 16, *CAPACITIES[2:])
    check(expand(p.Program((load(4, 4),), KNOWN, layers=("only",)), 1, 1), at_end)
    with pytest.raises(AccessError, match=r"writes bytes \[128, 160\) of sram .* which has 144"):
        check(expand(p.Program((load(4, 4),), KNOWN, layers=("only",)), 1, 1), (4096, 144, 1024, 1024))


def test_the_peak_is_the_end_of_the_ring():
    found = count(expand(p.Program((load(4, 4),), KNOWN, layers=("only",)), 1, 1), DEFAULT)
    assert found.peak_bytes["sram"] == 64 + RING * 16
    assert found.dram_read_bytes == 4 * 16


# ------------------------------------------------------------------------------------------ time


@pytest.mark.parametrize("seed", range(30))
def test_runs_end_at_the_end_of_a_ring(seed):
    """Against the addresses in the order of the box: how many runs there are, and their mean length, rounded up."""
    rng = np.random.default_rng(seed)
    extent = rng.integers(1, 5, 4)
    d = int(rng.integers(0, 4))
    extent[d] = rng.integers(2, 5)
    split = np.zeros(4, np.int64)
    split[d] = rng.integers(1, extent[d])
    size = extent[d] + int(rng.integers(0, 3))
    stride, step = np.zeros(4, np.int64), 1
    order = rng.permutation(4)
    for each in order:
        stride[each], step = step, step * int(size if each == d else extent[each])
    inner_to_outer = list(reversed(order.tolist()))
    addresses = []
    for index in product(*(range(extent[each]) for each in inner_to_outer)):
        at = dict(zip(inner_to_outer, index, strict=True))
        around = size if at[d] >= split[d] else 0
        addresses.append(sum(at[e] * stride[e] for e in range(4)) - around * stride[d])
    runs = 1 + sum(b - a != 1 for a, b in pairwise(addresses))
    by_stride = order
    found = contiguous_bytes(
        extent[by_stride][:, None], stride[by_stride][:, None], np.array([1]), split[by_stride][:, None]
    )
    assert found.tolist() == [-(-len(addresses) // runs)]


def test_a_run_broken_at_the_end_of_the_ring_takes_the_time_of_two():
    """16 rows of one byte, the last 8 behind the end: from DRAM at 102 B a cycle of the engine and one run of 64 B at
    least, into runs of 8 B that take 16 B each at a port of 1 B a cycle: 32 cycles, unbroken 16."""
    slow = replace_port(DEFAULT, 1)

    def took(phase):
        box = p.Box.of(*[p.Span(A(), 1, 1)] * 2, p.Span(A(), 16, 16), p.Span(A(), 1, 1))
        around = p.View("i8", A(), (0, 0, 1, 1), "sram", wrap=p.Wrap(2, 24, A(phase)))
        flat = p.View("i8", A(), (0, 0, 1, 1), "dram")
        copy = p.Copy(engine="gdma", src_view=flat, dst_view=around, box=box)
        line = simulate(expand(p.Program((copy,), layers=("only",)), 1, 1), slow, ())
        return int(line.times.end.max())

    assert (took(0), took(16)) == (16, 32)


def replace_port(target, bytes_per_cycle):
    """The target with so narrow a port of its SRAM."""
    sram = replace(target.cluster.sram, port_bytes_per_cycle=bytes_per_cycle)
    return replace(target, chip=replace(target.chip, cluster=replace(target.cluster, sram=sram)))


def test_rows_with_gaps_between_them_take_the_same_time_wherever_the_ring_ends():
    def took(phase):
        copy = p.Copy(engine="gdma", src_view=rows_of_map(0), dst_view=ring(phase, row_bytes=32), box=rows_box(0, 4))
        return simulate(expand(p.Program((copy,), KNOWN, layers=("only",)), 1, 1), DEFAULT, ()).total_cycles

    assert took(0) == took(4)
