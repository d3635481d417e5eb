"""What was compiled before: compiled folders under the checksum of all that they were made from, and beside them plans
that a search has found (`runtime/study/kept.py`).

The folder is `$XDG_CACHE_HOME/frustum` (`~/.cache/frustum`), or what FRUSTUM_CACHE says; an empty FRUSTUM_CACHE turns
the cache off.  An entry is a compiled folder, whose files carry their checksums: what is damaged is made anew, never
run.  Entries appear under their names when they are whole, so several processes may use the cache at once; when all
are larger than `MOST_BYTES`, those that were not used for longest go.  Nothing else in the folder is touched.

Whether there is an entry is known before anything heavy is imported, so that who waits can be told how long.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter as clock
from typing import TYPE_CHECKING, TypeVar

from frustum.backend import targets
from frustum.dialects.share_done import know
from frustum.dialects.target import Target, digest
from frustum.runtime.failures import UsageError, say
from frustum.runtime.files import write_folder
from frustum.runtime.model.identity import checksum, model_digest, pipeline_digest
from frustum.runtime.model.options import Request, with_stored_dtype
from frustum.runtime.model.sources import MANIFEST, Job, Origin, kind_of
from frustum.runtime.progress import Progress

if TYPE_CHECKING:
    from frustum.runtime.model.chain import Interface

MOST_BYTES = 2 << 30
DEFAULT = "default"
"""The target where none is said."""
FOLDER = "FRUSTUM_CACHE"
"""The variable that says where the cache is."""
PACKAGES = ("frustum", "xdsl", "numpy", "onnx", "onnxruntime", "ml_dtypes", "ruamel.yaml")
"""Whose versions decide what is compiled."""
ROOMS = ("dialects", "passes", "backend", "runtime/model")
"""Of our own files, those that decide it."""
PLUG_INS = "frustum."
"""How the groups of entry points begin that change what is compiled."""
KEY = re.compile("[0-9a-f]{64}")
"""The names of entries."""
BYTE_CODE = "__pycache__"
T = TypeVar("T")


def cache_folder() -> Path | None:
    """Where the cache is; None where it is off."""
    said = os.environ.get(FOLDER)
    if said is not None:
        return Path(said) if said else None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frustum"


@dataclass(frozen=True)
class Entry:
    """A place in the cache."""

    path: Path

    @property
    def is_there(self) -> bool:
        """Whether something lies there, which may be damaged."""
        return (self.path / MANIFEST).is_file()

    @property
    def sizes(self) -> dict[str, float]:
        """How much there is to do, to say how long that takes: of what is damaged nothing is known."""
        try:
            return dict(json.loads((self.path / MANIFEST).read_bytes())["sizes"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def open(self) -> Job | None:
        """The compiled model that lies there; None where nothing does, or it is damaged: then it is removed."""
        from frustum.runtime.model.compiled_folder import open_folder
        from frustum.runtime.report.report import Seconds

        started = clock()
        found = self.read(open_folder)
        if found is None:
            return None
        chain, origin = found
        seconds = Seconds(0.0, clock() - started, cached=True)
        return Job(chain, origin, None, seconds, chain.log)

    def read(self, read: Callable[[Path], T]) -> T | None:
        """What `read` finds in the folder; None where there is none, or it is damaged (UsageError): then it is
        removed."""
        from frustum.runtime.model.compiled_folder import remove_folder

        if not self.is_there:
            return None
        try:
            found = read(self.path)
            os.utime(self.path)
        except UsageError:
            remove_folder(self.path)
            return None
        except OSError:  # another process has just taken it away, or the folder is not ours to touch
            return None
        return found

    def keep(self, job: Job) -> None:
        """Put a compiled model here."""
        from frustum.runtime.model.compiled_folder import write_chain

        self.write(lambda folder: write_chain(folder, job.chain, job.origin))

    def write(self, write: Callable[[Path], None]) -> None:
        """Let `write` fill the folder; where that cannot be, one line says so and nothing is lost."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_folder(self.path, write)
            _make_room(self.path.parent, self.path)
        except (OSError, UsageError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error).rpartition(": ")[2]
            say(f"{self.path.parent}: warning: nothing is kept for the next time: {reason}")


