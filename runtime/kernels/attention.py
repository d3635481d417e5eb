# Tests: test/runtime/kernels/test_attention.py
"""Attention in numpy, for the references."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frustum.runtime.kernels.maps import Array


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    *,
    heads: Sequence[int],
    sizes: Sequence[int],
    firsts: Sequence[int],
    scale: float,
    softcap: float = 0.0,
    causal_from: int | None = None,
    is_merged: bool = False,
    is_channels_first: bool = False,
) -> Array:
    """What `fgraph.attention` says, in f32; of a row that sees no key zeros."""
    plane = q.shape[2:]
    if is_channels_first:
        q, k, v = (each.reshape(*each.shape[:2], -1).swapaxes(1, 2) for each in (q, k, v))
    parts = zip((q, k, v), (heads[0], heads[1], heads[1]), (sizes[0], *sizes), firsts, strict=True)
    queries, keys, values = (of_heads(*own) for own in parts)
    group = heads[0] // heads[1]
    keys, values = keys.repeat(group, axis=1), values.repeat(group, axis=1)
    scores = queries @ keys.swapaxes(2, 3) * np.float32(scale)
    if softcap > 0:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    if mask is not None:
        scores = scores + mask.astype(np.float32)
    if causal_from is not None:
        rows, columns = scores.shape[2:]
        is_hidden = np.arange(columns) > np.arange(rows)[:, np.newaxis] + causal_from
        scores = np.where(is_hidden, np.float32(-np.inf), scores)
    highest = scores.max(axis=3, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(highest), np.float32(0), highest))
    total = weights.sum(axis=3, keepdims=True)
    result = (weights @ values) / np.where(total == 0, np.float32(1), total)
    if not is_merged and not is_channels_first:
        return result
    batch, _, rows, _ = result.shape
    merged = result.swapaxes(1, 2).reshape(batch, rows, -1)
    return merged.swapaxes(1, 2).reshape(batch, -1, *plane) if is_channels_first else merged


def of_heads(x: Array, heads: int, size: int, first: int) -> Array:
    """[B, heads, rows, size] in f32."""
    x = x.astype(np.float32)
    if x.ndim == 4:
        return x
    batch, rows, _ = x.shape
    return x[:, :, first : first + heads * size].reshape(batch, rows, heads, size).swapaxes(1, 2)
