"""A part of a model as a model of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from frustum.passes.onnx.loading import DEFAULT_DOMAINS, LoadedModel
from frustum.passes.onnx.opset import FREE_INITIALIZERS
from frustum.passes.onnx.walk import free_names

__all__ = ["Cutter"]


@dataclass(frozen=True)
class Cutter:
    """Cuts nodes out of a model: `tensors` and `arrays` are its constants by name, `types` what its values are."""

    model: LoadedModel
    opset: int
    tensors: Mapping[str, onnx.TensorProto]
    arrays: Mapping[str, np.ndarray]
    types: Mapping[str, onnx.TypeProto]
    shared: Mapping[str, onnx.NodeProto]
    """Nodes that depend on constants only, by each of their results: they come along where they are needed."""

    def cut(self, nodes: Sequence[onnx.NodeProto], wanted: Iterable[str], name: str) -> LoadedModel:
        """A model of these nodes whose outputs are the `wanted` of their results, in order.

        Its inputs are the values that the nodes use and neither make nor know.
        """
        nodes = self._with_shared(nodes)
        made = {output for node in nodes for output in node.output if output}
        used = dict.fromkeys(name for node in nodes for name in free_names(node) if name not in made)
        constants = [name for name in used if name in self.tensors or name in self.arrays]
        inputs = [name for name in used if name not in constants]
        graph = onnx.helper.make_graph(
            nodes,
            name,
            [self._value(name) for name in inputs],
            [self._value(name) for name in wanted if name in made],
            [self._constant(name) for name in constants],
        )
        proto = onnx.helper.make_model(
            graph, opset_imports=self.opsets(), ir_version=max(self.model.proto.ir_version, FREE_INITIALIZERS)
        )
        return LoadedModel(self.model.file, proto, self.model.folder, self.model.maps)

    def opsets(self) -> list[onnx.OperatorSetIdProto]:
        """Those of the model, the default one as it was unified."""
        others = [o for o in self.model.proto.opset_import if o.domain not in DEFAULT_DOMAINS]
        return [onnx.helper.make_opsetid("", self.opset), *others]

    def _with_shared(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The nodes, each after those shared ones that it needs and that nobody brought yet."""
        found: list[onnx.NodeProto] = []
        made: set[str] = set()

        def add(node: onnx.NodeProto) -> None:
            for name in free_names(node):
                if name in self.shared and name not in made:
                    add(self.shared[name])
            made.update(node.output)
            found.append(node)

        for node in nodes:
            add(node)
        return found

    def _value(self, name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_value_info(name, self.types.get(name, onnx.TypeProto()))

    def _constant(self, name: str) -> onnx.TensorProto:
        tensor = self.tensors.get(name)
        if tensor is None:
            array = self.arrays[name]
            return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        if tensor.name == name:
            return tensor
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)  # the value of a Constant node has a name of its own
        copy.name = name
        return copy

