"""How long the matrix unit is busy with pieces of so many images, rows and columns: whole fills of its lines.

Source: docs/techniques/machine.md, "Matrix unit"; the numbers are those of `durations.matrix_work`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.isa.line_buffer_plan import Pair, Windows
from frustum.dialects.target import MatrixUnit
from frustum.dialects.target.durations import matrix_work

Ints = NDArray[np.int64]
BITS = 21
"""Of each extent where three are packed into one number."""


@dataclass(frozen=True)
class Kernel:
    """Of a convolution: extents, strides and dilations (rows, columns), bytes of an element of the map."""

    extent: Pair
    strides: Pair
    dilations: Pair
    element_bytes: int


def busy_cycles(unit: MatrixUnit, kernel: Kernel, images: Ints, rows: Ints, columns: Ints) -> Ints:
    """Cycles for one input channel and up to `unit.channels` output channels; others take as many times that.

    Windows of all rows and images of a piece follow each other in the lines, in the cheaper of the modes `split`
    and `continuous`.
    """
    packed = (images << 2 * BITS) | (rows << BITS) | columns
    sizes, place = np.unique(packed, return_inverse=True)
    return np.array(_busy(unit, kernel, tuple(sizes.tolist())), np.int64)[place]


@lru_cache(maxsize=4096)
def _busy(unit: MatrixUnit, kernel: Kernel, packed: tuple[int, ...]) -> tuple[int, ...]:
    sizes = np.array(packed, np.int64)
    images, rows, columns = sizes >> 2 * BITS, (sizes >> BITS) & ((1 << BITS) - 1), sizes & ((1 << BITS) - 1)
    span = (kernel.extent[1] - 1) * kernel.dilations[1] + 1
    length = (columns - 1) * kernel.strides[1] + span
    windows = Windows(
        kernel.extent,
        kernel.strides,
        kernel.dilations,
        1,
        kernel.element_bytes,
        (0, 0, 0, kernel.element_bytes),
        0,
    )
    work = windows.convolution(images, rows, columns, 1, 1)
    distance = kernel.strides[0] * length  # a piece has its rows one after the other
    straddling = np.maximum(-(-(distance - columns * kernel.strides[1]) // kernel.strides[1]), 0)
    split = matrix_work(unit, work, "split").busy_cycles
    run = replace(work, straddling=straddling, runs=images)
    continuous = matrix_work(unit, run, "continuous").busy_cycles
    return tuple(np.minimum(split, continuous).tolist())


def filling_heights(width: int, lines: int) -> list[int]:
    """Rows of a width whose windows fill 1, 2 or 4 times the lines as far as they can, and those that fill some."""
    return sorted({lines * fills // width for fills in (1, 2, 4)} - {0} | {lines // gcd(lines, width)})
