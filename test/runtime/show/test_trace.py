"""A trace holds what the event log holds: read back from its bytes."""

from collections import Counter, defaultdict

import numpy as np
import onnx
import pytest
from mixed_models import model, node, sandwich

from frustum.runtime.machine import Machine
from frustum.runtime.show import drawing
from frustum.runtime.show.trace import BEGIN, COUNTER, END, trace_bytes
from frustum.runtime.time.event_log import event_log
from frustum.runtime.tools.cli import main

perfetto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="perfetto is not installed")


@pytest.fixture(scope="module")
def timeline(squeezenet):
    return Machine(squeezenet).run({}, mode="timing").timeline


@pytest.fixture(scope="module")
def trace(timeline):
    return parsed(trace_bytes([("chip 0", 100, timeline)]))


def parsed(data):
    found = perfetto.Trace()
    found.ParseFromString(data)
    return found


def paths(trace):
    """Names of tracks from the root, by number."""
    known = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}

    def path(uuid):
        own = known[uuid]
        return (*(path(own.parent_uuid) if own.HasField("parent_uuid") else ()), own.name)

    return {uuid: path(uuid) for uuid in known}


def events(trace, kind):
    return [p for p in trace.packet if p.HasField("track_event") and p.track_event.type == kind]


@pytest.mark.slow
def test_slices_are_the_entries_of_the_log(timeline, trace):
    log, where = event_log(timeline), paths(trace)
    names = {each.iid: each.name for p in trace.packet for each in p.interned_data.event_names}
    barrier = np.array([word == "barrier" for word in log.instructions] + [False])[log.instruction]
    works = (log.end > log.start) & ~barrier
    layers = [*log.layers, "code"]
    columns = (each[works].tolist() for each in (log.engine, log.start, log.layer))
    wanted = Counter(
        (("chip 0", *log.engines[engine].split(".")), start + 100, layers[layer])
        for engine, start, layer in zip(*columns, strict=True)
    )
    found = Counter(
        (where[p.track_event.track_uuid], p.timestamp, names[p.track_event.name_iid]) for p in events(trace, BEGIN)
    )
    assert found == wanted
    ends = Counter((where[p.track_event.track_uuid], p.timestamp) for p in events(trace, END))
    assert ends == Counter(
        (("chip 0", *log.engines[engine].split(".")), end + 100)
        for engine, end in zip(log.engine[works].tolist(), log.end[works].tolist(), strict=True)
    )


def test_arguments_add_up(timeline, trace):
    log = event_log(timeline)
    said = defaultdict(list)
    for packet in events(trace, BEGIN):
        for each in packet.track_event.debug_annotations:
            said[each.name].append(each.int_value if each.HasField("int_value") else each.string_value)
    assert set(said["unit"]) >= set(log.units) and {"conv", "copy"} <= set(said["does"])
    assert sum(said["bytes"]) == int(log.bytes[log.end > log.start].sum())
    assert any(text.startswith("result of ") for text in said["held up by"])


def test_every_arrow_begins_and_ends_once_and_goes_on_in_time(trace):
    begins, ends = {}, {}
    for packet in events(trace, BEGIN):
        for flow in packet.track_event.flow_ids:
            assert flow not in begins
            begins[flow] = packet.timestamp
        for flow in packet.track_event.terminating_flow_ids:
            assert flow not in ends
            ends[flow] = packet.timestamp
    assert begins.keys() == ends.keys() and len(begins) > 100
    assert all(begins[flow] <= ends[flow] for flow in begins)


def test_counters_are_within_what_the_machine_has(timeline, trace):
    where, target = paths(trace), timeline.machine.target
    values = defaultdict(list)
    for packet in events(trace, COUNTER):
        values[where[packet.track_event.track_uuid][-1]].append(packet.track_event.counter_value)
    assert set(values) == {"DRAM bytes per cycle", "SRAM in use", "NRAM in use", "WRAM in use"}
    assert 0 < max(values["SRAM in use"]) <= target.memory("sram").capacity_bytes
    # a new buffer is written while the last reader of the old one finishes
    assert 0 < max(values["NRAM in use"]) <= 1.05 * 4 * target.memory("nram").capacity_bytes
    assert min(map(min, values.values())) >= 0


@pytest.mark.slow
def test_the_command_writes_all_pieces(tmp_path, capsys):
    path, file = tmp_path / "net.onnx", tmp_path / "run.pftrace"
    onnx.save(sandwich(), path)
    assert main(["run", str(path), "--target", "edge", "--trace", str(file), "--quiet"]) == 0
    roots = {each for each in paths(parsed(file.read_bytes())).values() if len(each) == 1}
    assert len(roots) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--mode", "functional"], "--trace needs --mode full or timing"), (["--stream", "2"], "--trace and --stream")],
)
def test_what_has_no_trace(tmp_path, capsys, words, message):
    path, file = tmp_path / "net.onnx", tmp_path / "run.pftrace"
    onnx.save(model([node("Relu", ["x"], ["y"])], {"x": (1, 4)}, ["y"]), path)
    assert main(["run", str(path), "--trace", str(file), *words]) == 2
    assert message in capsys.readouterr().err and not file.exists()


def test_without_the_package_it_is_named(tmp_path, capsys, monkeypatch):
    path = tmp_path / "net.onnx"
    onnx.save(model([node("Relu", ["x"], ["y"])], {"x": (1, 4)}, ["y"]), path)
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    assert main(["run", str(path), "--trace", str(tmp_path / "t")]) == 2
    assert "pip install 'frustum[trace]'" in capsys.readouterr().err
