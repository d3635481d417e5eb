"""Convolution by gathering through an address table: one kernel for every layout.

It knows no layout: addresses are sums of what the table says, and the walk over the parts of a piece only counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from frustum.runtime.kernels import Array
from frustum.runtime.order import Ints


class Table(NamedTuple):
    """A table in the address cache.  `thread` and `product` say which thread and product an entry is for."""

    base: Ints  # threads: elements from the start of the part
    rel: Ints  # products
    thread: tuple[Ints, Ints, Ints]  # image, row, column of each thread
    product: tuple[Ints, Ints, Ints]  # channel, tap row, tap column of each product
    part: tuple[int, int, int, int]  # images, rows, columns, channels of the part


class Steps(NamedTuple):
    """Elements from one image, output row, output column, channel to the next."""

    image: int
    row: int
    column: int
    channel: int


def gather(
    memory: Array, start: int, weights: Array, table: Table, steps: Steps, sums: Array
) -> None:
    """Add to `sums` `[units, n, h, w, co]` the products of `memory` `[units, elements]` and `weights`
    `[units, co, c, kh, kw]`, part by part; extents are multiples of the part's."""
    (image, row, column), (channel, v, u) = table.thread, table.product
    for n in range(0, sums.shape[1], table.part[0]):
        for y in range(0, sums.shape[2], table.part[1]):
            for x in range(0, sums.shape[3], table.part[2]):
                for c in range(0, weights.shape[2], table.part[3]):
                    moved = start + n * steps.image + y * steps.row + x * steps.column + c * steps.channel
                    address = moved + table.base[:, None] + table.rel
                    kernel = weights[:, :, c + channel, v, u]
                    made = np.matmul(memory[:, address], kernel.swapaxes(1, 2))
                    sums[:, n + image, y + row, x + column] += made
