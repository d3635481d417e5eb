# Tests: test/passes/onnx/test_place_host.py
"""A dry run of the import that goes on after what the device lacks: which nodes can be layers, and why others not.

The importer's own walk decides, so there is no second list of operators.  Where it refuses a node, the results stand
for inputs of the network if their types and shapes are known and the device has such tensors; otherwise they are
`HostValue`s, whose readers run on the host too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx
from onnx import shape_inference
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.diagnostic import one_line
from frustum.dialects.graph import macs_in, shape_of, tensor_type
from frustum.passes.errors import MixesImages, ModelError, NotConstant, Problem, Refused
from frustum.passes.onnx.binding import MOST_DIMENSIONS
from frustum.passes.onnx.doubles import DOUBLE, Doubles
from frustum.passes.onnx.folding import FAILURES
from frustum.passes.onnx.host_images import HostOperand, axis_on_host
from frustum.passes.onnx.images import Images
from frustum.passes.onnx.loading import (
    BOOL,
    DEVICE_TYPES,
    INTEGERS,
    UNSIGNED,
    element_name,
    free_names,
    node_name,
    operator_of,
)
from frustum.passes.onnx.node import IntegerBound, Network, SequenceValue, Value
from frustum.passes.onnx.walk import (
    UNAVAILABLE,
    ImportWalk,
    Known,
    Unavailable,
    is_known,
    lacking,
    model_element,
)
from frustum.passes.onnx.whole_numbers import OF_HOST, OPEN_OUTPUT, is_open
from frustum.passes.weights import Array

INT64 = onnx.TensorProto.INT64
Kind = Literal["constant", "shared", "members", "device", "host"]
ROUNDED = "has elements of DOUBLE, which the device would round to f32 (--dtype f32 allows it)"
SILENT = 4
"""onnxruntime's log level of fatal errors."""
IR_VERSION = 8
ELEMENTS = {
    "tensor(float)": onnx.TensorProto.FLOAT, "tensor(float16)": onnx.TensorProto.FLOAT16,
    "tensor(double)": DOUBLE, "tensor(int8)": onnx.TensorProto.INT8, "tensor(uint8)": onnx.TensorProto.UINT8,
    "tensor(int16)": onnx.TensorProto.INT16, "tensor(uint16)": onnx.TensorProto.UINT16,
    "tensor(int32)": onnx.TensorProto.INT32, "tensor(int64)": onnx.TensorProto.INT64,
    "tensor(bool)": onnx.TensorProto.BOOL,
}  # fmt: skip
"""Element types as onnxruntime calls them."""
MOST_PROPAGATED = 256
"""Larger constants are not given to shape inference, which needs those that say shapes, axes, sizes."""
ERRORS = (*FAILURES, shape_inference.InferenceError, onnx.defs.SchemaError, onnx.checker.ValidationError)


class HostValue(Unavailable):
    """A value that only the host can hold; `shape` is None where it is known at run time only."""

    def __init__(self, why: str, shape: tuple[int, ...] | None = None, axis: int | None = None) -> None:
        """`axis`: of the images of a changed batch, where it holds them."""
        self.why = why
        self.shape = shape
        self.axis = axis


@dataclass(frozen=True)
class ImportStep:
    """One node: `constant` where its results are known, `shared` where they are computed of constants only (any
    piece can do that again), `members` where it only lists those of a sequence (each piece that reads it has it again),
    else where it can run; `reason` says why on the host.  `macs`: of its layers."""

    node: onnx.NodeProto
    name: str
    kind: Kind
    reason: str = ""
    macs: int = 0
    open_operands: tuple[str, ...] = ()
    """Of a known operator on the host: those that would have to be constant for it to be a layer."""

    @property
    def operator(self) -> str:
        return operator_of(self.node)


