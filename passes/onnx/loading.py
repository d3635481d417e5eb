# Tests: test/passes/onnx/test_import_onnx.py
"""From a path to a ModelProto whose tensors are arrays: large ones mapped, not copied; element types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, numpy_helper
from xdsl.dialects.builtin import bf16, f16, f32, i8, i16, i32
from xdsl.ir import Attribute

from frustum.dialects.extents import ceil_div
from frustum.passes.errors import ModelError, Problem, Unsupported
from frustum.passes.weights import Array

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

NodeList: TypeAlias = "RepeatedCompositeFieldContainer[onnx.NodeProto]"

DEVICE_TYPES: dict[int, Attribute] = {
    onnx.TensorProto.FLOAT: f32,
    onnx.TensorProto.FLOAT16: f16,
    onnx.TensorProto.BFLOAT16: bf16,
}
FLOATS: set[int] = {*DEVICE_TYPES, onnx.TensorProto.DOUBLE}
INTEGERS: dict[int, Attribute] = {
    onnx.TensorProto.INT8: i8,
    onnx.TensorProto.UINT8: i8,
    onnx.TensorProto.INT16: i16,
    onnx.TensorProto.UINT16: i16,
    onnx.TensorProto.INT32: i32,
}
"""What networks may take; the unsigned ones as the device has them."""
BOOL = onnx.TensorProto.BOOL
"""Truth values, which networks take as 1 and 0 in their type of floating point."""
UNSIGNED = {onnx.TensorProto.UINT8, onnx.TensorProto.UINT16}


def element_name(data_type: int) -> str:
    """`FLOAT`; `the unknown type 65` in a damaged file."""
    known = {number: name for name, number in onnx.TensorProto.DataType.items()}
    return str(known.get(data_type, f"the unknown type {data_type}"))


def network_type(
    inputs: Iterable[onnx.ValueInfoProto], tensors: Iterable[onnx.TensorProto], nodes: Sequence[onnx.NodeProto]
) -> Attribute:
    """The one type of a network's floating-point tensors: f32 where integers stand for them; else that of most elements
    of the weights, or of all inputs, or of all that is said at all, if one of these is known; else f32.

    Numbers in other types, and casts to them, change nothing: exports of f16 networks compute norms in f32, which the
    device does inside its operation in any case.
    """
    tensors = list(tensors)
    constants = {tensor.name for tensor in tensors}
    constants.update(name for node in nodes if node.op_type == "Constant" for name in node.output)
    if any(is_of_activations(node, constants) for node in nodes):
        return f32
    tensors = [*tensors, *(each.t for node in nodes if node.op_type == "Constant" for each in node.attribute)]
    counts = Counter[int]()
    for tensor in tensors:
        if (count := prod(tensor.dims)) > 1 and tensor.data_type in FLOATS:
            counts[tensor.data_type] += count
    of_most = {each for each, count in counts.items() if count == max(counts.values())}
    of_inputs = {value.type.tensor_type.elem_type for value in inputs} & FLOATS
    casts = {attribute.i for node in nodes if node.op_type == "Cast" for attribute in node.attribute}
    of_all = {*(tensor.data_type for tensor in tensors), *casts} & FLOATS
    found = of_most or of_inputs or of_all
    return DEVICE_TYPES.get(found.pop(), f32) if len(found) == 1 else f32


def is_of_activations(node: onnx.NodeProto, constants: Container[str]) -> bool:
    """Whether integers stand for what a network computes: they do not where only weights are dequantised."""
    if node.op_type == "DequantizeLinear":
        return node.input[0] not in constants
    return node.op_type == "QuantizeLinear"


def casts_computed_in(element: Attribute, nodes: Sequence[onnx.NodeProto]) -> int:
    """How many nodes ask for more than the network's type has: f32 where it is one of 16 bits."""
    wide = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    casts = (each.i for node in nodes if node.op_type == "Cast" for each in node.attribute if each.name == "to")
    return 0 if element == f32 else sum(to in wide for to in casts)


def operator_of(node: onnx.NodeProto) -> str:
    """`Conv`, `com.microsoft.QGemm`."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def node_name(node: onnx.NodeProto, otherwise: str = "") -> str:
    """The node's own name, or that of its first result."""
    return node.name or next(filter(None, node.output), otherwise)


def problem_at(file: str, message: str, node: onnx.NodeProto) -> Problem:
    return Problem(file, message, node_name(node), operator_of(node))


