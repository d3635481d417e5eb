"""Inner loops in machine code: compiled by numba once, then taken from a cache; the time for that is counted apart.

    @entry("void(uint8[::1], int64[:, ::1])")
    def run(memory, moves): ...

    @compiled
    def copy_piece(memory, move): ...

Importing this module imports nothing heavy; the first function that is decorated imports numba.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

LONG_SECONDS = 0.3
"""From so much compiling on, more is likely to come, and people are told."""
ANNOUNCEMENT = "compiling the emulator's loops, once (`frustum warm-up` does it beforehand) ..."


@dataclass
class LoopTimes:
    """What this process spent on machine code, and who is told when that takes long."""

    seconds: float = 0.0
    """Compiling, and loading from the cache."""
    compiled: list[str] = field(default_factory=list)
    """Functions that were compiled; a name stands here once for each kind of arguments."""
    loaded: list[str] = field(default_factory=list)
    announce: Callable[[str], None] | None = None
    compiling_seconds: float = 0.0
    """Of `seconds` what was compiled, as far as that has ended."""
    _depth: int = 0
    _compiling_depth: int = 0
    _compiling_since: float = 0.0
    _is_announced: bool = False

    @contextmanager
    def making(self) -> Iterator[None]:
        """Time inside is spent on machine code; where one function needs another, the outer one's counts."""
        started = time.perf_counter()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.seconds += time.perf_counter() - started

    @contextmanager
    def compiling(self, name: str) -> Iterator[None]:
        """A function is compiled inside; announced where that takes long already."""
        now = time.perf_counter()
        if self._compiling_depth == 0:
            self._compiling_since = now
        if self.compiling_seconds + now - self._compiling_since >= LONG_SECONDS:
            self._announce()
        self._compiling_depth += 1
        try:
            with self.making():
                yield
        finally:
            self._compiling_depth -= 1
            self.compiled.append(name)
            if self._compiling_depth == 0:
                self.compiling_seconds += time.perf_counter() - self._compiling_since

    def _announce(self) -> None:
        if self.announce is not None and not self._is_announced:
            self._is_announced = True
            self.announce(ANNOUNCEMENT)


TIMES = LoopTimes()
"""Of this process."""


def clock() -> float:
    """Seconds of a clock that stands still while machine code is made."""
    return time.perf_counter() - TIMES.seconds


def compiled(function: Callable[..., Any]) -> Any:
    """A function that other compiled ones call; in machine code, made for the types with which they do."""
    from frustum.dialects.loop_cache import dispatcher

    return dispatcher(function, TIMES)


def entry(*signatures: str) -> Callable[[Callable[..., Any]], Any]:
    """The same for one that Python calls; `signatures`, in numba's words, are all with which it does."""

    def declared(function: Callable[..., Any]) -> Any:
        found = compiled(function)
        ENTRIES.extend((found, signature) for signature in signatures)
        return found

    return declared


ENTRIES: list[tuple[Any, str]] = []
"""Functions that Python calls, and the arguments with which it does, of all modules imported so far."""


def compile_entries(progress: Callable[[float], None] = lambda share: None) -> None:
    """Have the machine code of all entries, and with them of what they call: from the cache, or made now."""
    for number, (function, signature) in enumerate(ENTRIES):
        progress(number / len(ENTRIES))
        function.compile(signature)


def cache_folders() -> list[str]:
    """Where machine code of the functions decorated so far is kept; empty where nowhere can be written."""
    from frustum.dialects.loop_cache import folders

    return folders()
