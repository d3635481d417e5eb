# Tests: test/runtime/tools/test_cli.py
"""`frustum compile`: write the executables of a model, what the host runs, and a manifest, to a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from frustum.runtime.course import Course
from frustum.runtime.failures import GOOD, UsageError, say
from frustum.runtime.model.cache import built
from frustum.runtime.model.compiled import Compiled, check_folder
from frustum.runtime.model.compiled_folder import read_manifest
from frustum.runtime.model.options import CompileOptions, refuse_two_forms
from frustum.runtime.model.sources import Job, kind_of
from frustum.runtime.progress import TerminalProgress
from frustum.runtime.report.terminal import bytes_text, show
from frustum.runtime.tools.inspect import lines_of


def main(options: CompileOptions) -> int:
    folder = Path(options.folder)
    refuse_two_forms(options)
    check_folder(folder)
    if kind_of(str(options.model)) in ("folder", "executable"):
        raise UsageError(f"{options.model}: error: is compiled already")
    with TerminalProgress(quiet=options.quiet, course=Course()) as progress:
        job = built(replace(options, cache=not options.no_cache), progress)
        Compiled(job).save(folder)
    if not options.quiet:
        _tell(options, folder, job)
    return GOOD


def _tell(options: CompileOptions, folder: Path, job: Job) -> None:
    """What was written, in the form that was asked for."""
    for line in job.log:
        say(line)
    manifest, seconds = read_manifest(folder), job.seconds
    if options.json:
        show(f"{json.dumps(manifest, indent=2)}\n")
        return
    pieces = "; ".join(_piece(each) for each in manifest["pieces"])
    calibration = f" (calibration {seconds.calibrate:.2f} s of it)" if seconds.calibrate else ""
    times = f"imported in {seconds.import_:.2f} s, compiled in {seconds.compile:.2f} s{calibration}"
    show(f"{folder}: {pieces}; {times}\n")
    if options.verbose:
        show("\n".join(["", *lines_of(str(folder), is_disassembled=False), ""]))


def _piece(piece: dict[str, Any]) -> str:
    size = f"{piece['file']}, {bytes_text(piece['bytes'])}"
    return f"{size} for the host ({len(piece['layers'])} layers)" if piece["kind"] == "host" else size

