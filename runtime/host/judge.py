# Tests: test/runtime/host/test_judge.py
"""Who says what a model's outputs should be: onnxruntime, and the reference evaluator of `onnx` where it cannot.

onnxruntime runs the model without any graph optimisation (its default is wrong for Pad before MaxPool).  Where it
departs from ONNX, has no kernel, or refuses the model, each node is computed by itself, those that it cannot by the
reference evaluator, unless that is known to be wrong too: then nobody judges, and an error names the node.
Models in 16-bit floats are run widened, with their Casts (`widening`): other roundings of theirs do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, inliner

from frustum.dialects.errors import Error
from frustum.runtime.host import host_model
from frustum.runtime.host.evaluators import DEFAULT_DOMAINS, differs, why_it_differs
from frustum.runtime.host.exact_integers import signed_products, with_exact_products
from frustum.runtime.host.inputs import HostArray
from frustum.runtime.host.widening import NARROW, has_narrow_floats, widened
from frustum.runtime.kernels import Array

Source: TypeAlias = ModelProto | str | Path
Outputs: TypeAlias = dict[str, Array]
FLOAT_TYPES: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT16: np.dtype("f2"), TensorProto.FLOAT: np.dtype("f4"), TensorProto.DOUBLE: np.dtype("f8"),
}  # fmt: skip
MOST_NAMED = 3
"""Nodes that the line about the judge names."""


class OracleError(Error, RuntimeError):
    """onnxruntime is missing, or nobody runs the model or takes the inputs."""


@contextmanager
def judge_of(model: Source) -> Iterator[Judge]:
    """The judge of a model or file, with the files it needs for as long as it is open."""
    onnxruntime()
    with TemporaryDirectory(prefix="frustum-oracle-") as folder:
        yield Judge(model, Path(folder, "model.onnx"))


def onnxruntime() -> Any:
    """The package, loaded on first use."""
    try:
        import onnxruntime as found
    except ImportError as error:
        raise OracleError("--check needs the package onnxruntime: pip install onnxruntime") from error
    return found


@dataclass
class Judge:
    """Computes the outputs of one model, any number of times."""

    model: Source
    path: Path
    """Where a copy may be written."""
    refused: str = ""
    """That onnxruntime does not run the model as a whole, and why, if it does not."""
    by_reference: dict[str, str] = field(default_factory=dict)
    """Nodes that the reference evaluator computed, and why."""

    @cached_property
    def light(self) -> ModelProto:
        """The model, without its external data where it is a file."""
        return self.model if isinstance(self.model, ModelProto) else onnx.load(self.model, load_external_data=False)

    @cached_property
    def whole(self) -> ModelProto:
        """What is run, with all data; without functions, if nodes are run one by one."""
        proto = self.light if isinstance(self.model, ModelProto) else onnx.load(self.model)
        return widened(proto) if has_narrow_floats(self.light) else proto

    @cached_property
    def session(self) -> host_model.Session | None:
        """onnxruntime's session of the whole model; None, and `refused` says why, where it should not or cannot."""
        nodes = [*self.light.graph.node, *(node for each in self.light.functions for node in each.node)]
        departs = next((node for node in nodes if differs(node)), None)
        if departs is not None:
            self.refused = f"onnxruntime departs from ONNX: {departs.op_type}, {why_it_differs(departs)}"
            return None
        ort = onnxruntime()
        try:
            return ort.InferenceSession(self._source(), host_model.unoptimised(ort), ["CPUExecutionProvider"])
        except Exception as error:
            self.refused = f"onnxruntime does not load the model: {' '.join(str(error).split())}"
            return None

    @cached_property
    def by_nodes(self) -> host_model.HostModel:
        proto = inliner.inline_local_functions(self.whole) if self.whole.functions else self.whole
        return host_model.HostModel(proto, Path(str(self.model)).name if not isinstance(self.model, ModelProto) else
                                    "model.onnx", is_judge=True)  # fmt: skip

    def check(self) -> None:
        """OracleError where it is known that nobody judges."""
        if self.session is not None:
            return
        own = {(each.domain, each.name) for each in self.light.functions}
        for node in self.light.graph.node:
            is_known = (node.domain, node.op_type) in own or onnx.defs.has(node.op_type, node.domain)
            if node.domain in DEFAULT_DOMAINS and not is_known:
                name = host_model.node_label(node)
                raise OracleError(
                    f"nobody can judge node '{name}' ({node.op_type}): {self.refused}; onnx has no such operator"
                )

    def run(self, inputs: Mapping[str, HostArray]) -> Outputs:
        """The outputs by name, floats in f32 where they are narrower, and infinite where their type ends; OracleError
        where nobody computes them."""
        given = host_model.fed(self._in_types(inputs))
        if self.session is not None:
            try:
                arrays = self.session.run(None, given)
            except Exception as error:
                self.refused = f"onnxruntime does not run the model: {host_model.first_line(error)}"
            else:
                names = [value.name for value in self.session.get_outputs()]
                return self._within_types(dict(zip(names, arrays, strict=True)))
        self._check_inputs(given)
        try:
            found = self.by_nodes.run_each(given)
        except host_model.HostError as error:
            raise OracleError(f"nobody can judge: {self.refused}; {error}") from error
        self.by_reference |= self.by_nodes.by_reference
        return self._within_types(found)

    def _check_inputs(self, given: Mapping[str, HostArray]) -> None:
        """OracleError where they are not those of the model: nodes one by one would take others."""
        optional = {tensor.name for tensor in self.light.graph.initializer}
        for value in self.light.graph.input:
            array, shape = given.get(value.name), value.type.tensor_type.shape
            if array is None and value.name not in (*optional, *given):
                raise OracleError(f"{self.refused}: input '{value.name}' is missing")
            if isinstance(array, np.ndarray) and value.type.tensor_type.HasField("shape"):
                extents = [dim.dim_value if dim.HasField("dim_value") else None for dim in shape.dim]
                pairs = zip(extents, array.shape, strict=False)
                if len(extents) != array.ndim or not all(n in (None, m) for n, m in pairs):
                    raise OracleError(f"{self.refused}: input '{value.name}' is of shape {list(array.shape)}")

    @property
    def name(self) -> str:
        """The packages that judged, with their versions."""
        runtime, reference = f"onnxruntime {onnxruntime().__version__}", f"onnx {onnx.__version__}"
        if not self.by_reference:
            return runtime
        others = len(self.by_nodes.proto.graph.node) - len(self.by_reference)
        return f"{runtime} and {reference}" if others > 0 else reference

    @property
    def why(self) -> str:
        """Which nodes the reference evaluator judged, and why, in one line; nothing where onnxruntime did all."""
        if not self.by_reference:
            return ""
        named = [f"{node}: {why}" for node, why in list(self.by_reference.items())[:MOST_NAMED]]
        more = len(self.by_reference) - len(named)
        rest = f"; and {more} more" if more else ""
        return f"onnx {onnx.__version__} judges in place of onnxruntime: {'; '.join(named)}{rest}"

    def _in_types(self, inputs: Mapping[str, HostArray]) -> dict[str, HostArray]:
        """The inputs, floats in the types of what is run."""
        types = {value.name: value.type.tensor_type.elem_type for value in self.light.graph.input}
        found = dict(inputs)
        for name, array in inputs.items():
            own = types.get(name, 0)
            target = FLOAT_TYPES.get(TensorProto.FLOAT if own in NARROW else own)
            if target is not None and isinstance(array, np.ndarray):
                found[name] = array.astype(target, copy=False)
        return found

    def _within_types(self, outputs: Mapping[str, HostArray]) -> Outputs:
        found = dict(outputs)
        for value in self.light.graph.output:
            own = value.type.tensor_type.elem_type
            if own in NARROW and isinstance(found.get(value.name), np.ndarray):
                with np.errstate(over="ignore"):
                    narrow = found[value.name].astype(onnx.helper.tensor_dtype_to_np_dtype(own)).astype(np.float32)
                found[value.name] = np.where(np.isinf(narrow), narrow, found[value.name])
        return found

    def _source(self) -> str | bytes:
        """A path where there is one and the file is run as it is, else the model's bytes, else a copy's path."""
        proto = self.light
        is_changed = has_narrow_floats(proto) or bool(signed_products(proto))
        is_changed = is_changed or host_model.known_to_onnxruntime(proto) is not proto
        if not isinstance(self.model, ModelProto) and not is_changed:
            return str(self.model)
        proto = with_exact_products(host_model.known_to_onnxruntime(self.whole))
        if proto.ByteSize() < host_model.PROTO_LIMIT_BYTES:
            message: bytes = proto.SerializeToString()
            return message
        onnx.save(proto, self.path, save_as_external_data=True, location="weights")
        return str(self.path)
