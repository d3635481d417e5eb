"""Waits for what is read and written only: random nests against the oracle, small programs, thresholds by hand."""

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from happens_before import check, check_sharing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nests import Nests, box_of, packed
from programs import machine, module_of, run_passes
from xdsl.context import Context
from xdsl.ir import Block, Region

from frustum.backend.memory.allocation import Allocate
from frustum.backend.waits import loop_tree
from frustum.backend.waits.regions import digits_of
from frustum.backend.waits.schedule import Schedule
from frustum.backend.waits.thresholds import least_count
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import ZERO, Affine, Span, View
from frustum.dialects.isa.sync import AllocOp, RepeatOp

NOTHING = -9

SHAPES = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 2)]


def scheduled(nests: Nests, capacity: int, event_slots: int):
    """The program of random nests with its waits; None where it is refused."""
    target = machine(nests.clusters, nests.cores, capacity=capacity, event_slots=event_slots)
    module = module_of(target, *nests.program())
    return run_passes(module, Allocate(copies=1), Schedule())


@pytest.mark.slow
@settings(
    max_examples=3 * settings().max_examples,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    seed=st.integers(0, 1 << 32),
    units=st.sampled_from(SHAPES),
    capacity=st.sampled_from([512, 1024, 1 << 20]),
    event_slots=st.sampled_from([12, 4096]),
    outer=st.booleans(),
)
def test_every_conflict_of_nests_is_ordered(seed, units, capacity, event_slots, outer):
    program = scheduled(Nests(Random(seed), *units, outer=outer), capacity, event_slots)
    if program is not None:
        check_sharing(program, *units)
        check(program, *units)


def test_bytes_of_regions_of_unlike_elements_are_told_apart_by_the_smallest():
    """A stride of one position tells nothing apart, and one that is no multiple of the next is left to it."""

    def region(element_bytes, **extents):
        spans = tuple(Span(ZERO, extent, 99) for extent in extents.values())
        return loop_tree.Region(ZERO, spans, tuple(int(name[1:]) for name in extents), element_bytes)

    assert digits_of([region(4, _512=1, _64=3, _4=2), region(2, _64=3, _6=1, _2=4)]) == (64, 4, 2)
    assert digits_of([region(2, _9=2, _2=4)]) == (2,)
    assert digits_of([region(1, _96=2, _64=2, _32=2)]) == (96, 32, 1)


ROWS, WIDE = 16, 8
PITCH = 2 * WIDE


def rows_of(start, extent, bound=ROWS):
    return {"box": box_of([Affine(), start, Affine()], [1, extent, WIDE], [1, bound, WIDE])}


def map_view(start):
    return View("f16", PITCH * start, (PITCH * ROWS, PITCH * ROWS, PITCH, 2))


