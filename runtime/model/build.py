# Tests: test/runtime/model/test_stored_policy.py
"""From MODEL and the options of the command line to a chain of executables and host pieces.

`options.py` declares the options, `request.py` reads the model and holds them against it, `calibration.py` finds the
ranges for int8; each module then goes through the passes of the compiler, or of `--pipeline`, to its executables.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException

from frustum.backend import targets
from frustum.backend.cost import Cost, Count, Image
from frustum.backend.executables import executable_of
from frustum.backend.file.executable import Executable
from frustum.backend.pipeline import STOPS, Choices, Run, stop_of
from frustum.backend.split_compile import Compilation, Splitting, compile_pieces, one_piece
from frustum.backend.trials import AtStop
from frustum.dialects.diagnostic import one_line
from frustum.dialects.graph import NetworkOp, networks_of
from frustum.dialects.isa.program import Memory as MemoryName
from frustum.dialects.isa.program import Program
from frustum.dialects.isa.sync import ProgramOp
from frustum.dialects.loops import clock
from frustum.dialects.share_done import know, listening
from frustum.dialects.target import Target, from_json
from frustum.passes.errors import Unsupported
from frustum.passes.onnx.import_onnx import INT8, import_onnx
from frustum.passes.weights import write_module
from frustum.runtime.course import compile_course
from frustum.runtime.device.expand import expand
from frustum.runtime.device.tables import with_tables
from frustum.runtime.diagnostics import Reported, operation_at_fault
from frustum.runtime.failures import CompilerFault, UsageError, exit_code_of
from frustum.runtime.files import cannot_write, make_folder
from frustum.runtime.garbage import collect_beside, collected_rarely
from frustum.runtime.machine import Machine
from frustum.runtime.model import request as asked
from frustum.runtime.model.chain import (
    Chain,
    DevicePiece,
    HostedLayer,
    HostPiece,
    Interface,
    Piece,
    chain_of,
    check_placement,
    placed,
)  # fmt: skip
from frustum.runtime.model.identity import hashes_of
from frustum.runtime.model.options import Request, with_stored_dtype
from frustum.runtime.model.sources import Job, Uncompiled, read_stage
from frustum.runtime.progress import Progress
from frustum.runtime.report.counters import count, peak_bytes
from frustum.runtime.report.report import Seconds
from frustum.runtime.time.timeline import simulate

if TYPE_CHECKING:
    from frustum.passes.onnx.place_host import Placement
    from frustum.runtime.model.calibration import Samples


def build(
    request: Request,
    progress: Progress = lambda stage, share: None,
    see: Callable[[Sequence[Interface] | None], None] = lambda inputs: None,
) -> Job:
    """Import and compile.  `see` is shown the inputs before anything is compiled, and may refuse them; None where
    a module does not tell them any more.

    What can be checked is checked first: target, pipeline, the folder for dumps.  Nodes that the compiler turns out
    to have no engine for go to the host in another attempt, if they may.
    """
    with collected_rarely():
        job = _built(request, progress, see)
    collect_beside(sum(len(part) for each in job.chain.executables for _, part in each.weights))
    return job


def _built(request: Request, progress: Progress, see: Callable[[Sequence[Interface] | None], None]) -> Job:
    target, passes = asked.given_target(request), asked.passes_of(request)
    if target is not None:
        request = with_stored_dtype(request, target)
    splitting = asked.splitting_of(request, target)
    if request.placement is not None:
        check_placement(request.placement)
    if request.dump_ir:
        make_folder(request.dump_ir)
    refused: dict[str, str] = {}
    importing = compiling = calibrating = 0.0
    while True:
        progress("import", 0.0)
        started = clock()
        loaded = asked.load(request, target, refused)
        imported = clock()
        importing += imported - started
        see(asked.interface_of(loaded))
        work = _Compiling(loaded, request, target, passes, splitting, progress, log=list(loaded.assumed))
        try:
            chain = placed(_chain(work), request.placement)
            hashes = hashes_of(request, chain.target)
            chain = replace(chain, target_file=asked.target_file(request), hashes=hashes, bound=loaded.bound)
        except Unsupported as error:
            found = {problem.node: problem.message for problem in error.problems if problem.node}
            if not asked.may_fall_back(loaded, request) or not found.keys() - refused.keys():
                raise
            refused |= found
            continue
        finally:
            compiling += clock() - imported
            calibrating += work.calibrate_seconds
        seconds = Seconds(importing, compiling, passes=work.run.seconds, calibrate=calibrating)
        return Job(chain, loaded.origin, loaded.original, seconds, chain.log, work.sources)


@dataclass
class _Compiling:
    """What all pieces of one model are compiled with, and what came of it."""

    loaded: asked.Loaded
    request: Request
    target: Target | None
    passes: Sequence[ModulePass] | None
    splitting: Splitting
    progress: Progress
    names: frozenset[str] = frozenset()
    """Of the values between the pieces of a placement, whose names cuts do not take."""
    results: frozenset[str] | None = None
    """The outputs of a placement: its pieces have others too."""
    run: Run = field(default_factory=Run)
    """Of which the seconds of the passes are kept, of all pieces."""
    calibrate_seconds: float = 0.0
    log: list[str] = field(default_factory=list)
    wholes: list[Executable | None] = field(default_factory=list)
    """Every module in turn in one piece; None where that does not fit."""
    is_cut: bool = False
    sources: list[Uncompiled] = field(default_factory=list)

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


# --- pieces of the model -----------------------------------------------------------------------------------


def _chain(work: _Compiling) -> Chain:
    """The module in one piece or cut, or all pieces of a placement."""
    loaded, request, placement = work.loaded, work.request, work.loaded.placement
    if placement is None:
        assert loaded.module is not None
        return _network_chain(loaded.module, work)
    from frustum.runtime.model.calibration import Samples

    file = placement.parts[0].model.file if placement.parts else asked.name_of(loaded, request)
    interface = tuple(asked.interface_of(loaded) or ())
    pieces = _placed_pieces(work, placement, Samples(request, interface), re.sub(r"\W", "_", Path(file).stem))
    if not any(isinstance(piece, DevicePiece) for piece in pieces):
        asked.check_unused(request, placement, work.target or targets.load(asked.DEFAULT_TARGET))
    policies = [str(p.executable.manifest["options"]["policy"]) for p in pieces if isinstance(p, DevicePiece)]
    return Chain(
        Path(file).stem,
        work.target or targets.load(asked.DEFAULT_TARGET),
        ", ".join(dict.fromkeys(policies)) or request.policy or "none",
        request.host or "auto",
        interface,
        placement.outputs,
        tuple(pieces),
        file,
        work.unsplit_peak_bytes,
        tuple(work.log),
    )


def _placed_pieces(work: _Compiling, placement: Placement, samples: Samples, stem: str) -> list[Piece]:
    """The parts of a placement one after the other, those of the device compiled; the calibration's samples go with
    them."""
    parts = placement.parts
    work.names = frozenset(name for part in parts for name in (*part.inputs, *part.outputs))
    work.results = frozenset(placement.outputs)
    pieces: list[Piece] = []
    for number, part in enumerate(parts):
        name = f"{stem}_{number}"
        if part.kind == "host":
            from frustum.runtime.host.host_model import HostModel

            model = HostModel(part.model.with_data(), part.model.file)
            layers = (HostedLayer(f.name, f.op, f.reason, f.work.macs, f.work.bytes) for f in part.fallbacks)
            pieces.append(HostPiece(name, model, tuple(layers)))
            with work.calibrating():
                samples.through_host(model)
            continue
        module = import_onnx(part.model, network=name, whole=part.whole)
        with work.calibrating():
            cuts = asked.cuts_of(work.request, placement, number)
            own = replace(work.request, calibration=samples.of(module), cuts=cuts)
            if number + 1 < len(parts):
                samples.through_device(module)
        if own.dump_ir is not None:
            make_folder(own.dump_ir / name)
            own = replace(own, dump_ir=own.dump_ir / name)
        pieces += _pieces_of(module, name, work, own, _at(work.progress, number / len(parts)))[0]
    return pieces


def _at(progress: Progress, share: float) -> Progress:
    """Progress of a piece, as that of the whole when it started."""
    return lambda stage, _: progress(stage, share)


def _network_chain(module: ModuleOp, work: _Compiling) -> Chain:
    """A module compiled, as a chain; its outputs are those of its network, if it has one before it is compiled."""
    networks = networks_of(module)
    names = tuple(networks[0].outputs) if len(networks) == 1 else ()
    pieces, compiled = _pieces_of(module, "", work, work.request, work.progress)
    chain = replace(chain_of(pieces[0].executable), log=tuple(work.log))
    if len(pieces) == 1:
        return replace(chain, outputs=names or chain.outputs)
    takers = {name: piece for piece in reversed(pieces) for name in piece.inputs}
    taken = {name: chain_of(piece.executable).inputs for name, piece in takers.items() if name in compiled.inputs}
    return replace(
        chain,
        name=pieces[0].name.rpartition("_")[0],
        inputs=tuple(each for name in compiled.inputs for each in taken[name] if each.name == name),
        outputs=compiled.outputs,
        pieces=tuple(pieces),
        unsplit_peak_bytes=work.unsplit_peak_bytes,
    )


def _pieces_of(
    module: ModuleOp, piece: str, work: _Compiling, request: Request, progress: Progress
) -> tuple[list[DevicePiece], Compilation]:
    """One module compiled; `piece` is its name, if it is not the only one."""
    loaded = work.loaded
    request = asked.with_own_types(request, loaded, module)
    choices = asked.choices_for(loaded, module, request, work.target, work.passes)
    if request.dtype == INT8:
        from frustum.runtime.model.calibration import calibrate_network

        with work.calibrating():
            calibrate_network(module, request, progress)
    needed = loaded.text is None or request.keeps_modules  # a stage is a file already
    kept = module.clone() if needed else None
    with _faults_shown(loaded, kept, choices, work.passes):
        compiled = _compiled(module, request.dump_ir, choices, work, progress)
    for name, seconds in compiled.passes.items():
        work.run.seconds[name] = work.run.seconds.get(name, 0.0) + seconds
    work.log += compiled.log
    executables = compiled.executables
    work.is_cut |= len(executables) > 1
    work.wholes.append(executables[0] if len(executables) == 1 else compiled.whole)
    only = piece if len(executables) == 1 else ""
    pieces = [DevicePiece(only or each.program.name, each) for each in executables]
    if request.keeps_modules and kept is not None:
        names = tuple(each.name for each in pieces)
        work.sources.append(Uncompiled(kept, choices, names, work.passes is not None))
    return pieces, compiled


# --- one module --------------------------------------------------------------------------------------------


def _compiled(
    module: ModuleOp, folder: Path | None, choices: Choices, work: _Compiling, progress: Progress
) -> Compilation:
    """The module's executables."""
    dump = _dump(folder)
    if dump is not None and stop_of(module) == "imported":
        dump(STOPS[0], module)
    if work.passes is not None:
        return _run_passes(module, choices, work.passes, folder, progress)

    def at_stop(piece: str) -> AtStop | None:
        return _dump(folder / piece if folder and piece else folder)

    shares = [0.0]

    def tell(share: float) -> None:
        """What is tried again does not go back."""
        shares.append(max(share, shares[-1]))
        progress("compile", shares[-1])

    know(weighed=choices.if_better)
    progress("compile", 0.0)
    with listening(compile_course(tell)):
        return compile_pieces(
            module, None, choices, work.splitting, work.names, at_stop, measured=written_bytes, count_run=count_run,
            results=work.results,
        )  # fmt: skip