@dataclass
class DryRun(ImportWalk):
    """`types`: what is known of every value so far; `refused`: nodes that must not be layers, and why."""

    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    exact: bool = True
    """Refuse elements that the device would only approximate: those of DOUBLE."""
    opsets: Sequence[onnx.OperatorSetIdProto] = ()
    doubles: Doubles = field(default_factory=lambda: Doubles({}, frozenset()))
    steps: list[ImportStep] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)
    """Names of values that depend on constants only."""

    def run(self, nodes: Sequence[onnx.NodeProto], opset: int, name: str = "") -> None:
        """Every node becomes a step."""
        self.fixed.update(key for key, value in self.values.items() if isinstance(value, np.ndarray))
        results: Sequence[Known]
        for given in self.written_out(nodes):
            own = name or node_name(given, given.op_type)
            first = self.network.block.last_op
            proto, types = given, {}
            try:
                proto = self.for_all_images(given)
                types = self._types_of(proto)
                results = self._placed(proto, own, opset, types)
            except MixesImages as error:
                results = self._mixes(given, own, error)
            except (Refused, VerifyException, ModelError) as error:
                results = self._on_host(proto, own, opset, types, error)
            else:
                self.steps.append(ImportStep(proto, own, self._kind(proto, results), macs=macs_in(self._after(first))))
            self._note(proto, results, types)

    def images_in(self, name: str) -> tuple[tuple[int, ...] | None, int | None]:
        value = self.values.get(name)
        return (value.shape, value.axis) if isinstance(value, HostValue) else super().images_in(name)

    def know(self, name: str, array: Array) -> None:
        super().know(name, array)
        self.fixed.add(name)
        self.types[name] = onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT64, array.shape)

    def _mixes(self, proto: onnx.NodeProto, name: str, error: MixesImages) -> Sequence[Known]:
        """A node that no side can run with a changed batch is a problem of the model."""
        self.steps.append(ImportStep(proto, name, "host", str(error)))
        self.problems.append(Problem(self.file, str(error), name, self.steps[-1].operator))
        return [UNAVAILABLE for _ in proto.output]

    def sequences(self, outputs: Iterable[str]) -> dict[str, str]:
        """The nodes whose sequences are outputs of the model, and why they are not for the device."""
        ends = {name for name in outputs if isinstance(self.values.get(name), SequenceValue)}
        why = "its result is a sequence that the model gives, which the device lacks"
        return {step.name: why for step in self.steps if step.kind == "members" and ends.intersection(step.node.output)}

    def _on_host(
        self, proto: onnx.NodeProto, name: str, opset: int, types: Mapping[str, onnx.TypeProto], error: Exception
    ) -> Sequence[Known]:
        """What a node gives that cannot be a layer because of the error."""
        if any(self.values.get(each) is UNAVAILABLE for each in free_names(proto)):
            self.steps.append(ImportStep(proto, name, "host", one_line(error)))
            return [UNAVAILABLE for _ in proto.output]
        try:
            axis = self._axis_on_host(proto, one_line(error))
        except MixesImages as mixes:
            return self._mixes(proto, name, mixes)
        operands = self._open_operands(proto, opset, error)
        self.steps.append(ImportStep(proto, name, "host", one_line(error), open_operands=operands))
        return [self._from_host(types.get(output), name, axis) for output in proto.output]

    def open_at_host(self, outputs: Iterable[str]) -> dict[str, str]:
        """The nodes of the device that only hand integers of inputs on to the host, or out, and why they are not there:
        the device has not all of these integers."""
        read = {*outputs, *(name for step in self.steps if step.kind == "host" for name in free_names(step.node))}
        found = {}
        for step in reversed(self.steps):
            name = next((each for each in step.node.output if each in read and self._is_open(each)), None)
            if step.kind == "device" and name is not None:
                found[step.name] = f"'{name}' {OPEN_OUTPUT}"
                read.update(free_names(step.node))
        return found

    def _is_open(self, name: str) -> bool:
        value = self.values.get(name)
        return isinstance(value, SSAValue) and is_open(self.network.bounds.get(value))

    def _axis_on_host(self, proto: onnx.NodeProto, why: str) -> int | None:
        """Where the images of a changed batch lie in what a node on the host gives."""
        images = self.network.images
        if images is None:
            return None
        inner = free_names(proto).keys() - set(proto.input)
        operands = [self._host_operand(images, each) for each in (*filter(None, proto.input), *inner)]
        return axis_on_host(images, proto, operands, why)

    def _host_operand(self, images: Images, name: str) -> HostOperand:
        value = self.values.get(name)
        if isinstance(value, HostValue):
            return HostOperand(value.shape, value.axis)
        if isinstance(value, np.ndarray):
            is_blocks = images.depends(value) and images.axis_of(value) is not None
            return HostOperand(value.shape, images.axis_of(value) if is_blocks else None, value)
        if isinstance(value, SSAValue):
            return HostOperand(shape_of(value), images.axes.get(value))
        return HostOperand((), None)

    def size_bytes(self, name: str) -> int:
        """Of a value, as the model has it; 0 where nobody knows."""
        type_ = self.types.get(name)
        shape = static_shape(type_)
        if type_ is None or shape is None:
            return 0
        element = type_.tensor_type.elem_type
        return math.prod(shape) * (onnx.helper.tensor_dtype_to_np_dtype(element).itemsize if element else 0)

    def _open_operands(self, proto: onnx.NodeProto, opset: int, error: Exception) -> tuple[str, ...]:
        if isinstance(error, NotConstant):
            return (error.operand,)
        if not is_known(proto, opset):
            return ()
        values = {name: self.values.get(name) for name in proto.input if name}
        on_host = tuple(name for name, value in values.items() if isinstance(value, HostValue))
        rest = [value for name, value in values.items() if name not in on_host]
        return on_host if any(isinstance(value, SSAValue) for value in rest) else ()

    def _placed(
        self, proto: onnx.NodeProto, name: str, opset: int, types: Mapping[str, onnx.TypeProto]
    ) -> Sequence[Value | None]:
        if name in self.refused:
            raise Refused(self.refused[name])
        if self.kept is not None and (why := self.kept.why(proto)):
            raise Refused(f"it {why}")
        known = self._shape_of_host_value(proto)
        if known is not None:
            return [known]
        for operand in free_names(proto):
            value = self.values.get(operand)
            if isinstance(value, HostValue):
                is_ours = is_known(proto, opset)
                raise Refused(f"'{operand}' {value.why}" if is_ours else lacking(proto))
        rounded = self._rounded(proto, types) if self.exact else ""
        if rounded and not isinstance(self.values.get(rounded, UNAVAILABLE), np.ndarray | Unavailable):
            raise Refused(f"'{rounded}' {ROUNDED}")
        results = self._results(proto, name, opset)
        if rounded and any(isinstance(value, SSAValue) for value in results):
            raise Refused(f"'{rounded}' {ROUNDED}")
        return results

    def _rounded(self, proto: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> str:
        """What of DOUBLE a node reads or makes, where the device would compute it otherwise."""
        elements = {name: _element(self.types.get(name)) for name in free_names(proto)}
        elements |= {name: _element(types.get(name)) for name in proto.output if name}
        doubles = [name for name, element in elements.items() if element == DOUBLE]
        for name in doubles:
            value = self.values.get(name)
            if isinstance(value, np.ndarray):
                self.doubles.constant(name, value)
        if not doubles or self.doubles.take(proto, elements):
            return ""
        return next((name for name in doubles if not isinstance(self.values.get(name), np.ndarray)), doubles[0])

    def _shape_of_host_value(self, proto: onnx.NodeProto) -> np.ndarray | None:
        """Shape and Size of a value of the host whose shape is known."""
        value = self.values.get(proto.input[0]) if proto.input else None
        if proto.op_type not in ("Shape", "Size") or not isinstance(value, HostValue) or value.shape is None:
            return None
        found = _shape_or_size(proto, value.shape)
        if self.network.images is not None:
            self.network.images.keep(found, _shape_or_size(proto, self.network.images.divided(value.shape, value.axis)))
        return found

    def _kind(self, proto: onnx.NodeProto, results: Sequence[Known]) -> Kind:
        if any(isinstance(result, SequenceValue) for result in results):
            return "members"
        if not any(isinstance(result, SSAValue) for result in results):
            return "constant"
        return "shared" if free_names(proto).keys() <= self.fixed else "device"

    def _after(self, first: Operation | None) -> list[Operation]:
        """The operations added since."""
        op = self.network.block.first_op if first is None else first.next_op
        found = []
        while op is not None:
            found.append(op)
            op = op.next_op
        return found

    def _note(
        self, proto: onnx.NodeProto, results: Sequence[Known], types: Mapping[str, onnx.TypeProto]
    ) -> None:
        step = self.steps[-1]
        for index, output in enumerate(proto.output):
            value = results[index] if index < len(results) else HostValue("is not computed")
            self.values[output] = value
            if step.kind in ("constant", "shared"):
                self.fixed.add(output)
            found = _known_type(value, types.get(output), self.network)
            if found is not None:
                self.types[output] = found

    def _from_host(self, type_: onnx.TypeProto | None, node: str, axis: int | None) -> Value | HostValue:
        """What a node on the host gives: an input of the network where the device has such tensors."""
        why = no_tensor(type_)
        if why:
            return HostValue(f"{why} (node '{node}' gives it on the host)", static_shape(type_), axis)
        assert type_ is not None
        return device_tensor(self.network, type_, axis, OF_HOST if _element(type_) == INT64 else None)

    def _types_of(self, proto: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        """What ONNX says of the node's results, as far as it can."""
        found = {name: self.types[name] for name in proto.output if name in self.types}
        types = {name: self.types.get(name, onnx.TypeProto()) for name in free_names(proto)}
        opsets = [onnx.helper.make_opsetid(o.domain, self._version(proto, o.domain)) for o in self.opsets]
        inferred: Mapping[str, onnx.TypeProto]
        try:
            version = next((o.version for o in opsets if o.domain == proto.domain.replace("ai.onnx", "", 1)), 1)
            schema = onnx.defs.get_schema(proto.op_type, version, proto.domain)
            data = {name: self._data(name) for name in proto.input if self._is_small(name)}
            inferred = shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=opsets)
        except onnx.defs.SchemaError:
            inferred = types_by_onnxruntime(proto, types, opsets)
        except ERRORS:
            return found
        for name, type_ in inferred.items():
            if type_.WhichOneof("value") and (static_shape(type_) is not None or name not in found):
                found[name] = type_
        return found

    def _version(self, proto: onnx.NodeProto, domain: str) -> int:
        """The opset of a domain for a node: that of the model before it was converted, for those that were not."""
        if self.kept is not None and not domain and self.kept.why(proto):
            return self.kept.opset
        return next(o.version for o in self.opsets if o.domain == domain)

    def _is_small(self, name: str) -> bool:
        value = self.values.get(name)
        return isinstance(value, np.ndarray) and value.size <= MOST_PROPAGATED and value.dtype.kind != "U"

    def _data(self, name: str) -> onnx.TensorProto:
        value = self.values[name]
        assert isinstance(value, np.ndarray)
        return onnx.numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)


