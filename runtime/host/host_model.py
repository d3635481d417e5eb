"""Pieces of a model on the host's processor.

onnxruntime computes them, with graph optimisation off as in the oracle.  Where it has no kernel for an operator or a
type, the evaluator of the package `onnx`, which defines what operators mean, takes its place; where onnxruntime is
known to differ from what ONNX says (`DIFFERS` in `evaluators`), that comes first.  A piece that onnxruntime does not
take as a whole runs node by node, each by the first of the two that can.  What onnxruntime has a kernel for and refuses
when it runs (an index out of range, shapes that do not go together) is wrong: the other one, which is less strict, is
not asked.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cached_property
from io import StringIO
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, NodeProto, TypeProto, checker, external_data_helper, helper, numpy_helper

from frustum.dialects.errors import Error
from frustum.runtime.host.evaluators import (
    DEFAULT_DOMAINS,
    differs,
    graphs_of,
    why_it_differs,
    why_reference_differs,
    with_pads,
)
from frustum.runtime.host.exact_integers import with_exact_products
from frustum.runtime.host.inputs import HostArray

Session: TypeAlias = Any

NEWEST_OPSET = 26
"""The newest that onnxruntime 1.31 loads; nodes that mean the same there are given to it as of that opset."""
NEWEST_IR = 13
SILENT = 4
"""onnxruntime's log level of fatal errors."""
NOT_IN_NUMPY = ("float8", "float4", "bfloat16", "int4", "int2")
"""Types that onnxruntime does not exchange as what they are."""
LACKING = ("NOT_IMPLEMENTED", "must have the shape set", "is not defined for")
"""In messages of onnxruntime about what it has no kernel for, or none without more than ONNX asks for."""
WORDS_BEFORE = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Non-zero status code returned while running .*?Status Message: )?"
)
"""Of onnxruntime's messages, what says nothing."""
LEAST_CHECKED_IR = 3
"""The checker asks of older models that nobody says their opset."""
PROTO_LIMIT_BYTES = (1 << 31) - 1


class HostError(Error, RuntimeError):
    """A node on the host that nobody can compute; the message names it and says why."""


