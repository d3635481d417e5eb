"""The examples run, and the page that one of them writes is the one in docs/."""

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import page_picture
import pytest
import technique_drawings
from xdsl.dialects import func

import frustum
from frustum.dialects.isa.sync import ProgramOp

ROOT = Path(__file__).parents[2]


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_page_of_stops_is_what_the_compiler_gives():
    assert (ROOT / "docs" / "stops.md").read_text() == example("stops").page(), "run `make docs`"


@pytest.mark.slow
def test_the_network_of_the_page_moves_nothing_twice():
    stops = example("stops")
    executable = frustum.compile(stops.model(), stops.machine(), policy="optimal")
    feeds = {"x": np.random.default_rng(1).random((1, stops.CHANNELS, stops.HEIGHT, stops.WIDTH), np.float32)}
    report = frustum.run(executable, feeds, checked=True).report
    assert 1 <= report["dram"]["ratio_to_compressed"] < 1.001  # the least form is a bound, not one that was made
    assert report["macs"]["recomputed"] == 0


def test_passes_work_beside_other_dialects():
    module = example("embed").compiled()
    programs = [op for op in module.ops if isinstance(op, ProgramOp)]
    assert [op.sym_name.data for op in programs] == ["camera_0", "camera_1"]
    (camera,) = (op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "camera")
    names = [op.name for op in camera.body.block.ops]
    assert names == ["fgraph.call", "arith.addi", "arith.constant", "func.call", "fgraph.call", "func.return"]
    first, sharpened, second, end = (op for op in camera.body.block.ops if not op.name.startswith("arith."))
    assert sharpened.operands[0] is first.results[0]
    assert set(second.operands) == {sharpened.results[0], first.results[1]}
    assert end.operands[0] is second.results[0]


@pytest.mark.parametrize("name", example("drawings").DRAWINGS)
def test_drawings_are_what_the_compiler_gives(name):
    drawn = example("drawings").DRAWINGS[name]()
    assert (ROOT / "docs" / "pictures" / name).read_text() == drawn, "run `make docs`"
    assert ElementTree.fromstring(drawn).tag.endswith("svg")


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", technique_drawings.DRAWINGS)
def test_drawings_of_techniques_are_what_the_code_gives(name):
    drawn = technique_drawings.DRAWINGS[name]()
    assert (ROOT / "docs" / "pictures" / name).read_text() == drawn, "run `make docs`"
    assert ElementTree.fromstring(drawn).tag.endswith("svg")


def test_every_drawing_is_on_the_page_of_a_technique():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "techniques").glob("*.md"))
    assert [name for name in technique_drawings.DRAWINGS if f"../pictures/{name}" not in pages] == []


def test_without_a_browser_no_picture_of_the_page_is_drawn(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="there is no chromium on the path"):
        page_picture.draw(tmp_path / "page.png")
    assert list(tmp_path.iterdir()) == []
