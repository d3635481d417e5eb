"""How many threads the matrix products of numpy take: one, while the machine has threads of its own.

Products of tiles are too small to share: on two cores OpenBLAS with two threads took 1.2 to 5 s where one took 0.3 s
(ResNet-50 on `default`, other work on the machine), because its threads wait for each other spinning.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads")
"""What OpenBLAS calls its functions in the wheels of numpy, newest first; {} is `get` or `set`."""


@contextmanager
def single_threaded() -> Iterator[None]:
    """Products take one thread inside.  Does nothing where numpy brings no OpenBLAS of its own."""
    found = _functions()
    if found is None:
        yield
        return
    get, put = found
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's own functions to ask for and to set the number of threads."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            library = ctypes.CDLL(str(path))
            for name in NAMES:
                if hasattr(library, name.format("set")):
                    return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None
