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
        full = (2, 3) if "is_causal" in attributes else (3,)  # of one row the reference hides for all what it does for one
        shape = [n if i in full or maybe(rng) else 1 for i, n in enumerate(whole)][int(rng.integers(0, 3)) :]
        mask = normal(rng, *shape) if maybe(rng) else rng.random(shape) < 0.7
    operands = [q, k, v, mask, *caches]
    outputs = (True, bool(past), bool(past))
    if maybe(rng, 0.3):
        attributes["qk_matmul_output_mode"] = int(rng.integers(1 if "softcap" in attributes else 0, 4))
        outputs = (*outputs, True)
    constants = (3,) if mask is not None and maybe(rng, 0.3) else ()
    return Case("Attention", operands, attributes, outputs, constants)
