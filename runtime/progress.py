# Tests: test/runtime/report/test_report.py
"""What long work shows of itself on a terminal: stage, share done, time left.  Elsewhere it is quiet."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TextIO

from frustum.dialects.loops import TIMES
from frustum.dialects.share_done import listening
from frustum.runtime.course import Course

Progress = Callable[[str, float], None]
"""Called with the name of the stage and the share of it that is done, in [0, 1]."""

REPORTS = 200
"""How often at most a run reports its progress."""

_BAR_WIDTH = 24
_SECONDS_BETWEEN = 0.1
_LEAST_SHARE, _LEAST_SECONDS, _TRUSTED = 0.1, 1.0, 1.5
"""From so much of a stage on, and so long, the time left is told; two ways to tell it differ by at most this."""
_WHOLE_SECONDS = 10
"""From so many on they are told without a decimal."""
_ERASE = "\r\x1b[2K"


class TerminalProgress:
    """One line that is overwritten, and erased at the end.

    Use as a context manager; call it with the stage and the share done.  With a `course` the bar and the time left are
    those of the whole run, and are drawn anew while nobody calls; without, those of the stage.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, quiet: bool = False,
        course: Course | None = None,
    ) -> None:  # fmt: skip
        self.stream: TextIO = sys.stderr if stream is None else stream
        self.clock = clock
        self.course = course
        self.is_shown: bool = not quiet and self.stream.isatty()
        self.stage: str | None = None
        self.started: float = 0.0
        self.drawn: float = 0.0
        self.furthest: float = 0.0
        self.seen: list[tuple[float, float]] = []
        """Share and seconds of the stage, each time that was drawn."""
        self._opened = ExitStack()
        self._writing = threading.Lock()
        self._ended = threading.Event()

    def __call__(self, stage: str, share: float) -> None:
        if not self.is_shown:
            return
        now = self.clock()
        is_new = stage != self.stage
        if is_new:
            self.stage, self.started, self.seen = stage, now, []
        if self.course is not None:
            self.course.enter(stage, share)
        if is_new or share >= 1 or now - self.drawn >= _SECONDS_BETWEEN:
            self.drawn = now
            self.seen.append((share, now - self.started))
            self._draw(share)

    def _draw(self, share: float) -> None:
        assert self.stage is not None
        with self._writing:
            left = seconds_left(self.seen) if self.course is None else self.course.left()
            if self.course is not None:
                share = self.furthest = max(self.furthest, self.course.share(left))
            self.stream.write(_ERASE + progress_line(self.stage, share, left))
            self.stream.flush()

    def _redraw(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN):
            if self.stage is not None:
                self._draw(0.0)

    def __enter__(self) -> TerminalProgress:
        self.announce: Callable[[str], None] | None = TIMES.announce
        TIMES.announce = self.note
        if self.is_shown and self.course is not None:
            self._opened.enter_context(listening(self.course))
            redraws = threading.Thread(target=self._redraw, daemon=True)
            redraws.start()
            self._opened.callback(redraws.join)
            self._opened.callback(self._ended.set)
        return self

    def note(self, text: str) -> None:
        """A message on a line of its own, in place of the line of progress, which comes back below."""
        with self._writing:
            if self.is_shown:
                self.stream.write(_ERASE)
            self.stream.write(f"{text}\n")
            self.stream.flush()

    def __exit__(self, *_: object) -> None:
        TIMES.announce = self.announce
        self._opened.close()
        if self.is_shown and self.stage is not None:
            self.stream.write(_ERASE)
            self.stream.flush()


def progress_line(stage: str, share: float, left_seconds: float | None) -> str:
    """`emulate  [######------]  50 %  3.2 s left`; no time where nobody can say it."""
    share = min(max(share, 0.0), 1.0)
    filled = round(share * _BAR_WIDTH)
    bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
    decimals = 0 if left_seconds is None or left_seconds >= _WHOLE_SECONDS else 1
    left = "" if left_seconds is None else f"  {left_seconds:.{decimals}f} s left"
    return f"{stage:<10} [{bar}] {share:4.0%}{left}"


def seconds_left(seen: Sequence[tuple[float, float]]) -> float | None:
    """What a stage will still take, from pairs of share and seconds; None unless it has shown that it can be told.

    It has, where its later half went as fast as all of it did: then the rest may be trusted to, too.
    """
    share, seconds = seen[-1]
    if not _LEAST_SHARE <= share < 1 or seconds < _LEAST_SECONDS:
        return None
    half_share, half_seconds = min(seen, key=lambda pair: abs(pair[0] - share / 2))
    if half_share >= share or abs(half_share - share / 2) > share / 4:
        return None
    whole = (1 - share) * seconds / share
    recent = (1 - share) * (seconds - half_seconds) / (share - half_share)
    return max(whole, recent) if max(whole, recent) <= _TRUSTED * min(whole, recent) else None
