# Tests: test/runtime/study/test_explore.py
"""One point of a space, compiled and run in mode timing: what a worker does, in this process or on another machine.

A point is plain data, and so is what comes of it: both go through pickles, JSON and SQLite alike.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from frustum.dialects.target import cross_checks, from_json
from frustum.dialects.target.fit import DoesNotFit
from frustum.runtime.failures import exit_code_of, message_of
from frustum.runtime.garbage import collect_rarely
from frustum.runtime.study.space import FIGURES

if TYPE_CHECKING:
    from onnx import ModelProto

Status = Literal["ran", "does not fit", "refused", "failed"]


@dataclass(frozen=True)
class Point:
    """What is compiled for which machine, and how."""

    model: str
    target: Mapping[str, Any]
    """All of the target, nested."""
    options: Mapping[str, Any]
    key: tuple[str, str, str, str] = ("", "", "", "")
    """The checksums of target, model and pipeline, and of the compiler: equal only for equal points."""
    words: Mapping[str, Any] = field(default_factory=dict)
    """What the space says of it."""


@dataclass(frozen=True)
class Outcome:
    """What came of a point: figures where it ran, or why it did not, with the inequality where it does not fit."""

    status: Status
    figures: Mapping[str, float] = field(default_factory=dict)
    message: str = ""
    needed: str = ""
    available: str = ""
    seconds: float = 0.0
    """Of CPU."""


def run_point(point: Point) -> Outcome:
    """Compile and run; nothing that a point says makes it raise."""
    started = time.process_time()
    try:
        figures = _figures(point)
    except DoesNotFit as error:
        needed, available = str(error.needed), str(error.available)
        return Outcome("does not fit", {}, str(error), needed, available, time.process_time() - started)
    except Exception as error:
        if exit_code_of(error) is None:
            words = f"internal error: {type(error.__cause__ or error).__name__}: {error.__cause__ or error}"
            return Outcome("failed", {}, words, seconds=time.process_time() - started)
        return Outcome("refused", {}, message_of(error, point.model), seconds=time.process_time() - started)
    return Outcome("ran", figures, seconds=time.process_time() - started)


def _figures(point: Point) -> dict[str, float]:
    from frustum.runtime.failures import UsageError
    from frustum.runtime.model.build import build
    from frustum.runtime.model.execution import execute_chain, report_of_chain
    from frustum.runtime.model.options import Request

    target = from_json(point.target)
    if problems := cross_checks(target):
        raise UsageError(f"target: error: {'; '.join(problem.message for problem in problems)}")
    job = build(Request(model=_model(point.model), target=target, **point.options))
    ran = execute_chain(job.chain, {}, "timing", False)
    report = report_of_chain(job.chain, ran, None, job.seconds, None)
    data = {**report, "seconds": report["cycles"]["total"] / target.clock_hz}
    found = {name: _figure(data, name) for name in FIGURES}
    return {name: value for name, value in found.items() if value is not None}


def _figure(data: Mapping[str, Any], name: str) -> float | None:
    """None where the report has none: nothing ran on the device."""
    value: Any = data
    for word in name.split("."):
        value = value.get(word) if isinstance(value, Mapping) else None
    return value


@lru_cache(maxsize=2)
def _model(name: str) -> str | ModelProto:
    """What does not depend on the machine: a network of the zoo with its weights is made once."""
    from frustum.runtime.model.sources import kind_of, read_zoo

    return read_zoo(name, 0) if kind_of(name) == "zoo" else name


# --- processes ---------------------------------------------------------------------------------------------


def warm() -> None:
    """What a worker process does before its first point: load what every point needs, and end when its parent does."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says what becomes of it
    parent = parent_process()
    assert parent is not None, "a worker is started by somebody"

    def leave() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()
    collect_rarely()
    from frustum.runtime.model import build
    from frustum.runtime.time import event_loop

    assert build and event_loop
