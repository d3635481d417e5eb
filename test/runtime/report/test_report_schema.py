"""Reports have the keys and types that are declared, and no others."""

from types import NoneType, UnionType
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import onnx_models
import pytest

import frustum
from frustum.runtime.report.schema import ReportData


def problems(value: object, kind: Any, place: str) -> list[str]:
    """What in a value is not of the kind."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return []
    if origin is NotRequired:
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


@pytest.mark.parametrize("options", [{}, {"mode": "functional"}, {"check": True}, {"stream": 2}])
@pytest.mark.parametrize("host", ["auto", "only"])
def test_every_key_is_declared(options: dict[str, Any], host: Any) -> None:
    made = frustum.compile(onnx_models.network(), "edge", host=host)
    if host == "only" and "stream" in options:
        return
    report = frustum.run(made, **options).report
    assert problems(report, ReportData, "report") == []
    assert "<frustum.Report: model.onnx on edge" in repr(report) and len(repr(report)) < 200


def test_the_check_sees_what_is_wrong() -> None:
    report = frustum.run(frustum.compile(onnx_models.network(), "edge"), mode="timing").report
    del report["dram"]["ratio"]
    report["new"] = report["macs"]["useful"] = "1"
    found = problems(report, ReportData, "report")
    assert [each.partition(":")[0] for each in found] == ["report.new", "report.dram.ratio", "report.macs.useful"]
