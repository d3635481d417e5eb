"""Numbers by dimension, and rounding: arithmetic that all levels share."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Extents: TypeAlias = tuple[int, ...]
"""A size, a stride or a position for each dimension of a map: of the four dimensions n, c, h, w."""
Int = Any  # an int, or a numpy array of integers
ALIGNMENT_BYTES = 16
"""Where buffers in memories on chip begin; `target.alignment_bytes` is what DRAM wants."""


def ceil_div(a: Int, b: Int) -> Int:
    """`ceil(a / b)` of integers, element by element."""
    return -(-a // b)


def aligned(size: Int, grain: int = ALIGNMENT_BYTES) -> Int:
    """The next multiple of `grain` that is not smaller, element by element."""
    return -(-size // grain) * grain


def replaced(values: tuple[T, ...], dim: int, value: T) -> tuple[T, ...]:
    """The values with another one for one dimension."""
    return (*values[:dim], value, *values[dim + 1 :])
