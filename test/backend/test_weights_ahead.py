"""`frustum-weights-ahead`: weights of late layers in WRAM early, by IODMA and in turns; right numbers, no race."""

from dataclasses import replace

import numpy as np
import pytest
from happens_before import check
from networks import Net
from stops import executable, machine_of, modules_at_stops, run_module
from xdsl.context import Context

from frustum.backend import weights_ahead
from frustum.backend.early_weights import Refused, programs_of
from frustum.backend.memory.allocation import Allocate
from frustum.backend.pipeline import Choices
from frustum.backend.waits.schedule import Schedule
from frustum.backend.weights_ahead import FirstPieces, Share
from frustum.dialects.isa.instruction import attribute_of
from frustum.dialects.isa.operations import ConvOp, CopyOp
from frustum.dialects.isa.program import Affine
from frustum.dialects.isa.sync import ProgramOp
from frustum.dialects.module import TURNS
from frustum.passes.lower import weight_slots as ws
from frustum.runtime.machine import Machine
from frustum.runtime.time.timeline import simulate


def late_weights(*, maps=3, dense=(160, 200, 96)):
    """Convolutions of a map first, then layers with many weights for few positions."""
    net = Net(seed=3)
    x = net.input(1, 16, 28, 28)
    for _ in range(maps):
        x = net.conv(x, 32, 3, act="relu")
    x = net.conv(net.pool("max", x, 4, 4), 64, 3, strides=(2, 2), act="relu")
    for outputs in dense:
        x = net.conv(x, outputs, 4 if outputs == dense[0] else 1, pads=(0, 0, 0, 0), act="relu")
    return net.module(x)


def early_copies(module):
    """The copies that take turns, and the program."""
    (program,) = [op for op in module.walk() if isinstance(op, ProgramOp)]
    return program, [op for op in program.walk() if isinstance(op, CopyOp) and TURNS in op.attributes]


def with_memory(machine, wram_bytes):
    core = machine.core
    core = replace(core, wram=replace(core.wram, capacity_bytes=wram_bytes))
    cluster = replace(machine.cluster, core=core)
    return replace(machine, chip=replace(machine.chip, cluster=cluster))


@pytest.mark.slow
@pytest.mark.soak(but=1)
@pytest.mark.parametrize("cores", [1, 4, 16])
def test_late_weights_are_loaded_early_and_right(cores):
    module, inputs = late_weights()
    stops = modules_at_stops(module, machine_of(cores), Choices(dtype="f16"))
    plain = stops["lowered"]
    _, copies = early_copies(stops["fixed"])
    assert copies and all(copy.engine.data == "iodma" for copy in copies)
    found = run_module(stops["fixed"], inputs, checked=True)
    expected = run_module(without(plain), inputs, checked=True)
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name])


def without(lowered):
    """The module fixed with all weights on their way through SRAM."""
    module = lowered.clone()
    Allocate().apply(Context(), module)
    Schedule().apply(Context(), module)
    return module


@pytest.mark.slow
def test_dram_moves_the_same_bytes_and_few_cores_load_at_a_time():
    machine, (module, _) = machine_of(16), late_weights()
    stops = modules_at_stops(module, machine, Choices(dtype="f16"))
    lines = [timeline(executable(each), machine) for each in (stops["fixed"], without(stops["lowered"]))]
    early, late = (sum(line.engine_bytes[from_dram(line)]) for line in lines)
    assert early == late > 0
    line = lines[0]
    static = line.queues.static  # -1: the fetch at the start
    iodma = np.array([*(i.engine == "iodma" for i in line.expanded.instructions), False])[static]
    busy = iodma & (line.times.end > line.times.start)
    at_a_time = 16 // (16 * 16 // 102)  # as many turns as leave the port full
    assert len(set(line.queues.engine[busy])) == 16
    for start in line.times.start[busy]:
        running = busy & (line.times.start <= start) & (start < line.times.end)
        assert len(set(line.queues.engine[running])) <= at_a_time


def timeline(made, machine):
    return simulate(Machine(made).expanded, machine, made.code.page_bytes)