class HostModel:
    """A model that the host runs."""

    def __init__(self, proto: ModelProto, file: str = "model.onnx", *, is_judge: bool = False) -> None:
        """A model with all its data; `file` is what messages call it.

        A judge takes the word of no evaluator that is known to be wrong, and asks the reference evaluator of what
        onnxruntime refuses, whatever its reason.
        """
        self.proto = proto
        self.file = file
        self.is_judge = is_judge
        self.by_reference: dict[str, str] = {}
        """Nodes that the reference evaluator computed in the place of onnxruntime, and why."""

    @classmethod
    def from_bytes(cls, content: bytes, file: str = "model.onnx") -> HostModel:
        """The model of a file that `to_bytes` wrote; ValueError where it is none."""
        try:
            return cls(ModelProto.FromString(content), file=file)
        except DecodeError as error:
            raise ValueError(f"{file} is no ONNX model") from error

    def to_bytes(self) -> bytes:
        """The model with all its data; equal models give equal bytes."""
        if self.proto.ByteSize() > PROTO_LIMIT_BYTES:
            raise HostError("the weights of what runs on the host are more than 2 GB, which is all that a file holds")
        content: bytes = self.proto.SerializeToString(deterministic=True)
        return content

    @cached_property
    def inputs(self) -> list[str]:
        constants = {tensor.name for tensor in self.proto.graph.initializer}
        return [value.name for value in self.proto.graph.input if value.name not in constants]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the inputs whose shape is not open."""
        found = {}
        for value in self.proto.graph.input:
            extents = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            if value.type.tensor_type.HasField("shape") and all(extents):
                found[value.name] = extents
        return found

    @cached_property
    def outputs(self) -> list[str]:
        return [value.name for value in self.proto.graph.output]

    def run(self, inputs: Mapping[str, HostArray]) -> dict[str, HostArray]:
        """The outputs by name; `HostError` where a node cannot be computed."""
        failed = None
        if self._whole is not None and all(_is_plain(value) for value in inputs.values()):
            try:
                return dict(zip(self.outputs, self._whole.run(self.outputs, fed(inputs)), strict=True))
            except Exception as error:  # each node by itself says which one it is, or succeeds
                failed = error
        return self._node_by_node(inputs, failed)

    def run_each(self, inputs: Mapping[str, HostArray]) -> dict[str, HostArray]:
        """The same, node by node."""
        return self._node_by_node(inputs, None)

    def made_from(self, names: Collection[str]) -> set[str]:
        """The outputs that depend on some of these values."""
        known = set(names)
        for node in self.proto.graph.node:
            if not known.isdisjoint(free_names(node)):
                known.update(node.output)
        return known & {*self.outputs}

    def evaluators(self) -> dict[str, str]:
        """By operator, whether onnxruntime or onnx computes it, as of the runs so far."""
        if self._whole is not None and not self._nodes_used:
            return {node.op_type: "onnxruntime" for node in self.proto.graph.node}
        return dict(self._nodes_used)

    @cached_property
    def _nodes_used(self) -> dict[str, str]:
        return {}

    @cached_property
    def _whole(self) -> Session | None:
        """A session for all nodes, None where onnxruntime should not or cannot run one of them."""
        if any(differs(node) for node in self.proto.graph.node):
            return None
        found = session_of(self.proto)
        return None if isinstance(found, str) else found

    @cached_property
    def _constants(self) -> dict[str, HostArray]:
        graph = self.proto.graph
        found = {tensor.name: self._array(tensor) for tensor in graph.initializer}
        for sparse in graph.sparse_initializer:
            found[sparse.values.name] = self._dense(sparse)
        return found

    def _array(self, tensor: onnx.TensorProto) -> HostArray:
        """A constant; HostError where it does not hold the elements of its shape and type, or is in another file."""
        if external_data_helper.uses_external_data(tensor):
            raise HostError(f"{self.file}: error: tensor '{tensor.name}' is in another file: a piece has all its data")
        cause: Exception | None = None
        if min(tensor.dims, default=0) >= 0:
            try:
                return numpy_helper.to_array(tensor)
            except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
                cause = error
        raise HostError(
            f"{self.file}: error: tensor '{tensor.name}' does not hold the elements of its shape and type"
        ) from cause

    def _dense(self, sparse: onnx.SparseTensorProto) -> HostArray:
        """A sparse constant with its zeros; HostError where it would be more than a model may hold."""
        values, places, shape = self._array(sparse.values), self._array(sparse.indices), tuple(sparse.dims)
        if min(shape, default=0) < 0 or prod(shape) * values.itemsize > PROTO_LIMIT_BYTES:
            raise HostError(f"{self.file}: error: tensor '{sparse.values.name}' has the impossible shape {list(shape)}")
        dense = np.zeros(shape, values.dtype)
        try:
            if places.ndim == 1:
                dense.reshape(-1)[places] = values
            else:
                dense[tuple(places.T)] = values
        except (IndexError, ValueError) as error:
            raise HostError(f"{self.file}: error: tensor '{sparse.values.name}': {error}") from error
        return dense

    def _node_by_node(self, inputs: Mapping[str, HostArray], before: Exception | None) -> dict[str, HostArray]:
        values: dict[str, HostArray] = {**self._constants, **inputs}
        for node in self.proto.graph.node:
            results = self._run_node(node, values)
            values.update(zip(node.output, results, strict=False))
        missing = [name for name in self.outputs if name not in values]
        if missing:
            raise HostError(f"no node produces the output '{missing[0]}'" + (f" ({before})" if before else ""))
        return {name: values[name] for name in self.outputs}

    def _run_node(self, node: NodeProto, values: Mapping[str, HostArray]) -> Sequence[HostArray]:
        given = {name: values[name] for name in free_names(node) if name in values}
        ways = [("onnxruntime", self._by_onnxruntime), ("onnx", self._by_reference)]
        reasons = []
        is_known = differs(node)
        if is_known:
            ways = ways[1:] if self.is_judge else ways[::-1]
            reasons = [f"onnxruntime: departs from ONNX ({why_it_differs(node)})"] if self.is_judge else []
        for evaluator, run in ways:
            try:
                results = run(node, given)
            except _Unable as error:
                reasons.append(f"{evaluator}: {error}")
                if error.is_final and not self.is_judge:
                    break
            else:
                self._nodes_used[node.op_type] = evaluator
                if evaluator == "onnx" and reasons and node.op_type != "Cast":  # in which both are exact
                    self.by_reference[f"'{node_label(node)}' ({node.op_type})"] = reasons[0]
                return results
        name = node_label(node)
        why = self._not_allowed(node) or "; ".join(reasons)
        raise HostError(f"{self.file}: node '{name}' ({node.op_type}): error: {why}")

    def _not_allowed(self, node: NodeProto) -> str:
        """What the checker of the package `onnx` has against a node, in one line; nothing where it has not."""
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            return ""  # it would have to know the names around the node
        context = checker.C.CheckerContext()
        context.ir_version = max(self.proto.ir_version, LEAST_CHECKED_IR)
        context.opset_imports = {opset.domain: opset.version for opset in self.proto.opset_import}
        try:
            checker.check_node(node, context)
        except checker.ValidationError as error:
            return first_line(error)
        return ""

    def _by_onnxruntime(self, node: NodeProto, given: Mapping[str, HostArray]) -> Sequence[HostArray]:
        """`_Unable` where it has no kernel for this, finally where it finds fault with the operands."""
        if not all(_is_plain(value) for value in given.values()):
            raise _Unable("it does not exchange such values")
        asked = with_pads(node, given) if self.is_judge else node
        session = session_of(self._one_node(asked, {name: type_of(value) for name, value in given.items()}))
        if isinstance(session, str):
            raise _Unable(session)
        wanted = [name for name in node.output if name]
        try:
            found = dict(zip(wanted, session.run(wanted, fed(given)), strict=True))
        except Exception as error:
            is_lacking = any(words in str(error) for words in LACKING)
            raise _Unable(first_line(error), is_final=not is_lacking) from error
        return [found.get(name) for name in node.output]

    def _by_reference(self, node: NodeProto, given: Mapping[str, HostArray]) -> Sequence[HostArray]:
        from onnx.reference import ReferenceEvaluator

        opset = max((each.version for each in self.proto.opset_import if each.domain in DEFAULT_DOMAINS), default=0)
        wrong = why_reference_differs(node, opset) if self.is_judge else ""
        if wrong:
            raise _Unable(f"departs from ONNX: {wrong}")
        model = self._one_node(node, {name: TypeProto() for name in given})
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                found = ReferenceEvaluator(model).run(None, dict(given))
            except Exception as error:  # whatever numpy or it has to say
                raise _Unable(first_line(error)) from error
        by_name = dict(zip(filter(None, node.output), found, strict=True))
        if self.is_judge:
            self._check_shapes(node, given, by_name)
        return [as_array(by_name.get(name)) for name in node.output]

    def _check_shapes(self, node: NodeProto, given: Mapping[str, HostArray], found: Mapping[str, HostArray]) -> None:
        """`_Unable` where a result has another shape than ONNX infers: SAME_LOWER of MaxPool."""
        model = self._one_node(node, {name: type_of(value) for name, value in given.items() if value is not None})
        try:
            inferred = onnx.shape_inference.infer_shapes(model).graph.output
        except (onnx.shape_inference.InferenceError, RuntimeError):
            return
        for value in inferred:
            dims = value.type.tensor_type.shape.dim
            shape = np.shape(found[value.name]) if isinstance(found.get(value.name), np.ndarray) else None
            if shape is None or not value.type.tensor_type.HasField("shape"):
                continue
            pairs = zip(dims, shape, strict=False)
            if len(dims) != len(shape) or any(dim.HasField("dim_value") and dim.dim_value != n for dim, n in pairs):
                raise _Unable(f"departs from ONNX: '{value.name}' is of shape {shape}")

    def _one_node(self, node: NodeProto, types: Mapping[str, TypeProto]) -> ModelProto:
        """A model of this node alone."""
        inputs = [helper.make_value_info(name, type_) for name, type_ in types.items()]
        outputs = [helper.make_value_info(name, TypeProto()) for name in node.output if name]
        own, functions = self.proto, list(self.proto.functions)
        graph, opsets = helper.make_graph([node], "node", inputs, outputs), list(own.opset_import)
        return helper.make_model(graph, opset_imports=opsets, ir_version=own.ir_version, functions=functions)


class _Unable(Exception):
    """An evaluator does not take this; `is_final`: nor should another one."""

    def __init__(self, why: str, is_final: bool = False) -> None:
        super().__init__(why)
        self.is_final = is_final


def session_of(proto: ModelProto) -> Session | str:
    """An onnxruntime session, or why it does not take the model, in one line."""
    import onnxruntime as ort

    options = unoptimised(ort)
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    proto = with_exact_products(known_to_onnxruntime(proto))
    if proto.ByteSize() > PROTO_LIMIT_BYTES:
        return "it is more than 2 GB"
    try:
        with redirect_stdout(StringIO()):  # what it has to say of models that it cannot read
            session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception as error:  # whatever it says: the other evaluator is asked
        return first_line(error)
    exchanged = [value.type for value in (*session.get_inputs(), *session.get_outputs())]
    foreign = [type_ for type_ in exchanged if any(word in type_ for word in NOT_IN_NUMPY)]
    return f"it does not exchange {foreign[0]}" if foreign else session


def unoptimised(ort: Any) -> Any:
    """Options of a quiet session without graph optimisation, of the package onnxruntime."""
    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def known_to_onnxruntime(proto: ModelProto) -> ModelProto:
    """The model as of an older opset where all its operators mean the same there."""
    newest = max((o.version for o in proto.opset_import if o.domain in DEFAULT_DOMAINS), default=0)
    if newest <= NEWEST_OPSET and proto.ir_version <= NEWEST_IR:
        return proto
    copy = ModelProto()
    copy.CopyFrom(proto)
    copy.ir_version = min(copy.ir_version, NEWEST_IR)
    if all(_is_older(node, newest) for node in _all_nodes(proto.graph)):
        for opset in copy.opset_import:
            if opset.domain in DEFAULT_DOMAINS:
                opset.version = min(opset.version, NEWEST_OPSET)
    return copy


def _is_older(node: NodeProto, opset: int) -> bool:
    """Whether the form that its operator has in the opset is one that onnxruntime's newest opset has."""
    if node.domain not in DEFAULT_DOMAINS:
        return True
    try:
        return onnx.defs.get_schema(node.op_type, opset).since_version <= NEWEST_OPSET
    except onnx.defs.SchemaError:  # none of ONNX, or none any more
        return True


