"""Layers that only move elements, in their own type; and resizing by nearest neighbour or linear interpolation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from frustum.dialects.extents import Extents
from frustum.runtime.kernels.maps import Array, Pair, widen


def slice_elements(x: Array, starts: Extents, steps: Extents, sizes: Extents) -> Array:
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


def pad(x: Array, low: Extents, high: Extents, value: float) -> Array:
    """`x` with `low` and `high` elements of `value` before and after each axis; negative ones crop."""
    shape = tuple(before + size + after for before, size, after in zip(low, x.shape, high, strict=True))
    result = np.full(shape, value, x.dtype)
    inside, kept = [], []
    for before, size, after in zip(low, x.shape, high, strict=True):
        inside.append(slice(max(before, 0), before + size + min(after, 0)))
        kept.append(slice(max(-before, 0), size + min(after, 0)))
    result[tuple(inside)] = x[tuple(kept)]
    return result


def interleave(parts: Sequence[Array], factor: Extents) -> Array:
    """`[..., SH*I+a, SW*J+b]` is part `a*SW+b` at `[..., I, J]`; parts may differ by one in size."""
    high, wide = factor
    rows = sum(part.shape[-2] for part in parts[::wide])
    columns = sum(part.shape[-1] for part in parts[:wide])
    result = np.empty((*parts[0].shape[:-2], rows, columns), parts[0].dtype)
    for index, part in enumerate(parts):
        result[..., index // wide :: high, index % wide :: wide] = part
    return result


ROUNDING: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}
"""How a nearest neighbour is chosen from a position between two elements."""


@dataclass(frozen=True)
class ResizedAxis:
    """Where outputs of one axis look: output `o` of the map at `o * scale + offset`, clamped to the map.

    A part of the map (a tile) is given by its first output, `start`, and by the place, `origin`, of the first
    element at hand; `extent` is the size of the whole input map.
    """

    scale: float
    offset: float
    extent: int
    start: int = 0
    origin: int = 0

    def positions(self, count: int) -> Array:
        """f64 positions in the whole map of `count` outputs, clamped."""
        outputs = np.arange(self.start, self.start + count, dtype=np.float64)
        return np.clip(outputs * self.scale + self.offset, 0, self.extent - 1)

    def nearest(self, count: int, rounding: str) -> Array:
        """Index into the elements at hand of each of `count` outputs."""
        index = np.clip(ROUNDING[rounding](self.positions(count)), 0, self.extent - 1)
        return index.astype(np.intp) - self.origin

    def between(self, count: int) -> tuple[Array, Array, Array]:
        """Index of the element before, of the element after, and the f32 share of the latter."""
        positions = self.positions(count)
        low = np.floor(positions)
        high = np.minimum(low + 1, self.extent - 1)
        share = (positions - low).astype(np.float32)
        # where the share is 0 the element after need not be at hand
        high = np.where(share == 0, low, high)
        return low.astype(np.intp) - self.origin, high.astype(np.intp) - self.origin, share


def resize(x: Array, size: Pair, axes: tuple[ResizedAxis, ResizedAxis], *, mode: str, rounding: str = "floor") -> Array:
    """`[..., H, W]` to `[..., *size]` by `mode` `nearest` (with `rounding`) or `linear`."""
    x = widen(x)
    if mode == "nearest":
        rows, columns = (axis.nearest(count, rounding) for axis, count in zip(axes, size, strict=True))
        return x[..., rows[:, None], columns]
    for position, (axis, count) in enumerate(zip(axes, size, strict=True), start=-2):
        low, high, share = axis.between(count)
        share = share[:, None] if position == -2 else share
        before, after = np.take(x, low, axis=position), np.take(x, high, axis=position)
        x = before * (1 - share) + after * share
    return x
