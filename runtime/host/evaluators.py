# Tests: test/runtime/host/test_judge.py
"""Where the two evaluators of ONNX models, onnxruntime and the reference evaluator of `onnx`, are known to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx
from onnx import GraphProto, NodeProto

DEFAULT_DOMAINS = ("", "ai.onnx")
DIFFERS = {
    "Attention": "a causal mask together with a mask input or a past (test_attention_4d_with_past_and_present_*)",
    "CastLike": "numbers beyond the largest of 8-bit floating point (test_castlike_*_to_FLOAT8*)",
    "ConvTranspose": "SAME_UPPER with an output_shape: the odd element goes to the end",
    "DFT": "an axis that is an input, in opset 20 and later (test_dft_*)",
    "Dropout": "which elements it drops in training (test_training_dropout*)",
    "MaxUnpool": "an output_shape (test_maxunpool_export_with_output_shape)",
    "MeanVarianceNormalization": "a constant map: its deviation is 0, and what is added to that is left out",
    "QuantizeLinear": "blocks of scales (test_quantizelinear_blocked_*)",
    "Resize": "align_corners when the result is smaller (test_resize_downsample_scales_*_align_corners)",
    "STFT": "the form of its result (test_stft*)",
}
"""Operators whose result in onnxruntime is not that of ONNX, and where."""
WHERE_IT_DIFFERS: dict[str, Callable[[NodeProto], bool]] = {
    "ConvTranspose": lambda node: _attribute(node, "auto_pad") == b"SAME_UPPER" and _has(node, "output_shape"),
    "Dropout": lambda node: _has(node, "training_mode"),
    "MaxUnpool": lambda node: _has(node, "output_shape"),
    "QuantizeLinear": lambda node: _has(node, "block_size"),
    "Resize": lambda node: _attribute(node, "coordinate_transformation_mode") == b"align_corners",
}
"""Of operators that differ in some forms only, which."""
REFERENCE_DIFFERS: dict[str, tuple[int, str, Callable[[NodeProto], bool] | None]] = {
    "BatchNormalization": (13, "it applies the momentum of training", None),
    "Hardmax": (12, "it does not flatten", None),
    "LogSoftmax": (12, "it does not flatten", None),
    "LRN": (99, "it leaves channels out", None),
    "Softmax": (12, "it does not flatten", None),
}
"""Operators that the reference evaluator computes otherwise than ONNX says: up to which opset, how, in which form."""


def differs(node: NodeProto) -> bool:
    """Whether onnxruntime may compute something else than ONNX says, of the node or of one inside it."""
    return any(_differs(each) for each in with_inner(node))


def why_it_differs(node: NodeProto) -> str:
    """Where onnxruntime does so."""
    return next((DIFFERS[each.op_type] for each in with_inner(node) if _differs(each)), "")


def _differs(node: NodeProto) -> bool:
    if node.op_type not in DIFFERS or node.domain not in DEFAULT_DOMAINS:
        return False
    return WHERE_IT_DIFFERS.get(node.op_type, lambda _: True)(node)


def why_reference_differs(node: NodeProto, opset: int) -> str:
    """How the reference evaluator computes something else than ONNX says; nothing where it is not known to."""
    for each in with_inner(node):
        last, how, form = REFERENCE_DIFFERS.get(each.op_type, (0, "", None))
        if each.domain in DEFAULT_DOMAINS and opset <= last and (form is None or form(each)):
            return how
    return ""


POOLS = ("AveragePool", "LpPool", "MaxPool")


def with_pads(node: NodeProto, given: Mapping[str, Any]) -> NodeProto:
    """A pooling whose padding is SAME with its pads: onnxruntime takes none that are below 0, where strides pass over
    elements, and ONNX infers shapes with 0 for these."""
    found = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    mode, kernel = found.get("auto_pad", b""), found.get("kernel_shape", [])
    if node.op_type not in POOLS or mode not in (b"SAME_UPPER", b"SAME_LOWER") or node.input[0] not in given:
        return node
    ones = [1] * len(kernel)
    plane, strides = given[node.input[0]].shape[2:], found.get("strides", ones)
    each = zip(plane, kernel, strides, found.get("dilations", ones), strict=True)
    totals = [max(0, (-(-n // stride) - 1) * stride + (size - 1) * step + 1 - n) for n, size, stride, step in each]
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    own = NodeProto()
    own.CopyFrom(node)
    kept = [attribute for attribute in node.attribute if attribute.name not in ("auto_pad", "pads")]
    del own.attribute[:]
    own.attribute.extend(kept)
    pads = [*less, *more] if mode == b"SAME_UPPER" else [*more, *less]
    own.attribute.append(onnx.helper.make_attribute("pads", pads))
    return own


def with_inner(node: NodeProto) -> Iterator[NodeProto]:
    """A node and those of the graphs inside it."""
    yield node
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            for inner in graph.node:
                yield from with_inner(inner)


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from graphs_of(inner)


def _attribute(node: NodeProto, name: str) -> bytes:
    return next((attribute.s for attribute in node.attribute if attribute.name == name), b"")


def _has(node: NodeProto, name: str) -> bool:
    """Whether an attribute, or an operand that the operator calls so, is there."""
    formals = (formal.name for formal in onnx.defs.get_schema(node.op_type, node.domain).inputs)
    given = (formal for formal, operand in zip(formals, node.input, strict=False) if operand)
    return any(attribute.name == name for attribute in node.attribute) or name in given
