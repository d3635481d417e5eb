"""Convolution by gathering through addresses: one kernel for every layout.

It knows no layout: an address is a thread's base and a product's offset, as the address table has them.
"""

from __future__ import annotations

import numpy as np

from frustum.runtime.device.order import Ints
from frustum.runtime.kernels import Array


def gather(memory: Array, base: Ints, rel: Ints, weights: Array, sums: Array, threads: int) -> None:
    """Write to `sums` `[units, T, co]` the sums over k of `memory[base[t] + rel[k]]` `[units, elements]` times
    `weights` `[units, K, co]`, so many threads at a time."""
    for start in range(0, len(base), threads):
        address = base[start : start + threads, None] + rel
        np.matmul(memory[:, address], weights, out=sums[:, start : start + threads])
