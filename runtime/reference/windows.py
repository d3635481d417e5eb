# Tests: test/pipeline/test_volumes.py
"""What windows of a pooling count; windows over the slices of a volume, which are images of maps, as windows over
rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from frustum.dialects import graph
from frustum.dialects import tile as t
from frustum.runtime import kernels
from frustum.runtime.kernels import Array

Work = TypeVar("Work", bound=Any)
"""A `TileWork`."""
Ranges: TypeAlias = tuple[tuple[int, int], ...]
IMAGES_AS_ROWS = (2, 1, 0, 3)


def divisor(p: t.PoolLayer, work: Any, ranges: Ranges) -> Array:
    """How many positions of each window count, at least 1."""
    counts = []
    for d in (0, 1):
        outputs = np.arange(work.ranges[2 + d][1] - work.ranges[2 + d][0])[:, None]
        taps = ranges[2 + d][0] + outputs * p.strides[d] + np.arange(p.kernel[d]) * p.dilations[d]
        low, high = 0, work.tiles[0].bound[2 + d]
        if p.include_pad:
            low, high = -p.pad_low[d], high + p.pad_high[d]
        counts.append(((taps >= low) & (taps < high)).sum(axis=1))
    return np.maximum(counts[0][:, None] * counts[1], 1).astype(np.float32)


def rows_for_images(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """What there is per dimension, with images and rows in each other's place."""
    return tuple(values[d] for d in IMAGES_AS_ROWS)


def images_as_rows(work: Work) -> Work:
    """A computation of maps whose images and rows have changed places."""
    tiles = [
        replace(
            own, values=own.values.transpose(IMAGES_AS_ROWS), ranges=rows_for_images(own.ranges),
            bound=rows_for_images(own.bound),
        )
        for own in work.tiles
    ]  # fmt: skip
    access = [rows_for_images(own) for own in work.access]
    ranges, bound = rows_for_images(work.ranges), rows_for_images(work.bound)
    return replace(work, ranges=ranges, bound=bound, tiles=tiles, access=access)


def pooled_slices(pool: Callable[..., Array], op: graph.PoolOp, x: Array) -> Array:
    """A pooling of slices by one of rows."""
    (low, high), numbers = op.pads, (op.kernel, op.strides, op.dilations)
    kernel, strides, dilations = ((*own, 1) for own in numbers)
    turned = pool(
        x.transpose(IMAGES_AS_ROWS), kernel, strides=strides, pads=(low, 0, high, 0), dilations=dilations,
        ceil_pads=(*op.ceil_pads, 0),
    )  # fmt: skip
    return turned.transpose(IMAGES_AS_ROWS)


def stacked(op: graph.StackOp, x: Array) -> Array:
    return kernels.stack(x.swapaxes(0, 1) if op.volume else x, op.kernel, op.stride, op.pads, op.dilation)
