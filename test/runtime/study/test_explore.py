"""Spaces are read or refused with their places, points outlive a kill, and results do not depend on where they ran."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from mixed_models import model, node

from frustum.backend import targets
from frustum.dialects.target import digest, from_json
from frustum.runtime.failures import UsageError
from frustum.runtime.study.explore import PointLoop
from frustum.runtime.study.front import front, front_text, values_of
from frustum.runtime.study.front_page import page
from frustum.runtime.study.point import Outcome, Point, run_point
from frustum.runtime.study.search import search_of
from frustum.runtime.study.space import FIGURES, KEYS, STRATEGIES, changed, read_space
from frustum.runtime.study.store import opened
from frustum.runtime.tools import cli, explore

SRAM = "chip.cluster.sram.capacity_bytes"
SPACE = f"""extends: edge
target:
  {SRAM}: [64 KiB .. 256 KiB, x2]
  chip.dram.port_bytes_per_cycle, chip.cluster.gdma.bytes_per_cycle: [8 .. 24, by 8]
options:
  policy: [none, pyramid]
  split: never
objectives: [cycles.total, {SRAM}]
"""
KILLS = int(os.environ.get("FRUSTUM_SOAK_KILLS", "2"))
"""Two, for time; FRUSTUM_SOAK_KILLS=10 looks longer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explore")
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((4, 4, 3, 3), np.float32) / 6 for k in range(2)}
    nodes = [node("Conv", [f"x{k}", f"w{k}"], [f"x{k + 1}"], pads=[1, 1, 1, 1]) for k in range(2)]
    onnx.save(model(nodes, {"x0": (1, 4, 12, 12)}, ["x2"], weights), folder / "net.onnx")
    (folder / "space.yaml").write_text(SPACE)
    return folder


def read(text):
    return read_space(text, "space.yaml", targets.load, explore._wrong_option)


# --- the space ---------------------------------------------------------------------------------------------


def test_a_space_is_the_product_of_its_axes_and_keys_with_commas_move_together():
    space = read(SPACE)
    assert [axis.values for axis in space.axes] == [
        (65536, 131072, 262144), (8, 16, 24), ("none", "pyramid"), ("never",)
    ]  # fmt: skip
    assert space.size == len(set(space.choices())) == 18
    design = space.design((2, 1, 1, 0))
    target = from_json(changed(space.base, design.target))
    assert (target.cluster.sram.capacity_bytes, target.cluster.gdma.bytes_per_cycle) == (262144, 16)
    assert target.chip.dram.port_bytes_per_cycle == 16
    assert design.options == {"policy": "pyramid", "split": "never"}


@pytest.mark.parametrize(
    ("line", "column", "message"),
    [
        ("target: {chip.cluster.sram.capacity_byte: 1}", 10, "is no key of targets; did you mean"),
        ("target: {sram.capacity_bytes: 1 KiB}", 10, f"did you mean '{SRAM}'?"),
        ("target: {chip.cluster.sram: 1}", 10, "is a section"),
        ("target: {chip.cluster.cores: [2, 0]}", 34, "found 0, allowed a whole number, 1 to 256"),
        ("target: {chip.cluster.cores: [2 .. 8]}", 31, r"needs its step behind it: [2 .. 8, x2] multiplies"),
        ("target: {chip.cluster.cores: [2 .. 8, 2]}", 31, "needs its step"),
        ("target: {chip.cluster.cores: [8 .. 2, x2]}", 31, "the smaller one first"),
        ("target: {chip.cluster.cores: [2 .. 9, x2]}", 31, "do not meet 9"),
        ("target: {chip.cluster.cores: [2 .. 8, x1]}", 31, "found step 'x1'"),
        ("target: {chip.cluster.cores: []}", 10, "at least one value"),
        ("target: {chip.cluster.cores: 2, 'chip.cluster.cores ': 4}", 33, "there is another axis"),
        ("target: {chip.cluster.cdma.bytes_per_cycle: 4}", 10, "edge has no chip.cluster.cdma"),
        ("options: {polic: none}", 11, "did you mean 'policy'?"),
        ("options: {policy: [nune]}", 20, "allowed none, pyramid"),
        ("options: {order: zig}", 18, "expected one of row-major"),
        ("options: {batch: 0}", 18, "at least 1"),
        ("objectives: [cycles.totl]", 14, "did you mean 'cycles.total'?"),
        ("strategy: best", 11, "allowed grid, random, optimise"),
        ("points: 0", 9, "at least 1"),
        ("pints: 3", 1, "did you mean 'points'?"),
    ],
)
def test_what_is_wrong_in_a_space_is_shown_in_its_place(line, column, message):
    with pytest.raises(UsageError) as caught:
        read(f"extends: edge\n{line}\n")
    first = next(text for text in str(caught.value).split("space.yaml:") if message in text)
    assert first.startswith(f"2:{column}: error: ")
    assert line in first
    assert "^" in first


