"""Files that people name: refused before the long work where they cannot be written, whole or not at all after it.

What is written lies beside its place under a hidden name, `.NAME.HOST-PID.new`, until it is complete and on the disk.
A folder that is there already is exchanged for the new one in one step where the system can (Linux); elsewhere in two
renames, and a run that was killed between them is made up for by the next (`recover`).  What killed runs left behind
is removed by the next run that writes the same name.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from frustum.runtime.failures import UsageError


def check_writable_file(path: Path) -> None:
    """UsageError unless a file of this name can be written."""
    if path.is_dir():
        raise UsageError(f"{path}: error: cannot be written: it is a folder")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path}: error: cannot be written: Permission denied")
    if _is_stream(path):
        return
    _check_folder(path.parent, path)


def check_writable_folder(path: Path) -> None:
    """UsageError unless this folder can be made, or is there and files can be written in it."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path}: error: cannot be written: it is a file, not a folder")
    _check_folder(path if path.is_dir() else path.parent, path)


def make_folder(path: Path) -> None:
    """The folder, made if it is not there; UsageError if it cannot be."""
    check_writable_folder(path)
    with cannot_write(path):
        path.mkdir(exist_ok=True)


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` write the file under another name, then rename it; UsageError, with nothing left, where it fails."""
    with cannot_write(path):
        if _is_stream(path):
            write(path)
            return
        place = path.resolve()
        _remove_leftovers(place)
        part = _hidden(place, "new")
        try:
            write(part)
            _to_disk(part)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
        _to_disk(place.parent)


def write_folder(path: Path, write: Callable[[Path], object]) -> None:
    """The same for a folder; one that is there already is replaced."""
    with cannot_write(path):
        place = path.resolve()
        recover(place)
        _remove_leftovers(place)
        new, old = _hidden(place, "new"), _hidden(place, "old")
        try:
            new.mkdir()
            write(new)
            for file in (*new.iterdir(), new):
                _to_disk(file)
            if not place.exists():
                new.rename(place)
            elif not _exchange(new, place):
                _replace(new, place, old)
        finally:
            for left in (new, old):
                shutil.rmtree(left, ignore_errors=True)
        _to_disk(place.parent)


def recover(path: Path) -> None:
    """Give a folder its name back that a killed run had taken away and not yet given to the new one."""
    place = path.resolve()
    if not place.exists():
        for name, left in _leftovers(place):
            if name == "old" and left.is_dir():
                left.rename(place)
                return


@contextmanager
def cannot_read(path: Path) -> Iterator[None]:
    """What the system has against reading becomes a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: error: cannot be read: {error.strerror}") from error


@contextmanager
def cannot_write(path: Path) -> Iterator[None]:
    """What the system has against writing there becomes a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: error: cannot be written: {error.strerror or error}") from error


def _is_stream(path: Path) -> bool:
    """Whether it is a device or a pipe, into which is written, and whose name stays what it is."""
    return path.exists() and not path.is_file()


def _replace(new: Path, place: Path, old: Path) -> None:
    """Two renames; the old folder comes back where the second one fails."""
    place.rename(old)
    try:
        new.rename(place)
    except OSError:
        old.rename(place)
        raise


_THIS_FOLDER, _EXCHANGE = -100, 2
"""Of Linux: AT_FDCWD, RENAME_EXCHANGE."""


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders have each other's name, in one step; False where the system or the disk's format cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    return rename(_THIS_FOLDER, os.fsencode(one), _THIS_FOLDER, os.fsencode(other), _EXCHANGE) == 0


def _to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # its folders cannot be opened
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _hidden(place: Path, what: Literal["new", "old"]) -> Path:
    """The name of this process for what is to be `place`, or was it."""
    return place.with_name(f".{place.name}.{_host()}-{os.getpid()}.{what}")


def _host() -> str:
    return re.sub(r"\W", "_", platform.node())


def _leftovers(place: Path) -> list[tuple[str, Path]]:
    """`new` or `old`, and where it is, of processes of this machine that run no more."""
    pattern = re.compile(rf"\.{re.escape(place.name)}\.{re.escape(_host())}-(\d+)\.(new|old)")
    try:
        names = sorted(place.parent.iterdir())
    except OSError:
        return []
    found = ((pattern.fullmatch(each.name), each) for each in names)
    return [(match[2], each) for match, each in found if match and not _is_running(int(match[1]))]


def _remove_leftovers(place: Path) -> None:
    for _, left in _leftovers(place):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    """Whether there is such a process; on Windows, where asking would end it, whoever is not this one counts."""
    if pid == os.getpid():
        return False  # of an earlier attempt: this one has not begun
    if os.name == "nt":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _check_folder(folder: Path, path: Path) -> None:
    """UsageError unless files can be made in the folder: tried, for permissions do not tell all."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{path}: error: cannot be written: {folder}: {error.strerror}") from error


def with_part(page: str, begin: str, part: str, end: str) -> str:
    """A page with this part between its two marks."""
    head, _, rest = page.partition(begin)
    return head + begin + part + end + rest.partition(end)[2]