def count_run(program: Program, page_bytes: Sequence[int], image: Image) -> Count:
    """What the emulator counts in mode timing; `image`: address tables, which it reads, among what is in DRAM."""
    target = from_json(json.loads(program.target))
    expanded = with_tables(expand(program, target.chip.clusters, target.cluster.cores), image)
    timeline = simulate(expanded, target, page_bytes)
    counted = count(expanded, target, page_bytes, timeline.tables)
    layers = zip(program.layers, timeline.layer_cycles.tolist(), counted.layer_dram_bytes.tolist(), strict=False)
    moved = counted.dram_read_bytes + counted.dram_write_bytes
    return Count(
        Cost(timeline.total_cycles, moved, moved - int(counted.layer_dram_bytes.sum())),
        {name: Cost(cycles, dram_bytes) for name, cycles, dram_bytes in layers},
    )


def written_bytes(executable: Executable) -> dict[MemoryName, int]:
    """Of each memory on chip the highest address that is written, as reports have it."""
    found = peak_bytes(Machine(executable).expanded)
    return {"sram": found["sram"], "nram": found["nram"], "wram": found["wram"]}


def _dump(folder: Path | None) -> AtStop | None:
    """What writes a module as the file of its stop, in a folder that is made when it is needed; None without one."""
    if folder is None:
        return None

    def write(stop: str, module: ModuleOp) -> None:
        make_folder(folder)
        name = f"{STOPS.index(stop):02}-{stop}.mlir" if stop in STOPS else f"{stop}.mlir"
        with cannot_write(folder / name):
            write_module(module, folder / name)

    return write


