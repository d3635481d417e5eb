# Tests: test/passes/onnx/test_place_host.py
"""DOUBLE elements that f32 has all of, so that the device computes with them what the model does.

A constant that f32 has, and what was cast from a narrower type, is *narrow*; what only moves, chooses or compares keeps
it so.  One sum, product, quotient or root of narrow numbers that is cast to FLOAT at once is the same in f32: rounded
to 53 bits and then to 24 it is what it is rounded to 24.
Source: S. A. Figueroa, "When is double rounding innocuous?", SIGNUM Newsletter 30 (1995): 53 >= 2 * 24 + 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from xdsl.dialects.builtin import f32

from frustum.passes.onnx.loading import BOOL, DEVICE_TYPES
from frustum.passes.onnx.node import is_exact

DOUBLE = onnx.TensorProto.DOUBLE
KEEPS = frozenset(
    {
        "Abs", "Ceil", "Clip", "Concat", "DepthToSpace", "Expand", "Flatten", "Floor", "Gather", "GlobalMaxPool",
        "Identity", "Max", "MaxPool", "Min", "Neg", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape", "Round", "Sign",
        "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
        "ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Shape",
        "Size", "TopK",
    }
)  # fmt: skip
"""Operators that give some of their operands' numbers, or no numbers."""
ROUNDS = frozenset({"Add", "Sub", "Mul", "Div", "Sqrt"})
NARROWER = frozenset(
    {*DEVICE_TYPES, BOOL, *(getattr(onnx.TensorProto, name) for name in ("INT8", "UINT8", "INT16", "UINT16"))}
)
"""Types of which f32 has every number."""


@dataclass
class Doubles:
    """The values of a graph that are narrow, or rounded `once` on their way to FLOAT."""

    readers: Mapping[str, list[onnx.NodeProto]]
    outputs: frozenset[str]
    narrow: set[str] = field(default_factory=set)
    once: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, nodes: Iterable[onnx.NodeProto], outputs: Iterable[str]) -> Doubles:
        readers: dict[str, list[onnx.NodeProto]] = {}
        for node in nodes:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        return cls(readers, frozenset(outputs))

    def constant(self, name: str, array: np.ndarray) -> None:
        if is_exact(array, f32):
            self.narrow.add(name)

    def take(self, node: onnx.NodeProto, elements: Mapping[str, int]) -> bool:
        """Whether the device gives what the model does for a node that has elements of DOUBLE; `elements`: of what it
        reads and makes, as far as known.  Its results are noted."""
        doubles = [name for name in node.input if elements.get(name) == DOUBLE]
        if node.op_type == "Cast":
            target = next((a.i for a in node.attribute if a.name == "to"), 0)
            if doubles:  # elements of other types than FLOAT would be rounded a second time
                is_float = target == onnx.TensorProto.FLOAT
                is_good = self.narrow.issuperset(doubles) or (is_float and doubles[0] in self.once)
            else:
                is_good = elements.get(node.input[0]) in NARROWER
            if is_good and target == DOUBLE:
                self.narrow.add(node.output[0])
            return is_good
        if not self.narrow.issuperset(doubles):
            return False
        made = [name for name in node.output if elements.get(name) == DOUBLE]
        if node.op_type in KEEPS:
            self.narrow.update(made)
            return True
        if node.op_type in ROUNDS and all(map(self._goes_to_float, made)):
            self.once.update(made)
            return True
        return False

    def _goes_to_float(self, name: str) -> bool:
        readers = self.readers.get(name, [])
        return name not in self.outputs and all(
            node.op_type == "Cast" and any(a.name == "to" and a.i == onnx.TensorProto.FLOAT for a in node.attribute)
            for node in readers
        )