def from_dram(line):
    """The engines that move between DRAM and memories on chip."""
    return [name.kind in ("gdma", "iodma") for name in line.engines]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Small networks are over before their weights would be there in time."""
    monkeypatch.setattr(weights_ahead, "SURE", 100.0)


@pytest.mark.slow
@pytest.mark.parametrize(("sure", "wram_bytes", "count"), [(100.0, 1 << 20, 2), (100.0, 16384, 1), (0.0, 1 << 20, 0)])
def test_weights_that_would_be_late_or_have_no_room_stay(sure, wram_bytes, count, monkeypatch):
    """Those that cores share stay always: of four layers with weights of more than `LEAST_BYTES` two have their own."""
    monkeypatch.setattr(weights_ahead, "SURE", sure)
    monkeypatch.setattr(weights_ahead, "FIRST", 0.0)
    module, _ = late_weights()
    machine = with_memory(machine_of(16), wram_bytes)
    _, copies = early_copies(modules_at_stops(module, machine, Choices(dtype="f16"))["fixed"])
    assert len(copies) == count


@pytest.mark.slow
@pytest.mark.parametrize("cores", [2, 4])
def test_every_conflict_is_ordered(cores):
    machine = machine_of(cores)
    module, _ = late_weights(maps=1, dense=(64, 32))
    stops = modules_at_stops(module, machine, Choices(dtype="f16"))
    program, copies = early_copies(stops["fixed"])
    assert copies
    check(program, machine.chip.clusters, machine.cluster.cores)


def large(*, size=14, outputs=96):
    """A layer of few positions and many inputs, which come in chunks."""
    net = Net(seed=4)
    x = net.conv(net.input(1, 16, size, size), 32, 3, act="relu")
    x = net.conv(x, outputs, size, pads=(0, 0, 0, 0), act="relu")
    return net.module(x)


@pytest.fixture
def in_part(monkeypatch):
    """Shares count as late, and time as enough for their first pieces."""
    monkeypatch.setattr(weights_ahead, "SURE", 0.0)
    monkeypatch.setattr(weights_ahead, "FIRST", 100.0)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 16])
def test_first_pieces_of_a_large_layer_wait_and_sums_are_right(cores, in_part):
    module, inputs = large()
    machine = with_memory(machine_of(cores), 1 << 17)
    stops = modules_at_stops(module, machine, Choices(dtype="f16"))
    _, (copy,) = early_copies(stops["fixed"])
    readers = {use.operation for use in copy.dst.uses if use.operation is not copy}
    (reader,) = readers
    loop = reader.parent_op()
    others = [op for op in loop.walk() if isinstance(op, ConvOp) and op is not reader]
    assert len(others) == 1 and copy.parent_op().count.value.data < loop.count.value.data
    found = run_module(stops["fixed"], inputs, checked=True)
    expected = run_module(without(stops["lowered"]), inputs, checked=True)
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name])
    lines = [timeline(executable(each), machine) for each in (stops["fixed"], without(stops["lowered"]))]
    early, late = (sum(line.engine_bytes[from_dram(line)]) for line in lines)
    assert early == late > 0


def test_conflicts_of_first_pieces_are_ordered(in_part):
    machine = with_memory(machine_of(4), 1 << 15)
    module, _ = large(size=6, outputs=64)
    program, copies = early_copies(modules_at_stops(module, machine, Choices(dtype="f16"))["fixed"])
    assert copies
    check(program, machine.chip.clusters, machine.cluster.cores)


def of_cores(module):
    """The flows of a lowered module whose weights each core copies for itself."""
    (program,) = programs_of(module)
    return [flow for flow in ws.flows(program) if flow is not None and flow.fill.engine.data == "mvdma"]


def limited(op, d):
    limit = list(op.box.data.limit)
    limit[d] = Affine(1)
    op.properties["box"] = attribute_of(replace(op.box.data, limit=tuple(limit)))


def with_runs(machine, run_bytes):
    """A machine whose DRAM serves shorter runs no faster."""
    dram = replace(machine.chip.dram, minimum_run_bytes=run_bytes)
    return replace(machine, chip=replace(machine.chip, dram=dram))


def test_why_weights_stay_on_their_way_through_sram(monkeypatch):
    machine = machine_of(4)
    module = modules_at_stops(late_weights(maps=1)[0], machine, Choices(dtype="f16"))["lowered"]
    flow = of_cores(module)[0]
    share = Share(flow, machine)
    with pytest.raises(Refused, match="runs in DRAM are too short"):
        Share(flow, with_runs(machine, 1 << 20))
    with pytest.raises(Refused, match="pieces are needed more than once"):  # by several clusters
        Share(flow, machine_of(16))
    monkeypatch.setattr(weights_ahead, "LEAST_BYTES", share.bytes)
    assert Share(flow, machine).bytes == share.bytes
    monkeypatch.setattr(weights_ahead, "LEAST_BYTES", share.bytes + 1)
    with pytest.raises(Refused, match="they are few"):
        Share(flow, machine)
    limited(flow.fill, 2)
    with pytest.raises(Refused, match="there is no loop left for turns, or no limit"):
        Share(flow, machine)


def test_why_no_first_pieces_wait():
    machine = machine_of(4)
    module = modules_at_stops(late_weights(maps=1)[0], machine, Choices(dtype="f16"))["lowered"]
    share = Share(of_cores(module)[0], machine)
    assert FirstPieces(share, 1).bytes == share.piece_bytes < share.bytes
    (user,) = share.users
    limited(user, 0)
    with pytest.raises(Refused, match="there is no limit left"):
        FirstPieces(share, 1)
    share.users.append(user)
    with pytest.raises(Refused, match="there is no one loop of pieces"):
        FirstPieces(share, 1)
