"""Frustum as a backend of ONNX (`onnx.backend.base.Backend`), for tools and test suites that take any.

    import frustum.onnx_backend as backend
    outputs = backend.prepare(model, target="edge").run([image])

Options of `prepare`, `run_model` and `run_node`, all by name: `target`, `dtype`, `host`, `policy` as for
`frustum.compile`; `bind_inputs`, values by name of inputs that are really constants; `mode` and `checked` as for
`frustum.run`.

A prepared model is compiled at once where its inputs say their shapes and none of them has to be constant; otherwise
with the first inputs that it runs on, whose shapes and constants (weights, shapes, axes, types that the device lacks)
are then bound, and again for inputs that differ in these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from frustum.dialects.choices import Mode
from frustum.runtime.host.host_model import as_array, type_of
from frustum.runtime.host.inputs import HostArray
from frustum.runtime.kernels import Array
from frustum.runtime.machine import InputError
from frustum.runtime.model.build import build
from frustum.runtime.model.chain import Chain
from frustum.runtime.model.execution import execute_chain, report_of_chain
from frustum.runtime.model.options import Request
from frustum.runtime.model.request import constants_of_run

__all__ = ["FrustumBackend", "Prepared", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]

DEVICES = ("CPU", "FRUSTUM")
"""The emulated device runs on the processor: both names mean it."""
OPTIONS = ("target", "dtype", "policy", "host", "bind_inputs", "mode", "checked")
Key = tuple[Any, ...]


class Prepared(BackendRep):
    """A model with the options it is compiled with."""

    def __init__(self, model: ModelProto, request: Request, mode: Mode, checked: bool) -> None:
        self.model = model
        self.request = request
        self.mode = mode
        self.checked = checked
        constants = {tensor.name for tensor in model.graph.initializer} | set(request.constants)
        self.inputs: list[onnx.ValueInfoProto] = [value for value in model.graph.input if value.name not in constants]
        self.chain: Chain | None = None
        """What ran last, or was compiled first."""
        self.report: dict[str, Any] | None = None
        """Of the last run."""
        self._constants: dict[Key, tuple[str, ...]] = {}
        """Names of the inputs to bind, by the shapes and types of all."""
        self._chains: dict[Key, Chain] = {}
        self._compile_at_once()

    def run(self, inputs: Sequence[HostArray] | Mapping[str, HostArray], **options: Any) -> tuple[HostArray, ...]:
        """The outputs in the model's order; `inputs` in the model's order, or by name."""
        if options:
            raise TypeError(f"run() takes no option '{next(iter(options))}': give it to prepare()")
        values = self._by_name(inputs)
        constants = self._constants_among(values)
        chain = self._chain(values, constants)
        ran = execute_chain(chain, {n: v for n, v in values.items() if n not in constants}, self.mode, self.checked)
        self.chain, self.report = chain, report_of_chain(chain, ran)
        return tuple(ran.outputs[name] for name in chain.outputs)

    def _by_name(self, inputs: Sequence[HostArray] | Mapping[str, HostArray]) -> dict[str, HostArray]:
        if not isinstance(inputs, Mapping):
            if len(inputs) > len(self.inputs):
                raise InputError(f"{len(inputs)} inputs given, the model takes {len(self.inputs)}")
            inputs = dict(zip((value.name for value in self.inputs), inputs, strict=False))
        return {name: as_array(value) for name, value in inputs.items()}

    def _constants_among(self, values: Mapping[str, HostArray]) -> dict[str, Array]:
        """Those given before, and those of the inputs that have to be constants: looked for once for equal shapes."""
        arrays = {n: v for n, v in values.items() if isinstance(v, np.ndarray) and _is_numeric(v)}
        key = tuple(sorted((name, array.shape, array.dtype.name) for name, array in arrays.items()))
        if key not in self._constants:
            self._constants[key] = tuple(constants_of_run(self.request, self.model, arrays))
        known = {**arrays, **self.request.constants}
        return {name: known[name] for name in self._constants[key]}

    def _chain(self, values: Mapping[str, HostArray], constants: Mapping[str, Array]) -> Chain:
        """Compiled once for inputs of equal shapes and equal constants."""
        tensors = {v.name for v in self.inputs if v.type.WhichOneof("value") == "tensor_type"}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        shapes = {name: array.shape for name, array in arrays.items() if name in tensors and name not in constants}
        key = (tuple(sorted(shapes.items())), tuple(sorted((n, *_digest(a)) for n, a in constants.items())))
        if key not in self._chains:
            self._chains[key] = self._build(shapes, constants)
        return self._chains[key]

    def _build(self, shapes: Mapping[str, Sequence[int]], constants: Mapping[str, Array]) -> Chain:
        return build(replace(self.request, shapes=shapes, constants=constants)).chain

    def _compile_at_once(self) -> None:
        """If nothing has to be known of the inputs that the model does not say."""
        shapes = {value.name: _static(value) for value in self.inputs}
        if any(shape is None for shape in shapes.values()):
            return
        zeros = {
            value.name: np.zeros(shapes[value.name] or (), helper.tensor_dtype_to_np_dtype(_element(value)))
            for value in self.inputs
            if _element(value) not in (0, onnx.TensorProto.STRING)
        }
        if constants_of_run(self.request, self.model, zeros).keys() == self.request.constants.keys():
            self.chain = self._chain(zeros, self.request.constants)


class FrustumBackend(Backend):
    """The interface; its methods are also functions of this module."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **options: Any) -> bool:
        """Any valid model: what the device lacks runs on the host."""
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **options: Any) -> Prepared:
        """The model, checked; compiled as far as its inputs are known."""
        if unknown := [name for name in options if name not in OPTIONS]:
            raise TypeError(f"there is no option '{unknown[0]}'")
        if not cls.supports_device(device):
            raise ValueError(f"there is no device {device!r}: there are {', '.join(DEVICES)}")
        super().prepare(model, device)
        return cls._unchecked(model, **options)

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Any, ...]:
        """The model's outputs for these inputs."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        """One node's outputs, a named tuple; `inputs` in the order of its operands, or by name.

        Besides the options of `prepare`: `opset_version`, the newest if it is not said.
        """
        opset: Any = options.pop("opset_version", None) or int(onnx.defs.onnx_opset_version())
        super().run_node(node, inputs, device, outputs_info, opset_version=opset)
        names = list(dict.fromkeys(filter(None, node.input)))
        if not isinstance(inputs, Mapping):
            inputs = dict(zip(names, inputs, strict=True))
        values = {name: as_array(value) for name, value in inputs.items()}
        model = _model_of(node, values, outputs_info, opset)
        found = cls._unchecked(model, **options).run(values)
        outputs = namedtupledict("Outputs", list(filter(None, node.output)))
        return outputs(*found)

    @classmethod
    def _unchecked(
        cls, model: ModelProto, mode: Mode = "functional", checked: bool = False,
        bind_inputs: Mapping[str, Array] | None = None, **options: Any,
    ) -> Prepared:  # fmt: skip
        """A model whose outputs have no types, which the checker of `onnx` would not take."""
        return Prepared(model, Request(model, constants=dict(bind_inputs or {}), **options), mode, checked)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] in DEVICES


is_compatible: Callable[Concatenate[ModelProto, ...], bool] = FrustumBackend.is_compatible
prepare: Callable[Concatenate[ModelProto, ...], Prepared] = FrustumBackend.prepare
run_model: Callable[Concatenate[ModelProto, ...], tuple[Any, ...]] = FrustumBackend.run_model
run_node: Callable[Concatenate[NodeProto, ...], tuple[Any, ...]] = FrustumBackend.run_node
supports_device: Callable[[str], bool] = FrustumBackend.supports_device


def _model_of(
    node: NodeProto,
    values: Mapping[str, HostArray],
    outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None,
    opset: int,
) -> ModelProto:
    names = [name for name in node.output if name]
    types = [onnx.TypeProto()] * len(names)
    if outputs_info:
        types = [
            helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for dtype, shape in outputs_info
        ]
    graph = helper.make_graph(
        [node],
        node.op_type or "node",
        [helper.make_value_info(name, type_of(value)) for name, value in values.items()],
        [helper.make_value_info(name, type_) for name, type_ in zip(names, types, strict=True)],
    )
    imports = [helper.make_opsetid("", opset)]
    if node.domain:
        imports.append(helper.make_opsetid(node.domain, 1))
    return helper.make_model(graph, opset_imports=imports)


def _element(value: onnx.ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type


def _static(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    if value.type.WhichOneof("value") != "tensor_type" or not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value for d in dims) if all(d.dim_value > 0 for d in dims) else None


def _is_numeric(array: Array) -> bool:
    return array.dtype.kind not in "OUS"


def _digest(array: Array) -> tuple[str, tuple[int, ...], str]:
    return array.dtype.name, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
