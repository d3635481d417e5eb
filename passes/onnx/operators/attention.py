# Tests: test/passes/onnx/test_import_attention.py
"""Attention: heads, masks and caches as ONNX says them, in terms of `fgraph.attention`.

A mask is numbers that are added to the scores; what hides a key is minus infinity.  Masks that are known when importing
are added here, others on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects.graph import AttentionOp, MatmulOp, ReduceOp, SoftmaxOp, shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result
from frustum.passes.onnx.operators.moves import joined, turned
from frustum.passes.weights import Array

MOST_KEYS = 256
"""Of which some are counted when the network runs: bf16 has the integers up to here."""
MODES = ("product", "capped", "masked", "weights")
"""What `qk_matmul_output` is."""


@dataclass
class Masks:
    """What is added to scores of `shape` [B, heads, T, L]."""

    node: Node
    shape: Ints
    numbers: Array | None = None
    values: list[SSAValue] = field(default_factory=list)

    def add(self, mask: Array | SSAValue | None) -> None:
        """Truth values (of keys that are seen) or numbers; ones of fewer keys hide the others."""
        if mask is None:
            return
        found = tuple(mask.shape) if isinstance(mask, np.ndarray) else shape_of(mask)
        missing = self.shape[3] - found[-1] if found else 0
        fits = len(found) <= 4 and all(
            a in (1, b) for a, b in zip(found[:-1][::-1], self.shape[:-1][::-1], strict=False)
        )
        if not found or missing < 0 or not fits:
            raise Refused(f"a mask of {found} does not broadcast to {self.shape}")
        if isinstance(mask, np.ndarray):
            numbers = np.where(mask, np.float32(0), np.float32(-np.inf)) if mask.dtype == np.bool_ else mask
            pads = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
            self.put(np.pad(numbers.astype(np.float32), pads, constant_values=-np.inf))
            return
        if mask in self.node.network.boolean:
            mask = self.hidden(mask)
        if missing:
            rest = self.node.weight(np.full((*found[:-1], missing), -np.inf, np.float32), "missing")
            mask = joined(self.node, [mask, rest], len(found) - 1)
        self.values.append(mask)

    def put(self, numbers: Array) -> None:
        self.numbers = numbers if self.numbers is None else self.numbers + numbers

    def hidden(self, seen: SSAValue) -> SSAValue:
        """Minus infinity where a truth value is 0."""
        return self.node.binary("drop", self.node.scalar(-math.inf, "hidden"), seen)

    def see(self, seen: Array) -> None:
        """Only the keys where this is true are seen."""
        if not seen.all():
            self.put(np.where(seen, np.float32(0), np.float32(-np.inf)))

    def total(self) -> SSAValue | None:
        """All of them in one tensor."""
        values = list(self.values)
        if self.numbers is not None and self.numbers.any():
            values.append(self.node.weight(self.numbers, "mask"))
        result = values[0] if values else None
        for value in values[1:]:
            assert result is not None
            result = self.node.binary("add", result, value)
        return result


@dataclass
class Heads:
    """Queries, keys and values of one attention: [B, rows, heads * size] or [B, heads, rows, size] each."""

    q: SSAValue
    k: SSAValue
    v: SSAValue
    counts: tuple[int, int]
    firsts: Ints = (0, 0, 0)
    sizes: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        """Refused for operands that are no such heads."""
        queries, groups = self.counts
        if min(queries, groups) < 1 or queries % groups:
            raise Refused(f"{queries} heads of queries cannot share {groups} heads of keys")
        shapes = [shape_of(each) for each in (self.q, self.k, self.v)]
        if any(len(shape) not in (3, 4) for shape in shapes):
            raise Refused(f"its operands are {shapes}: expected three or four axes")
        own = zip(shapes, (queries, groups, groups), strict=True)
        if not any(self.sizes):
            for shape, heads in zip(shapes, (queries, groups, groups), strict=True):
                if (shape[2] % heads) if len(shape) == 3 else shape[1] != heads:
                    raise Refused(f"{heads} heads do not divide {shape}")
            found = [shape[2] // heads if len(shape) == 3 else shape[3] for shape, heads in own]
            if found[0] != found[1]:
                raise Refused(f"heads of queries have {found[0]} elements, of keys {found[1]}")
            self.sizes = found[0], found[2]

    @property
    def shape(self) -> Ints:
        """Of the scores."""
        rows, keys = (
            shape[1] if len(shape) == 3 else shape[2] for shape in (shape_of(self.q), shape_of(self.k))
        )
        return shape_of(self.q)[0], self.counts[0], rows, keys

    def attend(
        self,
        node: Node,
        masks: Masks,
        *,
        scale: float,
        softcap: float = 0.0,
        causal_from: int | None = None,
        is_merged: bool,
    ) -> SSAValue:
        op = AttentionOp(
            self.q, self.k, self.v, masks.total(), heads=self.counts, sizes=self.sizes, firsts=self.firsts, scale=scale,
            softcap=softcap, causal_from=causal_from, is_merged=is_merged,
        )  # fmt: skip
        return node.emit(op)

    def scores(
        self, node: Node, masks: Masks, *, scale: float, softcap: float, causal_from: int | None, what: str
    ) -> SSAValue:
        """The scores as a tensor of their own, as far as they are `what` of MODES."""
        (batch, heads, rows, keys), groups = self.shape, self.counts[1]
        q = node.reshape(apart(node, self.q, heads), (batch, groups, heads // groups * rows, self.sizes[0]))
        x = node.reshape(node.emit(MatmulOp(q, apart(node, self.k, groups), trans_b=True)), self.shape)
        x = node.binary("mul", x, node.scalar(scale, "scale"))
        if what != "product" and softcap:
            x = node.unary("tanh", node.unary("affine", x, 1 / softcap, 0.0))
            x = node.unary("affine", x, softcap, 0.0)
        if what in ("product", "capped"):
            return x
        whole = Masks(node, self.shape, masks.numbers, list(masks.values))
        if causal_from is not None:
            whole.see(is_seen(rows, keys, causal_from))
        mask = whole.total()
        if mask is not None:
            x = node.binary("add", x, mask)
        if what == "masked":
            return x
        x = node.emit(SoftmaxOp(x, 3))
        if mask is None:
            return x
        most = node.emit(ReduceOp("max", mask, (len(shape_of(mask)) - 1,), True))
        return node.binary("drop", x, node.binary("equal", most, node.scalar(-math.inf, "nothing")))


def is_seen(rows: int, keys: int, causal_from: int) -> Array:
    """[rows, keys]: whether a query sees a key."""
    return np.arange(keys) <= np.arange(rows)[:, np.newaxis] + causal_from


def apart(node: Node, x: SSAValue, heads: int) -> SSAValue:
    """[B, heads, rows, size]"""
    shape = shape_of(x)
    if len(shape) == 4:
        return x
    batch, rows, channels = shape
    return turned(node, node.reshape(x, (batch, rows, heads, channels // heads)), (0, 2, 1, 3))


def with_past(node: Node, new: SSAValue, heads: int, past: SSAValue | None) -> SSAValue:
    """A cache with new rows behind those that it had."""
    rows = apart(node, new, heads)
    return rows if past is None else joined(node, [past, rows], 2)


def attention(node: Node) -> Result:
    """Of opset 23 on."""
    q, k, v = (node.value(index) for index in range(3))
    ranks = {len(shape_of(each)) for each in (q, k, v)}
    if len(ranks) > 1 or not ranks <= {3, 4}:
        raise Refused(f"its operands have {sorted(ranks)} axes")
    is_merged = ranks == {3}
    if is_merged:
        counts = int(node.get("q_num_heads", 0)), int(node.get("kv_num_heads", 0))
    else:
        counts = shape_of(q)[1], shape_of(k)[1]
    heads = Heads(q, k, v, counts)
    if node.has(4) != node.has(5):
        raise Refused("only one of past_key and past_value is there")
    offset = node.shape(4)[2] if node.has(4) else 0
    present: list[SSAValue] = []
    if node.has(4) or node.wants(1) or node.wants(2):
        past = [node.value(index) if node.has(index) else None for index in (4, 5)]
        present = [with_past(node, new, counts[1], old) for new, old in zip((k, v), past, strict=True)]
    if node.has(4):
        heads = Heads(q, present[0], present[1], counts)
    masks, causal_from = masks_of(node, heads, offset)
    softcap = float(node.get("softcap", 0.0))
    if softcap < 0:
        raise Refused(f"softcap is {softcap}")
    scale = float(node.get("scale", 1 / math.sqrt(heads.sizes[0])))
    result = heads.attend(
        node, masks, scale=scale, softcap=softcap, causal_from=causal_from, is_merged=is_merged
    )
    results = [result, *(present or (result, result))]
    if node.wants(3):
        mode = int(node.get("qk_matmul_output_mode", 0))
        if not 0 <= mode < len(MODES):
            raise Refused(f"qk_matmul_output_mode is {mode}")
        what = MODES[mode]
        results.append(
            heads.scores(node, masks, scale=scale, softcap=softcap, causal_from=causal_from, what=what)
        )
    return results


def masks_of(node: Node, heads: Heads, offset: int) -> tuple[Masks, int | None]:
    """The masks of ONNX's Attention, and from which key on later ones are hidden."""
    masks = Masks(node, heads.shape)
    masks.add(node.operands[3] if node.has(3) else None)
    left, right = int(node.get("left_window_size", -1)), int(node.get("right_window_size", -1))
    is_causal = bool(node.get("is_causal", 0))
    if node.has(6):
        if node.has(4):
            raise Refused("nonpad_kv_seqlen and past_key are not used together")
        _of_lengths(node, masks, (is_causal, left, right))
        return masks, None
    rows, keys = heads.shape[2:]
    if left >= 0:
        masks.see(~is_seen(rows, keys, offset - left - 1))
    if right >= 0:
        masks.see(is_seen(rows, keys, offset + right))
    return masks, offset if is_causal else None