def _all_nodes(graph: onnx.GraphProto) -> list[NodeProto]:
    return [node for each in graphs_of(graph) for node in each.node]


def free_names(node: NodeProto) -> dict[str, None]:
    """Names that a node reads, and that its graphs take from around it."""
    names = dict.fromkeys(filter(None, node.input))
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            for inner in graph.node:
                names |= dict.fromkeys(name for name in free_names(inner) if name not in own)
                own.update(inner.output)
            names |= dict.fromkeys(output.name for output in graph.output if output.name not in own)
    return names


def node_label(node: NodeProto) -> str:
    """Its name, or that of its first result."""
    return node.name or next(filter(None, node.output), "")


def type_of(value: HostArray) -> TypeProto:
    """The ONNX type of a value."""
    if isinstance(value, list):
        inner = type_of(value[0]) if value else helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
        if value and inner.HasField("tensor_type"):
            inner = helper.make_tensor_type_proto(inner.tensor_type.elem_type, None)
        return helper.make_sequence_type_proto(inner)
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        return helper.make_tensor_type_proto(onnx.TensorProto.STRING, array.shape)
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _is_plain(value: HostArray) -> bool:
    """Whether onnxruntime takes it from numpy: not types that numpy itself lacks, not what is absent or empty."""
    if isinstance(value, list):
        return bool(value) and all(_is_plain(item) for item in value)
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufOUS"


def fed(values: Mapping[str, HostArray]) -> dict[str, HostArray]:
    """As onnxruntime takes them: arrays without gaps, lists as they are."""
    return {name: value if isinstance(value, list) else np.ascontiguousarray(value).reshape(np.shape(value))
            for name, value in values.items()}  # fmt: skip


def as_array(value: HostArray) -> HostArray:
    """Numbers and numpy's scalars as arrays; sequences, maps and what is absent as they are."""
    return np.asarray(value) if isinstance(value, np.generic | int | float | bool | str) else value


def first_line(error: BaseException) -> str:
    """What an evaluator says, without the words that onnxruntime puts before everything."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return WORDS_BEFORE.sub("", first)
