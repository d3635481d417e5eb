"""The report's keys and types (schema 1), its text, and the progress line."""

import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import onnx_models
import pytest

from frustum.dialects.isa import program as p
from frustum.dialects.target import read_target
from frustum.runtime.course import Course
from frustum.runtime.device.expand import expand
from frustum.runtime.progress import TerminalProgress, progress_line, seconds_left
from frustum.runtime.report.counters import count
from frustum.runtime.report.figures import Report
from frustum.runtime.report.report import (
    Check,
    HostRun,
    LayerInfo,
    Seconds,
    SplitRun,
    make_report,
)
from frustum.runtime.report.terminal import bytes_text, bytes_texts, energy_text, seconds_text
from frustum.runtime.report.units import SubgraphRun, UnitInfo
from frustum.runtime.time.timeline import simulate

FILE = Path(__file__).parents[3] / "backend" / "targets" / "default.yaml"
DEFAULT = read_target(FILE.read_text(), str(FILE))
A = p.Affine
NUMBER = (int, float)


def view(memory, offset=0):
    return p.View("f32", A.of(offset), (0, 0, 0, 4), memory)


def copy(engine, source, destination, offset=0, **more):
    box = p.Box((A(),) * 4, (1, 1, 1, 1000), (1, 1, 1, 1000))
    return p.Copy(engine=engine, src_view=view(source), dst_view=view(destination, offset), box=box, **more)


PROGRAM = p.Program(
    (
        copy("gdma", "dram", "sram", signal=0),
        copy("gdma", "sram", "dram", 4000, waits=(p.Wait(0, "own", A(1)),), layer=1, unit=1),
    ),
    (p.External("x", "input", 0, 4000, (1, 1000), "f32"), p.External("y", "output", 4000, 4000, (1, 1000), "f32")),
    layers=("a", "b"), units=("u0", "u1"), useful_macs=(0, 0),
)  # fmt: skip


def subgraph(name="main", timed=True):
    expanded = expand(PROGRAM, 1, 1)
    timeline = simulate(expanded, DEFAULT, [640]) if timed else None
    return SubgraphRun(name, PROGRAM, count(expanded, DEFAULT, [640]), timeline, executable_bytes=1234)


def report(runs=None, **more):
    return make_report("net.onnx", DEFAULT, "f32", "greedy", runs or [subgraph()], **more)


