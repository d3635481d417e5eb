"""Bytes that any plan moves, counted again from the ONNX file alone; nothing of the compiler is imported.

Every input as far as windows and slices that read it reach, every weight and bias behind constant folding, every
output, once each.  Weights have `element` bytes, biases 4.  A batch normalisation behind a product becomes its weights
and bias; what is a single number, or says how another operand is moved, is in the program.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
WEIGHTS = {**dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), (1,)), "MatMul": (0, 1), "Attention": (0, 1, 2, 3),
           "RotaryEmbedding": (1, 2)}  # fmt: skip
"""Which operands of a node are weights where they are constant."""
BIASED = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}
SIDE_BY_SIDE = {
    "Add", "Sub", "Mul", "Div", "Where", "Concat", "PRelu", "Max", "Min", "LayerNormalization", "Gather", "Pow",
    "InstanceNormalization", "GroupNormalization", "RMSNormalization", "Greater", "Less", "Equal", "And", "Or",
}  # fmt: skip
NORMS = {"LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"}
MOST_FOLDED = 1 << 24


class Count:
    """Of one model; `bytes` is the sum."""

    def __init__(self, model: onnx.ModelProto, element: int) -> None:
        self.model = shape_inference.infer_shapes(model, data_prop=True)
        graph, self.element = self.model.graph, element
        self.nodes = list(graph.node)
        self.known = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self.inputs = [each for each in graph.input if each.name not in self.known]
        self.outputs = [each.name for each in graph.output]
        values = [*graph.value_info, *graph.input, *graph.output]
        self.shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
        self._fold()
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(node)
        self.parts = {name: 0 for name in ("inputs", "weights", "outputs")}
        self.parts["inputs"] = sum(self.read(each.name) for each in self.inputs)
        self.parts["outputs"] = sum(math.prod(self.shape(name)) * element for name in self.outputs)
        self.parts["weights"] = sum(self.weights().values())

    @property
    def bytes(self) -> int:
        return sum(self.parts.values())

    def shape(self, name: str) -> list[int]:
        return list(self.known[name].shape) if name in self.known else self.shapes[name]

    def _fold(self) -> None:
        """Nodes of constants alone are constants."""
        left = []
        for node in self.nodes:
            names = [name for name in node.input if name]
            is_shape = node.op_type == "Shape" and node.input[0] in self.shapes
            if is_shape and all(self.shapes[node.input[0]]):
                self.known[node.output[0]] = np.array(self.shapes[node.input[0]], np.int64)
            elif all(name in self.known for name in names) and not node.op_type.startswith("Random"):
                inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(self.known[n].dtype), None)
                          for n in dict.fromkeys(names)]  # fmt: skip
                ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in node.output if n]
                versions = {"opset_imports": self.model.opset_import, "ir_version": self.model.ir_version}
                alone = helper.make_model(helper.make_graph([node], "one", inputs, ends), **versions)
                found = ReferenceEvaluator(alone).run(None, {n: self.known[n] for n in names})
                self.known |= {n: np.asarray(v) for n, v in zip((n for n in node.output if n), found, strict=True)}
            else:
                left.append(node)
        self.nodes = left

    def attributes(self, node: onnx.NodeProto) -> dict:
        return {a.name: helper.get_attribute_value(a) for a in node.attribute}

    # --- inputs

    def read(self, name: str) -> int:
        """Bytes of an input that its readers see."""
        seen = np.zeros(self.shape(name), bool)
        for node in self.readers.get(name, ()):
            seen |= self.seen_by(node, name)
        if name in self.outputs:
            seen[...] = True
        return int(seen.sum()) * self.element

    def seen_by(self, node: onnx.NodeProto, name: str) -> np.ndarray:
        shape, given = self.shape(name), self.attributes(node)
        seen = np.zeros(shape, bool)
        if node.op_type in ("Conv", "MaxPool", "AveragePool") and node.input[0] == name and not given.get("ceil_mode"):
            out = self.shape(node.output[0])[2:]
            kernel = given.get("kernel_shape") or self.shape(node.input[1])[2:]
            rank = len(kernel)
            strides, dilations = given.get("strides", [1] * rank), given.get("dilations", [1] * rank)
            if given.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID"):
                pads = given.get("pads", [0] * 2 * rank)
                axes = []
                for k in range(rank):
                    at = np.add.outer(np.arange(out[k]) * strides[k] - pads[k], np.arange(kernel[k]) * dilations[k])
                    axes.append(np.unique(at[(at >= 0) & (at < shape[2 + k])]))
                seen[np.ix_(range(shape[0]), range(shape[1]), *axes)] = True
                return seen
        if node.op_type == "Slice" and len(node.input) > 2 and all(n in self.known for n in node.input[1:] if n):
            starts, ends, *more = (self.known[n] for n in node.input[1:] if n)
            axes = more[0] if more else range(len(starts))
            steps = more[1] if len(more) > 1 else [1] * len(starts)
            places = [slice(None)] * len(shape)
            for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
                places[axis] = slice(int(start), None if step < 0 and end < -shape[axis] else int(end), int(step))
            seen[tuple(places)] = True
            return seen
        return np.ones(shape, bool)

    # --- weights

    def weights(self) -> dict[str, int]:
        """Bytes of each constant that the device reads."""
        self.made_by = {name: node for node in self.nodes for name in node.output}
        found: dict[str, int] = {}
        for node in self.nodes:
            found |= self.of_product(node)
            if self.affine(node):
                found |= self.of_affine(node)
            elif node.op_type in SIDE_BY_SIDE:
                found |= self.of_operands(node)
        return found

    def of_product(self, node: onnx.NodeProto) -> dict[str, int]:
        names = [node.input[k] for k in WEIGHTS.get(node.op_type, ()) if k < len(node.input)]
        found = {name: self.known[name].size * self.element for name in names if name in self.known}
        place = BIASED.get(node.op_type, len(node.input))
        if place < len(node.input) and node.input[place] in self.known:
            found[f"{node.output[0]}/bias"] = 4 * self.channels(node)
        return found

    def of_affine(self, node: onnx.NodeProto) -> dict[str, int]:
        """A chain of scales and shifts behind a product is its bias, another one has one of each."""
        first, channels = node, self.channels(node)
        while self.affine(first):
            maker = self.only_maker(first)
            if maker is None or not (self.affine(maker) or maker.op_type in PRODUCTS):
                break
            first = maker
        if first.op_type in PRODUCTS:
            return {f"{first.output[0]}/bias": 4 * self.channels(first)}
        return {f"{first.output[0]}/{word}": channels * self.element for word in self.affine(node)}

    def of_operands(self, node: onnx.NodeProto) -> dict[str, int]:
        """Tensors that are added, multiplied, compared or put beside a map; one number is none."""
        found: dict[str, int] = {}
        maker = next((self.made_by[name] for name in node.input if name in self.made_by), None)
        can_be_bias = node.op_type == "Add" and maker is not None and maker.op_type in ("MatMul", "Conv")
        for name in (name for name in node.input if name in self.known):
            array = self.known[name]
            if array.size == 1 or (node.op_type in NORMS and self.is_neutral(node, name)):
                continue
            is_row = can_be_bias and max(array.shape) == array.size == self.channels(maker)
            if is_row and len(self.readers[maker.output[0]]) == 1:
                found[f"{maker.output[0]}/bias"] = 4 * array.size
            else:
                found[name] = array.size * self.element
        return found

    def channels(self, node: onnx.NodeProto) -> int:
        shape = self.shape(node.output[0])
        return shape[1] if node.op_type in ("Conv", "ConvTranspose") or self.affine(node) else shape[-1]

    def affine(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """What a node is that scales and shifts channels of a map; a chain of them is one of each."""
        if node.op_type == "BatchNormalization":
            return "scale", "shift"
        shape = self.shape(node.output[0]) if node.output[0] in self.shapes else []
        if node.op_type not in ("Mul", "Add") or len(shape) < 3:
            return ()
        arrays = [self.known[name] for name in node.input if name in self.known]
        sizes = [[1] * (len(shape) - array.ndim) + [*array.shape] for array in arrays]
        by_channel = [1, shape[1], *[1] * (len(shape) - 2)]
        is_affine = len(sizes) == 1 and sizes[0] == by_channel and shape[1] > 1
        return ({"Mul": "scale", "Add": "shift"}[node.op_type],) if is_affine else ()

    def only_maker(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The node that makes its operand for it alone."""
        name = next((n for n in node.input if n not in self.known), None)
        return self.made_by.get(name) if len(self.readers.get(name, ())) == 1 and name not in self.outputs else None

    def is_neutral(self, node: onnx.NodeProto, name: str) -> bool:
        array, place = self.known[name], list(node.input).index(name)
        return bool((array == (1 if place == 1 else 0)).all())


def own_count(model: onnx.ModelProto, element: int) -> int:
    """Compulsory bytes."""
    return Count(model, element).bytes
