"""Resize as a product: along one axis every result is a weighted sum of operands, and the weights are known.

The matrix of an axis has a row for each result: the weights of linear or cubic interpolation at its position, widened
for `antialias` where the axis shrinks, renormalised for `exclude_outside`; positions outside repeat the border.
Source: the ONNX operator Resize; cubic convolution after Keys, "Cubic Convolution Interpolation for Digital Image
Processing", IEEE Trans. ASSP 29(6), 1981, with the parameter `cubic_coeff_a`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Kernel", "crop_positions", "interpolation_matrix"]

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Kernel:
    """How neighbours are weighted."""

    mode: Literal["linear", "cubic"]
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False

    @property
    def radius(self) -> int:
        """So many neighbours on each side are looked at, if the axis does not shrink."""
        return 2 if self.mode == "cubic" else 1

    def weights(self, distance: Matrix) -> Matrix:
        """Of neighbours at these distances, not yet normalised."""
        x, a = np.abs(distance), self.cubic_a
        if self.mode == "linear":
            return np.clip(1 - x, 0, 1)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def interpolation_matrix(positions: Matrix, source: int, ratio: float, kernel: Kernel) -> Matrix:
    """[results, source]: the weight of every element of an axis of `source` for the result at each position.

    `ratio`: result extent to source extent, as the file gives it; below 1 `antialias` widens the kernel by 1 / ratio.
    """
    scale = min(ratio, 1.0) if kernel.antialias else 1.0
    base = np.ceil(positions) - 1  # a position on an element prefers the one on its left
    first = int(np.floor(-kernel.radius / scale)) + 1
    taps = np.arange(first, 2 - first)
    index = base[:, None] + taps
    weights = kernel.weights((index - positions[:, None]) * scale)
    outside = (index < 0) | (index >= source)
    if kernel.exclude_outside:
        weights[outside] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    found = np.zeros((len(positions), source))
    rows = np.broadcast_to(np.arange(len(positions))[:, None], index.shape)
    np.add.at(found, (rows, np.clip(index, 0, source - 1).astype(np.int64)), weights)
    return found


def crop_positions(source: int, result: int, start: float, stop: float) -> tuple[Matrix, NDArray[np.bool_]]:
    """Positions of `tf_crop_and_resize`, the region of interest in shares of the axis, and which lie outside."""
    last = source - 1
    if result > 1:
        found = start * last + np.arange(result) * (stop - start) * last / (result - 1)
    else:
        found = np.array([0.5 * (start + stop) * last])
    return found, (found < 0) | (found > last)