def _shape_or_size(proto: onnx.NodeProto, shape: tuple[int, ...]) -> np.ndarray:
    if proto.op_type == "Size":
        return np.asarray(math.prod(shape), np.int64)
    limits = {attribute.name: attribute.i for attribute in proto.attribute}
    return np.asarray(shape[limits.get("start", 0) : limits.get("end", len(shape))], np.int64)


def types_by_onnxruntime(
    proto: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], opsets: Sequence[onnx.OperatorSetIdProto]
) -> dict[str, onnx.TypeProto]:
    """What onnxruntime says of the results of a node that ONNX does not know (any more); nothing where it does not."""
    import onnxruntime as ort

    if any(static_shape(type_) is None for type_ in types.values()):
        return {}
    graph = onnx.helper.make_graph(
        [proto],
        "node",
        [onnx.helper.make_value_info(name, type_) for name, type_ in types.items()],
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in proto.output if name],
    )
    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    model = onnx.helper.make_model(graph, opset_imports=list(opsets), ir_version=IR_VERSION)
    try:
        results = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).get_outputs()
    except Exception:  # whatever it says: nothing is known then
        return {}
    found = {}
    for each in results:
        element = ELEMENTS.get(each.type)
        if element is not None and all(isinstance(extent, int) and extent >= 0 for extent in each.shape):
            found[each.name] = onnx.helper.make_tensor_type_proto(element, each.shape)
    return found


