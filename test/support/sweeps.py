"""Small networks of many sizes, for figures that should change little from one size to the next."""

from __future__ import annotations

from axis_networks import mlp, network, windows
from tiny_networks import block, scores

CLIFFS = {
    "tokens of a perceptron": (range(250, 261), 1 << 14, lambda n: network(mlp, (n, 32), (32, 96), (96, 32))),
    "tokens of attention": (range(250, 261), 1 << 14, lambda n: network(scores, (n, 32), (n, 32), (n, 32))),
    "tokens of a block": (range(250, 261), 1 << 14, lambda n: network(block, (n, 32), (1, 32), (32, 64), (64, 32))),
    "channels of a perceptron": (range(60, 69), 1 << 14, lambda n: network(mlp, (64, n), (n, 2 * n), (2 * n, n))),
    "channels of windows": (
        range(60, 69), 1 << 16, lambda n: network(windows, (1, n, 8, 8), (n, n, 3, 3), (n, n, 3, 3))
    ),
    "feature maps": (range(29, 36), 1 << 13, lambda n: network(windows, (1, 8, n, n), (16, 8, 3, 3), (8, 16, 3, 3))),
    "feature maps and channels": (
        range(29, 36), 1 << 14, lambda n: network(windows, (1, 16, n, n), (32, 16, 3, 3), (16, 32, 3, 3))
    ),
}  # fmt: skip
"""Sizes, bytes of SRAM, and the network of a size."""