def built(
    request: Request,
    progress: Progress = lambda stage, share: None,
    see: Callable[[Sequence[Interface] | None], None] = lambda inputs: None,
) -> Job:
    """The model of the request as it was compiled before, or else compiled and kept: `build.build`, without loading the
    compiler where nothing has to be compiled.

    What is neither an ONNX file nor a network of the zoo, and what dumps its stops, is always compiled.
    """

    def make() -> Job:
        progress("import", 0.0)
        from frustum.runtime.model.build import build

        return build(request, progress, see)

    folder = cache_folder()
    is_file = isinstance(request.model, str | Path) and kind_of(str(request.model)) in ("zoo", "onnx")
    if folder is None or not request.cache or not is_file or request.dump_ir is not None:
        return make()
    entry = Entry(folder / key_of(request))
    if entry.is_there:
        know(**entry.sizes)
        progress("open", 0.0)
    job = entry.open()
    if job is None:
        job = make()
        entry.keep(job)
    else:  # the same bytes may have lain elsewhere the last time, and be gone there
        job = replace(job, origin=Origin.of(str(request.model), request.weights_seed or 0))
        see(job.chain.inputs)
    return job


def key_of(request: Request) -> str:
    """The checksum of all that decides what is compiled."""
    name = request.target or DEFAULT
    target = name if isinstance(name, Target) else targets.load(name)
    request = with_stored_dtype(request, target)  # so that inputs for a calibration count
    parts = (
        model_digest(request.model, request.weights_seed or 0), digest(target), str(request.target),
        pipeline_digest(request), sys.version, *versions(),
    )  # fmt: skip
    return checksum([f"{part}\n".encode() for part in parts])


def versions() -> list[str]:
    """Of the packages, of plug-ins, and of our own files, which change without a new version while they are edited."""
    found = versions_of(PACKAGES)
    for group in sorted(name for name in metadata.entry_points().groups if name.startswith(PLUG_INS)):
        for point in metadata.entry_points(group=group):
            found.append(f"{group} {point.name} {point.value} {point.dist.version if point.dist else ''}")
            found += _states(_files_of(point))
    return found + states_of(ROOMS)


def versions_of(packages: Iterable[str]) -> list[str]:
    """Of those that are installed."""
    found = []
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return found


def states_of(rooms: Iterable[str]) -> list[str]:
    """Names, sizes and times of our own files in these folders."""
    import frustum

    return [state for room in rooms for state in _states(Path(frustum.__path__[0], room).rglob("*.py"))]


def _files_of(point: metadata.EntryPoint) -> Iterator[Path]:
    """The files of the package that gives a plug-in, and of those that are installed with it; nothing is imported."""
    listed = (point.dist.read_text("top_level.txt") if point.dist else None) or ""
    for name in {point.module.partition(".")[0], *listed.split()}:
        with suppress(ImportError, ValueError, AttributeError):  # a broken one, of which loading it tells
            spec = find_spec(name)
            if spec is None:
                continue
            for folder in spec.submodule_search_locations or ():
                yield from Path(folder).rglob("*")
            if spec.origin and not spec.submodule_search_locations:
                yield Path(spec.origin)


def _states(files: Iterable[Path]) -> list[str]:
    """Names, sizes and times of files, of all but what Python makes of them."""
    found = []
    for file in sorted(files):
        with suppress(OSError):  # it has just gone, or is a link to nothing
            status = file.stat()
            if stat.S_ISREG(status.st_mode) and file.parent.name != BYTE_CODE:
                found.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    return found


def _make_room(folder: Path, newest: Path) -> None:
    """Remove entries that were not used for longest until all are small enough; the newest stays, as does whatever
    else lies in the folder."""
    from frustum.runtime.model.compiled_folder import remove_folder

    entries = []
    for entry in folder.iterdir():
        with suppress(OSError):  # another process removes it
            if KEY.fullmatch(entry.name) and Entry(entry).is_there and not entry.is_symlink():
                size = sum(file.stat().st_size for file in entry.iterdir())
                entries.append((entry.stat().st_mtime, size, entry))
    left = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if left <= MOST_BYTES:
            return
        if entry != newest:
            remove_folder(entry)
            left -= size