def device_tensor(
    network: Network, type_: onnx.TypeProto, axis: int | None = None, whole: IntegerBound | None = None
) -> SSAValue:
    """A new input of the network for a tensor of this type, with the images of a changed batch along an axis; `whole`:
    it holds integers in floating point, so large."""
    element: int = type_.tensor_type.elem_type
    own = network.element if whole is not None else INTEGERS.get(element, network.element)
    argument = network.block.insert_arg(tensor_type(own, static_shape(type_) or ()), len(network.block.args))
    if element in UNSIGNED:
        network.unsigned.add(argument)
    if element == BOOL:
        network.boolean.add(argument)
    if whole is not None:
        network.keep_whole(argument, whole)
    if axis is not None and network.images is not None:
        network.images.axes[argument] = axis
    return argument


def no_tensor(type_: onnx.TypeProto | None) -> str:
    """Why the device has no such tensors; nothing where it has."""
    if type_ is None or type_.WhichOneof("value") != "tensor_type":
        return f"is {type_name(type_)}, which the device lacks"
    element, shape = type_.tensor_type.elem_type, static_shape(type_)
    if element not in DEVICE_TYPES and element not in INTEGERS and element not in (BOOL, DOUBLE, INT64):
        return f"has elements of {type_name(type_)}, which the device lacks"
    if shape is None:
        return "has a shape that is known at run time only"
    return "" if _fits(shape) else f"is {_text(shape)}, which is no tensor of the device"


