"""Models of one node of attention, or of what stands around it, with random shapes and options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from frustum import onnx_backend

OPSET = 24


@dataclass
class Case:
    """One node: its operands (None: left out), the places of those that are constants, attributes, outputs."""

    op: str
    operands: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[bool, ...] = (True,)
    constants: tuple[int, ...] = ()
    domain: str = ""

    @property
    def inputs(self):
        named = {f"x{i}": x for i, x in enumerate(self.operands) if x is not None}
        return {name: x for name, x in named.items() if int(name[1:]) not in self.constants}

    def model(self):
        names = ["" if x is None else f"x{i}" for i, x in enumerate(self.operands)]
        ends = [f"y{i}" if is_there else "" for i, is_there in enumerate(self.outputs)]
        node = helper.make_node(self.op, names, ends, domain=self.domain, **self.attributes)
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in self.inputs.items()
        ]
        bound = [onnx.numpy_helper.from_array(self.operands[i], f"x{i}") for i in self.constants]
        element = helper.np_dtype_to_tensor_dtype(self.operands[0].dtype)
        results = [helper.make_tensor_value_info(name, element, None) for name in ends if name]
        graph = helper.make_graph([node], "case", infos, results, bound)
        opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(self.domain, 1)] if self.domain else [])]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def expected(self):
        """What onnxruntime gives."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(self.model().SerializeToString(), options, ["CPUExecutionProvider"])
        return session.run(None, self.inputs)

    def found(self, expected, **options):
        """What the device gives, alone and checked."""
        model = self.model()
        for value, array in zip(model.graph.output, expected, strict=True):
            value.type.CopyFrom(helper.make_tensor_type_proto(value.type.tensor_type.elem_type, array.shape))
        prepared = onnx_backend.prepare(model, host="never", checked=True, **({"target": "edge"} | options))
        return prepared.run(list(self.inputs.values()))

    def check(self, expected=None, *, rtol=1e-4, atol=2e-5, **options):
        expected = self.expected() if expected is None else expected
        found = self.found(expected, **options)
        for wanted, got in zip(expected, found, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol, err_msg=str(self.attributes))


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def maybe(rng, chance=0.5):
    return bool(rng.random() < chance)


def attention(rng):
    """ONNX's Attention of opset 24."""
    batch, groups, share = (int(n) for n in rng.integers(1, 4, 3))
    rows, keys, size, value_size = (int(n) for n in rng.integers(1, 9, 4))
    heads, past = groups * share, int(rng.integers(1, 6)) if maybe(rng, 0.3) else 0
    q, k, v = (
        normal(rng, batch, n, length, d)
        for n, length, d in ((heads, rows, size), (groups, keys, size), (groups, keys, value_size))
    )
    attributes: dict[str, Any] = {}
    if maybe(rng):
        q, k, v = (x.swapaxes(1, 2).reshape(batch, x.shape[2], -1) for x in (q, k, v))
        attributes |= {"q_num_heads": heads, "kv_num_heads": groups}
    attributes |= {"scale": float(rng.uniform(0.1, 2))} if maybe(rng) else {}
    attributes |= {"is_causal": 1} if maybe(rng) else {}
    attributes |= {"softcap": float(rng.uniform(0.5, 3))} if maybe(rng, 0.3) else {}
    caches = [normal(rng, batch, groups, past, d) for d in (size, value_size)] if past else [None, None]
    mask = None
    if maybe(rng):
        whole = (batch, heads, rows, keys + past)
        # of a mask of one row the reference hides for all queries what it hides for the first
        full = (2, 3) if "is_causal" in attributes else (3,)
        shape = [n if i in full or maybe(rng) else 1 for i, n in enumerate(whole)][int(rng.integers(0, 3)) :]
        mask = normal(rng, *shape) if maybe(rng) else rng.random(shape) < 0.7
    operands = [q, k, v, mask, *caches]
    outputs = (True, bool(past), bool(past))
    if maybe(rng, 0.3):
        attributes["qk_matmul_output_mode"] = int(rng.integers(1 if "softcap" in attributes else 0, 4))
        outputs = (*outputs, True)
    constants = (3,) if mask is not None and maybe(rng, 0.3) else ()
    return Case("Attention", operands, attributes, outputs, constants)


# --- com.microsoft ----------------------------------------------------------------------------------------

