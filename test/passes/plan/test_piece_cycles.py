"""The cycle model of pieces: copies by walking the loops, cycles by hand, and layers alone against the emulator."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import Net
from stops import executable, modules_at_stops, target

from frustum.backend.pipeline import Choices
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.project import project, tile_counts, unit_layers
from frustum.passes.plan import pieces as plan
from frustum.passes.plan.layer_work import work_of
from frustum.passes.plan.model import PIECE_CYCLES
from frustum.passes.plan.piece_cycles import (
    Loops,
    Moves,
    Nest,
    clipped,
    copy_cycles,
    load_cycles,
    moves,
    nest_cycles,
    predicted_cycles,
)
from frustum.runtime.machine import Machine

MIB = 1 << 20
FAST = 1 << 14  # bytes per cycle
OF_CORE = ("mvdma", "matrix", "vector")
TOLERANCE, STRIDED = 0.04, 0.08
"""Of the emulator's cycles: more than this the model must not be off for a layer alone; strided products are bounds."""


def ints(*values):
    return np.asarray(values, np.int64)


def walked(counts, by, *, is_stored):
    """(copies, restarts) of what the loops `by` move, found by walking all passes of a nest.

    A copy stands in the body of the last of these loops that has several passes; a run of that loop is one start.
    For a result behind loops inside that one every copy is waited for by their next run.
    """
    running = [k for k in by if counts[k] > 1]
    if not running:
        return 1, 1
    place = max(running)
    passes = list(itertools.product(*map(range, counts)))
    copies = len({index[: place + 1] for index in passes})
    is_inside = any(count > 1 for count in counts[place + 1 :])
    return copies, copies if is_stored and is_inside else len({index[:place] for index in passes})


@given(st.data(), st.booleans())
def test_copies_are_those_of_a_walk(data, is_stored):
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    by = data.draw(st.sets(st.integers(0, len(counts) - 1)))
    found = moves(Loops.of([ints(c) for c in counts]), by, is_stored=is_stored)
    assert (int(found.times[0]), int(found.restarts[0])) == walked(counts, by, is_stored=is_stored)


def test_copies_of_many_nests_are_those_of_each():
    counts = [ints(1, 2, 4), ints(3, 1, 2), ints(5, 2, 1)]
    together = moves(Loops.of(counts), (0, 1))
    for k in range(3):
        alone = moves(Loops.of([c[k : k + 1] for c in counts]), (0, 1))
        assert (together.times[k], together.restarts[k]) == (alone.times[0], alone.restarts[0])


@pytest.mark.parametrize(
    ("size", "run", "cores", "cycles"),
    [
        (1280, 1280, 1, 10),  # 128 bytes per cycle of the engine
        (1281, 1281, 1, 11),
        (1280, 1280, 4, 20),  # four at 256 bytes per cycle of the port
        (1280, 4, 1, 20),  # runs of 4 bytes take the port as long as 16
        (1280, 0, 1, 80),  # an empty run counts as a byte
    ],
)
def test_a_copy_takes_the_slower_of_engine_and_port(size, run, cores, cycles):
    assert copy_cycles(target("df"), ints(size), ints(run), cores) == cycles


@pytest.mark.parametrize(("size", "run", "cycles"), [(800, 800, 100), (801, 801, 101), (800, 16, 400)])
def test_a_load_from_dram_pays_for_short_runs(size, run, cycles):
    assert load_cycles(target("df"), ints(size), ints(run)) == cycles


LATENCY = 4 + 1  # of SRAM and NRAM of df


