"""What onnxruntime says: the outputs that ours must agree with.

The oracle runs without any graph optimisation: onnxruntime's default is wrong for Pad before MaxPool.  Models in
16-bit floats are run widened to f32, so that the oracle's own rounding does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper
from xdsl.dialects.builtin import ModuleOp

from frustum.dialects import graph as g
from frustum.dialects.errors import Error
from frustum.runtime.host import host_model
from frustum.runtime.host.exact_integers import signed_products, with_exact_products
from frustum.runtime.host.inputs import random_array
from frustum.runtime.kernels import Array
from frustum.runtime.reference.graph import network_of
from frustum.runtime.reference.layers import numpy_type

Source: TypeAlias = ModelProto | str | Path
Outputs: TypeAlias = dict[str, Array]

TOLERANCES = {"f32": 1e-4, "f16": 2e-2, "bf16": 1e-1, "int8": 1e-1, "host": 1e-4}
"""Largest error that still agrees, relative to the largest magnitude of the oracle's output, by device type."""
UNLIKE = float("inf"), float("inf")
"""The errors of what cannot be compared."""
STEPS, SHARE = 2, 0.999
"""An output of 8- or 16-bit integers agrees where this share of its elements is at most so many steps off."""
SIGMOID_STEP = 2.0**-24
"""The oracle computes a sigmoid as 0.5 plus a quotient near -0.5: its small values come in steps of this size."""
SIGMOID_STEPS = 4
"""So many steps are its resolution: rounding of the sigmoid's operand, the quotient, the sum, on either side."""
VIEWS = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Concat", "Slice"})
"""Operators whose results are elements of their first operand."""
FLOAT_TYPES: dict[str, np.dtype[Any]] = {
    f"tensor({name})": np.dtype(kind) for name, kind in (("float16", "f2"), ("float", "f4"), ("double", "f8"))
}
NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
TYPE_ATTRIBUTES = {"Cast": "to", "RandomNormal": "dtype", "EyeLike": "dtype", "QuantizeLinear": "output_dtype"}
"""Operations that name an element type, and the attribute in which they do."""


class OracleError(Error, RuntimeError):
    """onnxruntime is missing, or does not run the model or take the inputs."""


