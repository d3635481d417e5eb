"""From MODEL and the options of the command line to an executable."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException

from frustum.backend import targets
from frustum.backend.compile import ACCURACY, AtStop, Compiled, compile_module, executable_of
from frustum.backend.executable import Executable
from frustum.backend.pipeline import STOPS, Choices, stop_of
from frustum.dialects.graph import NetworkOp
from frustum.dialects.isa.sync import ProgramOp
from frustum.dialects.target import ATTRIBUTE as TARGET
from frustum.dialects.target import Target, from_attribute, to_attribute
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.graph.fold_quantisation import FoldQuantisation
from frustum.passes.graph.quantise import QuantiseNetwork
from frustum.passes.graph.split_reductions import SplitReductions
from frustum.passes.import_onnx import DTYPE, INT8, MODEL, import_onnx
from frustum.passes.weights import WeightStore, attach, store_of, write_module
from frustum.runtime.calibrate import Method, accuracy_of, calibrate
from frustum.runtime.diagnostics import Reported, Source, operation_at_fault
from frustum.runtime.failures import CompilerFault, UsageError, exit_code_of
from frustum.runtime.files import make_folder
from frustum.runtime.kernels import Array
from frustum.runtime.oracle import random_inputs
from frustum.runtime.pipeline_text import parse_passes
from frustum.runtime.progress import Progress
from frustum.runtime.sources import Origin, kind_of, read_stage, read_zoo
from frustum.runtime.universe import FRUSTUM

if TYPE_CHECKING:
    from onnx import ModelProto

Model: TypeAlias = Union[str, Path, "ModelProto", ModuleOp]

POLICY = "frustum.policy"
"""Module attribute: how layers were, or will be, fused; so that a continued stage says the same."""
DEFAULT_TARGET = "default"
DEFAULT_POLICY = "forward"
CALIBRATION_INPUTS = 8
"""So many random inputs are looked at where none are given."""


@dataclass(frozen=True)
class Request:
    """What is to be compiled, and how; None is what the model says, or else the default."""

    model: Model
    target: str | Path | Target | None = None
    dtype: str | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch: int | None = None
    policy: str | None = None
    pipeline: str | None = None
    dump_ir: Path | None = None
    weights_seed: int | None = None
    calibrate: Method | None = None
    """How `int8` finds the ranges of a floating-point model; minmax if it is not said."""
    calibration: Sequence[Mapping[str, Array]] = ()
    """The inputs it looks at; random ones, the first from `calibration_seed`, if none are given."""
    calibration_seed: int = 0


@dataclass(frozen=True)
class Built:
    """An executable, where its model is, and how long it took."""

    executable: Executable
    origin: Origin | None
    original: ModelProto | Path | None
    """The model for the oracle, where it is at hand."""
    import_seconds: float
    compile_seconds: float
    passes: Mapping[str, float]


@dataclass(frozen=True)
class Loaded:
    """A module at some stop, where it came from, and its text if it came from MLIR text."""

    module: ModuleOp
    origin: Origin | None = None
    original: ModelProto | Path | None = None
    text: Source | None = None


def build(
    request: Request,
    progress: Progress = lambda stage, share: None,
    see: Callable[[ModuleOp], None] = lambda module: None,
) -> Built:
    """Import and compile.  `see` looks at the module before it is compiled, and may refuse it.

    What can be checked is checked first: target, pipeline, the folder for dumps.
    """
    target = _target(request.target)
    passes = _passes(request)
    if request.dump_ir:
        make_folder(request.dump_ir)
    progress("import", 0.0)
    started = time.perf_counter()
    loaded = load(request)
    imported = time.perf_counter()
    see(loaded.module)
    choices = _settle(loaded, request, target, passes)
    if request.dtype == INT8:
        _calibrate(loaded.module, request, progress)
    kept = loaded.module.clone() if loaded.text is None else None  # a stage is a file already
    with _faults(loaded, kept):
        compiled = _compile(loaded.module, request, choices, passes, progress)
    seconds = imported - started
    return Built(
        compiled.executable, loaded.origin, loaded.original, seconds, compiled.seconds, dict(compiled.passes)
    )


def load(request: Request) -> Loaded:
    """The module of a model, at the stop it is at."""
    model = request.model
    if isinstance(model, ModuleOp):
        _only_for_onnx(request, "a module")
        return Loaded(_own(model.clone(), store_of(model)))
    if not isinstance(model, str | Path):
        return Loaded(_import(model, request, None), original=model)
    text = str(model)
    kind = kind_of(text)
    if kind != "zoo" and request.weights_seed is not None:
        raise UsageError("error: --weights-seed is for zoo: models")
    if kind == "zoo":
        seed = request.weights_seed or 0
        proto = read_zoo(text, seed)
        return Loaded(_import(proto, request, text), Origin(text, seed), proto)
    if kind == "stage":
        _only_for_onnx(request, text)
        module, source = read_stage(text)
        return Loaded(_own(module, store_of(module)), text=source)
    if kind == "onnx":
        path = Path(text)
        return Loaded(_import(path, request, None), Origin(str(path.resolve())), path)
    raise UsageError(f"{text}: error: is compiled already")


def _own(module: ModuleOp, store: WeightStore) -> ModuleOp:
    """The module with its store in memory, where copies of the module find what passes add to it."""
    attach(module, store)
    return module


# --- checked first -----------------------------------------------------------------------------------------


def _target(name: str | Path | Target | None) -> Target | None:
    return name if name is None or isinstance(name, Target) else targets.load(name)


def _passes(request: Request) -> Sequence[ModulePass] | None:
    """The passes of `--pipeline`; None for the default ones."""
    if request.pipeline is None:
        return None
    for option, value in (("--dtype", request.dtype), ("--policy", request.policy)):
        if value is not None:
            raise UsageError(
                f"error: {option} is of the default pipeline: write it as an option of a pass in --pipeline"
            )
    return parse_passes(FRUSTUM.all_passes, request.pipeline)


def _only_for_onnx(request: Request, what: str) -> None:
    """Refuse options that only the import heeds."""
    for option, value in (("--batch", request.batch), ("--shape", request.shapes)):
        if value:
            raise UsageError(f"{what}: error: {option} has no effect on what is imported already")


def _import(model: ModelProto | Path, request: Request, name: str | None) -> ModuleOp:
    return import_onnx(model, batch=request.batch, shapes=dict(request.shapes) or None, name=name)


# --- options against the module ----------------------------------------------------------------------------


def _settle(
    loaded: Loaded, request: Request, target: Target | None, passes: Sequence[ModulePass] | None
) -> Choices:
    """Give the module its target and policy; UsageError where it is past the stop that an option is for."""
    module, name = loaded.module, _name(loaded, request)
    if sum(isinstance(op, NetworkOp | ProgramOp) for op in module.walk()) != 1:
        raise UsageError(f"{name}: error: there is not exactly one network in it")
    stop = stop_of(module)
    is_fused = STOPS.index(stop) >= STOPS.index("fused")
    _set_target(module, target, name, stop if is_fused else None)
    dtype = None if request.dtype == "model" else request.dtype
    _refuse_types(module, request, name)
    noted = _words(module)
    if is_fused:
        own_choices = ("--dtype", dtype, noted.get(DTYPE)), ("--policy", request.policy, noted.get(POLICY))
        for option, value, own in own_choices:
            if value is not None and value != own:
                raise UsageError(f"{name}: error: {option} {value} has no effect at stop '{stop}'")
    fuse = next((each for each in passes or () if isinstance(each, FuseLayers)), None)
    policy = fuse.policy if fuse else request.policy or noted.get(POLICY) or DEFAULT_POLICY
    module.attributes[POLICY] = StringAttr(policy)
    return Choices(dtype or noted.get(DTYPE), policy)


def _refuse_types(module: ModuleOp, request: Request, name: str) -> None:
    own = _words(module).get(DTYPE)
    if own == INT8 and request.dtype not in (None, "model", INT8):
        raise UsageError(f"{name}: error: --dtype {request.dtype}: it is a model of integers, which have their types")
    if request.calibrate is not None and (request.dtype != INT8 or own == INT8):
        raise UsageError(f"{name}: error: --calibrate needs --dtype int8 and a floating-point model")


def _set_target(module: ModuleOp, target: Target | None, name: str, fused_at: str | None) -> None:
    own = module.attributes.get(TARGET)
    if target is None and own is None:
        target = targets.load(DEFAULT_TARGET)
    if target is None:
        return
    given = to_attribute(target)
    if fused_at is not None and own != given:
        made_for = from_attribute(own).name if own is not None else "another target"  # type: ignore[arg-type]
        raise UsageError(
            f"{name}: error: at stop '{fused_at}' it is made for {made_for}: --target {target.name} comes too late"
        )
    module.attributes[TARGET] = given


def _name(loaded: Loaded, request: Request) -> str:
    return (
        str(request.model)
        if isinstance(request.model, str | Path)
        else _words(loaded.module).get(MODEL, "module")
    )


def _words(module: ModuleOp) -> dict[str, str]:
    """The module's attributes that are text."""
    return {name: a.data for name, a in module.attributes.items() if isinstance(a, StringAttr)}


