"""One module through the passes to executables: those of the compiler or of `--pipeline`, dumps, and faults."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import DiagnosticException

from frustum.backend.compile import AtStop, executable_of
from frustum.backend.cost import Cost, Count, Image
from frustum.backend.file.executable import Executable
from frustum.backend.pipeline import STOPS, Choices, stop_of
from frustum.backend.split_compile import Compilation, Splitting, compile_pieces, one_piece
from frustum.dialects.graph import NetworkOp
from frustum.dialects.isa.program import Memory as MemoryName
from frustum.dialects.isa.program import Program
from frustum.dialects.isa.sync import ProgramOp
from frustum.dialects.share_done import listening
from frustum.dialects.target import from_json
from frustum.passes.weights import write_module
from frustum.runtime.device.expand import expand
from frustum.runtime.device.tables import with_tables
from frustum.runtime.diagnostics import Reported, Source, operation_at_fault
from frustum.runtime.failures import CompilerFault, UsageError, exit_code_of
from frustum.runtime.files import cannot_write, make_folder
from frustum.runtime.machine import Machine
from frustum.runtime.model.source_module import Loaded
from frustum.runtime.model.sources import read_stage
from frustum.runtime.progress import Progress
from frustum.runtime.report.counters import count, peak_bytes
from frustum.runtime.time.timeline import simulate


def compile_module(
    module: ModuleOp,
    folder: Path | None,
    choices: Choices,
    passes: Sequence[ModulePass] | None,
    splitting: Splitting,
    names: frozenset[str],
    results: frozenset[str] | None,
    progress: Progress,
) -> Compilation:
    """The module's executables; `names` are those of values between pieces, whose names cuts do not take, `results`
    the model's outputs, where the module has others too."""
    dump = _dump(folder)
    if stop_of(module) == "imported":
        dump(STOPS[0], module)
    if passes is not None:
        return _run_passes(module, choices, passes, folder, progress)

    def at_stop(piece: str) -> AtStop:
        dump = _dump(folder / piece if folder and piece else folder)

        def told(stop: str, module: ModuleOp) -> None:
            dump(stop, module)
            progress("compile", SHARES.get(stop, 0.0))

        return told

    def told_by_pass(share: float) -> None:
        progress("compile", SHARES["typed"] + share * (SHARES["fused"] - SHARES["typed"]))

    progress("compile", 0.0)
    with listening(told_by_pass):
        return compile_pieces(
            module, None, choices, splitting, names, at_stop, measured=written_bytes, count_run=count_run,
            results=results,
        )  # fmt: skip


SHARES = {"imported": 0.0, "typed": 0.03, "fused": 0.85, "tiled": 0.87, "placed": 0.9, "lowered": 0.96, "fixed": 0.98}
"""Of the time of compiling, what is over at each stop (squeezenet and resnet50 on `edge`); the rest is encoding."""


def count_run(program: Program, page_bytes: Sequence[int], image: Image) -> Count:
    """What the emulator counts in mode timing; `image`: address tables, which it reads, among what is in DRAM."""
    target = from_json(json.loads(program.target))
    expanded = with_tables(expand(program, target.chip.clusters, target.cluster.cores), image)
    timeline = simulate(expanded, target, page_bytes)
    counted = count(expanded, target, page_bytes, timeline.tables)
    layers = zip(program.layers, timeline.layer_cycles.tolist(), counted.layer_dram_bytes.tolist(), strict=False)
    return Count(
        Cost(timeline.total_cycles, counted.dram_read_bytes + counted.dram_write_bytes),
        {name: Cost(cycles, dram_bytes) for name, cycles, dram_bytes in layers},
    )


def written_bytes(executable: Executable) -> dict[MemoryName, int]:
    """Of each memory on chip the highest address that is written, as reports have it."""
    found = peak_bytes(Machine(executable).expanded)
    return {"sram": found["sram"], "nram": found["nram"], "wram": found["wram"]}


def _dump(folder: Path | None) -> AtStop:
    """What writes a module as the file of its stop, in a folder that is made when it is needed."""
    if folder is None:
        return lambda stop, module: None

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
    started = time.perf_counter()
    seconds: dict[str, float] = {}
    for number, each in enumerate(passes):
        progress("compile", number / len(passes))
        began = time.perf_counter()
        try:
            each.apply(Context(), module)
            module.verify()
        except DiagnosticException as error:
            raise UsageError(f"error: after pass '{each.name}': {one_line(error)}") from error
        seconds[each.name] = seconds.get(each.name, 0.0) + time.perf_counter() - began
        if folder:
            path = folder / f"{number + 1:02}-{each.name}.mlir"
            with cannot_write(path):
                write_module(module, path)
    if (count := sum(isinstance(op, NetworkOp | ProgramOp) for op in module.walk())) != 1:
        raise UsageError(f"error: --pipeline makes one executable, and after it the module has {count} networks")
    if (stop := stop_of(module)) != STOPS[-1]:
        raise UsageError(
            f"error: --pipeline ends at stop '{stop}': an executable needs all passes to '{STOPS[-1]}'"
        )
    return one_piece(executable_of(module, choices), time.perf_counter() - started, seconds)


@contextmanager
def faults_shown(
    loaded: Loaded, kept: ModuleOp | None, choices: Choices, passes: Sequence[ModulePass] | None
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
        raise CompilerFault(kept or read_stage(text_of(loaded).file)[0], choices, passes) from error


def text_of(loaded: Loaded) -> Source:
    assert loaded.text is not None, "what does not come from text is kept"
    return loaded.text


def one_line(error: BaseException) -> str:
    return " ".join(line.strip() for line in str(error).splitlines() if line.strip())