def _of_lengths(node: Node, masks: Masks, window: tuple[bool, int, int]) -> None:
    """Only the first n keys of an image are seen, and the last query is the one at n - 1."""
    (batch, _, rows, keys), (is_causal, left, right) = masks.shape, window
    place, ahead = np.arange(keys), np.arange(keys) - np.arange(rows)[:, np.newaxis] + rows
    most = [place + 1]
    most += [ahead] if is_causal else []
    most += [ahead - right] if right >= 0 else []
    given = node.operands[6]
    if isinstance(given, np.ndarray):
        lengths = given.reshape(batch, 1, 1, 1)
        for low in most:
            masks.see(low <= lengths)
        if left >= 0:
            masks.see(lengths <= ahead + left)
        return
    if keys > MOST_KEYS:
        raise Refused(f"nonpad_kv_seqlen of {keys} keys is no constant: at most {MOST_KEYS} are supported")
    value = node.reshape(node.value(6), (batch, 1, 1, 1))
    for low in most:
        numbers = node.weight(low.reshape(1, 1, -1, keys).astype(np.float32), "places")
        masks.values.append(masks.hidden(node.binary("less_equal", numbers, value)))
    if left >= 0:
        numbers = node.weight((ahead + left).reshape(1, 1, rows, keys).astype(np.float32), "places")
        masks.values.append(masks.hidden(node.binary("less_equal", value, numbers)))


CONVERTERS: dict[str, Converter] = {"Attention": attention}