MICROSOFT = "com.microsoft"


def key_mask(rng, batch, rows, keys, *, starts=False):
    """Integers that say which keys are padded: some are not."""
    kind = int(rng.integers(0, 5 if starts else 4))
    if kind == 0:
        return None
    if kind == 1:
        return rng.integers(1, keys + 1, batch).astype(np.int32)
    if kind == 4:
        first = rng.integers(0, keys, batch)
        ends = first + 1 + rng.integers(0, keys - first)
        return np.concatenate([ends, first]).astype(np.int32)
    mask = (rng.random((batch, keys) if kind == 2 else (batch, rows, keys)) < 0.7).astype(np.int32)
    mask[..., 0] = 1
    return mask


def multi_head_attention(rng):
    batch, heads, rows, size, value_size = (int(n) for n in rng.integers(1, 7, 5))
    keys, past = int(rng.integers(1, 7)), int(rng.integers(1, 5)) if maybe(rng, 0.3) else 0
    form = "apart" if past or maybe(rng, 0.7) else "cross"
    value_size = size if form != "apart" or past else value_size
    attributes: dict[str, Any] = {"num_heads": heads}
    attributes |= {"scale": float(rng.uniform(0.1, 1))} if maybe(rng, 0.3) else {}
    attributes |= {"mask_filter_value": -500.0} if maybe(rng, 0.3) else {}
    if form == "cross":
        own = [normal(rng, batch, heads, keys, size) for _ in range(2)]
        operands = [normal(rng, batch, rows, heads * size), *own]
    else:
        shapes = (rows, heads * size), (keys, heads * size), (keys, heads * value_size)
        operands = [normal(rng, batch, *shape) for shape in shapes]
    has_bias = form == "apart" and maybe(rng)
    operands.append(normal(rng, heads * (2 * size + value_size)) if has_bias else None)
    total = keys + past
    attributes |= {"unidirectional": 1} if maybe(rng, 0.3) and rows == keys else {}
    operands.append(key_mask(rng, batch, rows, total))
    bias = [batch if maybe(rng) else 1, heads if maybe(rng) else 1, rows, total]
    operands.append(normal(rng, *bias) if maybe(rng, 0.4) else None)
    operands += [normal(rng, batch, heads, past, size) for _ in range(2)] if past else [None, None]
    constants = tuple(i for i in (3, 4) if operands[i] is not None and maybe(rng))
    return Case("MultiHeadAttention", operands, attributes, (True, bool(past), bool(past)), constants, MICROSOFT)


def projected_attention(rng):
    batch, heads, rows, size, channels = (int(n) for n in rng.integers(1, 7, 5))
    past = int(rng.integers(1, 5)) if maybe(rng, 0.4) else 0
    value_size = size if past or maybe(rng) else int(rng.integers(1, 7))
    sizes = [heads * size, heads * size, heads * value_size]
    attributes: dict[str, Any] = {"num_heads": heads}
    attributes |= {"qkv_hidden_sizes": sizes} if value_size != size else {}
    attributes |= {"unidirectional": 1} if maybe(rng, 0.4) else {}
    attributes |= {"scale": float(rng.uniform(0.1, 1))} if maybe(rng, 0.3) else {}
    mask = key_mask(rng, batch, rows, rows + past, starts="unidirectional" not in attributes)
    bias = normal(rng, batch if maybe(rng) else 1, heads if maybe(rng) else 1, rows, rows + past)
    operands = [
        normal(rng, batch, rows, channels), normal(rng, channels, sum(sizes)), normal(rng, sum(sizes)), mask,
        normal(rng, 2, batch, heads, past, size) if past else None, bias if not past and maybe(rng) else None,
    ]  # fmt: skip
    constants = [i for i in (1, 2) if maybe(rng)]
    constants += [3] if mask is not None and (maybe(rng) or mask.shape == (2 * batch,)) else []
    return Case("Attention", operands, attributes, (True, bool(past)), tuple(constants), MICROSOFT)


