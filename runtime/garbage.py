# Tests: test/runtime/test_garbage.py
"""How often Python looks for garbage while a network is compiled and run.

Operations of the IR refer to each other in circles, so garbage cannot be done without; but a module lives until it is
written, and with Python's own settings all of it is looked through again and again: a fifth of the time of a network of
five layers, and of squeezenet's compilation.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SETTINGS = 200_000, 20, 50
"""Objects, of such collections, of these: some 100 MB of small objects between two of the second kind."""


def collect_rarely() -> None:
    """For the rest of a process that is the compiler's own."""
    gc.set_threshold(*SETTINGS)


@contextmanager
def collected_rarely() -> Iterator[None]:
    """For a while, in a process that is somebody else's."""
    before = gc.get_threshold()
    collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)