def test_a_base_that_is_not_there_and_a_space_without_axes_are_refused(folder, capsys):
    with pytest.raises(
        UsageError, match=r"space.yaml:1:10: error: extends: no target 'edg'; did you mean 'edge'"
    ):
        read("extends: edg\ntarget: {chips: 1}\n")
    with pytest.raises(UsageError, match="a space has axes"):
        read("extends: edge\n")
    with pytest.raises(UsageError, match="strategy random needs `points`"):
        read("extends: edge\nstrategy: random\ntarget: {chips: 1}\n")
    (folder / "bad.yaml").write_text("target: {chip.cluster.cores: [0]}\n")
    assert cli.main(["explore", str(folder / "net.onnx"), "--space", str(folder / "bad.yaml")]) == 2
    assert "^" in capsys.readouterr().err


@pytest.mark.slow
def test_the_example_of_the_page_runs_and_the_page_names_all_figures(folder, tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "explore.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0]
    with opened(tmp_path / "s.sqlite") as store:
        space, points, _ = explored(folder, text, store)
    assert (space.size, len(points)) == (12, 12)
    assert {result.status for _, result in points} == {"ran"}
    assert set(points[0][1].figures) == set(FIGURES)
    assert [name for name in (*FIGURES, *KEYS, *STRATEGIES) if f"`{name}`" not in page] == []


# --- points ------------------------------------------------------------------------------------------------


class Here:
    """An executor without processes."""

    def submit(self, work, point):
        from concurrent.futures import Future

        future = Future()
        future.set_result(work(point))
        return future


def explored(folder, text, store):
    space = read(text)
    found = PointLoop(
        search_of(space), explore._points(str(folder / "net.onnx"), space), space.objectives, store, Here(), 2
    )
    return space, found.run(), found.ran


@pytest.mark.slow
def test_a_point_is_what_run_reports_of_the_same_machine(folder, tmp_path):
    with opened(tmp_path / "s.sqlite") as store:
        _, points, ran = explored(
            folder, SPACE.replace("[none, pyramid]", "pyramid").replace("x2", "x4"), store
        )
    assert ran == len(points) == 6
    point, result = points[-1]
    machine = tmp_path / "machine.yaml"
    machine.write_text(
        "extends: edge\nname: edge\nchip: {dram: {port_bytes_per_cycle: 24}, cluster: {gdma: {bytes_per_cycle: 24},"
        " sram: {capacity_bytes: 256 KiB}}}\n"
    )
    assert digest(targets.load(machine)) == digest(from_json(point.target)) == point.key[0]
    words = ["--policy", "pyramid", "--split", "never", "--mode", "timing", "--no-cache"]
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "frustum.runtime.tools.cli", "run", str(folder / "net.onnx")]
    # in a process of its own, which knows nothing of the points before
    command += ["--target", str(machine), *words, "--report", str(report)]
    subprocess.run(command, check=True, capture_output=True)
    data = json.loads(report.read_text())
    assert data["cycles"]["total"] == result.figures["cycles.total"]
    assert data["dram"]["total_bytes"] == result.figures["dram.total_bytes"]
    assert data["hashes"] == dict(zip(("target", "model"), point.key[:2], strict=True)) | {
        "pipeline": point.key[2]
    }
    assert result.figures["seconds"] == data["cycles"]["total"] / targets.load("edge").clock_hz


