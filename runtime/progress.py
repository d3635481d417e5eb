"""What long work shows of itself on a terminal: stage, share done, time left.  Elsewhere it is quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, float], None]
"""Called with the name of the stage and the share of it that is done, in [0, 1]."""

REPORTS = 200
"""How often at most a run reports its progress."""

_BAR_WIDTH = 24
_SECONDS_BETWEEN = 0.1
_ERASE = "\r\x1b[2K"


class TerminalProgress:
    """One line that is overwritten, and erased at the end.

    Use as a context manager; call it with the stage and the share done.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.clock = clock
        self.is_shown = self.stream.isatty()
        self.stage: str | None = None
        self.started = self.drawn = 0.0

    def __call__(self, stage: str, share: float) -> None:
        if not self.is_shown:
            return
        now = self.clock()
        is_new = stage != self.stage
        if is_new:
            self.stage, self.started = stage, now
        if is_new or share >= 1 or now - self.drawn >= _SECONDS_BETWEEN:
            self.drawn = now
            self.stream.write(_ERASE + progress_line(stage, share, now - self.started))
            self.stream.flush()

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_shown and self.stage is not None:
            self.stream.write(_ERASE)
            self.stream.flush()


def progress_line(stage: str, share: float, seconds: float) -> str:
    """`emulate  [######------]  50 %  3 s left`; no time where nothing is known about it yet."""
    share = min(max(share, 0.0), 1.0)
    filled = round(share * _BAR_WIDTH)
    bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
    left = f"  {seconds * (1 - share) / share:.0f} s left" if 0 < share < 1 and seconds > 1 else ""
    return f"{stage:<10} [{bar}] {share:4.0%}{left}"
