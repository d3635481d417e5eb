# Tests: test/runtime/test_garbage.py
"""How often Python looks for garbage while a network is compiled and run.

Operations of the IR refer to each other in circles, so garbage cannot be done without; but a module lives until it is
written, and with Python's own settings all of it is looked through again and again: a fifth of the time of a network of
five layers, and of squeezenet's compilation.

What was imported by then is there until the process ends, and so is all that a command of its own has made when it is
done: neither is looked through (`gc.freeze`).  With it went 0.2 of 1.2 s of a network of five layers.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

SETTINGS = 200_000, 20, 50
"""Objects, of such collections, of these: some 100 MB of small objects between two of the second kind."""
HEAVY_BYTES = 1 << 28
"""Of weights: looking for garbage takes 0.1 s of a network of few layers."""
_FROZEN: list[bool] = []
"""Whether what was imported is set aside already, in a process that is the compiler's own; empty in another."""


def collect_rarely() -> None:
    """For the rest of a process that is the compiler's own."""
    gc.set_threshold(*SETTINGS)
    if not _FROZEN:
        _FROZEN.append(False)
        atexit.register(gc.freeze)


def collect_beside(weight_bytes: int) -> None:
    """Look for garbage now, where networks of earlier stops hold so many bytes of weights that these count beside a
    run: 705 MB of them, in f32, were kept through the run of a SwiGLU layer, in 4.0 instead of 2.85 GB."""
    if weight_bytes > HEAVY_BYTES:
        gc.collect()


@contextmanager
def collected_rarely() -> Iterator[None]:
    """For a while, which follows the imports; a process that is somebody else's is as before afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(*SETTINGS)
    if _FROZEN == [False]:
        _FROZEN[0] = True
        gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*before)
