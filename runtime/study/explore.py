"""The loop of an exploration: ask for points, run those that no store has, keep what came of each.

What comes out does not depend on where points run, nor on how often the work was broken off before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from frustum.runtime.failures import UsageError
from frustum.runtime.study.front import Explored, values_of
from frustum.runtime.study.point import Outcome, Point, run_point
from frustum.runtime.study.search import Choice, Search
from frustum.runtime.study.store import Store

WAITING = 2
"""Points for each worker that are on their way to it, so that none waits for this process."""
Told = Callable[[int], None]
"""Called with the number of finished points."""


@dataclass
class PointLoop:
    """The points of one model, in the order in which they were asked for; each key once."""

    search: Search
    point_of: Callable[[Choice], Point]
    objectives: Sequence[str]
    store: Store
    executor: Executor
    workers: int
    tell: Told = lambda done: None
    points: dict[tuple[str, ...], Point] = field(default_factory=dict)
    results: dict[tuple[str, ...], Outcome] = field(default_factory=dict)
    running: dict[Future[Outcome], Point] = field(default_factory=dict)
    asked: deque[Point] = field(default_factory=deque)
    """Those whose results the search does not know yet."""
    ran: int = 0
    """Points that ran now, and were not in the store."""

    def run(self) -> list[Explored]:
        """All points with what came of them; UsageError where a worker ends by itself."""
        try:
            while self._propose() or self.running:
                self._collect()
        except BrokenProcessPool as error:
            raise UsageError(
                "error: a worker was ended from outside (no memory?): finished points are kept, and the same command"
                " goes on from there"
            ) from error
        return [(point, self.results[key]) for key, point in self.points.items()]

    def _propose(self) -> bool:
        """Ask for points until all workers have enough to do; whether anything may be asked for later."""
        while len(self.running) < WAITING * self.workers:
            self._teach(self.search.ahead)
            if self.search.ahead is not None and len(self.asked) >= self.search.ahead:
                return True
            choice = self.search.ask()
            if choice is None:
                return False
            point = self.point_of(choice)
            if self.search.ahead is not None:
                self.asked.append(point)
            if point.key in self.points:
                continue
            self.points[point.key] = point
            known = self.store.find(point)
            if known is None:
                self.running[self.executor.submit(run_point, point)] = point
            else:
                self._keep(point, known)
        return True

    def _collect(self) -> None:
        """Wait for a point, and write all that are finished."""
        if not self.running:
            return
        for future in wait(self.running, return_when=FIRST_COMPLETED).done:
            point, result = self.running[future], future.result()
            self.store.add(point, result)
            del self.running[future]
            self.ran += 1
            self._keep(point, result)

    def _keep(self, point: Point, result: Outcome) -> None:
        self.results[point.key] = result
        self.tell(len(self.results))

    def _teach(self, ahead: int | None) -> None:
        """Tell the search of the first point that it asked for, where as many are open as it allows."""
        while ahead is not None and len(self.asked) >= ahead and self.asked[0].key in self.results:
            point = self.asked.popleft()
            self.search.tell(values_of((point, self.results[point.key]), self.objectives))
