"""From MODEL and the options of the command line to an executable."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException

from frustum.backend import targets
from frustum.backend.compile import ACCURACY, AtStop, executable_of
from frustum.backend.executable import Executable
from frustum.backend.pipeline import STOPS, Borders, Choices, stop_of
from frustum.backend.refuse import parse_refusal
from frustum.backend.split_compile import Compilation, Splitting, When, compile_pieces, one_piece
from frustum.dialects.graph import NetworkOp
from frustum.dialects.isa.sync import ProgramOp
from frustum.dialects.target import ATTRIBUTE as TARGET
from frustum.dialects.target import Target, from_attribute, to_attribute
from frustum.passes.errors import Unsupported
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.fuse.policy import CUTS, PolicyError, chosen, parse_policy
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.graph.fold_quantisation import FoldQuantisation
from frustum.passes.graph.quantise import QuantiseNetwork
from frustum.passes.graph.split_outputs import CHAIN_INPUTS, CHAIN_OUTPUTS, joined
from frustum.passes.graph.split_reductions import SplitReductions
from frustum.passes.import_onnx import DTYPE, INT8, MODEL, import_onnx
from frustum.passes.tile.order_words import parse_order
from frustum.passes.weights import WeightStore, attach, store_of, write_module
from frustum.runtime.calibrate import Method, accuracy_of, calibrate
from frustum.runtime.chain import (
    Chain,
    DevicePiece,
    Fallback,
    HostPiece,
    Interface,
    Piece,
    chain_of,
    random_values,
)
from frustum.runtime.counters import peak_bytes
from frustum.runtime.diagnostics import Reported, Source, operation_at_fault
from frustum.runtime.failures import CompilerFault, UsageError, exit_code_of
from frustum.runtime.files import make_folder
from frustum.runtime.inputs import dtype_of, network_inputs
from frustum.runtime.kernels import Array
from frustum.runtime.machine import Machine
from frustum.runtime.oracle import random_inputs
from frustum.runtime.pipeline_text import parse_passes
from frustum.runtime.placement import check_placement, chips_of
from frustum.runtime.progress import Progress
from frustum.runtime.reference import ReferenceExecutor, network_of
from frustum.runtime.sources import Origin, kind_of, read_stage, read_zoo
from frustum.runtime.universe import FRUSTUM

if TYPE_CHECKING:
    from onnx import ModelProto

    from frustum.passes.onnx.place_host import HostMode, Placement
    from frustum.runtime.host import HostModel

Model: TypeAlias = Union[str, Path, "ModelProto", ModuleOp]

POLICY = "frustum.policy"
"""Module attribute: how layers were, or will be, fused; so that a continued stage says the same."""
DEFAULT_TARGET = "default"
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
    host: HostMode | None = None
    """What may run on the host; auto if it is not said."""
    compress_weights: str | None = None
    """How weights are compressed; not at all if it is not said."""
    weights: str | None = None
    """How weights that all clusters need are held; replicated if it is not said."""
    constants: Mapping[str, Array] = field(default_factory=dict)
    """Values of inputs that are really constants."""
    split: When | None = None
    """Where networks are cut; auto if it is not said."""
    refuse: str | None = None
    """How pieces are fused again; not at all if it is not said."""
    placement: str | None = None
    """The chip of each executable, as `chips_of` reads it; all on one if it is not said."""
    order: str | None = None
    """The order of tiles, as `parse_order` reads it; the planner's if it is not said."""
    borders: Borders | None = None
    """What happens at borders of tiles."""


@dataclass(frozen=True)
class Built:
    """A chain of executables and host pieces, where its model is, and how long it took."""

    chain: Chain
    origin: Origin | None
    original: ModelProto | Path | None
    """The model for the oracle, where it is at hand."""
    import_seconds: float
    compile_seconds: float
    passes: Mapping[str, float]

    @property
    def executable(self) -> Executable:
        """The one that is the whole model."""
        found = self.chain.single
        assert found is not None, "the model is in several pieces"
        return found


