"""Pieces over chips: which chip, when, and what moves between them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stops import target

from frustum.runtime.failures import UsageError
from frustum.runtime.model.chain import chips_of
from frustum.runtime.model.execution import HOST, PieceWork, schedule

MANYCORE = target("manycore")


def work(cycles, inputs=(), outputs=(), chip=0, size=800):
    return PieceWork(tuple(inputs), dict.fromkeys(outputs, size), cycles, chip)


def moved(size):
    """Engine and latency of a move, from the rule: chunks of 4 KiB at the rate of the slower of link and port."""
    dram, rate = MANYCORE.chip.dram, MANYCORE.chip_link_bytes_per_cycle
    whole, rest = divmod(size, MANYCORE.transfers.chunk_bytes)
    chunks = [MANYCORE.transfers.chunk_bytes] * whole + [rest] * (rest > 0)
    return sum(ceil(c / min(rate, dram.port_bytes_per_cycle)) for c in chunks), dram.latency_cycles


def test_placements():
    assert chips_of("one", 3, MANYCORE) == (0, 0, 0)
    assert chips_of("each", 6, MANYCORE) == (0, 1, 2, 3, 0, 1)
    assert chips_of("0,0,3", 3, MANYCORE) == (0, 0, 3)
    assert chips_of("each", 3, target("edge")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("two", "'two': it is one, each, or the number of a chip for every piece"),
        ("0,1", "is of 2 pieces, and there are 3"),
        ("0,1,4", "manycore has chips 0 to 3"),
        ("0,1,-1", "it is one, each, or"),
    ],
)
def test_placements_that_are_none(placement, message):
    with pytest.raises(UsageError, match=message):
        chips_of(placement, 3, MANYCORE)


def test_one_chip_runs_pieces_one_after_the_other():
    found = schedule([work(10, outputs="a"), work(20, "a", "b"), work(5, "b", "c")], MANYCORE)
    assert found.pieces == ((0, 10), (10, 30), (30, 35)) and not found.moves and found.total_cycles == 35


def test_a_value_on_another_chip_is_moved_before_its_piece_starts():
    found = schedule([work(10, outputs="a"), work(20, "a", "b", chip=1)], MANYCORE)
    engine, latency = moved(800)
    (move,) = found.moves
    assert (move.value, move.source, move.destination, move.size_bytes) == ("a", 0, 1, 800)
    assert (move.start, move.stop) == (10, 10 + engine + latency)
    assert found.pieces[1] == (move.stop, move.stop + 20) and found.moved_bytes == 800


def test_independent_pieces_on_different_chips_overlap():
    found = schedule([work(10, outputs="a"), work(20, outputs="b", chip=1), work(5, "ab", chip=1)], MANYCORE)
    engine, latency = moved(800)
    assert found.pieces[:2] == ((0, 10), (0, 20))
    assert found.pieces[2][0] == max(20, 10 + engine + latency)


def test_a_value_is_moved_once_to_each_chip_and_the_mover_takes_one_at_a_time():
    pieces = [work(10, outputs="ab", size=9000), *(work(1, "ab", chip=chip) for chip in (1, 1, 2))]
    found = schedule(pieces, MANYCORE)
    engine, latency = moved(9000)
    assert [(m.value, m.destination) for m in found.moves] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert [m.start for m in found.moves] == [10 + k * engine for k in range(4)]
    assert all(m.stop == m.start + engine + latency for m in found.moves)


def test_the_host_waits_for_the_link_and_its_results_cross_it_back():
    """Device, host, device: 800 B each way at 8 B/cycle; the DRAM port, at 25, is held for 32 of them."""
    found = schedule([work(10, outputs="a"), work(0, "a", "b", HOST), work(5, "b", "c")], MANYCORE)
    assert [(c.value, c.destination == HOST, c.start, c.stop) for c in found.crossings] == [
        ("a", True, 10, 110), ("b", False, 110, 210),
    ]  # fmt: skip
    assert found.pieces == ((0, 10), (110, 110), (210, 215)) and found.total_cycles == 215
    assert (found.crossing_bytes(to_host=True), found.crossing_bytes(to_host=False)) == (800, 800)
    assert (found.link_cycles, found.port_cycles, found.moved_bytes) == (200, 64, 0)


def test_what_needs_nothing_of_the_host_goes_on():
    pieces = [work(10, outputs="a"), work(0, "a", "b", HOST), work(70, "a", "c"), work(5, "bc", "d")]
    assert schedule(pieces, MANYCORE).pieces == ((0, 10), (110, 110), (10, 80), (210, 215))


def test_each_value_crosses_once_in_each_direction_and_other_chips_get_it_from_the_first():
    pieces = [
        work(10, outputs="a"), work(0, "a", "b", HOST), work(0, "ab", "c", HOST), work(1, "b", "d"), work(1, "b", "e"),
        work(1, "b", "f", chip=1),
    ]  # fmt: skip
    found = schedule(pieces, MANYCORE)
    assert [(c.value, c.source, c.destination) for c in found.crossings] == [("a", 0, HOST), ("b", HOST, 0)]
    assert [(m.value, m.source, m.destination) for m in found.moves] == [("b", 0, 1)]


def test_the_link_takes_the_first_gap_that_is_long_enough():
    """c is ready while the link is idle, though it is asked for after b."""
    pieces = [
        work(10, outputs="a"), work(500, "a", "b"), work(0, "b", "x", HOST), work(0, "a", "y", HOST), work(0, "y", "z"),
    ]  # fmt: skip
    found = schedule(pieces, MANYCORE)
    assert [(c.value, c.start) for c in found.crossings] == [("b", 510), ("a", 10), ("y", 110)]


def test_a_dram_that_is_slower_than_the_link_holds_it_up():
    slow = replace(MANYCORE, host_link_bytes_per_cycle=100)
    found = schedule([work(10, outputs="a"), work(0, "a", "b", HOST)], slow)
    assert found.pieces[1] == (10 + 32, 10 + 32)


@st.composite
def chains(draw):
    made, pieces = [], []
    for number in range(draw(st.integers(1, 7))):
        inputs = draw(st.lists(st.sampled_from(made), unique=True, max_size=3)) if made else []
        pieces.append(
            work(draw(st.integers(0, 50)), inputs, [f"v{number}"], draw(st.integers(0, 3)), draw(st.integers(1, 9999)))
        )
        made.append(f"v{number}")
    return pieces


@given(chains())
def test_nothing_starts_before_what_it_needs(pieces):
    found = schedule(pieces, MANYCORE)
    assert len(found.pieces) == len(pieces)
    arrivals = {(m.value, m.destination): m for m in found.moves}
    assert len(arrivals) == len(found.moves)
    makers = {name: number for number, piece in enumerate(pieces) for name in piece.outputs}
    for number, (piece, (start, stop)) in enumerate(zip(pieces, found.pieces, strict=True)):
        assert stop - start == piece.cycles
        for before in range(number):
            if pieces[before].chip == piece.chip:
                assert found.pieces[before][1] <= start
        for name in piece.inputs:
            maker = makers[name]
            made = found.pieces[maker][1]
            if pieces[maker].chip == piece.chip:
                assert made <= start and (name, piece.chip) not in arrivals
            else:
                move = arrivals[name, piece.chip]
                assert made <= move.start and move.stop <= start
    most = sum(p.cycles for p in pieces) + sum(m.stop - m.start for m in found.moves)
    assert max(p.cycles for p in pieces) <= found.total_cycles <= most