def test_what_does_not_fit_is_a_point_with_its_inequality(folder, tmp_path):
    text = f"extends: edge\ntarget:\n  {SRAM}: [256, 64 KiB]\n  alignment_bytes: [16, 24]\noptions: {{split: never}}\n"
    with opened(tmp_path / "s.sqlite") as store:
        space, points, _ = explored(folder, text, store)
    by_words = {tuple(point.words.values())[:2]: result for point, result in points}
    small = by_words[256, 16]
    assert small.status == "does not fit"
    assert f"needed {small.needed}, available {small.available}" in small.message
    assert int(small.needed.split()[0]) > 256
    assert by_words[65536, 16].status == "ran"
    assert by_words[65536, 24].status == "refused"
    assert "power of two" in by_words[65536, 24].message
    text = front_text(points, space.objectives)
    assert "1 ran, 1 does not fit, 2 refused; 1 on the Pareto front" in text


def test_numbers_at_the_edge_of_the_picture_are_in_it():
    """The last one of the axis across ends where the picture does, and several points `do not fit`."""
    figures = ((1e9, 2e9), (3e9, 1e9))
    ran = [Outcome("ran", {"cycles.total": cycles, "dram.total_bytes": size}) for cycles, size in figures]
    points = [(Point("m.onnx", {}, {}, (str(k),) * 4), result) for k, result in enumerate(ran)]
    points += [(Point("m.onnx", {}, {}, (str(k),) * 4), Outcome("does not fit")) for k in (2, 3)]
    text = page(points, ("cycles.total", "dram.total_bytes"), "t")
    assert "2 ran, 2 do not fit; 2 on the Pareto front" in text
    assert '" text-anchor="end">3 G</text>' in text.partition("1.73 G")[2]


def test_a_fault_of_the_compiler_is_a_point_that_failed(monkeypatch):
    monkeypatch.setattr("frustum.runtime.study.point._figures", lambda point: 1 // 0)
    found = run_point(Point("m", {}, {}))
    assert found.status == "failed"
    assert found.message == "internal error: ZeroDivisionError: integer division or modulo by zero"


def test_the_front_has_what_nothing_beats():
    values = [(1, 9), (2, 5), (2, 5), (3, 6), (4, 4), (1, 10)]
    names = ("cycles.total", "dram.total_bytes")
    points = [(Point("m", {}, {}), Outcome("ran", dict(zip(names, each, strict=True)))) for each in values]
    points.append((Point("m", {}, {}), Outcome("refused")))
    assert [values_of(each, names) for each in front(points, names)] == [(1, 9), (2, 5), (2, 5), (4, 4)]


def test_an_objective_that_is_an_axis_has_one_column():
    """Written as the space has it, in the text and on the page."""
    machine = {"chip": {"cluster": {"sram": {"capacity_bytes": 256 << 10}}}}
    ran = Outcome("ran", {"cycles.total": 7})
    points = [(Point("m", machine, {}, words={SRAM: 256 << 10, "policy": "none"}), ran)]
    _, _, head, row = front_text(points, ("cycles.total", SRAM)).splitlines()
    assert head.split() == ["cycles.total", SRAM, "policy"]
    assert row.split() == ["7", "256", "KiB", "none"]
    text = page(points, ("cycles.total", SRAM), "t")
    assert text.count(f'<th scope="col">{SRAM}</th>') == 1 and "<td>256 KiB</td><td>none</td>" in text
    assert f"{SRAM} 256 KiB: policy none" in text


# --- again, and elsewhere ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_points_that_are_there_do_not_run_again(folder, tmp_path):
    small = SPACE.replace("[none, pyramid]", "none")
    with opened(tmp_path / "s.sqlite") as store:
        _, first, ran = explored(folder, small.replace("[8 .. 24, by 8]", "8"), store)
        assert ran == 3
        _, points, ran = explored(folder, small, store)
    assert (ran, len(points)) == (6, 9)
    results = {point.key: result for point, result in points}
    assert all(results[point.key] == result for point, result in first)


def test_a_store_that_is_none_is_refused(tmp_path):
    (tmp_path / "s.sqlite").write_text("this is no database, and longer than a header of one" * 10)
    with pytest.raises(UsageError, match="cannot be used as a store"), opened(tmp_path / "s.sqlite"):
        pass


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("figures", "{"), ("figures", "[1]"), ("figures", '{"cycles.total": "many"}'), ("figures", "[" * 100_000),
        ("figures", b"\xff"), ("status", "run"), ("message", b"\xff"), ("cpu_seconds", "long"),
    ],
)  # fmt: skip
def test_a_damaged_point_is_run_again(tmp_path, column, value):
    point = Point("net.onnx", {}, {}, ("target", "model", "pipeline", "compiler"))
    good = Outcome("ran", {"cycles.total": 7.0}, seconds=1.0)
    with opened(tmp_path / "s.sqlite") as store:
        store.add(point, good)
        assert store.find(point) == good
        with closing(sqlite3.connect(tmp_path / "s.sqlite")) as file, file:
            file.execute(f"update points set {column} = ?", (value,))
        assert store.find(point) is None
        store.add(point, good)
        assert store.find(point) == good


