# Tests: test/passes/onnx/test_import_lookups.py
"""Inputs of INT32 and INT64 that only say rows of small tables: the device has them in floating point.

It has no such integers, and f32 not all of them.  But an index has few values: those of the rows.  What else would
be read (a number that is no row) is an error by ONNX's page of Gather.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from frustum.passes.onnx.loading import BOOL, DEFAULT_DOMAINS, free_names

INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
RENAMES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
MOST_ROWS = 1 << 8
"""All types of floating point have the integers up to here."""


def index_inputs(
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
    tensors: Mapping[str, onnx.TensorProto],
    nodes: Sequence[onnx.NodeProto],
) -> frozenset[str]:
    """The names of those inputs, of a graph with constants `tensors`."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in free_names(node):
            readers.setdefault(name, []).append(node)
    ends = {output.name for output in outputs}

    def is_index(name: str) -> bool:
        own = readers.get(name, [])
        return bool(own) and name not in ends and all(says_rows(node, name) for node in own)

    def says_rows(node: onnx.NodeProto, name: str) -> bool:
        if node.domain not in DEFAULT_DOMAINS or list(node.input).count(name) != 1:
            return False
        if node.op_type in RENAMES:
            return node.input[0] == name and is_index(node.output[0])
        return node.op_type == "Gather" and node.input[1] == name and _is_small(node, tensors.get(node.input[0]))

    return frozenset(
        value.name for value in inputs if value.type.tensor_type.elem_type in INTEGERS and is_index(value.name)
    )


def _is_small(gather: onnx.NodeProto, table: onnx.TensorProto | None) -> bool:
    axis = next((attribute.i for attribute in gather.attribute if attribute.name == "axis"), 0)
    if table is None or not -len(table.dims) <= axis < len(table.dims):
        return False
    return 0 < table.dims[axis] <= MOST_ROWS and table.data_type not in (*INTEGERS, BOOL)