OLDEST_OPSET = 1
MOST_OPSET = (1 << 31) - 1
"""What the packages onnx and onnxruntime have for a number of a version."""
DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass
class LoadedModel:
    """A model file: its graph, and its tensors by name."""

    file: str
    proto: onnx.ModelProto
    folder: Path | None
    maps: dict[Path, np.memmap] = field(default_factory=dict)
    moved: int = 0
    """Nodes that did not stand behind all that they read in the file, and now do."""

    @property
    def opset(self) -> int:
        """Of the default domain; the newest where no node is of it, and so nobody says."""
        versions = [o.version for o in self.proto.opset_import if o.domain in DEFAULT_DOMAINS]
        if not versions and not any(node.domain in DEFAULT_DOMAINS for node in self.proto.graph.node):
            return onnx.defs.onnx_opset_version()
        return max(versions, default=0)

    def array(self, tensor: onnx.TensorProto) -> Array:
        """The tensor's values; ModelError where they cannot be had."""
        self._check(tensor)
        shape = tuple(tensor.dims)
        try:
            if external_data_helper.uses_external_data(tensor):
                if tensor.data_type in PACKED_BITS:
                    return numpy_helper.to_array(self._with_bytes(tensor))
                dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
                return self._external(tensor).view(dtype).reshape(shape)
            if tensor.HasField("raw_data") and tensor.data_type not in PACKED_BITS:
                dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
                return np.frombuffer(tensor.raw_data, dtype).reshape(shape)
            found: Array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, OverflowError) as error:
            raise self._error(f"tensor '{tensor.name}' does not hold the elements of its shape") from error
        return found

    def with_data(self) -> onnx.ModelProto:
        """The model with all external data in it."""
        if not any(map(external_data_helper.uses_external_data, self.proto.graph.initializer)):
            return self.proto
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        for tensor in proto.graph.initializer:
            self.fill(tensor)
        return proto

    def fill(self, tensor: onnx.TensorProto) -> None:
        """Put external data of the tensor into it; ModelError where it cannot be had."""
        if external_data_helper.uses_external_data(tensor):
            self._check(tensor)
            data = self._external(tensor).tobytes()
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = data

    def _with_bytes(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        """A copy of the tensor that holds its external data."""
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        self.fill(copy)
        return copy

    def _check(self, tensor: onnx.TensorProto) -> None:
        if tensor.data_type not in KNOWN_TYPES:
            raise self._error(f"tensor '{tensor.name}' has elements of the unknown type {tensor.data_type}")
        if min(tensor.dims, default=0) < 0:
            shape = "x".join(map(str, tensor.dims))
            raise self._error(f"tensor '{tensor.name}' has the shape {shape}: no extent is below 0")

    def _external(self, tensor: onnx.TensorProto) -> Array:
        """The bytes of the elements, one after another; nothing is asked for that the file does not have."""
        place = {entry.key: entry.value for entry in tensor.external_data}
        path = self._external_path(tensor.name, place.get("location", ""))
        if tensor.data_type == onnx.TensorProto.STRING:
            raise self._error(f"tensor '{tensor.name}': text cannot be external data")
        itemsize = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        needed = ceil_div(prod(tensor.dims) * PACKED_BITS.get(tensor.data_type, 8 * itemsize), 8)
        start = self._count(tensor.name, place, "offset", 0)
        length = self._count(tensor.name, place, "length", needed)
        if length != needed:
            problem = f"its external data has the length {length}, its shape and type need {needed} bytes"
            raise self._error(f"tensor '{tensor.name}': {problem}")
        try:
            size = path.stat().st_size
            if start + needed > size:
                problem = f"needs bytes {start} to {start + needed} of '{path.name}', which has {size}"
                raise self._error(f"tensor '{tensor.name}' {problem}")
            if needed == 0:
                return np.zeros(0, np.uint8)
            if path not in self.maps:
                self.maps[path] = np.memmap(path, dtype=np.uint8, mode="r")
        except OSError as error:
            problem = f"external data file '{path.name}' cannot be read: {error.strerror}"
            raise self._error(f"tensor '{tensor.name}': {problem}") from error
        return np.asarray(self.maps[path])[start : start + needed]

    def _count(self, name: str, place: Mapping[str, str], key: str, otherwise: int) -> int:
        """A number of bytes that an entry of external data gives."""
        text = place.get(key, "")
        if key not in place:
            return otherwise
        if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
            problem = f"found {_shown(text)}, allowed a whole number of bytes"
            raise self._error(f"tensor '{name}': {key} of its external data: {problem}")
        return int(text)

    def _external_path(self, name: str, location: str) -> Path:
        shown = _shown(location)
        if self.folder is None:
            raise self._error(f"tensor '{name}' is in the file {shown}: give the model as a path, not a proto")
        try:
            path = (self.folder / location).resolve()
            if not path.is_relative_to(self.folder.resolve()):
                raise self._error(f"tensor '{name}': external data {shown} is outside the model's folder")
            is_there = path.is_file()
        except (OSError, ValueError) as error:  # too long, or with a byte of 0
            raise self._error(f"tensor '{name}': external data: {shown} is no name of a file") from error
        if not is_there:
            raise self._error(f"tensor '{name}': external data file {shown} is missing in {self.folder}")
        return path

    def _error(self, message: str) -> ModelError:
        return Unsupported([Problem(self.file, message)])


MOST_DIGITS = 19
"""Of a number of bytes in a file."""
SHOWN = 80
"""Letters of a text that a file gives, in messages."""


def _shown(text: str) -> str:
    """Between quotes and printable, the start of what is long."""
    whole = repr(text[:SHOWN])
    return whole if len(text) <= SHOWN else f"{whole}..."


KNOWN_TYPES = set(onnx.helper.get_all_tensor_dtypes())
PACKED_BITS: dict[int, int] = {
    getattr(onnx.TensorProto, name): bits
    for name, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2))
    if hasattr(onnx.TensorProto, name)
}
"""Of elements of less than a byte, which lie beside each other in one."""


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
    imported = (each for part in (model.proto, *model.proto.functions) for each in part.opset_import)
    unreadable = [each for each in imported if abs(each.version) > MOST_OPSET]
    if unreadable:
        messages = (f"opset {each.version} of domain '{each.domain}': at most {MOST_OPSET}" for each in unreadable)
        raise Unsupported([Problem(model.file, message) for message in messages])
    return model if isinstance(source, LoadedModel) else _in_order(_with_inner_data(model))


