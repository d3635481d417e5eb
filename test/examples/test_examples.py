"""The examples run, and the page that one of them writes is the one in docs/."""

import importlib.util
from pathlib import Path

import numpy as np
from xdsl.dialects import func

import frustum
from frustum.dialects.unit import UnitOp

ROOT = Path(__file__).parents[2]


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_stops_is_what_the_compiler_gives():
    assert (ROOT / "docs" / "stops.md").read_text() == example("stops").page(), "run `make docs`"


def test_the_network_of_the_page_moves_nothing_twice():
    stops = example("stops")
    executable = frustum.compile(stops.model(), stops.machine(), policy="optimal")
    feeds = {"x": np.random.default_rng(1).random((1, stops.CHANNELS, stops.HEIGHT, stops.WIDTH), np.float32)}
    report = frustum.run(executable, feeds, checked=True).report
    assert report["dram"]["ratio"] == 1.0
    assert report["macs"]["recomputed"] == 0


def test_passes_work_beside_other_dialects():
    module = example("embed").compiled()
    kinds = [type(op) for op in module.walk()]
    assert func.FuncOp in kinds and UnitOp in kinds