def no_elements(type_: onnx.TypeProto) -> Array | None:
    """The one value of a tensor with an extent of 0; None for others."""
    shape, element = static_shape(type_), _element(type_)
    if shape is None or all(shape) or not element:
        return None
    return np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(element))


def _fits(shape: Sequence[int]) -> bool:
    return len(shape) <= MOST_DIMENSIONS and all(extent > 0 for extent in shape)


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def static_shape(type_: onnx.TypeProto | None) -> tuple[int, ...] | None:
    """The shape of a tensor type, None where any extent is open."""
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return None
    dims = type_.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
        return None
    return tuple(dim.dim_value for dim in dims)


def type_name(type_: onnx.TypeProto | None) -> str:
    """`INT64`, `a sequence`, `of unknown type`."""
    kind = type_.WhichOneof("value") if type_ is not None else None
    if type_ is None or kind is None:
        return "of unknown type"
    if kind != "tensor_type":
        return f"a {kind.removesuffix('_type').replace('_', ' ')}"
    return element_name(type_.tensor_type.elem_type)


def _element(type_: onnx.TypeProto | None) -> int:
    return type_.tensor_type.elem_type if type_ is not None else 0


def _known_type(
    value: Value | Unavailable | None, inferred: onnx.TypeProto | None, network: Network
) -> onnx.TypeProto | None:
    """The inferred type with the shape that is certain."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OUS":
            return onnx.helper.make_tensor_type_proto(onnx.TensorProto.STRING, value.shape)
        element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        return onnx.helper.make_tensor_type_proto(element, value.shape)
    if not isinstance(value, SSAValue):
        return inferred
    known = _element(inferred) or model_element(value, network)
    return onnx.helper.make_tensor_type_proto(known, shape_of(value))