@pytest.mark.slow
def test_what_is_to_be_done_is_said_before_the_first_point(folder, tmp_path, capsys):
    """The file of points does not matter: here all are refused."""
    space, said = tmp_path / "space.yaml", []
    space.write_text("extends: edge\noptions: {batch: [2, 3]}\n")

    def begin(points, size):
        said.append((points, size > 0))

    def tell(share):
        assert said
        said.append(share)

    explore.explored([str(folder / "net.onnx")], space, tmp_path / "s.sqlite", None, tell, begin)
    assert said == [(2, True), 0.5, 1.0]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["random", "optimise"])
def test_strategies_with_a_seed_repeat_themselves(folder, tmp_path, strategy):
    pytest.importorskip("optuna") if strategy == "optimise" else None
    text = f"{SPACE}strategy: {strategy}\npoints: 11\nseed: 3\n".replace("[8 .. 24, by 8]", "[4 .. 64, x2]")
    with opened(tmp_path / "s.sqlite") as store:
        _, first, ran = explored(folder, text, store)
        _, second, again = explored(folder, text, store)
    assert [point.key for point, _ in first] == [point.key for point, _ in second]
    assert 6 <= ran == len(first) <= 11
    assert again == 0


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"needs the package optuna: pip install 'frustum\[explore\]'"):
        search_of(read(f"{SPACE}strategy: optimise\npoints: 3\n"))


def test_a_scheduler_that_is_not_installed_is_named(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    words = ["-o", str(tmp_path / "s.sqlite"), "--scheduler", "tcp://127.0.0.1:1"]
    assert cli.main(["explore", str(folder / "net.onnx"), "--space", str(folder / "space.yaml"), *words]) == 2
    assert "--scheduler needs the package distributed" in capsys.readouterr().err


COMMAND = [sys.executable, "-m", "frustum.runtime.tools.cli", "explore"]


def rows(path):
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as file:
        if not file.execute("select 1 from sqlite_master where name = 'points'").fetchone():
            return {}
        return {
            row[:4]: row[4:]
            for row in file.execute("select target, model, pipeline, compiler, * from points")
        }


@pytest.mark.slow
def test_no_finished_point_is_lost_or_repeated_by_a_kill(folder, tmp_path):
    store, kept, chance = tmp_path / "s.sqlite", {}, random.Random(0)
    command = [*COMMAND, str(folder / "net.onnx"), "--space", str(folder / "space.yaml"), "-o", str(store)]
    for number in range(KILLS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        least = len(kept) + (number == 0)  # the first one is killed among points, the others anywhere
        while process.poll() is None and len(rows(store)) < least:
            time.sleep(0.01)
        time.sleep(chance.random() * (0.2 if number == 0 else 3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = rows(store)
        assert found.items() >= kept.items()
        kept = found
    assert kept
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert f"{18 - len(kept)} points are new, {len(kept)} were there" in done.stdout
    assert rows(store).items() >= kept.items()
    assert len(rows(store)) == 18


@pytest.mark.slow
@pytest.mark.soak
def test_a_cluster_gives_what_processes_give(folder, tmp_path, capsys):
    distributed = pytest.importorskip("distributed", reason="the package distributed is not installed")
    command = ["explore", str(folder / "net.onnx"), "--space", str(folder / "space.yaml"), "--json"]
    assert cli.main([*command, "-o", str(tmp_path / "here.sqlite")]) == 0
    here = capsys.readouterr().out
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        words = ["-o", str(tmp_path / "there.sqlite"), "--scheduler", cluster.scheduler_address]
        page = tmp_path / "page.html"
        assert cli.main([*command, *words, "--html", str(page)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(here)
    text = page.read_text()
    assert text.count("<circle") == text.count("<tr") - 1 == 18
    assert "http" not in text and "<script" not in text
