"""Where the machine code of loops is kept between runs.

numba's own cache stops a program where it can write nowhere, and where a file of it is damaged.  This one holds a file
for each function and kind of arguments, named by all that the code depends on and sealed by a checksum: a file that is
not what was written is as none, and made anew.  Files are renamed into place when they are complete, so processes that
fill an empty cache at the same time do no harm.  Written is the first of these that can be: NUMBA_CACHE_DIR,
`__pycache__` beside the source, the user's cache folder (these are numba's), a folder of the user's alone in the
temporary folder; without any of them the code is made in each run.  Read is also `__pycache__` where it cannot be
written, so that a system's package that was warmed up when it was installed serves all users.

The files are pickles: whoever can write to the folder can run code as the user (SECURITY.md).
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import stat
import tempfile
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numba
from numba import njit
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

DIGEST_BYTES = 32
SUFFIX = ".loop"
_DISPATCHERS: list[Any] = []


class LoopListener(Protocol):
    """Who is told what machine code takes: `loops.LoopTimes`."""

    loaded: list[str]

    def making(self) -> AbstractContextManager[None]: ...
    def compiling(self, name: str) -> AbstractContextManager[None]: ...


def dispatcher(function: Callable[..., Any], times: LoopListener) -> Any:
    """What numba calls a compiled function: it takes its machine code from the cache here."""
    if not _DISPATCHERS:
        event.register("numba:compile", _Listener(times))
    found: Any = njit(nogil=True)(function)
    found._cache = LoopCache(function)  # what `enable_caching` does, with numba's cache
    found._cache.times = times
    _DISPATCHERS.append(found)
    return found




def folders() -> list[str]:
    """Where the functions of this process keep their machine code; empty where that is nowhere."""
    paths = (each._cache.cache_path for each in _DISPATCHERS)
    return list(dict.fromkeys(path for path in paths if path))


class LoopCache(FunctionCache):
    """The machine code of one function.  What goes wrong with a file costs the time of making it anew, and no more."""

    times: LoopListener

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for these arguments; None where it is not there, or not whole."""
        with self.times.making():
            rtsys.initialize(target_context)  # what else numba's `refresh` does is for compiling, and takes 0.15 s
            name = self._file_name(sig, target_context.codegen())
            beside = Path(inspect.getfile(self._py_func)).parent / "__pycache__"
            for folder in dict.fromkeys([*([Path(self.cache_path)] if self.cache_path else []), beside]):
                payload = _unsealed(folder / name)
                if payload is not None:
                    self.times.loaded.append(self._py_func.__name__)
                    return self._impl.rebuild(target_context, pickle.loads(payload))
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function; without an error where it cannot be kept."""
        with self.times.making():
            if not self.cache_path or not self._impl.check_cachable(data):
                return
            payload = dumps(self._impl.reduce(data))
            file = Path(self.cache_path, self._file_name(sig, data.codegen))
            part = file.with_name(f"{file.name}.{uuid.uuid4().hex[:16]}.part")
            try:
                part.write_bytes(hashlib.sha256(payload).digest() + payload)
                part.replace(file)
            except OSError:
                with suppress(OSError):
                    part.unlink()

    def _file_name(self, sig: Any, codegen: Any) -> str:
        """Made by the function and a digest of what its code depends on: its text, its arguments, numba, the CPU."""
        arguments, _ = normalize_signature(sig)
        depends = (numba.__version__, _text_of(self._py_func), str(arguments), codegen.magic_tuple())
        name = hashlib.sha256(repr(depends).encode()).hexdigest()
        return f"{self._impl.filename_base}.{name[:32]}{SUFFIX}"


def _unsealed(file: Path) -> bytes | None:
    """What was written to the file; None where it is not there, or not what was written."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, payload = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return payload if hashlib.sha256(payload).digest() == digest else None


def _text_of(function: Callable[..., Any]) -> str:
    """A digest of the files of the function and of the compiled functions that it can see, which may be inlined."""
    seen = [each.py_func for each in function.__globals__.values() if isinstance(each, Dispatcher)]
    return "".join(_file_digest(path) for path in sorted({inspect.getfile(each) for each in (function, *seen)}))


@cache
def _file_digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class _LastLocator:
    """numba's word for what knows a folder: one in the temporary folder that only this user can write, or none."""

    def __init__(self, function: Callable[..., Any], folder: Path | None) -> None:
        self._line = function.__code__.co_firstlineno
        self._folder = folder

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _LastLocator:
        return cls(function, private_folder())

    def get_cache_path(self) -> str:
        return "" if self._folder is None else str(self._folder)

    def ensure_cache_path(self) -> None:
        """Made already."""

    def get_source_stamp(self) -> str:
        return ""  # the names of files hold it

    def get_disambiguator(self) -> str:
        return str(self._line)


def private_folder() -> Path | None:
    """A folder in the temporary one that is this user's alone; None where there is none to be had.

    Others may write in the folder around it, so one that is somebody else's, a link, or open to others is not used.
    """
    try:
        user = os.getuid() if hasattr(os, "getuid") else None
        folder = Path(tempfile.gettempdir(), f"frustum-loops-{user if user is not None else os.getlogin()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_own = user is None or (status.st_uid == user and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO))
        if not stat.S_ISDIR(status.st_mode) or not is_own:
            return None
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return None
    return folder


class _LoopFiles(CompileResultCacheImpl):
    """numba's names of files and its folders, and one folder more."""

    _locator_classes: list[type[object]] = [*CompileResultCacheImpl._locator_classes, _LastLocator]  # noqa: RUF012


LoopCache._impl_class = _LoopFiles


class _Listener(event.Listener):
    """Hears from numba what it compiles, one function inside another, and tells `times`."""

    def __init__(self, times: LoopListener) -> None:
        self._times = times
        self._under_way: list[AbstractContextManager[None]] = []

    def on_start(self, event: event.Event) -> None:
        under_way = self._times.compiling(event.data["dispatcher"].py_func.__name__)
        under_way.__enter__()
        self._under_way.append(under_way)

    def on_end(self, event: event.Event) -> None:
        self._under_way.pop().__exit__(None, None, None)