@dataclass(frozen=True)
class Agreement:
    """How far outputs are from the expected ones; the relative error is to an output's largest magnitude."""

    max_abs_error: float
    max_rel_error: float
    tolerance: float
    worst: str
    """Name of the output with the largest relative error."""
    good: bool
    outputs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Largest absolute and relative error of each."""
    nan_in_both: int = 0
    """How many of the `numbers` are NaN here and there, and so agree without a word about what they should be."""
    numbers: int = 0


def check_loads(model: Source) -> None:
    """OracleError where the oracle does not load the model."""
    with _session(model):
        pass


def oracle_outputs(
    model: Source, inputs: Mapping[str, Array], batch: int = 1, *, whole: Collection[str] = (),
    found: Mapping[str, Array] | None = None,
) -> Outputs:  # fmt: skip
    """The model's outputs by name, as f32 where they are 16-bit floats.

    With `batch`, the model runs once for each equal part of its inputs' first axis, but for those that each run gets
    `whole`; the outputs are joined, but for those that are the same in all runs and have one run's shape in `found`.
    """
    with _session(model) as run:
        parts = [run(_part(inputs, index, batch, whole)) for index in range(batch)]
    if batch == 1:
        return parts[0]
    return {name: _joined([part[name] for part in parts], (found or {}).get(name)) for name in parts[0]}


def _joined(parts: list[Array], found: Array | None) -> Array:
    one, *others = parts
    is_common = np.ndim(one) == 0 or (found is not None and np.shape(found) == np.shape(one))
    if is_common and all(np.array_equal(one, other) for other in others):
        return one
    return np.concatenate(np.atleast_1d(*parts))


def oracle_name() -> str:
    """Name and version, for reports."""
    return f"onnxruntime {_onnxruntime().__version__}"


def compare(
    outputs: Mapping[str, Array], expected: Mapping[str, Array], dtype: str, resolution: Mapping[str,
    float] | None = None,
) -> Agreement:  # fmt: skip
    """The largest errors over all expected outputs; `dtype` is the device's (a key of `TOLERANCES`).

    An output of small integers agrees by its steps (`STEPS`, `SHARE`), others by their relative error.
    Errors are relative to an output's largest magnitude, but at least to the magnitude at which the oracle's own
    `resolution` of that output (absolute, see `resolutions`) is the tolerance.
    """
    tolerance = TOLERANCES[dtype]
    floors = {name: (resolution or {}).get(name, 0.0) / tolerance for name in expected}
    if outputs.keys() != expected.keys():  # sequences of other lengths
        lacking = min(outputs.keys() ^ expected.keys())
        return Agreement(*UNLIKE, tolerance, lacking, False)
    errors = {name: _errors(outputs[name], expected[name], floors[name]) for name in expected}
    worst = max(errors, key=lambda name: errors[name][1])
    return Agreement(
        max_abs_error=max(error for error, _ in errors.values()),
        max_rel_error=errors[worst][1],
        tolerance=tolerance,
        worst=worst,
        good=all(_agrees(outputs[name], expected[name], errors[name][1], tolerance) for name in expected),
        outputs=errors,
        nan_in_both=sum(_nan_in_both(outputs[name], expected[name]) for name in expected),
        numbers=sum(array.size for array in expected.values()),
    )


def _nan_in_both(found: Array, expected: Array) -> int:
    if expected.dtype.kind in "OUS" or found.shape != expected.shape:
        return 0
    return int((np.isnan(found.astype(np.float64)) & np.isnan(expected.astype(np.float64))).sum())


def _agrees(found: Array, expected: Array, relative_error: float, tolerance: float) -> bool:
    if expected.dtype.kind not in "iu" or expected.dtype.itemsize > 2:
        return relative_error <= tolerance
    steps = np.abs(found.astype(np.int64) - expected.astype(np.int64))
    return bool(np.mean(steps <= STEPS) >= SHARE) if steps.size else True


def resolutions(model: Source) -> dict[str, float]:
    """The oracle's absolute resolution of every output that is a sigmoid's result (through views), by name."""
    proto = model if isinstance(model, ModelProto) else onnx.load(model, load_external_data=False)
    producers = {output: node for node in proto.graph.node for output in node.output}
    found = {}
    for output in proto.graph.output:
        node = producers.get(output.name)
        while node is not None and node.op_type in VIEWS:
            node = producers.get(node.input[0])
        if node is not None and node.op_type == "Sigmoid":
            found[output.name] = SIGMOID_STEPS * SIGMOID_STEP
    return found


def random_inputs(module: ModuleOp, seed: int) -> dict[str, Array]:
    """Inputs for a network in its types."""
    network = network_of(module)
    arguments = zip(network.inputs, network.body.block.args, strict=True)
    return {
        name: random_array(seed, index, g.shape_of(value), numpy_type(g.tensor_of(value).element_type))
        for index, (name, value) in enumerate(arguments)
    }


def _errors(found: Array, expected: Array, floor: float) -> tuple[float, float]:
    """Largest absolute error, and that error relative to the largest magnitude expected (at least `floor`)."""
    if expected.dtype.kind in "OUS" or found.shape != expected.shape:  # which depends on the numbers
        return (0.0, 0.0) if np.array_equal(found, expected) else UNLIKE
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    differ = ~((found == expected) | (np.isnan(found) & np.isnan(expected)))
    if not differ.any():
        return 0.0, 0.0
    with np.errstate(invalid="ignore"):
        error = float(np.abs(found - expected)[differ].max())
    magnitude = max(floor, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
    if not np.isfinite(error):  # one of them is not a number, or infinite
        return UNLIKE
    return error, error / magnitude if magnitude else float("inf")


def _part(inputs: Mapping[str, Array], index: int, batch: int, whole: Collection[str] = ()) -> dict[str, Array]:
    """The `index`-th of `batch` equal parts of the inputs along their first axis; all of those in `whole`."""
    found = dict(inputs)
    for name, array in inputs.items():
        if name in whole or batch == 1:
            continue
        size, rest = divmod(len(array), batch) if np.ndim(array) else (0, 1)
        if rest:
            raise OracleError(f"input '{name}' of shape {array.shape} is not a batch of {batch}")
        found[name] = array[index * size : (index + 1) * size]
    return found


@contextmanager
def _session(model: Source) -> Iterator[Callable[[Mapping[str, Array]], Outputs]]:
    """What runs a model or file by an onnxruntime session, with the files it needs for as long as it is open."""
    ort = _onnxruntime()
    with TemporaryDirectory(prefix="frustum-oracle-") as folder:
        source = _source(model, Path(folder, "model.onnx"))
        try:
            session = ort.InferenceSession(source, host_model.unoptimised(ort), ["CPUExecutionProvider"])
        except Exception as error:
            reason = " ".join(str(error).split())
            raise OracleError(f"onnxruntime does not load the model: {reason}") from error
        yield partial(_run, session)


def _run(session: host_model.Session, inputs: Mapping[str, Array]) -> Outputs:
    """The outputs by name; floats are given in the session's types."""
    given, types = host_model.fed(inputs), {value.name: value.type for value in session.get_inputs()}
    for name, array in given.items():
        if types.get(name) in FLOAT_TYPES:
            given[name] = array.astype(FLOAT_TYPES[types[name]], copy=False)
    try:
        arrays = session.run(None, given)
    except Exception as error:
        raise OracleError(f"onnxruntime does not run the model: {error}") from error
    return {value.name: array for value, array in zip(session.get_outputs(), arrays, strict=True)}


