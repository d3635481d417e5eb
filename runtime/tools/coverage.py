"""What a machine runs of a model, layer by layer, and what goes to the host and why: known before anything is planned.

The same way as a compilation takes it up to stop `typed`: nodes that no engine runs go to the host, and the rest is
looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from frustum.backend.pipeline import Run
from frustum.dialects.graph import networks_of, shape_of
from frustum.dialects.target import Target
from frustum.passes.analysis.layer import form_of, is_work, layer_of
from frustum.passes.analysis.module import kind_name, node_name, nodes_of
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.onnx.parts import HostNode
from frustum.runtime.model import request as asked
from frustum.runtime.model.options import Request, with_stored_dtype

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class CoveredLayer:
    """A layer or a move of the device, as it is when the network is simplified."""

    name: str
    op: str
    shape: tuple[int, ...]
    """Of what it makes."""
    macs: int


@dataclass(frozen=True)
class Coverage:
    """What runs where."""

    layers: tuple[CoveredLayer, ...]
    on_host: tuple[HostNode, ...]

    @property
    def macs(self) -> int:
        """Of the device."""
        return sum(each.macs for each in self.layers)


def coverage_of(model: str, target: Target, bind: Mapping[str, bool | int | float] = NOTHING) -> Coverage:
    """Of a model in ONNX; raises `ModelError` for one that no compilation takes either."""
    request = with_stored_dtype(Request(model, target=target, bind=bind), target)
    refused: dict[str, str] = {}
    while True:
        loaded = asked.load(request, target, refused)
        try:
            layers = tuple(each for module in _modules(loaded) for each in _typed(module, loaded, request, target))
        except Unsupported as error:
            found = {problem.node: problem.message for problem in error.problems if problem.node}
            if not found.keys() - refused.keys():
                raise
            refused |= found
            continue
        parts = loaded.placement.parts if loaded.placement is not None else ()
        return Coverage(layers, tuple(node for part in parts for node in part.fallbacks))


def _modules(loaded: asked.Loaded) -> Iterator[ModuleOp]:
    """All of the model, or its parts for the device."""
    if loaded.module is not None:
        yield loaded.module
    for part in loaded.placement.parts if loaded.placement is not None else ():
        if part.kind != "host":
            yield import_onnx(part.model, network="part", whole=part.whole)


def _typed(module: ModuleOp, loaded: asked.Loaded, request: Request, target: Target) -> Iterator[CoveredLayer]:
    choices = asked.choices_for(loaded, module, request, target, None)
    Run().advance(module, ["typed"], choices)
    for network in networks_of(module):
        for op in network.body.walk():
            if is_work(op):
                yield _layer(op)


def _layer(op: Operation) -> CoveredLayer:
    macs = layer_of(op).macs if form_of(op).layer is not None else 0
    shape = shape_of(op.results[0]) if op.results else ()
    operator = next((operator for _, operator in nodes_of(op)), kind_name(op))
    return CoveredLayer(node_name(op), operator, tuple(shape), macs)
