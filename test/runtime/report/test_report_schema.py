"""Reports have the keys and types that are declared, and no others."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import onnx_models
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import frustum
from frustum.backend import targets
from frustum.dialects.target import Target
from frustum.runtime.report import key_table
from frustum.runtime.report.schema import ReportData


def problems(value: object, kind: Any, place: str) -> list[str]:
    """What in a value is not of the kind."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return []
    if origin in (NotRequired, Annotated):
        return problems(value, arguments[0], place)
    if origin in (Union, UnionType):
        found = [problems(value, each, place) for each in arguments]
        return min(found, key=len)
    if is_typeddict(kind):
        if not isinstance(value, dict):
            return [f"{place}: {value!r}"]
        hints = get_type_hints(kind, include_extras=True)
        needed = {name for name, each in hints.items() if get_origin(each) is not NotRequired}
        found = [f"{place}.{name}: undeclared" for name in value.keys() - hints.keys()]
        found += [f"{place}.{name}: missing" for name in needed - value.keys()]
        return found + [p for n in hints if n in value for p in problems(value[n], hints[n], f"{place}.{n}")]
    if origin in (list, dict) and not isinstance(value, origin):
        return [f"{place}: {value!r} is no {kind}"]
    if origin is list:
        return [p for each in value for p in problems(each, arguments[0], f"{place}[]")]  # type: ignore[attr-defined]
    if origin is dict:
        return [p for n, each in value.items() for p in problems(each, arguments[1], f"{place}.{n}")]  # type: ignore[attr-defined]
    allowed = {float: (float, int), None: NoneType}.get(kind, kind)
    return [] if isinstance(value, allowed) else [f"{place}: {value!r} is no {kind}"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("options", [{}, {"mode": "functional"}, {"check": True}, {"stream": 2}])
@pytest.mark.parametrize("host", ["auto", "only"])
def test_every_key_is_declared(options: dict[str, Any], host: Any) -> None:
    made = frustum.compile(onnx_models.network(), "edge", host=host)
    if host == "only" and "stream" in options:
        return
    report = frustum.run(made, **options).report
    assert problems(report, ReportData, "report") == []
    assert "<frustum.Report: model.onnx on edge" in repr(report) and len(repr(report)) < 200
    cycles = report["cycles"]
    assert (" cycles" in repr(report)) == (cycles is not None)
    assert cycles is None or f"{cycles['total']:,} cycles>" in repr(report)


def test_the_check_sees_what_is_wrong() -> None:
    report = frustum.run(frustum.compile(onnx_models.network(), "edge"), mode="timing").report
    del report["dram"]["ratio"]
    report["new"] = report["macs"]["useful"] = "1"
    found = problems(report, ReportData, "report")
    assert [each.partition(":")[0] for each in found] == ["report.new", "report.dram.ratio", "report.macs.useful"]


# --- what docs/report.md says of them --------------------------------------------------------------------


ROWS = list(key_table.rows())
PAGE = Path(__file__).parents[3] / "docs" / "report.md"


def paths(data: Mapping[str, Any], declared: Any = ReportData, path: str = "") -> Iterator[str]:
    """Of every key that says something its path, as the table has it."""
    for row in key_table.own_rows(declared, path):
        said = data.get(row.name)
        entries = said if isinstance(said, list) else list(said.values()) if row.key.each and said else [said]
        found = [each for each in entries if each is not None]
        if found:
            yield row.path
        for each in found if is_typeddict(row.kind) else ():
            yield from paths(each, row.kind, f"{row.path}.")


def product() -> ModelProto:
    """A product whose operands SRAM does not hold: sums wait there between parts of it."""
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(640, 96)).astype(np.float32), "w")
    sizes = {"x": (160, 640), "y": (160, 96)}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sizes.items())
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "g", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def small() -> Target:
    """`edge` with little SRAM."""
    edge = targets.load("edge")
    sram = replace(edge.cluster.sram, capacity_bytes=48 << 10)
    return replace(edge, chip=replace(edge.chip, cluster=replace(edge.cluster, sram=sram)))


def kinds_of_runs(own_machine: Path) -> Iterator[Mapping[str, Any]]:
    """Reports of runs that differ in what they say."""
    network = onnx_models.network()
    yield frustum.run(frustum.compile(network, own_machine, policy="optimal"), check=True).report
    yield frustum.run(frustum.compile(network, "edge", policy="tree"), mode="timing").report
    yield frustum.run(frustum.compile(network, "edge", dtype="int8"), mode="timing").report
    yield frustum.run(frustum.compile(network, "edge", host="only"), check=True).report
    yield frustum.run(frustum.compile(network, "edge"), mode="timing", stream=2).report
    yield frustum.run(frustum.compile(network, "edge", policy="none"), mode="timing").report
    yield frustum.run(frustum.compile(product(), small(), "f16", compress_weights="none"), mode="timing").report


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == key_table.with_table(PAGE.read_text()), "run `make docs`"


def test_every_key_has_a_meaning_and_every_number_a_unit() -> None:
    assert [row.path for row in ROWS if not row.key.says] == []
    numbers = [row for row in ROWS if row.kind in (int, float) and not row.key.unit]
    assert [row.path for row in numbers if not re.search("ratio|schema|error", row.name)] == []


@pytest.mark.slow
def test_every_key_that_is_described_is_said_by_some_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: edge\nname: mine\n")
    said = {path for report in kinds_of_runs(file) for path in paths(report)}
    assert {row.path for row in ROWS} - said == set()