def test_the_report_has_every_key_of_schema_1():
    data = report(
        layers=[
            LayerInfo("a", "Relu", "u0"),
            LayerInfo("h", "NonZero", None, "host"),
            LayerInfo("b", "Relu", "u1"),
        ],
        units=[UnitInfo("u0", ("a",), "single", None, 4)],
        check=Check(1e-6, 2e-6, "onnxruntime 1.31"),
        seconds=Seconds(0.1, 0.2, 0.3, {"fuse": 0.05}, 0.15),
    ).data
    assert {key: data[key] for key in ("schema", "model", "target", "dtype", "policy")} == {
        "schema": 1, "model": "net.onnx", "target": "default", "dtype": "f32", "policy": "greedy",
    }  # fmt: skip
    assert data["dram"] == {
        "read_bytes": 4640, "write_bytes": 4000, "total_bytes": 8640, "weight_bytes": 0, "input_bytes": 4000,
        "output_bytes": 4000, "intermediate_bytes": 0, "other_bytes": 640, "compulsory_bytes": 8000, "ratio": 1.0,
        "total_ratio": 8640 / 8000,
        "compressed_compulsory_bytes": 8000, "ratio_to_compressed": 1.0,
        "bound_bytes": None, "bound_by": None, "layer_by_layer_bytes": None, "maps": None, "maps_in_dram": None,
        "through_dram": [],
    }  # fmt: skip
    fetch, load, store = 7 + 200, 40 + 200, 40 + 200
    assert data["cycles"] == {
        "total": fetch + load + store, "roofline": 8000 / 102, "ratio": (fetch + load + store) / (8000 / 102),
        "bound": None, "bound_by": None, "bound_terms": None, "address": 0, "address_without_tables": 0,
    }  # fmt: skip
    assert data["macs"] == {"useful": 0, "recomputed": 0, "executed": 0}
    assert data["engines"]["cluster0.gdma"] == {"busy": 80, "stalled": 207 + 200, "idle": 200, "bytes": 8000}
    assert data["engines"]["cluster0.fetch"]["bytes"] == 640
    assert data["peak_bytes"] == {"sram": 4000, "nram": 0, "wram": 0}
    assert data["energy_pj"]["total"] == 8640 * 100 + 8000 * 6
    assert data["line_buffer"] == {"writes": 0, "writes_split": 0, "compute_steps": 0, "discarded": 0}
    assert data["layers"] == [
        {"name": "a", "op": "Relu", "unit": "u0", "where": "device", "cycles": load, "dram_bytes": 4000},
        {"name": "h", "op": "NonZero", "unit": None, "where": "host", "cycles": 0, "dram_bytes": 0},
        {"name": "b", "op": "Relu", "unit": "u1", "where": "device", "cycles": store, "dram_bytes": 4000},
    ]
    assert data["units"] == [
        {
            "name": "u0", "layers": ["a"], "mode": "single", "stopped_by": None, "tiles": 4, "kept_bytes": 0,
            "owners": "clusters",
            "recomputed_macs": 0, "recomputed_bytes": 0, "exchanged_bytes": {"core": 0, "cluster": 0, "chip": 0},
            "bound_cycles": None, "waits": data["units"][0]["waits"],
        }
    ]
    assert [(each["engine"], each["for"], each["on"], each["cycles"]) for each in data["units"][0]["waits"]] == [
        ("cluster0.gdma", "latency", "dram", 200), ("cluster0.fetch", "latency", "dram", 200),
        ("cluster0.gdma", "work", "a", 40), ("cluster0.fetch", "work", "code", 7),
    ]  # fmt: skip
    assert data["subgraphs"] == [
        {
            "name": "main", "executable_bytes": 1234, "peak_sram_bytes": 4000, "chip": 0,
            "cycles": fetch + load + store, "start_cycle": 0, "stop_cycle": fetch + load + store, "outputs": [],
        }
    ]  # fmt: skip
    assert data["unsplit_peak_bytes"] == data["peak_bytes"] and data["moved_between_chips_bytes"] == 0
    assert data["check"] == {
        "max_abs_error": 1e-6, "max_rel_error": 2e-6, "reference": "onnxruntime 1.31", "outputs": {},
        "nan_in_both": 0, "numbers": 0, "why": "", "not_compared": (),
    }  # fmt: skip
    assert data["seconds"] == {
        "import": 0.1, "compile": 0.2, "emulate": 0.3, "calibrate": 0.15, "loops": None,
        "passes": {"fuse": 0.05}, "cached": False,
    }  # fmt: skip


def test_what_a_run_does_not_have_is_null():
    data = report([subgraph(timed=False)]).data
    assert data["cycles"] is data["engines"] is data["check"] is None
    assert data["seconds"] == {"import": None, "compile": None, "emulate": None, "calibrate": None, "loops": None,
                               "passes": {}, "cached": False}  # fmt: skip
    assert [layer["cycles"] for layer in data["layers"]] == [None, None]
    assert [layer["unit"] for layer in data["layers"]] == ["u0", "u1"]
    assert "Time" not in Report(data).text(verbose=True)


def test_subgraphs_add_up_but_the_network_is_one():
    data = report([subgraph("one"), subgraph("two")]).data
    assert data["dram"]["total_bytes"] == 2 * 8640
    assert data["dram"]["compulsory_bytes"] == 8000
    assert data["cycles"]["total"] == 2 * (207 + 480)
    assert data["engines"]["cluster0.gdma"]["busy"] == 160
    assert [each["name"] for each in data["subgraphs"]] == ["one", "two"]


def test_moves_between_chips_count_at_two_ports():
    runs = [subgraph("one"), replace(subgraph("two"), chip=1, passed=frozenset({"x"}))]
    data = report(runs, splitting=SplitRun(1234, 500, {"sram": 5000, "nram": 1, "wram": 2})).data
    assert data["cycles"]["total"] == 1234
    assert data["dram"]["read_bytes"] == 2 * 4640 + 500 and data["dram"]["write_bytes"] == 2 * 4000 + 500
    assert data["dram"]["intermediate_bytes"] == 1000 and data["dram"]["total_bytes"] == 2 * 8640 + 1000
    assert data["dram"]["compulsory_bytes"] == 8000
    assert data["energy_pj"]["total"] == 2 * (8640 * 100 + 8000 * 6) + 1000 * 100
    assert [(each["chip"], each["cycles"]) for each in data["subgraphs"]] == [(0, 687), (1, 687)]
    assert data["unsplit_peak_bytes"] == {"sram": 5000, "nram": 1, "wram": 2}
    assert data["moved_between_chips_bytes"] == 500
    text = Report(data).text(verbose=True)
    assert "  SRAM   4,000 B   in one piece 5,000 B" in text
    assert "Sub-graphs\n  one   chip 0   687 cycles   SRAM 4,000 B   file 1,234 B\n" in text
    assert "500 B moved from chip to chip" in text


