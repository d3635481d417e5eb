"""Which tests are quick, and that they stay so.

`make test` runs what is not marked `slow`, `make test-slow` what is, `make soak` what is marked `soak` too.  The
processor time of a run is printed at its end; beyond a limit the run fails.

Wall time says nothing on a busy machine.  Processor time is counted of each test, in the process that runs it, with the
commands that it starts, but without making machine code of loops, which happens once on a machine.  The limit holds for
a machine on which a million additions take 60 ms; on slower ones the time of each test counts for as much less, by how
slow its worker was just before.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator

import pytest
from processor_time import slowness

from frustum.dialects import loops

COLLECTED = pytest.StashKey[dict[str, frozenset[str]]]()
"""All tests that were found, before any is left out: their markers by node id."""
NAMED = 10
EVERY = 3.0
"""Seconds of processor time after which a worker looks again how slow the machine is, while all others work too."""
REASON = """{spent:.0f} s of processor time are {usual:.0f} s where a million additions take 60 ms; the limit there is
{most:g} s.  `make test` runs before every commit, `make test-slow` before every merge.  Make the tests below faster, or
mark quick ones `slow` and slow ones `soak`; of many cases all but a few:
`@pytest.mark.slow(but=2)`."""


def keep_some(items: list[pytest.Item]) -> None:
    """`slow(but=2)` is no marker of two cases of a test: the first, and one from the middle; these are quick.

    `soak(but=2)` is none of two of the others.  Of cases with several parameters they are such that all values of each
    parameter come in turn.
    """
    for group in _cases(items, "slow"):
        kept = _number(group[0], "slow")
        for number in range(kept):
            _unmark(group[number * len(group) // kept], "slow", "soak")
    for group in _cases(items, "soak"):
        for item in _spread(group, _number(group[0], "soak")):
            _unmark(item, "soak")


def _cases(items: list[pytest.Item], marker: str) -> list[list[pytest.Function]]:
    """Of each test that keeps some of its cases from the marker, those that have it."""
    found = defaultdict[tuple[object, str], list[pytest.Function]](list)
    for item in items:
        if isinstance(item, pytest.Function) and _number(item, marker) is not None:
            found[item.parent, item.originalname].append(item)
    return list(found.values())


def _number(item: pytest.Function, marker: str) -> int | None:
    return next((mark.kwargs["but"] for mark in item.own_markers if mark.name == marker and "but" in mark.kwargs), None)


def _unmark(item: pytest.Function, *markers: str) -> None:
    item.own_markers = [mark for mark in item.own_markers if mark.name not in markers]


def _spread(group: list[pytest.Function], count: int) -> list[pytest.Function]:
    """So many cases, evenly spaced, but each value of a parameter as often as the others."""
    count = min(count, len(group))
    even = [number * len(group) // count for number in range(count)]
    order = [*even, *sorted({*range(len(group))} - {*even})]
    used, found = Counter[tuple[str, int]](), list[pytest.Function]()
    for _ in range(count):
        best = min(order, key=lambda number: sum(used[value] ** 2 for value in _values(group[number])))
        order.remove(best)
        used.update(_values(group[best]))
        found.append(group[best])
    return found


def _values(item: pytest.Function) -> list[tuple[str, int]]:
    """The values of its parameters; cases share the objects."""
    return [(name, id(value)) for name, value in item.callspec.params.items()]


def spent() -> float:
    """Seconds of this process and of those that it has waited for."""
    times = os.times()
    warm = sys.modules["lit_format"].WARM.seconds if "lit_format" in sys.modules else 0.0
    return time.process_time() + times.children_user + times.children_system + warm


class ProcessorTime:
    """A plugin of pytest; with pytest-xdist each worker counts, and the one in front of them sums up."""

    def __init__(self, config: pytest.Config, most: float | None) -> None:
        self.config = config
        self.most = most
        self.seconds = Counter[str]()
        self.usual_seconds = 0.0
        self._since = 0.0
        self._slowness, self._looked = 1.0, -EVERY

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        if self.most is not None and spent() >= self._looked + EVERY:
            self._slowness, self._looked = slowness(), spent()
        self._since = spent() - loops.TIMES.seconds
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = spent() - loops.TIMES.seconds
        report.processor_seconds = max(0.0, now - self._since)
        report.usual_seconds = report.processor_seconds / self._slowness
        self._since = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += getattr(report, "processor_seconds", 0.0)
        self.usual_seconds += getattr(report, "usual_seconds", 0.0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.verdict() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = sum(self.seconds.values())
        limit = f", {self.usual_seconds:.0f} of {self.most:g} where additions take 60 ns" if self.most else ""
        terminalreporter.write_line(f"processor time of all tests: {total:.0f} s{limit}")
        if reason := self.verdict():
            terminalreporter.section("too slow", red=True, bold=True)
            terminalreporter.write_line(reason)
            for name, seconds in self.seconds.most_common(NAMED):
                terminalreporter.write_line(f"{seconds:8.1f} s  {name}")

    def verdict(self) -> str:
        """Why the run fails; nothing where it took no longer than it may."""
        if self.most is None or hasattr(self.config, "workerinput") or self.usual_seconds <= self.most:
            return ""
        return REASON.format(spent=sum(self.seconds.values()), usual=self.usual_seconds, most=self.most)
