"""How far long work inside a pass has come, for whoever listens: a pass knows nobody who shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LISTENER: ContextVar[Callable[[float], None]] = ContextVar("listener", default=lambda share: None)


def tell(share: float) -> None:
    """Say that so much of the pass that runs is done, in [0, 1]."""
    _LISTENER.get()(share)


@contextmanager
def listening(listener: Callable[[float], None]) -> Iterator[None]:
    """What passes tell inside goes to `listener`."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
