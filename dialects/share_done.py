"""How far long work has come, and how much of it there is, for whoever listens: who works knows nobody who shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class WorkListener:
    """Who hears of work; this one makes nothing of it."""

    def part(self, share: float) -> None:
        """So much of the step that is under way is done, in [0, 1]."""

    def reach(self, stop: str) -> None:
        """A module has come to this stop."""

    def know(self, **sizes: float) -> None:
        """How much there is to do: sizes by name."""


_LISTENERS: ContextVar[tuple[WorkListener, ...]] = ContextVar("listeners", default=())


def tell(share: float) -> None:
    """Say that so much of the pass that runs is done, in [0, 1]."""
    for each in _LISTENERS.get():
        each.part(share)


def reach(stop: str) -> None:
    """Say that a module is at this stop."""
    for each in _LISTENERS.get():
        each.reach(stop)


def know(**sizes: float) -> None:
    """Say how much there is to do: sizes by name."""
    for each in _LISTENERS.get():
        each.know(**sizes)


@contextmanager
def listening(listener: WorkListener) -> Iterator[None]:
    """What is told inside goes to `listener` too."""
    token = _LISTENERS.set((*_LISTENERS.get(), listener))
    try:
        yield
    finally:
        _LISTENERS.reset(token)
