"""Models whose integer products onnxruntime computes exactly on every processor.

On x86 without dot products of bytes (AVX2, AVX-512 without VNNI) its kernels for unsigned by signed bytes add pairs of
products in 16 bits, which saturate.  Those for two unsigned factors are exact, so signed constants become unsigned ones
with their zero point: w - z = (w + 128) - (z + 128).
MatMulNBits rounds the first factor to bytes where its `accuracy_level` allows that, which then goes.
Source: onnxruntime, "Quantize ONNX models", on U8S8 and saturation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

PRODUCTS: Mapping[str, tuple[int, int]] = {
    "ConvInteger": (1, 3),
    "MatMulInteger": (1, 3),
    "QGemm": (3, 5),
    "QLinearConv": (3, 5),
    "QLinearMatMul": (3, 5),
}
"""Where the second factor and its zero point are among a node's operands."""
ROUNDED, LEVEL = "MatMulNBits", "accuracy_level"
FIRST, FIRST_ZERO = 0, 2
"""Where the first factor and its zero point are."""
SIGN = np.uint8(128)


def signed_products(proto: ModelProto) -> list[NodeProto]:
    """The products of the model's own graph whose second factor is a constant of signed bytes, and the first is not
    known to be signed (of two signed factors kernels are exact too); and those whose first factor is rounded."""
    signed = {each.name for each in proto.graph.initializer if each.data_type == TensorProto.INT8}
    given = {each.name for each in proto.graph.input if each.type.tensor_type.elem_type == TensorProto.INT8}
    return [
        node for node in proto.graph.node
        if _is_rounded(node)
        or (_factor(node) in signed and _zero(node) in {*signed, ""} and not _first(node) & {*signed, *given})
    ]  # fmt: skip


def with_exact_products(proto: ModelProto) -> ModelProto:
    """A copy whose constant second factors are unsigned; the model itself where there are none.  Its tensors must be
    loaded."""
    if not signed_products(proto):
        return proto
    exact = ModelProto()
    exact.CopyFrom(proto)
    tensors = {each.name: each for each in exact.graph.initializer}
    made = dict[str, str]()

    def unsigned(name: str) -> str:
        if name not in made:
            array = numpy_helper.to_array(tensors[name]) if name else np.zeros((), np.int8)
            made[name] = f"{name}/unsigned"
            shifted = np.asarray(array.view(np.uint8) ^ SIGN)
            exact.graph.initializer.append(numpy_helper.from_array(shifted, made[name]))
        return made[name]

    for node in signed_products(exact):
        if _is_rounded(node):
            kept = [each for each in node.attribute if each.name != LEVEL]
            del node.attribute[:]
            node.attribute.extend(kept)
            continue
        factor, zero = PRODUCTS[node.op_type]
        names = [*node.input, *[""] * (zero + 1 - len(node.input))]
        names[factor], names[zero] = unsigned(names[factor]), unsigned(names[zero])
        node.input[:] = names
    read = {name for node in exact.graph.node for name in node.input} | {each.name for each in exact.graph.output}
    for tensor in [each for name, each in tensors.items() if name in made and name not in read]:
        exact.graph.initializer.remove(tensor)
    return exact


def _is_rounded(node: NodeProto) -> bool:
    return node.op_type == ROUNDED and any(each.name == LEVEL and each.i for each in node.attribute)


def _first(node: NodeProto) -> set[str]:
    """Its first factor and the zero point of that."""
    return {name for at, name in enumerate(node.input) if at in (FIRST, FIRST_ZERO) and name}


def _factor(node: NodeProto) -> str:
    """Its second factor; empty where it is no product of integers."""
    at, _ = PRODUCTS.get(node.op_type, (len(node.input), 0))
    return node.input[at] if at < len(node.input) else ""


def _zero(node: NodeProto) -> str:
    """The zero point of the second factor; empty where it has none."""
    _, at = PRODUCTS.get(node.op_type, (0, len(node.input)))
    return node.input[at] if at < len(node.input) else ""