def _with_inner_data(model: LoadedModel) -> LoadedModel:
    """The model with external data of tensors inside nodes in its place: those of the graph are read when needed."""
    if not any(map(external_data_helper.uses_external_data, _inner_tensors(model.proto))):
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for tensor in _inner_tensors(proto):
        model.fill(tensor)
    return LoadedModel(model.file, proto, model.folder, model.maps)


def _inner_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors of attributes, of graphs inside nodes, and the parts of sparse ones."""
    for sparse in proto.graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    while nodes:
        for attribute in nodes.pop().attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from graph.initializer
                nodes += graph.node


def used_names(node: onnx.NodeProto) -> set[str]:
    """Names a node reads, those inside its branches included."""
    names = set(node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            names.update(output.name for output in attribute.g.output)
            for inner in attribute.g.node:
                names |= used_names(inner)
    return names


def free_names(node: onnx.NodeProto) -> dict[str, None]:
    """Names of the values that a node reads, those included that its graphs take from around it; in order."""
    names = dict.fromkeys(filter(None, node.input))
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            names |= _free_names_of(graph)
    return names


def _free_names_of(graph: onnx.GraphProto) -> dict[str, None]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    names: dict[str, None] = {}
    for node in graph.node:
        names |= dict.fromkeys(name for name in free_names(node) if name not in own)
    return names | dict.fromkeys(output.name for output in graph.output if output.name not in own)


# --- order -------------------------------------------------------------------------------------------------


def _in_order(model: LoadedModel) -> LoadedModel:
    """The model with every node behind those that make what it reads, in its graph, in graphs inside nodes and in
    functions; Unsupported for nodes that wait for each other.  Nodes that are in order keep theirs."""
    moved = sum(map(_misplaced, node_lists(model.proto)))
    if not moved:
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for nodes in node_lists(proto):
        order = _topological(nodes, model.file)
        copies = [onnx.NodeProto.FromString(nodes[index].SerializeToString()) for index in order]
        del nodes[:]
        nodes.extend(copies)
    return LoadedModel(model.file, proto, model.folder, model.maps, moved)


def node_lists(proto: onnx.ModelProto) -> Iterator[NodeList]:
    """The nodes of every graph and function; those inside nodes after the list that holds these is done with."""
    lists: list[NodeList] = [proto.graph.node, *(function.node for function in proto.functions)]
    while lists:
        nodes = lists.pop()
        yield nodes
        for attribute in (attribute for node in nodes for attribute in node.attribute):
            lists += [graph.node for graph in (attribute.g, *attribute.graphs) if graph.node]


def _reads(nodes: Sequence[onnx.NodeProto]) -> list[set[int]]:
    """The places of the nodes that make what each reads."""
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            maker.setdefault(name, index)
    return [{maker[name] for name in free_names(node) if name in maker} for node in nodes]


def _misplaced(nodes: Sequence[onnx.NodeProto]) -> int:
    """How many nodes do not stand behind all that they read."""
    return sum(max(read, default=-1) >= index for index, read in enumerate(_reads(nodes)))


def _topological(nodes: Sequence[onnx.NodeProto], file: str) -> list[int]:
    """The places of the nodes, each as early as what it reads and the nodes before it allow."""
    waits = _reads(nodes)
    readers: dict[int, list[int]] = {}
    for index, read in enumerate(waits):
        for other in read:
            readers.setdefault(other, []).append(index)
    ready = [index for index, read in enumerate(waits) if not read]
    order = []
    while ready:
        index = heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            waits[reader].discard(index)
            if not waits[reader]:
                heappush(ready, reader)
    if len(order) < len(nodes):
        raise Unsupported([_cycle(nodes, waits, file)])
    return order


def _cycle(nodes: Sequence[onnx.NodeProto], waits: Sequence[set[int]], file: str) -> Problem:
    """A problem that names the nodes of one circle."""
    path = [next(index for index, read in enumerate(waits) if read)]
    while path.count(path[-1]) < 2:
        path.append(min(waits[path[-1]]))
    circle = path[path.index(path[-1]) : -1][::-1]
    names = ", ".join(f"'{node_name(nodes[index], nodes[index].op_type)}'" for index in circle)
    return problem_at(file, f"what it reads depends on what it gives (nodes in a circle: {names})", nodes[circle[0]])


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
