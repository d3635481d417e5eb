"""`frustum-fills-ahead`: the next layer's weights in front of a layer's stores; right numbers, no race."""

from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
from happens_before import check
from networks import Net
from stops import executable, machine_of, modules_at_stops, run_module
from xdsl.context import Context

from frustum.backend import fills_ahead
from frustum.backend.early_weights import Refused
from frustum.backend.fills_ahead import FillsAhead, HeldWhole
from frustum.backend.memory.allocation import Allocate
from frustum.backend.pipeline import Choices
from frustum.backend.waits.schedule import Schedule
from frustum.dialects.isa.instruction import attribute_of, integer
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Affine
from frustum.dialects.isa.sync import ProgramOp, RepeatOp
from frustum.passes.lower import weight_slots as ws
from frustum.runtime.machine import Machine
from frustum.runtime.time.timeline import simulate

IDLE = 1e9


def wide(*, size=14, outputs=(256, 256, 512, 64)):
    """Layers with little to compute for their weights, channels shared out to the cores."""
    net = Net(seed=5)
    x = net.input(1, 32, size, size)
    for channels in outputs:
        x = net.conv(x, channels, 1, pads=(0, 0, 0, 0), act="relu")
    return net.module(x)


def lowered(machine, network=wide):
    module, inputs = network()
    return modules_at_stops(module, machine, Choices(dtype="f16"))["lowered"], inputs


@pytest.fixture
def eager(monkeypatch):
    """Small networks have nothing to wait for: queues count as idle, and weights as loaded."""
    sites = fills_ahead._Program.sites.func
    idle = cached_property(lambda program: [replace(site, idle=IDLE) for site in sites(program)])
    idle.__set_name__(fills_ahead._Program, "sites")
    monkeypatch.setattr(fills_ahead._Program, "sites", idle)
    monkeypatch.setattr(fills_ahead._Program, "is_possible", lambda self, child, site: True)


def fixed(module, *passes):
    """The module from `lowered` to `fixed`, with these passes before buffers have places."""
    found = module.clone()
    for step in (*passes, Allocate(), Schedule()):
        step.apply(Context(), found)
    return found


def program_of(module):
    (program,) = [op for op in module.walk() if isinstance(op, ProgramOp)]
    return program


def moved(program):
    """Copies to WRAM in front of a core's store to SRAM in a body of another layer."""
    found = []
    for op in program.walk():
        is_store = isinstance(op, CopyOp) and op.engine.data == "mvdma" and op.dst.type.memory == "sram"
        before = op.prev_op
        while is_store and (isinstance(before, CopyOp | RepeatOp)):
            copies = [each for each in before.walk() if isinstance(each, CopyOp) and each.dst.type.memory == "wram"]
            found += [each for each in copies if each.layer != op.layer]
            before = before.prev_op
    return found


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize(("cores", "size"), [(4, 14), (16, 14), (16, 20)])
def test_weights_go_to_the_cores_before_they_store_and_right(cores, size, eager):
    module, inputs = lowered(machine_of(cores), lambda: wide(size=size))
    early, late = fixed(module, FillsAhead()), fixed(module)
    assert moved(program_of(early)) and not moved(program_of(late))
    found, expected = (run_module(each, inputs, checked=True) for each in (early, late))
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name])


def test_dram_moves_the_same_bytes(eager):
    machine = machine_of(16)
    module, _ = lowered(machine)
    lines = [timeline(executable(fixed(module, *passes)), machine) for passes in ((FillsAhead(),), ())]
    early, late = (int(line.engine_bytes[[name.kind == "gdma" for name in line.engines]].sum()) for line in lines)
    assert early == late > 0


def timeline(made, machine):
    return simulate(Machine(made).expanded, machine, made.code.page_bytes)


def test_every_conflict_is_ordered(eager):
    machine = machine_of(4)
    module, _ = lowered(machine, lambda: wide(size=8, outputs=(64, 128, 64)))
    program = program_of(fixed(module, FillsAhead()))
    assert moved(program)
    check(program, machine.chip.clusters, machine.cluster.cores)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("memory", ["wram", "sram"])
def test_without_room_nothing_moves(memory, eager):
    machine = machine_of(16)
    module, _ = lowered(machine)
    program = program_of(module.clone())
    before, work = str(program), fills_ahead._Program(program, machine)
    assert list(work.chosen())
    work.room[memory] = 1 << 10
    work.run()
    assert str(program) == before


def test_queues_that_are_never_idle_stay_as_they_are(monkeypatch, eager):
    machine = machine_of(16)
    module, _ = lowered(machine)
    work = fills_ahead._Program(program_of(module), machine)
    assert list(work.chosen())
    for site in work.sites:
        site.idle = 0.0
    assert not list(work.chosen())


def boxed(op, **changes):
    """Give a copy another box."""
    op.properties["box"] = attribute_of(replace(op.box.data, **changes))


def not_for_all(flow):
    del flow.load.properties["multicast"]


def with_a_limit(flow):
    boxed(flow.fill, limit=(None, None, Affine(1), None))


def with_fewer_passes(flow):
    loop = flow.fill.parent_op()
    loop.properties["count"] = integer(loop.count.value.data - 1)


def backwards(flow):
    view = flow.load.src_view.data
    flow.load.properties["src_view"] = attribute_of(replace(view, strides=(-view.strides[0], *view.strides[1:])))


REFUSED = [
    (not_for_all, "they are no pieces of what all clusters have"),
    (with_a_limit, "they are no pieces of what all clusters have"),
    (with_fewer_passes, "pieces behind the last one are not empty"),
    (backwards, "they lie backwards"),
]


@pytest.mark.parametrize(("change", "why"), REFUSED)
def test_what_is_not_held_whole_stays_where_it_is(change, why, wide_lowered):
    program = program_of(wide_lowered.clone())
    found = [each for each in ws.flows(program) if each and each.fill.engine.data == "mvdma"]
    flow = max(found, key=lambda each: HeldWhole(each, machine_of(16)).count)
    assert HeldWhole(flow, machine_of(16)).count > 2
    change(flow)
    with pytest.raises(Refused, match=why):
        HeldWhole(flow, machine_of(16))


@pytest.fixture(scope="module")
def wide_lowered():
    return lowered(machine_of(16))[0]
