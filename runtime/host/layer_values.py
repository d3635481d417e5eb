# Tests: test/runtime/tools/test_check_layers.py
"""What onnxruntime says of every value of a model, not of its outputs alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from frustum.runtime.host.oracle import oracle_outputs
from frustum.runtime.kernels import Array


class OracleValues:
    """All floating-point tensors of a model's graph by their names, on given inputs, and which of them a layer is."""

    def __init__(
        self, model: ModelProto | Path, inputs: Mapping[str, Array], batch: int = 1, whole: Collection[str] = ()
    ) -> None:
        proto = onnx.load(model) if isinstance(model, Path) else model
        more = ModelProto()
        more.CopyFrom(proto)
        graph = more.graph
        known = {value.name for value in graph.output}
        wanted = [name for node in graph.node for name in node.output if name and name not in known]
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
        found = oracle_outputs(more, inputs, batch, whole=whole)
        self.arrays: dict[str, Array] = {name: array for name, array in found.items() if _is_float(array)}
        self._makers: dict[str, NodeProto] = {}
        """By the names that our layers have from them."""
        self._takers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            self._makers[name_of(node)] = node
            for name in node.input:
                self._takers.setdefault(name, []).append(node)

    def may_be(self, layer: str, others: Collection[str]) -> Iterator[tuple[str, Array]]:
        """The values that a layer may have, with their names, beginning with that of the node that it is called after:
        then those of the nodes behind it that no layer among `others` is called after, which it may have taken in."""
        node = self._makers.get(layer)
        while node is not None:
            value = next(filter(None, node.output), "")
            if value in self.arrays:
                yield value, self.arrays[value]
            takers = [taker for taker in self._takers.get(value, ()) if name_of(taker) not in others]
            node = takers[0] if len(takers) == 1 else None


def name_of(node: NodeProto) -> str:
    """What layers are called that come from a node: by its name, or else its first result."""
    return node.name or next(filter(None, node.output), "")


def _is_float(array: object) -> bool:
    return isinstance(array, np.ndarray) and np.issubdtype(array.dtype, np.floating)
