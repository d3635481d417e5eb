# Tests: test/runtime/tools/test_cli.py
"""`frustum compile`: write the executables of a model, what the host runs, and a manifest, to a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from frustum.runtime.course import Course
from frustum.runtime.failures import GOOD, UsageError, say
from frustum.runtime.model.cache import built
from frustum.runtime.model.compiled import Compiled, check_folder
from frustum.runtime.model.compiled_folder import read_manifest
from frustum.runtime.model.options import CompileOptions
from frustum.runtime.model.sources import kind_of
from frustum.runtime.progress import TerminalProgress
from frustum.runtime.report.terminal import bytes_text, show


def main(options: CompileOptions) -> int:
    folder = Path(options.folder)
    check_folder(folder)
    if kind_of(str(options.model)) in ("folder", "executable"):
        raise UsageError(f"{options.model}: error: is compiled already")
    with TerminalProgress(course=Course()) as progress:
        job = built(replace(options, cache=not options.no_cache), progress)
        Compiled(job).save(folder)
    for line in job.log:
        say(line)
    pieces = [_piece(each) for each in read_manifest(folder)["pieces"]]
    seconds = job.seconds
    calibration = f" (calibration {seconds.calibrate:.2f} s of it)" if seconds.calibrate else ""
    show(
        f"{folder}: {'; '.join(pieces)}; imported in {seconds.import_:.2f} s,"
        f" compiled in {seconds.compile:.2f} s{calibration}\n"
    )
    return GOOD


def _piece(piece: dict[str, Any]) -> str:
    size = f"{piece['file']}, {bytes_text(piece['bytes'])}"
    return f"{size} for the host ({len(piece['layers'])} layers)" if piece["kind"] == "host" else size