@dataclass(frozen=True)
class Loaded:
    """A module at some stop, or a model in pieces; where it came from, and its text if it came from MLIR text."""

    module: ModuleOp | None = None
    placement: Placement | None = None
    origin: Origin | None = None
    original: ModelProto | Path | None = None
    text: Source | None = None


def build(
    request: Request,
    progress: Progress = lambda stage, share: None,
    see: Callable[[Sequence[Interface] | None], None] = lambda inputs: None,
) -> Built:
    """Import and compile.  `see` is shown the inputs before anything is compiled, and may refuse them; None where
    a module does not tell them any more.

    What can be checked is checked first: target, pipeline, the folder for dumps.  Nodes that the compiler turns out
    to have no engine for go to the host in another attempt, if they may.
    """
    target = _target(request.target)
    passes = _passes(request)
    _check_order(request)
    splitting = _splitting(request)
    if request.placement is not None:
        check_placement(request.placement)
    if request.dump_ir:
        make_folder(request.dump_ir)
    refused: dict[str, str] = {}
    seconds = [0.0, 0.0]
    while True:
        progress("import", 0.0)
        started = time.perf_counter()
        loaded = load(request, target, refused)
        imported = time.perf_counter()
        seconds[0] += imported - started
        see(_interface(loaded))
        work = _Work(request, target, passes, splitting, progress)
        try:
            chain = placed(_chain(loaded, work), request.placement)
        except Unsupported as error:
            found = {problem.node: problem.message for problem in error.problems if problem.node}
            if not _may_fall_back(loaded, request) or not found.keys() - refused.keys():
                raise
            refused |= found
            continue
        finally:
            seconds[1] += time.perf_counter() - imported
        return Built(chain, loaded.origin, loaded.original, seconds[0], seconds[1], work.passes_seconds)


def _may_fall_back(loaded: Loaded, request: Request) -> bool:
    """Whether nodes may move to the host: those of an ONNX model, in mode auto."""
    is_onnx = loaded.original is not None
    return is_onnx and request.host in (None, "auto")


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


# --- a chain of pieces -------------------------------------------------------------------------------------


@dataclass
class _Work:
    """What all pieces of one model are compiled with, and how long the passes took for all of them."""

    request: Request
    target: Target | None
    passes: Sequence[ModulePass] | None
    splitting: Splitting
    progress: Progress
    names: frozenset[str] = frozenset()
    """Of the values between the pieces of a placement."""
    passes_seconds: dict[str, float] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    wholes: list[Executable | None] = field(default_factory=list)
    """Every module in turn in one piece; None where that does not fit."""
    is_cut: bool = False

    @property
    def unsplit_peak_bytes(self) -> Mapping[str, int] | None:
        """Of each memory on chip the highest of all modules, if one is cut and nobody would have to be."""
        known = [whole for whole in self.wholes if whole is not None]
        if not self.is_cut or len(known) < len(self.wholes):
            return None
        peaks = [peak_bytes(Machine(whole).expanded) for whole in known]
        return {memory: max(each[memory] for each in peaks) for memory in peaks[0]}


