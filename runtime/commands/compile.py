"""`frustum compile`: write the executable of a model, and a manifest, to a folder."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from frustum.backend.executable import Executable, write_executable
from frustum.runtime.build import build
from frustum.runtime.commands.job import request_of
from frustum.runtime.failures import GOOD, UsageError
from frustum.runtime.files import check_writable_folder, write_folder
from frustum.runtime.progress import TerminalProgress
from frustum.runtime.sources import MANIFEST, SCHEMA, Origin, kind_of
from frustum.runtime.terminal import bytes_text

SUFFIX = ".frustum"
"""Of executables."""


def main(options: argparse.Namespace) -> int:
    folder = Path(options.folder)
    _check_folder(folder)
    if kind_of(options.model) in ("folder", "executable"):
        raise UsageError(f"{options.model}: error: is compiled already")
    with TerminalProgress() as progress:
        built = build(request_of(options), progress)
        write_folder(folder, lambda path: write_compiled(path, built.executable, built.origin))
    size = bytes_text(built.executable.file_bytes)
    sys.stdout.write(
        f"{folder}: {file_name(built.executable)}, {size}; imported in {built.import_seconds:.2f} s,"
        f" compiled in {built.compile_seconds:.2f} s\n"
    )
    return GOOD


def write_compiled(folder: Path, executable: Executable, origin: Origin | None) -> None:
    """The executable and `manifest.json`."""
    write_executable(executable, folder / file_name(executable))
    text = json.dumps(manifest_of(executable, origin), indent=1, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def manifest_of(executable: Executable, origin: Origin | None) -> dict[str, Any]:
    """What the folder holds, and where the model came from."""
    manifest = executable.manifest
    return {
        "schema": SCHEMA,
        "model": manifest["options"].get("model", manifest["name"]),
        "target": manifest["target"]["name"],
        "dtype": manifest["dtype"],
        "policy": manifest["options"]["policy"],
        "origin": {"model": origin.model, "weights_seed": origin.weights_seed} if origin else None,
        "inputs": [_interface(each) for each in manifest["inputs"]],
        "outputs": [_interface(each) for each in manifest["outputs"]],
        "executables": [
            {"name": manifest["name"], "file": file_name(executable), "bytes": executable.file_bytes}
        ],
    }


def file_name(executable: Executable) -> str:
    return f"{executable.program.name}{SUFFIX}"


def _interface(value: dict[str, Any]) -> dict[str, Any]:
    return {key: value[key] for key in ("name", "dtype", "shape")}


def _check_folder(folder: Path) -> None:
    """UsageError unless the folder can be written, and nothing but an older result is lost by that."""
    check_writable_folder(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder}: error: cannot be written: it holds other files (and no {MANIFEST})")
