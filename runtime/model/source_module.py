"""From MODEL to a module at some stop, or to pieces of an ONNX model for the host and for the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp, StringAttr

from frustum.backend import targets
from frustum.dialects.module import CHAIN_INPUTS, MODEL
from frustum.dialects.target import Target
from frustum.passes.graph.split_outputs import joined
from frustum.passes.weights import WeightStore, attach, store_of
from frustum.runtime.diagnostics import Source
from frustum.runtime.failures import UsageError
from frustum.runtime.host.inputs import dtype_of, network_inputs
from frustum.runtime.kernels import Array
from frustum.runtime.model.chain import Interface
from frustum.runtime.model.request import Request
from frustum.runtime.model.sources import Origin, kind_of, read_stage, read_zoo

if TYPE_CHECKING:
    from onnx import ModelProto

    from frustum.passes.onnx.place_host import Placement

DEFAULT_TARGET = "default"


@dataclass(frozen=True)
class Loaded:
    """A module at some stop, or a model in pieces; where it came from, and its text if it came from MLIR text."""

    module: ModuleOp | None = None
    placement: Placement | None = None
    origin: Origin | None = None
    original: ModelProto | Path | None = None
    text: Source | None = None


def load(request: Request, target: Target | None = None, refused: Mapping[str, str] | None = None) -> Loaded:
    """The module of a model, at the stop it is at, or its pieces; `refused` nodes are on the host."""
    model = request.model
    if isinstance(model, ModuleOp):
        _only_for_onnx(request, "a module")
        return Loaded(_own(model.clone(), store_of(model)))
    if not isinstance(model, str | Path):
        return _import(model, request, None, target, refused or {}, Loaded(original=model))
    text = str(model)
    kind = kind_of(text)
    if kind != "zoo" and request.weights_seed is not None:
        raise UsageError("error: --weights-seed is for zoo: models")
    if kind == "zoo":
        seed = request.weights_seed or 0
        proto = read_zoo(text, seed)
        return _import(proto, request, text, target, refused or {}, Loaded(origin=Origin(text, seed), original=proto))
    if kind == "stage":
        _only_for_onnx(request, text)
        module, source = read_stage(text)
        return Loaded(_own(module, store_of(module)), text=source)
    if kind == "onnx":
        path = Path(text)
        found = Loaded(origin=Origin(str(path.resolve())), original=path)
        return _import(path, request, None, target, refused or {}, found)
    raise UsageError(f"{text}: error: is compiled already")


def _import(
    source: ModelProto | Path,
    request: Request,
    name: str | None,
    target: Target | None,
    refused: Mapping[str, str],
    found: Loaded,
) -> Loaded:
    """An ONNX model as a module where all of it is for the device, else as pieces."""
    from frustum.passes.onnx.place_host import Placement, import_or_place

    result = import_or_place(
        source,
        target or targets.load(DEFAULT_TARGET),
        request.host or "auto",
        batch=request.batch,
        shapes=dict(request.shapes) or None,
        name=name,
        constants=request.constants,
        refused=refused,
        exact=request.dtype in (None, "model"),
    )
    if isinstance(result, Placement):
        return replace(found, placement=result)
    return replace(found, module=result)


def constants_of_run(
    request: Request, model: ModelProto, arrays: Mapping[str, Array]
) -> Mapping[str, Array]:
    """The request's constants, and those of a run's inputs that have to be some for more of the model's nodes to
    run on the device."""
    from frustum.passes.onnx.place_host import constant_inputs

    if request.host == "only":
        return request.constants
    return constant_inputs(model, arrays, bound=request.constants, exact=request.dtype in (None, "model"))


def may_fall_back(loaded: Loaded, request: Request) -> bool:
    """Whether nodes may move to the host: those of an ONNX model, in mode auto."""
    is_onnx = loaded.original is not None
    return is_onnx and request.host in (None, "auto")


def interface_of(loaded: Loaded) -> tuple[Interface, ...] | None:
    """The inputs of the whole; None where a module has lost them."""
    if loaded.placement is not None:
        return tuple(Interface(each.name, each.dtype, each.shape) for each in loaded.placement.inputs)
    assert loaded.module is not None
    module = loaded.module
    if CHAIN_INPUTS in module.attributes:
        module = ModuleOp([joined(module)[0]])
    found = network_inputs(module)
    return None if found is None else tuple(Interface(e.name, dtype_of(e).name, e.shape) for e in found)


def name_of(loaded: Loaded, request: Request) -> str:
    if isinstance(request.model, str | Path):
        return str(request.model)
    return words_of(loaded.module).get(MODEL, "module") if loaded.module is not None else "model.onnx"


def words_of(module: ModuleOp) -> dict[str, str]:
    """The module's attributes that are text."""
    return {name: a.data for name, a in module.attributes.items() if isinstance(a, StringAttr)}


def _own(module: ModuleOp, store: WeightStore) -> ModuleOp:
    """The module with its store in memory, where copies of the module find what passes add to it."""
    attach(module, store)
    return module


def _only_for_onnx(request: Request, what: str) -> None:
    """Refuse options that only the import heeds."""
    host = request.host not in (None, "never")
    given = ("--batch", request.batch), ("--shape", request.shapes), ("--host", host), ("constants", request.constants)
    for option, value in given:
        if value:
            raise UsageError(f"{what}: error: {option} has no effect on what is imported already")
