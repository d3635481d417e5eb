"""Resizing of maps by nearest neighbour or linear interpolation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from frustum.runtime.kernels.types import Array, widen
from frustum.runtime.kernels.window import Pair

ROUNDING: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}
"""How a nearest neighbour is chosen from a position between two elements."""


@dataclass(frozen=True)
class Axis:
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


def resize(x: Array, size: Pair, axes: tuple[Axis, Axis], *, mode: str, rounding: str = "floor") -> Array:
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