def _calibrate(module: ModuleOp, request: Request, progress: Progress) -> None:
    """Leave in a floating-point network the ranges by which it becomes one of integers, and how exact that is."""
    if stop_of(module) != STOPS[0] or _words(module).get(DTYPE) == INT8:
        return
    progress("calibrate", 0.0)
    passes: Sequence[ModulePass] = (SplitReductions(), Canonicalize(), ConvertType(to="f32"))
    for each in passes:
        each.apply(Context(), module)
    seeds = range(request.calibration_seed, request.calibration_seed + CALIBRATION_INPUTS)
    inputs = list(request.calibration) or [random_inputs(module, seed) for seed in seeds]
    calibrate(module, inputs, request.calibrate or "minmax")
    quantised = module.clone()
    for step in (QuantiseNetwork(), Canonicalize(), FoldQuantisation()):
        step.apply(Context(), quantised)
    module.attributes[ACCURACY] = StringAttr(json.dumps(accuracy_of(module, quantised, inputs[0])))


# --- compiling ---------------------------------------------------------------------------------------------


def _compile(
    module: ModuleOp,
    request: Request,
    choices: Choices,
    passes: Sequence[ModulePass] | None,
    progress: Progress,
) -> Compiled:
    dump = _dump(request.dump_ir)
    if stop_of(module) == "imported":
        dump(STOPS[0], module)
    if passes is not None:
        return _run_passes(module, choices, passes, request.dump_ir, progress)

    def at_stop(stop: str, module: ModuleOp) -> None:
        dump(stop, module)
        progress("compile", STOPS.index(stop) / len(STOPS))

    progress("compile", 0.0)
    return compile_module(module, None, choices, at_stop)