def _source(model: Source, path: Path) -> str | bytes:
    """A path where there is one and the file is run as it is, else the model's bytes, else a copy's path."""
    proto = model if isinstance(model, ModelProto) else onnx.load(model, load_external_data=False)
    widen = has_narrow_floats(proto)
    if not isinstance(model, ModelProto):
        if not widen and not signed_products(proto) and host_model.known_to_onnxruntime(proto) is proto:
            return str(model)
        proto = onnx.load(model)
    proto = with_exact_products(host_model.known_to_onnxruntime(widened(proto) if widen else proto))
    if proto.ByteSize() < host_model.PROTO_LIMIT_BYTES:
        message: bytes = proto.SerializeToString()
        return message
    onnx.save(proto, path, save_as_external_data=True, location="weights")
    return str(path)


def _onnxruntime() -> Any:
    """The package, loaded on first use."""
    try:
        import onnxruntime
    except ImportError as error:
        raise OracleError("--check needs the package onnxruntime: pip install onnxruntime") from error
    return onnxruntime


# --- models in f32 ---------------------------------------------------------------------------------------


def has_narrow_floats(model: ModelProto) -> bool:
    """Whether any tensor of the model is f16 or bf16."""
    for graph in host_model.graphs_of(model.graph):
        values = (*graph.input, *graph.output, *graph.value_info)
        types = [value.type.tensor_type.elem_type for value in values]
        types += [tensor.data_type for tensor in graph.initializer]
        types += [attribute.i for node in graph.node for attribute in _type_attributes(node)]
        if any(each in NARROW for each in types):
            return True
    return False


def widened(model: ModelProto) -> ModelProto:
    """A copy in which every f16 or bf16 tensor is f32; the model's tensors must be loaded."""
    wide = ModelProto()
    wide.CopyFrom(model)
    for graph in host_model.graphs_of(wide.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in NARROW:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for node in graph.node:
            _widen_node(node)
    return wide


def _type_attributes(node: NodeProto) -> Iterator[AttributeProto]:
    name = TYPE_ATTRIBUTES.get(node.op_type)
    return (attribute for attribute in node.attribute if attribute.name == name)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        array = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _widen_node(node: NodeProto) -> None:
    for attribute in _type_attributes(node):
        if attribute.i in NARROW:
            attribute.i = TensorProto.FLOAT
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
