"""Layers that only move elements, in their own type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from frustum.runtime.kernels.types import Array

Ints: TypeAlias = tuple[int, ...]


def slice_elements(x: Array, starts: Ints, steps: Ints, sizes: Ints) -> Array:
    """`sizes` elements from `starts` on, every `steps`-th (negative: backwards); one of each per axis."""
    index = []
    for start, step, size in zip(starts, steps, sizes, strict=True):
        stop = start + step * size
        index.append(slice(start, stop if stop >= 0 else None, step))
    return x[tuple(index)]


def shuffle(x: Array, groups: int) -> Array:
    """Channels of groups dealt in turn."""
    n, channels, *plane = x.shape
    return x.reshape(n, groups, channels // groups, *plane).swapaxes(1, 2).reshape(x.shape)


def pad(x: Array, low: Ints, high: Ints, value: float) -> Array:
    """`x` with `low` and `high` elements of `value` before and after each axis; negative ones crop."""
    shape = tuple(before + size + after for before, size, after in zip(low, x.shape, high, strict=True))
    result = np.full(shape, value, x.dtype)
    inside, kept = [], []
    for before, size, after in zip(low, x.shape, high, strict=True):
        inside.append(slice(max(before, 0), before + size + min(after, 0)))
        kept.append(slice(max(-before, 0), size + min(after, 0)))
    result[tuple(inside)] = x[tuple(kept)]
    return result


def interleave(parts: Sequence[Array], factor: Ints) -> Array:
    """`[..., SH*I+a, SW*J+b]` is part `a*SW+b` at `[..., I, J]`; parts may differ by one in size."""
    high, wide = factor
    rows = sum(part.shape[-2] for part in parts[::wide])
    columns = sum(part.shape[-1] for part in parts[:wide])
    result = np.empty((*parts[0].shape[:-2], rows, columns), parts[0].dtype)
    for index, part in enumerate(parts):
        result[..., index // wide :: high, index % wide :: wide] = part
    return result