@pytest.mark.parametrize(
    ("compute", "copy", "cycles"),
    [
        # in four pieces, loaded and stored; what is loaded first and stored last shows
        (4000, 10, 4000 + 2 * (10 + LATENCY)),
        # the copies take longer: in their time the first piece is not computed
        (400, 200, 2 * 4 * 200 + 400 // 4 + LATENCY),
        # from the third piece on a piece waits for room: of two pieces a copy, computing and their latencies follow
        (400, 50, 400 + 2 * (50 + LATENCY) + 2 * ((100 + LATENCY + 2 * 50) // 2 - 100)),
    ],
)
def test_a_nest_takes_the_longer_of_computing_and_copying(compute, copy, cycles):
    once = Moves(ints(4), ints(1))
    nest = Nest(ints(compute), ints(4), [(once, ints(copy)), (once, ints(copy))])
    assert predicted_cycles(target("df"), nest) == cycles


def test_every_restart_shows():
    loads, stores = Moves(ints(6), ints(3)), Moves(ints(6), ints(1))
    nest = Nest(ints(6000), ints(6), [(loads, ints(20)), (stores, ints(0))])
    assert predicted_cycles(target("df"), nest) == 6000 + 3 * (20 + LATENCY)


def test_by_the_bus_the_first_copy_alone_shows():
    maps, stores = Moves(ints(6), ints(3)), Moves(ints(6), ints(1), is_stored=True)
    nest = Nest(ints(6000), ints(6), [(stores, ints(10))], [(maps, ints(20))])
    assert predicted_cycles(target("df"), nest) == 6000 + (20 + LATENCY) + (10 + LATENCY)


def test_searches_count_something_for_each_piece():
    nest = Nest(ints(400), ints(4), [(Moves(ints(4), ints(1)), ints(10))])
    assert nest_cycles(target("df"), nest) == 400 + 10 + LATENCY + 4 * PIECE_CYCLES


def test_what_came_before_does_not_show():
    weights, stores = Moves(ints(1, 1), ints(1, 1)), Moves(ints(2, 2), ints(1, 1), is_stored=True)
    nest = Nest(ints(500, 600), ints(2, 2), [(weights, ints(70, 70)), (stores, ints(10, 10))])
    found = [predicted_cycles(target("df"), nest.of(1, before=before)).item() for before in (None, weights)]
    assert found == [600 + (70 + LATENCY) + (10 + LATENCY), 600 + 10 + LATENCY]


CHUNK = 4096


@pytest.mark.parametrize(
    ("copy", "wait"),
    [
        (CHUNK // 16, 0),  # one whole chunk: cores take turns
        (CHUNK // 16 + 64, 4 * 64 * 16 // 64),  # of the rest, four stand behind each other
    ],
)
def test_last_chunks_of_all_cores_stand_behind_each_other(copy, wait):
    once = Moves(ints(8), ints(1))
    cores, (each, latency) = 4, (10, 10 + 2)
    nest = Nest(ints(8 * each), ints(8), [(once, ints(copy))])
    assert predicted_cycles(target("edge"), nest) == 8 * copy + 7 * wait + each + latency
    assert target("edge").cluster.cores == cores


@pytest.mark.parametrize(
    ("extent", "piece", "dealt", "pieces"),
    [
        (10, 4, 1, [(4, 2), (2, 1)]),
        (8, 4, 1, [(4, 1), (4, 1)]),
        (3, 3, 1, [(3, 0), (3, 1)]),
        (16, 4, 2, [(4, 1), (4, 1)]),  # the core with the most has whole ones only
        (3, 4, 2, [(4, 0), (3, 1)]),
    ],
)
def test_pieces_at_the_end_are_clipped(extent, piece, dealt, pieces):
    count = ints(math.ceil(math.ceil(extent / piece) / dealt))
    found = clipped(extent, ints(piece), count, dealt)
    assert [(int(size[0]), int(times[0])) for size, times in found] == pieces


def one_core():
    """`df` with SRAM and DRAM so large and fast that a layer is one tile, and only its nest takes time."""
    whole = target("df")
    engine = replace(whole.cluster.gdma, bytes_per_cycle=FAST)
    sram = replace(whole.cluster.sram, capacity_bytes=16 * MIB, port_bytes_per_cycle=FAST)
    dram = replace(whole.chip.dram, port_bytes_per_cycle=FAST, latency_cycles=1)
    cluster = replace(whole.cluster, sram=sram, gdma=engine)
    return replace(whole, chip=replace(whole.chip, dram=dram, cluster=cluster))


LAYERS = {
    "3x3": lambda n: n.conv(n.input(1, 32, 56, 56), 64),
    "3x3 of many channels": lambda n: n.conv(n.input(1, 192, 28, 28), 96),
    "5x5": lambda n: n.conv(n.input(1, 16, 56, 56), 32, 5),
    "1x1": lambda n: n.conv(n.input(1, 64, 56, 56), 128, 1),
    "1x1 of small maps": lambda n: n.conv(n.input(1, 256, 14, 14), 256, 1),
    "strided": lambda n: n.conv(n.input(1, 32, 56, 56), 64, strides=(2, 2)),
    "depthwise": lambda n: n.conv(n.input(1, 64, 56, 56), 64, groups=64),
    "in groups": lambda n: n.conv(n.input(1, 64, 28, 28), 128, groups=4),
    "max pool": lambda n: n.pool("max", n.input(1, 64, 56, 56)),
    "overlapping average": lambda n: n.pool("avg", n.input(1, 48, 56, 56), 3, 1, pads=(1, 1, 1, 1)),
    "sum": lambda n: n.binary("add", n.input(1, 64, 56, 56), n.input(1, 64, 56, 56)),
}


def modelled_and_counted(build, dtype):
    """Cycles of a layer's nest in all tiles, and those in which the core's engines were at work."""
    net = Net()
    module, _ = net.module(build(net))
    choices = Choices(policy="none", dtype=dtype)
    modules = modules_at_stops(module, one_core(), choices)
    (unit,) = [op for op in modules["tiled"].walk() if isinstance(op, UnitOp) and op.partition is not None]
    layers, partition = unit_layers(unit), unit.partition.data
    tiles = math.prod(tile_counts(layers.out.out_dims, partition, 1))
    ((op,), (layer,), (region,)) = layers.ops, layers.layers, project(layers, partition, 1).outputs
    submap = op.attributes["frustum.map"].data
    chosen = plan.plan_layer(work_of(layer, region.extent), one_core(), submap.weights, MAX_LOOPS)
    timeline = Machine(executable(modules["fixed"], choices)).run({}, mode="timing").timeline
    return tiles * chosen.own_cycles, span(timeline)


def span(timeline):
    """Cycles in which the core's engines are at work."""
    engines = np.repeat(np.arange(len(timeline.engines)), np.diff(timeline.queues.offsets))
    of_core = [k for k, engine in enumerate(timeline.engines) if str(engine).split(".")[-1] in OF_CORE]
    mine = np.isin(engines, of_core) & (timeline.times.end > timeline.times.start)
    return int(timeline.times.completion[mine].max() - timeline.times.start[mine].min())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_alone_takes_what_the_model_says(name, dtype):
    modelled, counted = modelled_and_counted(LAYERS[name], dtype)
    tolerance = STRIDED if name == "strided" else TOLERANCE
    assert abs(modelled - counted) <= tolerance * counted, (modelled, counted)