def group_query_attention(rng):
    batch, groups, share, rows = (int(n) for n in rng.integers(1, 4, 4))
    heads, has_rotation = groups * share, maybe(rng)
    size = 16 if has_rotation or maybe(rng) else 8
    past = int(rng.integers(1, 5)) if maybe(rng) else 0
    rows = 1 if past and batch > 1 else rows
    total = rows + past
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups}
    attributes |= {"scale": float(rng.uniform(0.1, 1))} if maybe(rng, 0.3) else {}
    attributes |= {"softcap": float(rng.uniform(1, 5))} if maybe(rng, 0.3) else {}
    attributes |= {"local_window_size": int(rng.integers(1, 5))} if maybe(rng, 0.3) else {}
    if maybe(rng):
        operands = [normal(rng, batch, rows, (heads + 2 * groups) * size), None, None]
    else:
        operands = [normal(rng, batch, rows, count * size) for count in (heads, groups, groups)]
    operands += [normal(rng, batch, groups, past, size) for _ in range(2)] if past else [None, None]
    operands += [np.full(batch, total - 1, np.int32), np.array(total, np.int32)]
    if has_rotation:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(maybe(rng))}
        angles = rng.uniform(0, 6, (total + 2, size // 2)).astype(np.float32)
        operands += [np.cos(angles), np.sin(angles)]
    else:
        operands += [None, None]
    bias = normal(rng, batch if maybe(rng) else 1, heads if maybe(rng) else 1, rows, total)
    operands += [None, bias if maybe(rng, 0.3) else None]
    constants = (5, 6, *((7, 8) if operands[7] is not None and maybe(rng) else ()))
    return Case("GroupQueryAttention", operands, attributes, (True, True, True), constants, MICROSOFT)


def rotary_embedding(rng):
    batch, heads, rows, pairs = (int(n) for n in rng.integers(1, 6, 4))
    length, attributes = rows + int(rng.integers(0, 4)), {"interleaved": int(maybe(rng))}
    rest = 0
    if maybe(rng):
        x = normal(rng, batch, heads, rows, 2 * pairs)
    else:
        rest = int(rng.integers(0, 5)) if maybe(rng, 0.4) else 0
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * pairs} if rest else {}
        x = normal(rng, batch, rows, heads * (2 * pairs + rest))
    angles = rng.uniform(0, 6, (length, pairs)).astype(np.float32)
    positions = rng.integers(0, length, (batch, rows)) if maybe(rng) else rng.integers(0, length - rows + 1, 1)
    constants = (1, *((2, 3) if maybe(rng) else ()))
    return Case(
        "RotaryEmbedding", [x, positions, np.cos(angles), np.sin(angles)], attributes, (True,), constants, MICROSOFT
    )


def skip_normalization(op):
    def make(rng):
        batch, rows, size = (int(n) for n in rng.integers(1, 17, 3))
        x = normal(rng, batch, rows, size + 1)
        skips = [x.shape] if op != "SkipLayerNormalization" else [x.shape, (1, *x.shape[1:]), x.shape[1:]]
        shift = [normal(rng, size + 1) if maybe(rng) else None] if op == "SkipLayerNormalization" else []
        operands = [x, normal(rng, *skips[int(rng.integers(len(skips)))]), normal(rng, size + 1), *shift]
        operands.append(normal(rng, size + 1) if maybe(rng) else None)
        constants = tuple(i for i in range(2, len(operands)) if operands[i] is not None and maybe(rng))
        outputs = (True, False, False, True) if maybe(rng) else (True,)
        return Case(op, operands, {"epsilon": float(rng.uniform(1e-6, 1e-2))}, outputs, constants, MICROSOFT)

    return make


def gelu(op):
    def make(rng):
        shape = [int(n) for n in rng.integers(1, 9, int(rng.integers(2, 5)))]
        bias = normal(rng, shape[-1]) if op == "BiasGelu" or maybe(rng) else None
        constants = (1,) if bias is not None and maybe(rng) else ()
        return Case(op, [3 * normal(rng, *shape), bias], {}, (True,), constants, MICROSOFT)

    return make


TRANSFORMER = {
    "Attention": projected_attention,
    "MultiHeadAttention": multi_head_attention,
    "GroupQueryAttention": group_query_attention,
    "RotaryEmbedding": rotary_embedding,
    "SkipLayerNormalization": skip_normalization("SkipLayerNormalization"),
    "SkipSimplifiedLayerNormalization": skip_normalization("SkipSimplifiedLayerNormalization"),
    "FastGelu": gelu("FastGelu"),
    "BiasGelu": gelu("BiasGelu"),
}
"""Operators of com.microsoft around attention, and random cases of each."""