def _chain(loaded: Loaded, work: _Work) -> Chain:
    """The module in one piece or cut, or all pieces of a placement."""
    if loaded.placement is None:
        assert loaded.module is not None
        networks = [op for op in loaded.module.walk() if isinstance(op, NetworkOp)]
        names = tuple(networks[0].outputs) if len(networks) == 1 else ()
        return _network_chain(_pieces_of(loaded, loaded.module, "", work, work.request, work.progress), names, work)
    placement, request = loaded.placement, work.request
    parts = placement.parts
    work.names = frozenset(name for part in parts for name in (*part.inputs, *part.outputs))
    file = parts[0].model.file if parts else _name(loaded, request)
    samples = _Samples(work, _interface(loaded) or ())
    pieces: list[Piece] = []
    stem = re.sub(r"\W", "_", Path(file).stem)
    for number, part in enumerate(parts):
        name = f"{stem}_{number}"
        if part.kind == "host":
            from frustum.runtime.host import HostModel

            model = HostModel(part.model.proto, part.model.folder)
            pieces.append(HostPiece(name, model, tuple(Fallback(f.name, f.op, f.reason) for f in part.fallbacks)))
            samples.through_host(model)
            continue
        module = import_onnx(part.model, network=name)
        own = replace(request, calibration=samples.of(module))
        samples.through_device(module)
        if request.dump_ir is not None:
            make_folder(request.dump_ir / name)
            own = replace(own, dump_ir=request.dump_ir / name)
        pieces += _pieces_of(loaded, module, name, work, own, _at(work.progress, number / len(parts))).pieces
    policies = [str(p.executable.manifest["options"]["policy"]) for p in pieces if isinstance(p, DevicePiece)]
    return Chain(
        Path(file).stem,
        work.target or targets.load(DEFAULT_TARGET),
        policies[0] if policies else request.policy or "none",
        request.host or "auto",
        tuple(_interface(loaded) or ()),
        placement.outputs,
        tuple(pieces),
        file,
        work.unsplit_peak_bytes,
        tuple(work.log),
    )


def _network_chain(compiled: _Pieces, names: tuple[str, ...], work: _Work) -> Chain:
    """The pieces of one network as a chain; `names`: its outputs, if the module told them before it was compiled."""
    first, *rest = compiled.pieces
    chain = chain_of(first.executable)
    if not rest:
        return replace(chain, outputs=names or chain.outputs, log=tuple(work.log))
    takers = {name: piece for piece in reversed(compiled.pieces) for name in piece.inputs}
    taken = {name: chain_of(piece.executable).inputs for name, piece in takers.items() if name in compiled.inputs}
    return replace(
        chain,
        name=first.name.rpartition("_")[0],
        inputs=tuple(each for name in compiled.inputs for each in taken[name] if each.name == name),
        outputs=compiled.outputs,
        pieces=tuple(compiled.pieces),
        unsplit_peak_bytes=work.unsplit_peak_bytes,
        log=tuple(work.log),
    )


def placed(chain: Chain, placement: str | None) -> Chain:
    """The chain with its executables on chips; as it is where none is said.  UsageError where that cannot be."""
    if placement is None:
        return chain
    chips = iter(chips_of(placement, len(chain.executables), chain.target))
    pieces = (replace(each, chip=next(chips)) if isinstance(each, DevicePiece) else each for each in chain.pieces)
    return replace(chain, pieces=tuple(pieces))


def _at(progress: Progress, share: float) -> Progress:
    """Progress of a piece, as that of the whole when it started."""
    return lambda stage, _: progress(stage, share)


@dataclass(frozen=True)
class _Pieces:
    """A network compiled: its pieces in order, its inputs and outputs."""

    pieces: list[DevicePiece]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _pieces_of(
    loaded: Loaded, module: ModuleOp, piece: str, work: _Work, request: Request, progress: Progress
) -> _Pieces:
    """One module compiled; `piece` is its name, if it is not the only one."""
    choices = _with_weights(_settle(loaded, module, request, work.target, work.passes), loaded, module, request)
    if request.dtype == INT8:
        _calibrate(module, request, progress)
    kept = module.clone() if loaded.text is None else None  # a stage is a file already
    with _faults(loaded, kept):
        compiled = _compile(module, request, choices, work, progress)
    for name, seconds in compiled.passes.items():
        work.passes_seconds[name] = work.passes_seconds.get(name, 0.0) + seconds
    work.log += compiled.log
    executables = compiled.executables
    work.is_cut |= len(executables) > 1
    work.wholes.append(executables[0] if len(executables) == 1 else compiled.whole)
    only = piece if len(executables) == 1 else ""
    pieces = [DevicePiece(only or each.program.name, each) for each in executables]
    return _Pieces(pieces, compiled.inputs, compiled.outputs)


