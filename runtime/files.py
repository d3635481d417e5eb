"""Files that people name: refused before the long work where they cannot be written, whole or not at all after it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from frustum.runtime.failures import UsageError


def check_writable_file(path: Path) -> None:
    """UsageError unless a file of this name can be written."""
    if path.is_dir():
        raise UsageError(f"{path}: error: cannot be written: it is a folder")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path}: error: cannot be written: Permission denied")
    _check_folder(path.parent, path)


def check_writable_folder(path: Path) -> None:
    """UsageError unless this folder can be made, or is there and files can be written in it."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path}: error: cannot be written: it is a file, not a folder")
    _check_folder(path if path.is_dir() else path.parent, path)


def make_folder(path: Path) -> None:
    """The folder, made if it is not there; UsageError if it cannot be."""
    check_writable_folder(path)
    path.mkdir(exist_ok=True)


def write_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` write the file under another name, then rename it; UsageError, with nothing left, where it fails."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _cannot_write(path):
        try:
            write(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """The same for a folder; one that is there already is replaced."""
    with (
        _cannot_write(path),
        tempfile.TemporaryDirectory(dir=_parent(path), prefix=f".{path.name}.") as scratch,
    ):
        new, old = Path(scratch, "new"), Path(scratch, "old")
        new.mkdir()
        write(new)
        if path.exists():
            path.rename(old)
        try:
            new.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _cannot_write(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: error: cannot be written: {error.strerror or error}") from error


def _check_folder(folder: Path, path: Path) -> None:
    """UsageError unless files can be made in the folder: tried, for permissions do not tell all."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{path}: error: cannot be written: {folder}: {error.strerror}") from error


def _parent(path: Path) -> Path:
    return path.resolve().parent
