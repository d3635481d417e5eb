"""Inputs of a model that are really constants, given their values before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import numpy_helper

from frustum.passes.errors import ModelError
from frustum.passes.onnx.element_types import element_name
from frustum.passes.onnx.loading import LoadedModel
from frustum.passes.weights import Array

__all__ = ["with_constants"]


def with_constants(model: LoadedModel, arrays: Mapping[str, Array]) -> LoadedModel:
    """The model with initializers in place of these inputs; ModelError where it has no such input.

    An initializer that is an input too, as in old files, gets the value given.
    """
    if not arrays:
        return model
    inputs = {value.name: value for value in model.proto.graph.input}
    for name, array in arrays.items():
        _check(model.file, name, array, inputs)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    for values in (graph.input, graph.initializer):
        kept = [value for value in values if value.name not in arrays]
        del values[:]
        values.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    proto.ir_version = max(proto.ir_version, FREE_INITIALIZERS)
    return LoadedModel(model.file, proto, model.folder, model.maps)


FREE_INITIALIZERS = 4
"""The first IR version whose initializers need not be inputs."""


def _check(file: str, name: str, array: Array, inputs: Mapping[str, onnx.ValueInfoProto]) -> None:
    value = inputs.get(name)
    if value is None:
        known = ", ".join(f"'{known}'" for known in inputs)
        raise ModelError(f"{file}: error: there is no input '{name}' to bind: the inputs are {known or 'none'}")
    expected = value.type.tensor_type.elem_type
    found = onnx.TensorProto.STRING if array.dtype.kind in "OUS" else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    if expected and found != expected:
        own, wanted = element_name(found), element_name(expected)
        raise ModelError(f"{file}: error: input '{name}' is bound to {own}, the model has it as {wanted}")