def test_what_passes_between_sub_graphs_is_not_compulsory():
    """x goes in, one makes y, two takes it (as its input x) back: only what is the network's counts."""
    runs = [replace(subgraph("one"), passed=frozenset({"y"})), replace(subgraph("two"), passed=frozenset({"x"}))]
    assert report(runs).data["dram"]["compulsory_bytes"] == 8000
    assert report([replace(run, passed=frozenset({"y"})) for run in runs]).data["dram"]["compulsory_bytes"] == 4000


def test_layers_of_one_name_are_one_with_the_model_s_operator_and_nodes():
    """Steps of a layer have its name; what stands for other nodes says which."""
    own = [LayerInfo("a", "Conv", "u0", nodes=("a", "bn")), LayerInfo("a", "Conv", "u0"), LayerInfo("b", "Relu", "u1")]
    first, second = report(layers=own).data["layers"]
    assert (first["op"], first["nodes"]) == ("Conv", ["a", "bn"]) and "nodes" not in second


def test_no_text_is_cut():
    why = "the device has no engine that finds where in a tensor there is something, " * 3
    host = HostRun("auto", [], 0, 0, 0, 0, 0.0)
    text = report(layers=[LayerInfo("h", "NonZero", None, "host", why.strip())], host=host).text()
    assert why.strip() in " ".join(text.split()) and max(map(len, text.splitlines())) <= 100


def test_energy_is_on_the_screen_with_one_prefix():
    assert "Energy  912.000 nJ: DRAM 864.000 nJ, SRAM 48.000 nJ\n" in report().text()


def test_sizes_beside_each_other_have_one_prefix():
    assert bytes_texts(1765964, 14940, 0) == ["1.684 MiB", "0.0142 MiB", "0.000 MiB"]
    assert bytes_texts(1023, 5) == ["1023 B", "5 B"]


def test_the_json_holds_plain_numbers(tmp_path):
    file = tmp_path / "report.json"
    report().write(file)
    assert json.loads(file.read_text()) == report().data


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(OSError, match="taken"):
        report().write(tmp_path / "taken.json")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.json"]


TEXT = """\
net.onnx on default, f32, policy greedy
=======================================
2 layers

DRAM traffic
  weights             0 B     0.0 %
  inputs          4,000 B    46.3 %
  outputs         4,000 B    46.3 %
  intermediates       0 B     0.0 %
  code, tables      640 B     7.4 %
  total           8,640 B   100.0 %
  read 4,640 B, written 4,000 B
  all 8,640 B are 1.080 times the compulsory 8,000 B
  8,000 B without code and tables are 1.000 times the compulsory 8,000 B

Time
  687 cycles, 687 ns at 1,000 MHz
  8.759 times the roofline of 78.43 cycles
"""


def test_the_text_says_it_in_units():
    text = report(check=Check(1e-6, 2e-6, "onnxruntime 1.31"), seconds=Seconds(emulate=0.25)).text(verbose=True)
    assert TEXT in text
    assert "  1 x gdma    11.6 %    59.2 %   29.1 %   7.81 KiB\n" in text
    assert "Check\n  max abs error 1e-06, relative 2e-06 against onnxruntime 1.31\n" in text
    assert text.endswith("Wall time\n  emulate 0.25 s\n")
    assert max(map(len, text.splitlines())) <= 100


