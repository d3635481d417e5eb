# Tests: test/passes/onnx/test_import_transformer.py
"""Operators of com.microsoft around attention, as onnxruntime computes them: attention with its projections, caches and
padding, and rotary positions.

A padded key is not hidden: `mask_filter_value` is added to its scores.  Later keys are hidden.
Source: onnxruntime, the page of contributed operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects.graph import MatmulOp, is_integer, shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Node, Result
from frustum.passes.onnx.operators.attention import Heads, Masks, is_seen, with_past
from frustum.passes.onnx.operators.conversions import from_integers
from frustum.passes.onnx.operators.moves import cut, joined, runs
from frustum.passes.weights import Array

MOST_KEYS = 256
"""Of which some are counted when the network runs: bf16 has the integers up to here."""
PADDED = -10000.0
"""What is added to the score of a padded key where nothing else is said."""


# --- attention --------------------------------------------------------------------------------------------


def unsupported(node: Node, **allowed: Any) -> None:
    """Refused for attributes that are others than these."""
    for name, value in allowed.items():
        found = node.get(name, value)
        if found != value:
            raise Refused(f"{name} is {found}: only {value} is supported")


def absent(node: Node, **places: int) -> None:
    """Refused for operands that are there."""
    for name, index in places.items():
        if node.has(index):
            raise Refused(f"{name} is not supported")


def unwanted(node: Node, **places: int) -> None:
    """Refused for outputs that somebody may use."""
    for name, index in places.items():
        if node.wants(index):
            raise Refused(f"the output {name} is not supported")


def scale_of(node: Node, size: int) -> float:
    """0 stands for none."""
    return float(node.get("scale", 0.0)) or 1 / math.sqrt(size)


def count_of(node: Node, name: str) -> int:
    count = int(node.get(name, 0))
    if count < 1:
        raise Refused(f"{name} is {count}")
    return count


def pad_keys(node: Node, index: int, masks: Masks) -> None:
    """The masks of integers: of each key, of each query and key, or how many keys there are, and the first of them."""
    if not node.has(index):
        return
    (batch, _, rows, keys), shape = masks.shape, node.shape(index)
    low = float(node.get("mask_filter_value", PADDED))
    given = node.operands[index]
    place = np.arange(keys).reshape(1, 1, 1, keys)
    if shape in ((batch, keys), (batch, rows, keys)):
        own = (batch, 1, 1 if len(shape) == 2 else rows, keys)
        if isinstance(given, np.ndarray):
            masks.add(np.where(given.reshape(own) > 0, 0, low).astype(np.float32))
            return
        padded = node.binary("less_equal", numbers(node, index, own), node.scalar(0.0, "padded"))
    elif shape in ((batch,), (2 * batch,)):
        if isinstance(given, np.ndarray):
            ends = given.reshape(-1, batch, 1, 1, 1)
            seen = (place < ends[0]) & (place >= ends[1] if len(ends) > 1 else True)
            masks.add(np.where(seen, 0, low).astype(np.float32))
            return
        if keys > MOST_KEYS or len(shape) != 1 or shape[0] != batch:
            raise Refused(f"lengths of {keys} keys, of shape {shape}, are no constants")
        lengths = numbers(node, index, (batch, 1, 1, 1))
        padded = node.binary("less_equal", lengths, node.weight(place.astype(np.float32), "places"))
    else:
        raise Refused(f"a mask of keys of shape {shape} is not supported with scores of {masks.shape}")
    masks.add(node.unary("affine", padded, low, 0.0))


def numbers(node: Node, index: int, shape: Sequence[int]) -> SSAValue:
    """An operand of integers as numbers."""
    x = node.value(index)
    return node.reshape(from_integers(node, index, None) if is_integer(x) else x, tuple(shape))


def biased(node: Node, x: SSAValue, index: int, first: int) -> SSAValue:
    """With its part of a bias that is one for queries, keys and values."""
    if not node.has(index):
        return x
    size = shape_of(x)[-1]
    if first + size > node.shape(index)[0]:
        raise Refused(f"a bias of {node.shape(index)[0]} elements has none at {first + size}")
    given = node.operands[index]
    if isinstance(given, np.ndarray):
        return node.binary("add", x, node.weight(given[first : first + size], "bias"))
    return node.binary("add", x, cut(node, node.value(index), 0, first, size))


def unpacked(node: Node, x: SSAValue, parts: int) -> list[SSAValue]:
    """[B, rows, heads, parts, size] as tensors [B, rows, heads * size]."""
    batch, rows, heads, found, size = shape_of(x)
    if found != parts:
        raise Refused(f"an operand of {shape_of(x)} is no {parts} tensors")
    return [node.reshape(cut(node, x, 3, part, 1), (batch, rows, heads * size)) for part in range(parts)]


def multi_head_attention(node: Node) -> Result:
    absent(node, past_sequence_length=8, cache_indirection=9)
    unwanted(node, qk=3)
    heads = count_of(node, "num_heads")
    query = node.value(0)
    if len(shape_of(query)) == 5:
        absent(node, key=1, value=2, bias=3)
        q, k, v = unpacked(node, query, 3)
    elif len(node.shape(1)) == 5:
        absent(node, value=2, bias=3)
        q = query
        k, v = unpacked(node, node.value(1), 2)
    else:
        q, k, v = query, node.value(1), node.value(2)
        if len(shape_of(k)) == 4:
            absent(node, bias=3, past_key=6)
        first = 0
        parts = []
        for x in (q, k, v):
            parts.append(biased(node, x, 3, first))
            first += shape_of(x)[-1]
        q, k, v = parts
    if node.has(6) != node.has(7):
        raise Refused("only one of past_key and past_value is there")
    present: list[SSAValue] = []
    offset = node.shape(6)[2] if node.has(6) else 0
    if node.has(6) or node.wants(1) or node.wants(2):
        past = [node.value(index) if node.has(index) else None for index in (6, 7)]
        present = [with_past(node, new, heads, old) for new, old in zip((k, v), past, strict=True)]
    if node.has(6):
        k, v = present
    own = Heads(q, k, v, (heads, heads))
    masks = Masks(node, own.shape)
    pad_keys(node, 4, masks)
    masks.add(node.value(5) if node.has(5) else None)
    result = own.attend(
        node, masks, scale=scale_of(node, own.sizes[0]), causal_from=causal(node, offset), is_merged=True
    )
    return [result, *(present or (result, result))]


def causal(node: Node, offset: int) -> int | None:
    return offset if node.get("unidirectional", 0) else None


def projected_attention(node: Node) -> Result:
    """com.microsoft's Attention: queries, keys and values are one product, and past and present one tensor."""
    unsupported(node, do_rotary=0, past_present_share_buffer=0)
    absent(node, past_sequence_length=6)
    heads = count_of(node, "num_heads")
    total = node.shape(1)[1]
    own = node.ints("qkv_hidden_sizes") or (total // 3,) * 3
    if sum(own) != total or len(own) != 3 or own[0] != own[1] or any(each % heads for each in own):
        raise Refused(f"qkv_hidden_sizes is {own}, the weights are {node.shape(1)}, num_heads is {heads}")
    bias = node.value(2) if node.has(2) else None
    x = node.emit(MatmulOp(node.value(0), node.value(1), bias))
    firsts, sizes = (0, own[0], own[0] + own[1]), (own[0] // heads, own[2] // heads)
    offset = node.shape(4)[3] if node.has(4) else 0
    results: list[SSAValue] = []
    k, v, places = x, x, firsts
    if node.has(4) or node.wants(1):
        if sizes[0] != sizes[1]:
            raise Refused(f"qkv_hidden_sizes is {own}: keys and values of one cache are of one size")
        caches = []
        for index, first in enumerate(firsts[1:]):
            old = None
            if node.has(4):
                shape = node.shape(4)
                old = node.reshape(cut(node, node.value(4), 0, index, 1), shape[1:])
            caches.append(with_past(node, cut(node, x, 2, first, own[1]), heads, old))
        results = [joined(node, [node.reshape(each, (1, *shape_of(each))) for each in caches], 0)]
        if node.has(4):
            k, v, places = caches[0], caches[1], (0, 0, 0)
    found = Heads(x, k, v, (heads, heads), places, sizes)
    masks = Masks(node, found.shape)
    pad_keys(node, 3, masks)
    masks.add(node.value(5) if node.has(5) else None)
    scale = scale_of(node, sizes[0])
    return [
        found.attend(node, masks, scale=scale, causal_from=causal(node, offset), is_merged=True),
        *results,
    ]


def group_query_attention(node: Node) -> Result:
    """Caches of images that are all of one length, which is known when importing."""
    unsupported(
        node, smooth_softmax=-1, sliding_window_cache=0, qk_output=0, k_quant_type="NONE", v_quant_type="NONE"
    )
    absent(node, head_sink=11, k_scale=12, v_scale=13, q_norm_weight=14, k_norm_weight=15)
    unwanted(node, output_qk=3)
    counts = heads, groups = count_of(node, "num_heads"), count_of(node, "kv_num_heads")
    batch, rows, channels = node.shape(0)
    packed = not node.has(1)
    size = channels // (heads + 2 * groups) if packed else channels // heads
    q, k, v = _packed_parts(node, size, counts) if packed else [node.value(index) for index in range(3)]
    total = _total_length(node, batch)
    start = total - rows
    if start < 0:
        raise Refused(f"total_sequence_length is {total} of {rows} rows")
    if node.get("do_rotary", 0):
        positions = _positions(node, 9, batch, rows) if node.has(9) else np.arange(start, total).reshape(1, -1)
        caches = [cache_rows(node, index, positions) for index in (7, 8)]
        interleaved = bool(node.get("rotary_interleaved", 0))
        q, k = (rotated(node, x, n, caches, interleaved) for x, n in ((q, heads), (k, groups)))
    present = [_updated(node, index, new, groups, start) for index, new in ((3, k), (4, v))]
    if node.has(3):
        k, v = (cut(node, x, 2, 0, total) for x in present)
    elif start:
        raise Refused(f"total_sequence_length is {total} of {rows} rows, and there is no past")
    own = Heads(q, k, v, counts)
    masks = Masks(node, own.shape)
    masks.add(node.value(10) if node.has(10) else None)
    is_causal, window = bool(node.get("causal", 1)), int(node.get("local_window_size", -1))
    if window > 0:
        masks.see(~is_seen(rows, total, start - window))
    result = own.attend(
        node, masks, scale=scale_of(node, size), softcap=float(node.get("softcap", 0.0)),
        causal_from=start if is_causal else None, is_merged=True,
    )  # fmt: skip
    return [result, *present]


def _packed_parts(node: Node, size: int, counts: tuple[int, int]) -> list[SSAValue]:
    heads, groups = counts
    x, parts, first = node.value(0), [], 0
    for count in (heads, groups, groups):
        parts.append(cut(node, x, 2, first, count * size))
        first += count * size
    return parts


def _total_length(node: Node, batch: int) -> int:
    """Of all images; Refused where they are not of one length."""
    lengths, total = node.constant(5, "seqlens_k"), node.constant(6, "total_sequence_length")
    if lengths is None or total is None:
        raise Refused("seqlens_k or total_sequence_length is missing")
    found = int(total.reshape(()))
    if lengths.size != batch or np.any(lengths != found - 1):
        raise Refused(f"seqlens_k is {lengths.tolist()}: only images of {found} keys are supported")
    return found


def _updated(node: Node, index: int, new: SSAValue, groups: int, start: int) -> SSAValue:
    """A cache with new rows from `start` on."""
    if not node.has(index):
        return with_past(node, new, groups, None)
    past = node.value(index)
    held, rows = shape_of(past)[2], shape_of(new)[1]
    if start > held:
        raise Refused(f"a cache of {held} rows has none before row {start}")
    parts = [cut(node, past, 2, 0, start)] if start else []
    parts.append(with_past(node, new, groups, None))
    if start + rows < held:
        parts.append(cut(node, past, 2, start + rows, held - start - rows))
    return joined(node, parts, 2)


# --- rotary positions -------------------------------------------------------------------------------------


def rotary_embedding(node: Node) -> Result:
    """Pairs of channels turned by the angles of their position."""
    unsupported(node, is_packed_batching=0, scale=1.0)
    x = node.value(0)
    shape = shape_of(x)
    if len(shape) not in (3, 4):
        raise Refused(f"its operand is {shape}: expected three or four axes")
    rows = shape[1] if len(shape) == 3 else shape[2]
    caches = [cache_rows(node, index, _positions(node, 1, shape[0], rows)) for index in (2, 3)]
    heads = int(node.get("num_heads", 0))
    if len(shape) == 3 and not heads:
        if node.get("rotary_embedding_dim", 0):
            raise Refused("rotary_embedding_dim needs num_heads")
        heads = shape[2] // (2 * shape_of(caches[0])[-1])
    return rotated(node, x, heads, caches, bool(node.get("interleaved", 0)))


def _positions(node: Node, index: int, batch: int, rows: int) -> Array:
    """[B or 1, rows]: the rows of the caches."""
    given = node.constant(index, "position_ids")
    if given is None:
        raise Refused("position_ids is missing")
    if given.size == 1:
        return int(given.reshape(())) + np.arange(rows).reshape(1, -1)
    if given.shape != (batch, rows):
        raise Refused(f"position_ids is {given.shape}, the operand has {batch} x {rows} rows")
    return given[:1] if np.all(given == given[:1]) else given


def cache_rows(node: Node, index: int, positions: Array) -> SSAValue:
    """[B or 1, rows, pairs]: cosines or sines."""
    length, pairs = node.shape(index)
    if positions.min() < 0 or positions.max() >= length:
        raise Refused(f"position_ids are up to {positions.max()}, the caches have {length} rows")
    given = node.operands[index]
    if isinstance(given, np.ndarray):
        return node.weight(given[positions], "rotation")
    x = node.value(index)
    parts = [cut(node, x, 0, *run) for run in runs([int(each) for each in positions.reshape(-1)])]
    return node.reshape(joined(node, parts, 0), (*positions.shape, pairs))


def rotated(node: Node, x: SSAValue, heads: int, caches: Sequence[SSAValue], interleaved: bool) -> SSAValue:
    """x [B, rows, heads * size] or [B, heads, rows, size]: the first channels of each head turned, by pairs that are
    half of them apart, or neighbours."""
    shape, (batch, rows, pairs) = shape_of(x), shape_of(caches[0])
    is_merged = len(shape) == 3
    if is_merged:
        if heads < 1 or shape[2] % heads:
            raise Refused(f"{heads} heads do not divide {shape}")
        x = node.reshape(x, (*shape[:2], heads, shape[2] // heads))
    size = shape_of(x)[3]
    if 2 * pairs > size:
        raise Refused(f"heads of {size} channels have no {pairs} pairs")
    angles = (batch, rows, 1, pairs) if is_merged else (batch, 1, rows, pairs)
    cosines, sines = (node.reshape(each, angles) for each in caches)
    step, second = (2, 1) if interleaved else (1, pairs)
    a, b = (cut(node, x, 3, first, pairs, step) for first in (0, second))
    left = node.binary("sub", node.binary("mul", a, cosines), node.binary("mul", b, sines))
    right = node.binary("add", node.binary("mul", a, sines), node.binary("mul", b, cosines))
    parts = [left, right]
    if interleaved:
        own = shape_of(left)
        split = [node.reshape(each, (*own, 1)) for each in parts]
        parts = [node.reshape(joined(node, split, 4), (*own[:3], 2 * pairs))]
    if 2 * pairs < size:
        parts.append(cut(node, x, 3, 2 * pairs, size - 2 * pairs))
    return node.reshape(joined(node, parts, 3), shape)


MICROSOFT: dict[str, Converter] = {
    "Attention": projected_attention,
    "MultiHeadAttention": multi_head_attention,
    "GroupQueryAttention": group_query_attention,
    "RotaryEmbedding": rotary_embedding,
}
"""Of the domain com.microsoft."""