def _run_passes(
    module: ModuleOp, choices: Choices, passes: Sequence[ModulePass], folder: Path | None, progress: Progress
) -> Compilation:
    """The passes of `--pipeline`, each dumped under its own name; they must lead to stop `fixed`."""
    started, run, dump = time.perf_counter(), Run(), _dump(folder)
    for number, each in enumerate(passes):
        progress("compile", number / len(passes))
        try:
            with run.timed(each.name):
                each.apply(Context(), module)
                module.verify()
        except DiagnosticException as error:
            raise UsageError(f"error: after pass '{each.name}': {one_line(error)}") from error
        if dump is not None:
            dump(f"{number + 1:02}-{each.name}", module)
    if (count := sum(isinstance(op, NetworkOp | ProgramOp) for op in module.walk())) != 1:
        raise UsageError(f"error: --pipeline makes one executable, and after it the module has {count} networks")
    if (stop := stop_of(module)) != STOPS[-1]:
        raise UsageError(
            f"error: --pipeline ends at stop '{stop}': an executable needs all passes to '{STOPS[-1]}'"
        )
    return one_piece(executable_of(module, choices), time.perf_counter() - started, run.seconds)


@contextmanager
def _faults_shown(
    loaded: asked.Loaded, kept: ModuleOp | None, choices: Choices, passes: Sequence[ModulePass] | None
) -> Iterator[None]:
    """Errors of MLIR text are shown in it; what speaks to the user passes; all else comes with the module that was to
    be compiled with these choices or passes: `kept`, or else what the text says."""
    try:
        yield
    except Exception as error:
        if exit_code_of(error) is not None:
            raise
        if loaded.text is not None and isinstance(error, DiagnosticException):
            raise Reported(loaded.text.error_in(operation_at_fault(error), one_line(error))) from error
        if loaded.original is None and isinstance(error, DiagnosticException):
            raise UsageError(f"module: error: {one_line(error)}") from error
        if kept is None:
            assert loaded.text is not None, "what does not come from text is kept"
            kept = read_stage(loaded.text.file)[0]
        raise CompilerFault(kept, choices, passes) from error
