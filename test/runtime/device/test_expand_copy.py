"""Copies that expand compressed blocks: against the plain machine, in checked mode, in bytes and in time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_cases import SIZES, load
from plain_machine import new_memories, run

from frustum.dialects.isa import program as p
from frustum.dialects.target import read_target
from frustum.dialects.weights import codec
from frustum.runtime.check.check import RaceError, check
from frustum.runtime.device.expand import expand
from frustum.runtime.device.functional import ExecutionPlan
from frustum.runtime.device.memory import DTYPES, AccessError
from frustum.runtime.report.counters import count
from frustum.runtime.time.timeline import simulate

A = p.Affine
CLUSTERS, CORES, PASSES = 2, 3, 2
FILE = Path(__file__).parents[3] / "backend" / "targets" / "default.yaml"
DEFAULT = read_target(FILE.read_text(), str(FILE))


def dense(shape, size):
    return tuple(int(np.prod(shape[d + 1 :])) * size for d in range(4))


@st.composite
def expansions(draw):
    """A copy, mvdma or bus, whose pieces of the second dimension are dealt to passes, clusters and cores, the last of
    them cut; and the pieces."""
    element = draw(st.sampled_from(["f32", "f16", "i8"]))
    size, engine = DTYPES[element].itemsize, draw(st.sampled_from(["mvdma", "bus"]))
    extent = tuple(draw(st.integers(1, 5)) for _ in range(4))
    cores = CORES if engine == "mvdma" else 1
    pieces = PASSES * CLUSTERS * cores
    bound = (extent[0], draw(st.integers(1, extent[1] * pieces)), *extent[2:])
    start = A(0, (extent[1] * CLUSTERS * cores,), extent[1] * cores, extent[1] if cores > 1 else 0)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    blocks = []
    for piece in range(pieces):
        inside = max(0, min(extent[1], bound[1] - piece * extent[1]))
        values = rng.integers(-3, 4, (extent[0], inside, *extent[2:])) * (rng.random() < 0.5)
        raw = values.astype(DTYPES[element]).reshape(-1).view(np.uint8)
        blocks.append(codec.compress(raw, size, draw(st.sampled_from(codec.CODECS))))
    slot = -(-max(map(len, blocks)) // 16) * 16
    order = draw(st.permutations(range(4)))
    packed = dense([extent[d] for d in order], size)
    strides = tuple(packed[order.index(d)] for d in range(4))
    copy = p.Copy(
        engine=engine, expand=slot, box=p.Box((A(), start, A(), A()), extent, bound),
        src_view=p.View(element, A(32, (slot * CLUSTERS * cores,), slot * cores, slot if cores > 1 else 0), (0,) * 4,
                        "sram"),
        dst_view=p.View(element, A(64, (4096,)), strides, draw(st.sampled_from(["wram", "nram"]))),
    )  # fmt: skip
    return copy, blocks


@pytest.mark.slow
@given(expansions(), st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_random_expansions_agree_with_the_plain_machine(case, seed):
    copy, blocks = case
    program = p.Program((p.Repeat(PASSES, (copy,)),))
    memories = new_memories(CLUSTERS, CORES, SIZES, np.random.default_rng(seed))
    for sram in memories["sram"]:
        for number, block in enumerate(blocks):
            sram[32 + number * copy.expand :][: len(block)] = block
    ours = load(memories, CLUSTERS, CORES)
    run(program, memories, CLUSTERS, CORES)
    ExecutionPlan(expand(program, CLUSTERS, CORES), ours.capacities).run(ours)
    for name, flat, units in zip(memories, ours.bytes, memories.values(), strict=True):
        np.testing.assert_array_equal(flat, np.concatenate(units), name)


# ------------------------------------------------------------------------------------------ one tensor, by hand

CHANNELS, PIECE = 64, 8
"""64 x 16 weights of one byte; pieces of 8 x 16, one after the other, each to all cores."""
WEIGHTS = np.where(np.arange(CHANNELS * 16) % 16 == 3, 7, 0).astype(np.uint8)
DATA, ENDS = codec.compress_all(WEIGHTS, np.arange(1, CHANNELS // PIECE + 1) * PIECE * 16, 1, "zero")
SLOTS = codec.in_slots(DATA, ENDS, 16)
SLOT = SLOTS.shape[1]
KNOWN = (p.External("w", "weight", 0, SLOTS.size, (CHANNELS, 16), "i8"),)
CAPACITIES = (4096, 1024, 1024, 1024)


def flat(start, extent, bound):
    one = p.Span(A(), 1, 1)
    return p.Box.of(one, one, one, p.Span(A.of(start), extent, bound))


def loaded(size=SLOTS.size):
    view, box = p.View("i8", A(), (0, 0, 0, 1), "dram"), flat(0, size, size)
    return p.Copy(engine="gdma", src_view=view, dst_view=replace(view, memory="sram"), box=box, signal=0)


def expanded(slot=SLOT, **other):
    one = p.Span(A(), 1, 1)
    box = p.Box.of(p.Span(A(0, (PIECE,)), PIECE, CHANNELS), p.Span(A(), 16, 16), one, one)
    return p.Copy(
        engine="bus", src_view=p.View("i8", A(0, (slot,)), (0,) * 4, "sram"), expand=slot, box=box,
        dst_view=p.View("i8", A(), (16, 1, 0, 0), "wram"), **other,
    )  # fmt: skip


def program(*body):
    return expand(p.Program(body, KNOWN, layers=("only",)), 1, 2)


def in_order(size=SLOTS.size, **other):
    wait = p.Wait(0, "own", A(1))
    return program(loaded(size), p.Repeat(8, (expanded(waits=(wait,), **other),)))


def test_the_slots_are_what_moves():
    found = count(in_order(), DEFAULT)
    assert SLOT == 32 and found.dram_bytes_by_class["weight"] == found.dram_read_bytes == SLOTS.size == 256
    assert found.peak_bytes == {"sram": 256, "nram": 0, "wram": PIECE * 16}
    per_byte = {name: found.energy_pj[name] / DEFAULT.memory(name).energy_pj_per_byte for name in ("sram", "wram")}
    assert per_byte == {"sram": 2 * 256, "wram": 2 * CHANNELS * 16}


def test_checked_mode_sees_slots():
    check(in_order(), CAPACITIES)
    with pytest.raises(AccessError, match=r"copy 1 .* by bus at loops \[7\] .* reads address 240 of sram"):
        check(in_order(size=240), CAPACITIES)
    with pytest.raises(RaceError, match=r"reads address 0 of sram .* which copy 0 .* writes"):
        check(program(loaded(), p.Repeat(8, (expanded(),))), CAPACITIES)
    with pytest.raises(AccessError, match=r"reads bytes \[192, 224\) of sram .* which has 200"):
        check(in_order(size=192), (4096, 200, 1024, 1024))


def with_ports(sram, wram):
    """The default target with ports of so many bytes a cycle, and none of the engines in their way."""
    cluster = DEFAULT.chip.cluster
    cluster = replace(
        cluster, sram=replace(cluster.sram, port_bytes_per_cycle=sram, minimum_run_bytes=1),
        core=replace(cluster.core, wram=replace(cluster.core.wram, port_bytes_per_cycle=wram, minimum_run_bytes=1)),
    )  # fmt: skip
    return replace(DEFAULT, chip=replace(DEFAULT.chip, cluster=cluster))


@pytest.mark.parametrize(
    ("sram", "wram", "cycles"),
    [
        (1, 1, 8 * 128),  # the expanded bytes at the port of the WRAM
        (1, 128, 8 * SLOT),  # the slots at the port of the SRAM
        (64, 128, 8 * 128 // 64),  # the engine: 64 bytes a cycle
    ],
)
def test_an_expansion_takes_as_long_as_its_slowest_port(sram, wram, cycles):
    target = with_ports(sram, wram)
    moved = program(p.Repeat(8, (expanded(),)))
    line = simulate(moved, target, ())
    busy = int((line.times.end - line.times.start).sum())
    assert target.cluster.bus.bytes_per_cycle == 64
    assert busy == cycles