class _Samples:
    """Inputs for calibration, carried through the pieces; nothing to do for other types than int8."""

    def __init__(self, work: _Work, inputs: Sequence[Interface]) -> None:
        self.values: list[dict[str, Any]] = []
        if work.request.dtype != INT8:
            return
        first = work.request.calibration_seed
        given = list(work.request.calibration)
        self.values = [dict(sample) for sample in given] or [
            random_values(inputs, seed) for seed in range(first, first + CALIBRATION_INPUTS)
        ]

    def of(self, module: ModuleOp) -> list[dict[str, Array]]:
        names = network_of(module).inputs
        return [{name: sample[name] for name in names} for sample in self.values]

    def through_host(self, model: HostModel) -> None:
        for sample in self.values:
            sample.update(model.run({name: sample[name] for name in model.inputs}))

    def through_device(self, module: ModuleOp) -> None:
        executor = ReferenceExecutor(store_of(module))
        for sample, inputs in zip(self.values, self.of(module), strict=True):
            sample.update(executor.run_graph(module, inputs))


def _interface(loaded: Loaded) -> tuple[Interface, ...] | None:
    """The inputs of the whole; None where a module has lost them."""
    if loaded.placement is not None:
        return tuple(Interface(each.name, each.dtype, each.shape) for each in loaded.placement.inputs)
    assert loaded.module is not None
    module = loaded.module
    if CHAIN_INPUTS in module.attributes:
        module = ModuleOp([joined(module)[0]])
    found = network_inputs(module)
    return None if found is None else tuple(Interface(e.name, dtype_of(e).name, e.shape) for e in found)


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
    of_passes = (
        ("--dtype", None if request.dtype == INT8 else request.dtype), ("--policy", request.policy),
        ("--compress-weights", request.compress_weights), ("--weights", request.weights),
        ("--order", request.order), ("--borders", request.borders),
    )  # fmt: skip
    for option, value in of_passes:
        if value is not None:
            raise UsageError(
                f"error: {option} is of the default pipeline: write it as an option of a pass in --pipeline"
            )
    return parse_passes(FRUSTUM.all_passes, request.pipeline)


def _check_order(request: Request) -> None:
    try:
        if request.order is not None:
            parse_order(request.order)
    except ValueError as error:
        raise UsageError(f"error: --order {error}") from error


def _splitting(request: Request) -> Splitting:
    """Where networks are cut and how their pieces are fused again."""
    for option, value in (("--split", request.split), ("--refuse", request.refuse)):
        if value is not None and request.pipeline is not None:
            raise UsageError(f"error: {option} is of the default pipeline: --pipeline makes one executable")
    try:
        refusal = parse_refusal(request.refuse) if request.refuse is not None else None
    except ValueError as error:
        raise UsageError(f"error: --refuse {error}") from error
    return Splitting(request.split or "auto", refusal)


def _only_for_onnx(request: Request, what: str) -> None:
    """Refuse options that only the import heeds."""
    host = request.host not in (None, "never")
    given = ("--batch", request.batch), ("--shape", request.shapes), ("--host", host), ("constants", request.constants)
    for option, value in given:
        if value:
            raise UsageError(f"{what}: error: {option} has no effect on what is imported already")


# --- options against the module ----------------------------------------------------------------------------


def _settle(
    loaded: Loaded,
    module: ModuleOp,
    request: Request,
    target: Target | None,
    passes: Sequence[ModulePass] | None,
) -> Choices:
    """Give the module its target and policy; UsageError where it is past the stop that an option is for."""
    name = _name(loaded, request)
    is_cut = CHAIN_INPUTS in module.attributes and CHAIN_OUTPUTS in module.attributes
    if not is_cut and sum(isinstance(op, NetworkOp | ProgramOp) for op in module.walk()) != 1:
        raise UsageError(f"{name}: error: there is not exactly one network in it")
    stop = stop_of(module)
    if is_cut and stop != STOPS[0]:
        raise UsageError(f"{name}: error: several networks are continued as they were cut, not at stop '{stop}'")
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
    if is_fused:
        return Choices(dtype or noted.get(DTYPE), noted.get(POLICY))
    if fuse:
        policy = _fusion(module, CUTS if fuse.cuts else fuse.policy, fuse.rules, fuse.thresholds)
    else:
        policy = _fusion(module, request.policy or noted.get(POLICY), None, None)
    module.attributes[POLICY] = StringAttr(policy[0])
    return Choices(dtype or noted.get(DTYPE), *policy)


