"""From MODEL and the options of the command line to a chain of executables and host pieces.

`request.py` checks the options, `loading.py` reads the model, `settling.py` holds the options against it,
`quantising.py` finds the ranges for int8, `compiling.py` makes the executables of one module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from frustum.backend import targets
from frustum.backend.file.executable import Executable
from frustum.backend.split_compile import Splitting
from frustum.dialects.graph import NetworkOp
from frustum.dialects.loops import clock
from frustum.dialects.target import Target
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import INT8, import_onnx
from frustum.runtime.files import make_folder
from frustum.runtime.machine import Machine
from frustum.runtime.model.chain import (
    Chain,
    DevicePiece,
    Fallback,
    HostPiece,
    Interface,
    Piece,
    chain_of,
    placed,
)
from frustum.runtime.model.device_piece import compile_module, faults_shown
from frustum.runtime.model.placement import check_placement
from frustum.runtime.model.quantisation import Samples, calibrate_network
from frustum.runtime.model.request import (
    Request,
    check_order,
    given_target,
    passes_of,
    splitting_of,
    target_file,
    with_stored_dtype,
)
from frustum.runtime.model.source_module import (
    DEFAULT_TARGET,
    Loaded,
    interface_of,
    load,
    may_fall_back,
    name_of,
)
from frustum.runtime.model.sources import Origin
from frustum.runtime.model.validation import settle, with_own_types, with_weights
from frustum.runtime.progress import Progress
from frustum.runtime.report.counters import peak_bytes

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class Built:
    """A chain of executables and host pieces, where its model is, and how long it took."""

    chain: Chain
    origin: Origin | None
    original: ModelProto | Path | None
    """The model for the oracle, where it is at hand."""
    import_seconds: float
    compile_seconds: float
    """The calibration among them."""
    calibrate_seconds: float
    passes: Mapping[str, float]

    @property
    def executable(self) -> Executable:
        """The one that is the whole model."""
        found = self.chain.single
        assert found is not None, "the model is in several pieces"
        return found


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
    target = given_target(request.target)
    passes = passes_of(request)
    if target is not None:
        request = with_stored_dtype(request, target)
    check_order(request)
    splitting = splitting_of(request)
    if request.placement is not None:
        check_placement(request.placement)
    if request.dump_ir:
        make_folder(request.dump_ir)
    refused: dict[str, str] = {}
    seconds = [0.0, 0.0, 0.0]
    while True:
        progress("import", 0.0)
        started = clock()
        loaded = load(request, target, refused)
        imported = clock()
        seconds[0] += imported - started
        see(interface_of(loaded))
        work = _Work(request, target, passes, splitting, progress)
        try:
            chain = replace(placed(_chain(loaded, work), request.placement), target_file=target_file(request))
        except Unsupported as error:
            found = {problem.node: problem.message for problem in error.problems if problem.node}
            if not may_fall_back(loaded, request) or not found.keys() - refused.keys():
                raise
            refused |= found
            continue
        finally:
            seconds[1] += clock() - imported
            seconds[2] += work.calibrate_seconds
        importing, compiling, calibrating = seconds
        return Built(
            chain, loaded.origin, loaded.original, importing, compiling, calibrating, work.passes_seconds
        )


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
    results: frozenset[str] | None = None
    """The outputs of a placement: its pieces have others too."""
    passes_seconds: dict[str, float] = field(default_factory=dict)
    calibrate_seconds: float = 0.0
    log: list[str] = field(default_factory=list)
    wholes: list[Executable | None] = field(default_factory=list)
    """Every module in turn in one piece; None where that does not fit."""
    is_cut: bool = False

    @contextmanager
    def calibrating(self) -> Iterator[None]:
        """Wall time inside is the calibration's."""
        started = clock()
        try:
            yield
        finally:
            if self.request.dtype == INT8:
                self.calibrate_seconds += clock() - started

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
    work.results = frozenset(placement.outputs)
    file = parts[0].model.file if parts else name_of(loaded, request)
    samples = Samples(request, interface_of(loaded) or ())
    pieces: list[Piece] = []
    stem = re.sub(r"\W", "_", Path(file).stem)
    for number, part in enumerate(parts):
        name = f"{stem}_{number}"
        if part.kind == "host":
            from frustum.runtime.host.host_model import HostModel

            model = HostModel(part.model.with_data(), part.model.file)
            pieces.append(HostPiece(name, model, tuple(Fallback(f.name, f.op, f.reason) for f in part.fallbacks)))
            with work.calibrating():
                samples.through_host(model)
            continue
        module = import_onnx(part.model, network=name)
        with work.calibrating():
            own = replace(request, calibration=samples.of(module))
            if number + 1 < len(parts):
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
        tuple(interface_of(loaded) or ()),
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
    request = with_own_types(request, loaded, module)
    choices = with_weights(settle(loaded, module, request, work.target, work.passes), loaded, module, request)
    if request.dtype == INT8:
        with work.calibrating():
            calibrate_network(module, request, progress)
    kept = module.clone() if loaded.text is None else None  # a stage is a file already
    with faults_shown(loaded, kept, choices, work.passes):
        compiled = compile_module(
            module, request.dump_ir, choices, work.passes, work.splitting, work.names, work.results, progress
        )
    for name, seconds in compiled.passes.items():
        work.passes_seconds[name] = work.passes_seconds.get(name, 0.0) + seconds
    work.log += compiled.log
    executables = compiled.executables
    work.is_cut |= len(executables) > 1
    work.wholes.append(executables[0] if len(executables) == 1 else compiled.whole)
    only = piece if len(executables) == 1 else ""
    pieces = [DevicePiece(only or each.program.name, each) for each in executables]
    return _Pieces(pieces, compiled.inputs, compiled.outputs)