def _dump(folder: Path | None) -> AtStop:
    """What writes a module as the file of its stop."""
    if folder is None:
        return lambda stop, module: None
    return lambda stop, module: write_module(module, folder / f"{STOPS.index(stop):02}-{stop}.mlir")


def _run_passes(
    module: ModuleOp, choices: Choices, passes: Sequence[ModulePass], folder: Path | None, progress: Progress
) -> Compiled:
    """The passes of `--pipeline`, each dumped under its own name; they must lead to stop `fixed`."""
    started = time.perf_counter()
    seconds: dict[str, float] = {}
    for number, each in enumerate(passes):
        progress("compile", number / len(passes))
        began = time.perf_counter()
        try:
            each.apply(Context(), module)
            module.verify()
        except DiagnosticException as error:
            raise UsageError(f"error: after pass '{each.name}': {_one_line(error)}") from error
        seconds[each.name] = seconds.get(each.name, 0.0) + time.perf_counter() - began
        if folder:
            write_module(module, folder / f"{number + 1:02}-{each.name}.mlir")
    if (stop := stop_of(module)) != STOPS[-1]:
        raise UsageError(
            f"error: --pipeline ends at stop '{stop}': an executable needs all passes to '{STOPS[-1]}'"
        )
    executable = executable_of(module, choices)
    return Compiled(executable, time.perf_counter() - started, seconds)


@contextmanager
def _faults(loaded: Loaded, kept: ModuleOp | None) -> Iterator[None]:
    """Errors of MLIR text are shown in it; what speaks to the user passes; all else comes with the module."""
    try:
        yield
    except Exception as error:
        if exit_code_of(error) is not None:
            raise
        if loaded.text is not None and isinstance(error, DiagnosticException):
            raise Reported(loaded.text.error_in(operation_at_fault(error), _one_line(error))) from error
        raise CompilerFault(kept) from error


def _one_line(error: BaseException) -> str:
    return " ".join(line.strip() for line in str(error).splitlines() if line.strip())
