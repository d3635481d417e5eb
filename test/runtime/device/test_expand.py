"""Expansion: which instances run, in which order, with which numbers."""

import random

import numpy as np
import pytest

from frustum.dialects.isa import program as p
from frustum.runtime.device.expand import DRAM, NRAM, SRAM, expand

A = p.Affine


def mark(number, stage=0):
    """An instruction that can be told from others."""
    return p.Hold(engine="vector", layer=number, stage=stage)


def plain_order(body, indices=(), count=None):
    """(mark, indices) in program order, pass by pass as the contract says it."""
    last = 0 if count is None else max((child.stage for child in body), default=0)
    for t in range((count or 1) + last):
        for child in body:
            i = t - child.stage
            if count is not None and not 0 <= i < count:
                continue
            inner = indices if count is None else (*indices, i)
            if isinstance(child, p.Repeat):
                yield from plain_order(child.body, inner, child.count)
            else:
                yield child.layer, inner


def random_body(rng, depth, names):
    body = []
    for _ in range(rng.randint(1, 3)):
        stage = rng.randint(0, 2)
        if depth < 3 and rng.random() < 0.5:
            body.append(p.Repeat(rng.randint(1, 3), random_body(rng, depth + 1, names), stage))
        else:
            body.append(mark(next(names), stage))
    return tuple(body)


@pytest.mark.parametrize("seed", range(20))
def test_program_order_is_that_of_walking_the_loops(seed):
    body = random_body(random.Random(seed), 0, iter(range(1000)))
    expanded = expand(p.Program(body), 1, 1)
    rows = expanded.core
    depths = {layer: len(indices) for layer, indices in plain_order(body)}
    found = []
    for table, row in expanded.in_order():
        layer = expanded.instructions[table.static[row]].layer
        found.append((layer, tuple(table.index[row, : depths[layer]].tolist())))
    assert found == list(plain_order(body))
    assert rows.seq.tolist() == list(range(len(found)))


def one_copy(box, src=None, dst=None, **other):
    src = src or p.View("f32", A(), (0, 0, 0, 4), "sram")
    dst = dst or p.View("f32", A(), (0, 0, 0, 4), "nram")
    return p.Copy(**{"engine": "mvdma", "src_view": src, "dst_view": dst, "box": box, **other})


def line(start, extent, bound, limit=None):
    """A box of one dimension, d3."""
    one = p.Span(A(), 1, 1)
    return p.Box.of(one, one, one, p.Span(start, extent, bound, limit))


def test_clipping_moves_addresses_and_shortens_extents():
    """Three cores share [-2, 10) of a map of 9 in fours: [0, 2), [2, 6), [6, 9)."""
    copy = one_copy(line(A(-2, core=4), 4, 9), dst=p.View("f32", A(100), (0, 0, 0, 8), "nram"))
    rows = expand(p.Program((copy,)), 1, 3).core
    assert rows.lower[3, 0].tolist() == [0, 2, 6]
    assert rows.extent[3, 0].tolist() == [2, 4, 3]
    assert rows.address[0, 0].tolist() == [8, 0, 0]
    assert rows.address[1, 0].tolist() == [116, 100, 100]


def test_fill_keeps_what_lies_outside_the_bound_but_not_beyond_the_limit():
    copy = one_copy(line(A(-2, core=4), 4, 9, A(11)), fill=0.0)
    rows = expand(p.Program((copy,)), 1, 4).core
    assert rows.extent[3, 0].tolist() == [4, 4, 4, 1]
    assert rows.read[3, 0].tolist() == [2, 4, 3, 0]
    assert rows.low[3, 0].tolist() == [2, 0, 0, 0]
    assert rows.high[3, 0].tolist() == [0, 0, 1, 1]


def test_an_empty_box_is_an_inactive_unit_that_still_has_its_row():
    copy = one_copy(line(A(0, core=4), 4, 6), waits=(p.Wait(0, "own", A(3, core=1)),), signal=1)
    rows = expand(p.Program((copy,)), 1, 3).core
    assert rows.active[0].tolist() == [True, True, False]
    assert rows.wait[0, 0].tolist() == [3, 4, 5]


def test_rings_count_iterations_over_all_loops_around_the_buffer():
    view = p.View("f32", A(64), (0, 0, 0, 4), "nram", p.Ring(3, 1000, 2))
    loops = p.Repeat(2, (p.Repeat(2, (p.Repeat(2, (one_copy(line(A(), 1, 1), dst=view),)),)),))
    rows = expand(p.Program((loops,)), 1, 1).core
    assert rows.address[1, :, 0].tolist() == [64, 64, 1064, 1064, 2064, 2064, 64, 64]


def test_places_say_which_memory_of_its_kind():
    dram = p.View("f32", A(), (0, 0, 0, 4), "dram")
    sram = p.View("f32", A(), (0, 0, 0, 4), "sram")
    box = line(A(), 4, 4)
    body = (
        one_copy(box),
        one_copy(box, dram, sram, engine="gdma", multicast=True),
        one_copy(box, sram, engine="bus"),
        one_copy(box, sram, sram, engine="cdma", peer=A(1, cluster=-1)),
    )
    expanded = expand(p.Program(body), 2, 2)
    assert expanded.memory[:, :2].tolist() == [[SRAM, NRAM], [DRAM, SRAM], [SRAM, NRAM], [SRAM, SRAM]]
    assert expanded.copies[:, 1].tolist() == [1, 2, 2, 1]
    assert expanded.core.place[:2, 0].tolist() == [[0, 0, 1, 1], [0, 1, 2, 3]]
    assert expanded.cluster.takes_part.tolist() == [[True, False], [True, True], [True, True]]
    assert expanded.cluster.place[1].tolist()[1:] == [[0, 2], [1, 0]]


def test_windows_of_clipped_outputs():
    """A kernel of 3 with stride 2 and pad 1 over a map of 7: outputs [0, 4) in tiles of 2 by core; the last tile
    is cut by the limit to one output."""
    one = p.Span(A(), 1, 1)
    start = A(0, core=2)
    view = p.View("f32", A(), (0, 0, 0, 4), "nram")
    pool = p.Pool(
        kind="max", in_view=view, out_view=view, box=p.Box.of(one, one, one, p.Span(start, 2, 4, A(3))),
        rows=one, cols=p.Span(start * 2 - 1, 5, 7), kernel=(1, 3), strides=(1, 2), dilations=(1, 1),
    )  # fmt: skip
    rows = expand(p.Program((pool,)), 1, 2).core
    assert rows.origin[3, 0].tolist() == [0, 3]
    assert rows.read[3, 0].tolist() == [4, 3]
    assert rows.low[3, 0].tolist() == [1, 0]
    assert rows.high[3, 0].tolist() == [0, 0]
    assert rows.address[0, 0].tolist() == [4, 0]


def test_accumulators_start_and_end_with_their_loop():
    view = p.View("f32", A(), (0, 0, 0, 4), "nram")
    fold = p.Reduce(kind="sum", in_view=view, out_view=view, box=line(A(), 1, 1), axes=(3,), accumulate=1)
    rows = expand(p.Program((p.Repeat(2, (p.Repeat(3, (fold,)),)),)), 1, 1).core
    assert rows.is_first.tolist() == [True, False, False] * 2
    assert rows.is_last.tolist() == [False, False, True] * 2


def test_nothing_expands_to_nothing():
    expanded = expand(p.Program(()), 2, 2)
    assert len(expanded.core) == len(expanded.cluster) == 0
    assert not list(expanded.in_order())
    assert isinstance(expanded.core.of(0), np.ndarray)