def test_the_text_tells_how_much_of_the_compiling_is_calibration():
    text = report(seconds=Seconds(0.5, 2.25, 1.0, calibrate=1.5)).text(verbose=True)
    assert text.endswith("Wall time\n  import 0.50 s, compile 2.25 s (calibration 1.50 s of it), emulate 1.00 s\n")
    assert "calibration" not in report(seconds=Seconds(0.5, 2.25, 1.0, calibrate=0.0)).text(verbose=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(bytes_text(1023), "1023 B"), (bytes_text(3 << 19), "1.50 MiB"), (bytes_text(5 << 40), "5.00 TiB"),
     (seconds_text(0.0125), "12.5 ms"), (energy_text(2.5e9), "2.5 mJ"), (energy_text(0), "0 nJ")],
)  # fmt: skip
def test_numbers_are_readable(text, expected):
    assert text == expected


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_shows_stage_share_and_time_left():
    assert progress_line("emulate", 0.25, 9) == "emulate    [######------------------]  25%  9.0 s left"
    assert progress_line("emulate", 0, None) == "emulate    [------------------------]   0%"
    assert progress_line("emulate", 1, None) == "emulate    [########################] 100%"


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        ([(0.0, 0.0), (0.25, 2.5), (0.5, 5.0)], 5.0),  # as fast all the time
        ([(0.0, 0.0), (0.2, 5.0), (0.4, 6.0)], None),  # the later half five times as fast: who knows the rest
        ([(0.0, 0.0), (0.03, 0.1), (0.86, 12.0)], None),  # a jump: nothing is known about what lies between
        ([(0.0, 0.0), (0.02, 0.5), (0.05, 2.0)], None),  # too little of it
        ([(0.0, 0.0), (0.5, 0.2), (0.6, 0.24)], None),  # too short
        ([(0.0, 0.0), (0.5, 5.0), (1.0, 10.0)], None),  # over
    ],
)
def test_time_left_is_told_where_it_can_be_right(seen: list[tuple[float, float]], left: float | None) -> None:
    found = seconds_left(seen)
    assert found is None if left is None else found == pytest.approx(left)


def test_progress_on_a_terminal_overwrites_and_erases_its_line():
    times, stream = iter([0.0, 0.01, 2.0, 4.0]), Terminal()
    with TerminalProgress(stream, lambda: next(times)) as progress:
        for share in (0.0, 0.1, 0.25, 0.5):
            progress("compile", share)
    parts = stream.getvalue().split("\r\x1b[2K")
    assert [part.split()[-1] if part else "" for part in parts] == ["", "0%", "25%", "left", ""]
    assert parts[3].endswith("50%  4.0 s left")


def test_a_message_beside_progress_has_a_line_of_its_own() -> None:
    stream = Terminal()
    with TerminalProgress(stream) as progress:
        progress("emulate", 0.5)
        progress.note("compiling")
    assert stream.getvalue().count("\r\x1b[2Kcompiling\n") == 1


def test_stages_have_the_name_of_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of compiling never go back, and come from inside the search, which takes most of it."""
    from frustum.runtime.model.build import build
    from frustum.runtime.model.chain import random_values
    from frustum.runtime.model.execution import execute_chain
    from frustum.runtime.model.options import Request

    seen: list[tuple[str, float]] = []
    built = build(Request(onnx_models.save(tmp_path), "edge"), lambda stage, share: seen.append((stage, share)))
    execute_chain(built.chain, random_values(built.chain.inputs, 0), progress=lambda *each: seen.append(each))
    assert list(dict.fromkeys(stage for stage, _ in seen)) == ["import", "compile", "load", "decode", "emulate"]
    compiling = [share for stage, share in seen if stage == "compile"]
    assert compiling == sorted(compiling)
    assert len(set(compiling)) >= 4  # the network has four layers
    assert all(0 <= share < 1 for share in compiling)


def test_progress_of_a_course_is_that_of_the_run_and_goes_on_while_nobody_calls():
    stream = Terminal()
    with TerminalProgress(stream, course=Course("full")) as progress:
        progress("import", 0.9)
        deadline = time.monotonic() + 60
        while stream.getvalue().count("import") < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    lines = stream.getvalue().split("\r\x1b[2K")[1:-1]
    assert len(lines) >= 3
    assert all(re.fullmatch(r"import     \[[#-]{24}\] +\d+%  [\d.]+ s left", line) for line in lines)
    assert "90%" not in lines[0]


def test_progress_is_quiet_where_there_is_no_terminal():
    stream = io.StringIO()
    with TerminalProgress(stream) as progress:
        progress("compile", 0.5)
    assert stream.getvalue() == ""
