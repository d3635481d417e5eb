"""The figures of the emulator and those of `timing_model`, side by side, and programs to compare them on."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import strategies as st
from random_network import networks
from random_target import SHIPPED, random_target
from stops import aimed
from timed_programs import TimedPrograms
from timing_model import model

from frustum.backend.compile import fixed
from frustum.backend.executables import executable_of
from frustum.backend.pipeline import Choices, Run
from frustum.backend.targets import load
from frustum.dialects.isa.program import TableLoad, instructions
from frustum.dialects.isa.tables.stored_table import read_table
from frustum.dialects.target.fit import DoesNotFit
from frustum.runtime.device.expand import expand
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import CLASSES, count
from frustum.runtime.time.engine import DeadlockError
from frustum.runtime.time.timeline import simulate


def emulated(program, target, pages, expanded=None):
    """Figures of the emulator, under the names of the model's."""
    expanded = expanded or expand(program, target.chip.clusters, target.chip.cluster.cores)
    line = simulate(expanded, target, pages)
    counted = count(expanded, target, pages, line.tables)
    energy = {name: pj for name, pj in counted.energy_pj.items() if name != "total"}
    return {
        "total": line.total_cycles,
        "busy": by_engine(line, line.times.busy),
        "stalled": by_engine(line, line.times.stalled),
        "read": counted.dram_read_bytes,
        "written": counted.dram_write_bytes,
        "classes": counted.dram_bytes_by_class,
        "energy": energy,
        "steps": counted.compute_steps,
        "writes": counted.line_writes,
        "discarded": counted.discarded_windows,
        "macs": int(counted.layer_macs.sum()),
    }


def by_engine(line, values):
    return {
        (name.cluster, name.core, name.kind): int(cycles)
        for name, cycles in zip(line.engines, values, strict=True)
        if cycles
    }


def modelled(program, target, pages, parts=None):
    found = model(program, target, pages, parts)
    energy = found.energy_pj(target)
    del energy["total"]
    return {
        "total": found.total,
        "busy": {engine: cycles for engine, cycles in found.busy.items() if cycles},
        "stalled": {engine: cycles for engine, cycles in found.stalled.items() if cycles},
        "read": found.read["dram"],
        "written": found.written["dram"],
        "classes": {name: found.dram[name] for name in CLASSES},
        "energy": energy,
        "steps": found.steps,
        "writes": found.writes,
        "discarded": found.discarded,
        "macs": sum(found.macs.values()),
    }


def check_executable(executable, target):
    """With the address tables that the host writes into DRAM."""
    parts = {}
    for each in instructions(executable.program.body):
        if isinstance(each, TableLoad):
            address = each.src_view.offset.base
            table = read_table(_image(executable, address, each.bytes))
            extents = table.images, table.rows, table.columns, table.channels
            parts[address] = *extents, getattr(table, "groups", 1) > 1
    program, pages = executable.program, executable.code.page_bytes
    compare(modelled(program, target, pages, parts), emulated(program, target, pages, Machine(executable).expanded))


def _image(executable, address, size):
    """Bytes that the host writes into DRAM."""
    start, piece = max((start, number) for number, (start, _) in enumerate(executable.weights) if start <= address)
    return np.frombuffer(executable.weights[piece][1], np.uint8)[address - start :][:size]


def check_equal(program, target, pages):
    compare(modelled(program, target, pages), emulated(program, target, pages))


def compare(mine, theirs):
    for name in mine:
        if name == "energy":
            assert mine[name] == pytest.approx(theirs[name], rel=1e-12), name
        else:
            assert mine[name] == theirs[name], name


def hand_made(seed):
    """A program that nobody compiled, its machine, and the sizes of its pages of code."""
    random = Random(seed)
    target = random_target(random) if seed % 2 else load(random.choice(SHIPPED))
    drawn = TimedPrograms(seed, target.chip.clusters)
    return drawn.program(12), target, drawn.pages


def check_hand_made(seed):
    """Whether it runs to its end; where it does not, neither of both does."""
    program, target, pages = hand_made(seed)
    try:
        emulated(program, target, pages)
    except DeadlockError:
        with pytest.raises(AssertionError, match="deadlock"):
            model(program, target, pages)
        return False
    check_equal(program, target, pages)
    return True


WAYS = st.builds(
    Choices, dtype=st.sampled_from(["f32", "f16", "bf16"]),
    policy=st.sampled_from(["pyramid", "greedy", "template", "none"]),
    compression=st.sampled_from(["none", "none", "zero", "huffman"]), weights=st.sampled_from(["replicated", "shared"]),
)  # fmt: skip
COMPILED = st.tuples(networks(), st.one_of(st.sampled_from(SHIPPED), st.integers(0, 999)), WAYS)
"""A network, the name of a machine or the seed of one, and how it is compiled."""


def compiled(case):
    """The executable of a drawn network and its machine; None where it does not fit, or the machine lacks an engine."""
    network, where, choices = case
    target = load(where) if isinstance(where, str) else random_target(Random(where))
    try:
        return executable_of(fixed(aimed(network.module, target), choices, Run()), choices), target
    except DoesNotFit:
        return None
