"""From a path to a ModelProto whose tensors are arrays: large ones mapped, not copied."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import external_data_helper, numpy_helper

from frustum.passes.errors import ModelError, Problem, Unsupported
from frustum.passes.weights import Array

__all__ = ["LoadedModel", "load_model"]

OLDEST_OPSET = 1
DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass
class LoadedModel:
    """A model file: its graph, and its tensors by name."""

    file: str
    proto: onnx.ModelProto
    folder: Path | None
    maps: dict[Path, np.memmap] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """Of the default domain; the newest where no node is of it, and so nobody says."""
        versions = [o.version for o in self.proto.opset_import if o.domain in DEFAULT_DOMAINS]
        if not versions and not any(node.domain in DEFAULT_DOMAINS for node in self.proto.graph.node):
            return onnx.defs.onnx_opset_version()
        return max(versions, default=0)

    def array(self, tensor: onnx.TensorProto) -> Array:
        """The tensor's values; ModelError where they cannot be had."""
        if tensor.data_type not in KNOWN_TYPES:
            raise self._error(f"tensor '{tensor.name}' has elements of the unknown type {tensor.data_type}")
        if external_data_helper.uses_external_data(tensor):
            return self._external(tensor)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        whole_bytes = tensor.data_type not in PACKED_TYPES
        try:
            if tensor.HasField("raw_data") and whole_bytes:
                return np.frombuffer(tensor.raw_data, dtype).reshape(tuple(tensor.dims))
            return numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise self._error(f"tensor '{tensor.name}' does not hold the elements of its shape") from error

    def _external(self, tensor: onnx.TensorProto) -> Array:
        place = {entry.key: entry.value for entry in tensor.external_data}
        path = self._external_path(tensor.name, place.get("location", ""))
        if tensor.data_type in PACKED_TYPES:
            raise self._error(f"tensor '{tensor.name}': external data of less than a byte is not supported")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        shape = tuple(tensor.dims)
        count = int(np.prod(shape, dtype=np.int64))
        start = int(place.get("offset", 0))
        stop = start + count * dtype.itemsize
        if count == 0:
            return np.zeros(shape, dtype)
        size = path.stat().st_size
        if stop > size:
            problem = f"needs bytes {start} to {stop} of '{path.name}', which has {size}"
            raise self._error(f"tensor '{tensor.name}' {problem}")
        if path not in self.maps:
            self.maps[path] = np.memmap(path, dtype=np.uint8, mode="r")
        return np.asarray(self.maps[path])[start:stop].view(dtype).reshape(shape)

    def _external_path(self, name: str, location: str) -> Path:
        if self.folder is None:
            raise self._error(
                f"tensor '{name}' is in the file '{location}': give the model as a path, not a proto"
            )
        path = (self.folder / location).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise self._error(f"tensor '{name}': external data '{location}' is outside the model's folder")
        if not path.is_file():
            raise self._error(f"tensor '{name}': external data file '{location}' is missing in {self.folder}")
        return path

    def _error(self, message: str) -> ModelError:
        return Unsupported([Problem(self.file, message)])


KNOWN_TYPES = set(onnx.helper.get_all_tensor_dtypes())
PACKED_TYPES = {
    getattr(onnx.TensorProto, name)
    for name in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2")
    if hasattr(onnx.TensorProto, name)
}


def load_model(source: str | Path | onnx.ModelProto | LoadedModel) -> LoadedModel:
    """The model, known to be ONNX of an opset that is read; ModelError with one line otherwise."""
    if isinstance(source, LoadedModel):
        model = source
    elif isinstance(source, onnx.ModelProto):
        model = LoadedModel("model.onnx", source, None)
    else:
        path = Path(source)
        model = LoadedModel(path.name, _parse(path), path.parent)
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= model.opset <= newest:
        message = f"opset {model.opset or 'missing'}: allowed are {OLDEST_OPSET} to {newest}"
        raise Unsupported([Problem(model.file, message)])
    return model


def _parse(path: Path) -> onnx.ModelProto:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: error: cannot read the model: {error.strerror}") from error
    try:
        proto = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        raise ModelError(f"{path}: error: not an ONNX file, or not all of it") from error
    if not proto.ir_version or not proto.HasField("graph"):
        raise ModelError(f"{path}: error: not an ONNX file, or not all of it")
    if not proto.graph.output:
        raise ModelError(f"{path}: error: it has no outputs, or the file is not all there")
    return proto