def nest(source, target, rows, *, border=0, stride=1, by="interleaved", cores=2):
    """`rows` rows a piece of a map; cores have neighbouring pieces or a contiguous share."""
    count = ROWS // stride // rows // cores
    step = (rows * cores, rows) if by == "interleaved" else (rows, rows * count)
    out = Affine(0, (step[0],), core=step[1])
    seen = out * stride - border
    tile = AllocOp("nram", 1024, 2)
    size = rows * stride + 2 * border
    load = CopyOp(
        source, tile, engine="mvdma", src_view=map_view(seen), dst_view=packed([1, size, WIDE]), **rows_of(seen, size)
    )
    put = CopyOp(
        tile, target, engine="mvdma", src_view=packed([1, rows, WIDE]), dst_view=map_view(out), stage=1,
        **rows_of(out, rows, ROWS // stride),
    )  # fmt: skip
    return RepeatOp(count, Region(Block([tile, load, put]))), load, put


def waits_of(op):
    return [] if op.waits is None else [(w.scope, str(w.value)) for w in op.waits.data]


def maps(count):
    return [AllocOp("sram", PITCH * ROWS) for _ in range(count)]


def program_of(*ops, cores=2):
    module = module_of(machine(1, cores), *ops)
    Allocate(copies=1).apply(Context(), module)
    Schedule().apply(Context(), module)
    check(module.body.block.first_op, 1, cores)
    return module.body.block.first_op


@pytest.mark.parametrize(
    ("border", "stride", "by", "found"),
    [
        (0, 1, "interleaved", []),  # each core reads what it has made itself
        (1, 1, "interleaved", [("cores", "2 + 1*i0")]),
        (1, 2, "interleaved", [("cores", "3 + 1*i0")]),
        (1, 1, "contiguous", [("cores", "4")]),  # the first core's last row is the second one's border
        (0, 1, "contiguous", []),
    ],
)
def test_a_piece_waits_for_the_pieces_under_its_window(border, stride, by, found):
    """16 rows, two to a piece: eight pieces, on two cores four each."""
    first, second, third = maps(3)
    one, _, _ = nest(first, second, 2, by=by)
    two, load, _ = nest(second, third, 2, border=border, stride=stride, by=by)
    program_of(first, second, third, one, two)
    whole = [wait for wait in waits_of(load) if wait[0] == "cores"]
    assert whole == found


def test_the_oracle_sees_a_wait_that_is_for_too_little():
    first, second, third = maps(3)
    one, _, _ = nest(first, second, 2)
    two, load, _ = nest(second, third, 2, border=1)
    program = program_of(first, second, third, one, two)
    (wait, *others) = (w for w in load.waits.data if w.scope == "cores")
    assert not others
    load.set_waits((replace(wait, value=wait.value - 1),))
    with pytest.raises(AssertionError, match="race of"):
        check(program, 1, 2)


def test_a_piece_overwrites_when_its_readers_are_done():
    """The last nest makes the first map again: row by row behind the one that has read it."""
    first, second, third = maps(3)
    loops = [nest(third, first, 2), nest(first, second, 2, border=1), nest(third, first, 2)]
    program_of(first, second, third, *(loop for loop, _, _ in loops))
    put = loops[-1][2]
    # four loads of the second nest, and in the same slot the four of the first before them
    assert [wait for wait in waits_of(put) if wait[0] == "cores"] == [("cores", "6 + 1*i0")]


def test_parts_of_a_map_by_two_makers_are_not_ordered():
    """Two halves of a map, as of a concatenation, and a reader of the second alone."""
    halves, other = maps(2)
    tiles = [AllocOp("nram", 1024, 2) for _ in range(3)]

    def half(start, tile, **how):
        at = Affine(start, (2,), core=4)
        views = {"src_view": packed([1, 2, WIDE]), "dst_view": map_view(at)}
        return CopyOp(tile, halves, engine="mvdma", **views, **rows_of(at, 2), **how)

    puts = [half(0, tiles[0]), half(8, tiles[1])]
    at = Affine(8, (2,), core=4)
    take = CopyOp(
        halves, tiles[2], engine="mvdma", src_view=map_view(at), dst_view=packed([1, 2, WIDE]), **rows_of(at, 2)
    )
    loops = [RepeatOp(2, Region(Block([tile, op]))) for tile, op in zip(tiles, [*puts, take], strict=True)]
    program_of(halves, other, *loops)
    assert [waits_of(op) for op in (*puts, take)] == [[], [], []]


@pytest.mark.parametrize(
    ("wanted", "most", "counts", "found"),
    [
        ((-3, -2, -1, 0), ZERO, (4,), "-3 + 1*i0"),
        ((-3, -3, -1, -1), ZERO, (4,), "-3 + 1*i0"),
        ((-4, -4, -4), ZERO, (3,), "-4"),
        ((0, 0, 0), ZERO, (3,), "0"),
        ((NOTHING, NOTHING, 0), ZERO, (3,), "-18 + 9*i0"),  # only the last one needs anything
        ((-5, -4, -3, -2, -1, 0), ZERO, (2, 3), "-5 + 3*i0 + 1*i1"),
        ((0, -2), ZERO, (2,), "-2*i0"),
        ((-2, -1, 0, 0), ZERO, (4,), "0"),  # nothing affine is 0 at the end
        ((-2, -1, 0, 0), Affine(0, (1,)), (4,), "-2 + 1*i0"),  # the consumer's own signals are there to wait for
        ((-1, -1, 0, 0), Affine(0, (1,)), (4,), "-1 + 1*i0"),
    ],
)
def test_thresholds_are_the_tightest_affine_ones(wanted, most, counts, found):
    value = least_count(wanted, NOTHING, most, counts).value
    for index, least in zip(product(*map(range, counts)), wanted, strict=True):
        assert value.at(index) <= most.at(index) and (value.at(index) >= least or least == NOTHING)
    assert str(value) == found