def _with_weights(choices: Choices, loaded: Loaded, module: ModuleOp, request: Request) -> Choices:
    """The choices with how weights are held; UsageError where the module is past that."""
    stop = stop_of(module)
    for option, value in (("--compress-weights", request.compress_weights), ("--weights", request.weights)):
        if value is not None and STOPS.index(stop) >= STOPS.index("lowered"):
            raise UsageError(f"{_name(loaded, request)}: error: {option} {value} has no effect at stop '{stop}'")
    for option, value in (("--order", request.order), ("--borders", request.borders)):
        if value is not None and STOPS.index(stop) >= STOPS.index("tiled"):
            raise UsageError(f"{_name(loaded, request)}: error: {option} {value} has no effect at stop '{stop}'")
    return replace(
        choices, compression=request.compress_weights or "none", weights=request.weights or "replicated",
        order=request.order, borders=request.borders,
    )  # fmt: skip


def _fusion(
    module: ModuleOp, name: str | None, rules: str | None, thresholds: str | None
) -> tuple[str, str | None, str | None]:
    """The policy with its rules and thresholds: what is asked for, or else what the target's options say."""
    own = from_attribute(module.attributes[TARGET])  # type: ignore[arg-type]
    stored = chosen(None, None, None, own.options)
    policy = chosen(name, rules, thresholds, own.options)
    if rules is None and thresholds is None and name == stored[0]:  # a dumped stage notes the name alone
        policy = stored
    try:
        parse_policy(*policy)
    except PolicyError as error:
        raise UsageError(f"target {own.name}: error: options: {error}") from error
    return policy


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
    if isinstance(request.model, str | Path):
        return str(request.model)
    return _words(loaded.module).get(MODEL, "module") if loaded.module is not None else "model.onnx"


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
    work: _Work,
    progress: Progress,
) -> Compilation:
    dump = _dump(request.dump_ir)
    if stop_of(module) == "imported":
        dump(STOPS[0], module)
    if work.passes is not None:
        return _run_passes(module, choices, work.passes, request.dump_ir, progress)

    def at_stop(piece: str) -> AtStop:
        dump = _dump(request.dump_ir / piece if request.dump_ir and piece else request.dump_ir)

        def told(stop: str, module: ModuleOp) -> None:
            dump(stop, module)
            progress("compile", (STOPS.index(stop) if stop in STOPS else 0) / len(STOPS))

        return told

    progress("compile", 0.0)
    return compile_pieces(module, None, choices, work.splitting, work.names, at_stop)


def _dump(folder: Path | None) -> AtStop:
    """What writes a module as the file of its stop, in a folder that is made when it is needed."""
    if folder is None:
        return lambda stop, module: None

    def write(stop: str, module: ModuleOp) -> None:
        make_folder(folder)
        write_module(module, folder / (f"{STOPS.index(stop):02}-{stop}.mlir" if stop in STOPS else f"{stop}.mlir"))

    return write


def _run_passes(
    module: ModuleOp, choices: Choices, passes: Sequence[ModulePass], folder: Path | None, progress: Progress
) -> Compilation:
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
    if (count := sum(isinstance(op, NetworkOp | ProgramOp) for op in module.walk())) != 1:
        raise UsageError(f"error: --pipeline makes one executable, and after it the module has {count} networks")
    if (stop := stop_of(module)) != STOPS[-1]:
        raise UsageError(
            f"error: --pipeline ends at stop '{stop}': an executable needs all passes to '{STOPS[-1]}'"
        )
    return one_piece(executable_of(module, choices), time.perf_counter() - started, seconds)


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
