"""A decode step of a language model as exporters write it: ids, positions and mask of INT64, caches as inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 17


@dataclass
class Decode:
    """One step of `layers` blocks: RMSNorm, rotation by rows of a table, grouped queries, SwiGLU.

    `rows` tokens after `past` ones; `table` is the number of positions that the cosine table has."""

    vocab: int = 1000
    width: int = 32
    heads: int = 4
    groups: int = 2
    hidden: int = 64
    layers: int = 1
    past: int = 7
    rows: int = 1
    table: int = 64
    dtype: type = np.float32
    mask: str = "cast"
    """How the mask of INT64 becomes numbers: `cast` and subtract, `where` it is equal to 0, `sub` in INT64."""
    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.width // self.heads

    def inputs(self) -> dict[str, np.ndarray]:
        rng, total = np.random.default_rng(self.seed + 1), self.past + self.rows
        mask = np.ones((1, total), np.int64)
        mask[0, 0] = 0
        found = {
            "input_ids": rng.integers(0, self.vocab, (1, self.rows)),
            "position_ids": np.arange(self.past, total, dtype=np.int64)[None],
            "attention_mask": mask,
        }
        for layer in range(self.layers):
            for name in ("key", "value"):
                shape = (1, self.groups, self.past, self.size)
                found[f"past_{name}.{layer}"] = rng.standard_normal(shape).astype(self.dtype)
        return found

    def model(self) -> onnx.ModelProto:
        self.nodes, self.constants = [], {}
        rng = np.random.default_rng(self.seed)
        angles = np.outer(np.arange(self.table), 1e4 ** (-np.arange(self.size // 2) * 2 / self.size))
        angles = np.concatenate([angles, angles], 1)
        self.weight("embed", rng.standard_normal((self.vocab, self.width)))
        self.weight("cos_table", np.cos(angles))
        self.weight("sin_table", np.sin(angles))
        self.node("Gather", "embed", "input_ids", out="x0", axis=0)
        for name in ("cos", "sin"):
            self.node("Gather", f"{name}_table", "position_ids", out=f"{name}_rows", axis=0)
            self.node("Unsqueeze", f"{name}_rows", self.ints(1), out=name)  # [1, 1, rows, size]
        self.bias_of_mask()
        x, outputs = "x0", []
        for layer in range(self.layers):
            x, present = self.block(x, layer, rng)
            outputs += present
        self.norm(x, "final", rng)
        self.product("final", "head", (self.width, self.vocab), rng, out="logits")
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        ends = [helper.make_tensor_value_info(name, element, None) for name in ("logits", *outputs)]
        starts = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.inputs().items()
        ]
        tensors = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "decode", starts, ends, tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)

    def block(self, x: str, layer: int, rng: np.random.Generator) -> tuple[str, list[str]]:
        p, size = f"l{layer}", self.size
        self.norm(x, f"{p}.n1", rng)
        parts = {}
        for name, count in (("q", self.heads), ("k", self.groups), ("v", self.groups)):
            flat = self.product(f"{p}.n1", f"{p}.{name}", (self.width, count * size), rng)
            split = self.node("Reshape", flat, self.ints(1, self.rows, count, size))
            parts[name] = self.node("Transpose", split, perm=[0, 2, 1, 3])
        q, k = (self.rotated(parts[name], f"{p}.{name}") for name in ("q", "k"))
        presents = []
        for name, new in (("key", k), ("value", parts["v"])):
            presents.append(f"present_{name}.{layer}")
            self.node("Concat", f"past_{name}.{layer}", new, out=presents[-1], axis=2)
        keys, values = (self.repeated(name) for name in presents)
        turned = self.node("Transpose", keys, perm=[0, 1, 3, 2])
        scores = self.node("Mul", self.node("MatMul", q, turned), self.number(size**-0.5))
        share = self.node("Softmax", self.node("Add", scores, "bias"), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", share, values), perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", mixed, self.ints(1, self.rows, self.width))
        x = self.node("Add", x, self.product(mixed, f"{p}.o", (self.width, self.width), rng))
        self.norm(x, f"{p}.n2", rng)
        gate, up = (self.product(f"{p}.n2", f"{p}.{n}", (self.width, self.hidden), rng) for n in ("gate", "up"))
        gate = self.node("Mul", gate, self.node("Sigmoid", gate))
        down = self.product(self.node("Mul", gate, up), f"{p}.down", (self.hidden, self.width), rng)
        return self.node("Add", x, down), presents

    def bias_of_mask(self) -> None:
        """[1, 1, rows, past + rows]: 0 where a key is seen, else a large negative number."""
        least, element = float(np.finfo(self.dtype).min), helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        mask = self.node("Unsqueeze", "attention_mask", self.ints(1, 2))
        if self.mask == "where":
            hidden = self.node("Equal", mask, self.constant(np.int64(0)))
            bias = self.node("Where", hidden, self.number(least), self.number(0))
        elif self.mask == "sub":
            left = self.node("Cast", self.node("Sub", self.constant(np.int64(1)), mask), to=element)
            bias = self.node("Mul", left, self.number(least))
        else:
            left = self.node("Sub", self.number(1), self.node("Cast", mask, to=element))
            bias = self.node("Mul", left, self.number(least))
        # of the new tokens each sees itself and those before: keys at places up to its position
        place = self.constant(np.arange(self.past + self.rows, dtype=np.int64))
        here = self.node("Unsqueeze", "position_ids", self.ints(1, 3))
        later = self.node("Greater", place, here)
        causal = self.node("Where", later, self.number(least), self.number(0))
        self.node("Min", bias, causal, out="bias")

    def norm(self, x: str, name: str, rng: np.random.Generator) -> None:
        square = self.node("Pow", x, self.number(2))
        mean = self.node("ReduceMean", square, axes=[-1])
        root = self.node("Sqrt", self.node("Add", mean, self.number(1e-5)))
        scaled = self.node("Div", x, root)
        self.node("Mul", scaled, self.weight(f"{name}.scale", 1 + rng.standard_normal(self.width) / 9), out=name)

    def rotated(self, x: str, name: str) -> str:
        half = self.size // 2
        low = self.node("Slice", x, self.ints(0), self.ints(half), self.ints(3))
        high = self.node("Slice", x, self.ints(half), self.ints(2**31 - 1), self.ints(3))
        turned = self.node("Concat", self.node("Neg", high), low, axis=-1)
        return self.node("Add", self.node("Mul", x, "cos"), self.node("Mul", turned, "sin"), out=f"{name}.rotated")

    def repeated(self, x: str) -> str:
        """Each group's keys for all its heads."""
        share, total = self.heads // self.groups, self.past + self.rows
        wide = self.node("Unsqueeze", x, self.ints(2))
        wide = self.node("Expand", wide, self.ints(1, self.groups, share, total, self.size))
        return self.node("Reshape", wide, self.ints(1, self.heads, total, self.size))

    def product(self, x: str, name: str, shape: tuple[int, int], rng: np.random.Generator, out: str = "") -> str:
        weight = self.weight(f"{name}.weight", rng.standard_normal(shape) / shape[0] ** 0.5)
        return self.node("MatMul", x, weight, out=out)

    def node(self, op: str, *operands: str, out: str = "", **attributes) -> str:
        out = out or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [out], name=out, **attributes))
        return out

    def weight(self, name: str, array: np.ndarray) -> str:
        self.constants[name] = array.astype(self.dtype)
        return name

    def number(self, value: float) -> str:
        return self.constant(np.asarray(value, self.dtype))

    def ints(self, *values: int) -> str:
        return self.constant(np.asarray(values, np.int64))

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name


