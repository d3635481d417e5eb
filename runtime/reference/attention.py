# Tests: test/passes/lower/unit/test_attention.py
"""Attention on one tile, with keys and values of tiles, or of tensors as they lie in DRAM."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frustum.dialects.tile import AttentionLayer
from frustum.runtime import kernels
from frustum.runtime.kernels import Array

Range = tuple[int, int]
"""Positions `[start, stop)` along one dimension."""


def attention_on_tile(
    p: AttentionLayer, ranges: Sequence[Range], tiles: Sequence[Array], tensors: Sequence[Array]
) -> Array:
    """The result on `ranges`: heads apart, with all keys; what hides later keys counts from the first row.  `tiles` are
    queries, keys and values, unless these are `tensors`, and what is added to scores, if anything."""
    heads = (ranges[1][1] - ranges[1][0]) // p.value_size
    own = (heads // p.share, p.size), (heads // p.share, p.value_size)
    q, *others = tiles
    if q.shape[1] == p.size < heads * p.size:  # values in parts, each of which all queries and keys are for
        q, others[0] = (np.tile(each, (1, heads, 1, 1)) for each in (q, others[0]))
    queries, group = of_heads(q, heads, p.size), ranges[1][0] // p.group_channels
    parts: list[Array] = []
    for number, (view, sizes) in enumerate(zip((p.key_view, p.value_view), own, strict=True)):
        if view is None:
            parts.append(of_heads(others.pop(0), *sizes))
        else:
            parts.append(in_tensor(tensors[number], view, ranges[0], group, (*sizes, p.keys)))
    keys, values = parts
    mask = others[0].swapaxes(2, 3) if others else None
    result: Array = kernels.attention(
        queries, keys, values, mask, heads=(heads, heads // p.share), sizes=(p.size, p.value_size), firsts=(0, 0, 0),
        scale=p.scale, softcap=p.softcap, causal_from=None if p.causal_from is None else p.causal_from + ranges[3][0],
    )  # fmt: skip
    return result.swapaxes(2, 3).reshape(len(result), -1, *q.shape[2:])


def in_tensor(tensor: Array, view: Sequence[int], images: Range, group: int, sizes: tuple[int, int, int]) -> Array:
    """[B, heads, rows, size] of a tensor, from one group of heads on; `sizes`: heads, size, rows."""
    offset, image, channel, row, block = view
    heads, size, rows = sizes
    head, near = (channel, 1) if block > 1 else (channel * size, channel)
    starts = np.arange(*images) * image, (group + np.arange(heads)) * head
    grid = np.ix_(*starts, np.arange(rows) * row, np.arange(size) * near)
    return tensor.reshape(-1)[offset + sum(grid)]


def of_heads(x: Array, heads: int, size: int) -> Array:
    """[B, heads, rows, size] of a tile whose channels are heads."""
    return x.reshape(len(x), heads, size, -1).swapaxes(2, 3)
