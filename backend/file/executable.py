"""The executable: a program with its weights, in memory or as one file that runs without the compiler.

| section of the file | holds |
|---|---|
| `manifest` | JSON with sorted keys: everything known about the program that is not an instruction |
| `code` | the instructions, as `dialects/isa/format.py` declares them |
| `debug` | two arrays of u32: layer and unit of each instruction in textual order |
| `weights` | the DRAM from the first weight or address table to the end of the last; begins at a multiple of 4096 |

The same program gives the same bytes: no times, paths or addresses of the host are in.  The file is read without
being copied: the weights are mapped.  How sections are stored and checked: `container.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.backend.file.container import (
    ALIGNMENT_BYTES,
    HEADER,
    VERSION,
    ExecutableError,
    Section,
    Stored,
    container_bytes,
    read_container,
    read_section,
    write_container,
)
from frustum.backend.file.decoder import CodeError, decode
from frustum.backend.file.encoder import Code, encode
from frustum.backend.file.manifest import (
    Json,
    ManifestError,
    check_manifest,
    manifest_of,
    program_of,
    read_json,
    to_bytes,
)
from frustum.backend.file.program_check import check_program, check_tables
from frustum.dialects.isa.program import IMAGE_CLASSES, Program
from frustum.dialects.isa.tables.stored_table import TableError

__all__ = [
    "DIGEST_BYTES",
    "FORMAT_VERSION",
    "INDEX",
    "PAGE_BYTES",
    "SECTIONS",
    "Bytes",
    "Executable",
    "ExecutableError",
    "build_executable",
    "check_program",
    "fingerprint",
    "open_executable",
    "read_json",
    "weights_range",
    "write_executable",
]

Bytes: TypeAlias = NDArray[np.uint8]
"""One-dimensional."""

PAGE_BYTES = 4096
"""What a file is mapped in."""
SECTIONS = ("manifest", "code", "debug", "weights")
INDEX = np.dtype("<u4")
DIGEST_BYTES = 32
FORMAT_VERSION = VERSION
"""Of the file."""


@dataclass(frozen=True, eq=False)
class Executable:
    """A program, its bytes and its weights."""

    program: Program
    code: Code
    manifest: Json
    weights: tuple[tuple[int, Bytes], ...]
    """(DRAM address, bytes) in ascending order; what lies between is 0."""
    path: Path | None = None

    @property
    def file_bytes(self) -> int:
        """Length of the file, written or not."""
        start, stop = weights_range(self.program)
        small = len(to_bytes(self.manifest)), len(self.code.bytes), 2 * INDEX.itemsize * len(self.code.layers)
        return container_bytes([*((n, ALIGNMENT_BYTES) for n in small), (stop - start, PAGE_BYTES)])


def build_executable(
    program: Program,
    weights: Sequence[tuple[int, NDArray[Any]]],
    options: Mapping[str, Any] | None = None,
    instruction_memory_bytes: int | None = None,
    code: Code | None = None,
) -> Executable:
    """The executable of a program, whose `code` may be there already.

    `weights`: DRAM address and data, already of the device's type, of every weight and table; not copied.
    `options`: what else the manifest should tell, as JSON values.  DoesNotFit as `encode` raises it; TableError for an
    address table that its instructions cannot use.
    """
    code = code or encode(program, instruction_memory_bytes)
    manifest = manifest_of(program, code.page_bytes, options or {})
    data = tuple(sorted(((a, _flat_bytes(array)) for a, array in weights), key=lambda pair: pair[0]))
    _check_weights(program, data)
    check_tables(program, data)
    return Executable(program, code, manifest, data)


def write_executable(executable: Executable, path: str | Path) -> None:
    """Write the file, whole or not at all; WriteError (an OSError) names the path and the reason."""
    code = executable.code
    debug = np.array([code.layers, code.units], INDEX).tobytes()
    write_container(
        Path(path),
        [
            Section("manifest", [to_bytes(executable.manifest)]),
            Section("code", [code.bytes]),
            Section("debug", [debug]),
            Section("weights", _weight_pieces(executable), PAGE_BYTES),
        ],
    )


def open_executable(path: str | Path) -> Executable:
    """The executable in a file, its weights mapped; ExecutableError for anything but an undamaged one."""
    path = Path(path)
    stored = read_container(path, SECTIONS)
    try:
        manifest = read_json(read_section(path, stored["manifest"]))
        layers, units = _read_debug(read_section(path, stored["debug"]))
        code_bytes = read_section(path, stored["code"])
        check_manifest(manifest, len(code_bytes))
        program = program_of(manifest, decode(code_bytes, layers, units))
        code = Code(code_bytes, tuple(map(int, manifest["page_bytes"])), layers, units)
    except ManifestError as error:
        raise ExecutableError(f"{path}: damaged manifest: {error}") from error
    except CodeError as error:
        raise ExecutableError(f"{path}: damaged code: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ExecutableError(f"{path}: damaged manifest: {type(error).__name__} {error}") from error
    start, stop = weights_range(program)
    if stored["weights"].length != stop - start:
        length = stored["weights"].length
        raise ExecutableError(f"{path}: damaged: {length} bytes of weights, the manifest says {stop - start}")
    weights = ((start, _map(path, stored["weights"])),) if stop > start else ()
    try:
        check_tables(program, weights)
    except TableError as error:
        raise ExecutableError(f"{path}: damaged: {error}") from error
    return Executable(program, code, manifest, weights, path)


def fingerprint(path: str | Path) -> str:
    """The checksum in the header of a file that was opened or written, in hexadecimal: it stands for all of it."""
    with open(path, "rb") as file:
        return file.read(HEADER.size)[-DIGEST_BYTES:].hex()


def weights_range(program: Program) -> tuple[int, int]:
    """DRAM addresses [start, stop) that hold all weights and tables; (0, 0) if there are none."""
    weights = [external for external in program.externals if external.class_ in IMAGE_CLASSES]
    if not weights:
        return 0, 0
    return min(w.address for w in weights), max(w.address + w.bytes for w in weights)


def _flat_bytes(array: NDArray[Any]) -> Bytes:
    """The bytes of an array, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _check_weights(program: Program, weights: Sequence[tuple[int, Bytes]]) -> None:
    room = {e.address: e.bytes for e in program.externals if e.class_ in IMAGE_CLASSES}
    given = {address: len(data) for address, data in weights}
    assert len(given) == len(weights), "two weights at one address"
    assert given.keys() == room.keys(), f"weights at {sorted(given)}, externals at {sorted(room)}"
    for address, size in given.items():
        assert size <= room[address], f"{size} bytes for the weight at {address}, which has {room[address]}"


def _weight_pieces(executable: Executable) -> Iterator[memoryview | bytes]:
    position, stop = weights_range(executable.program)
    for address, data in executable.weights:
        yield from _zeros(address - position)
        yield data.data
        position = address + len(data)
    yield from _zeros(stop - position)


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield bytes(min(count, PAGE_BYTES))
        count -= PAGE_BYTES


def _read_debug(debug: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    layers, units = np.frombuffer(debug, INDEX).reshape(2, -1).tolist()
    return tuple(layers), tuple(units)


def _map(path: Path, stored: Stored) -> Bytes:
    if stored.offset % PAGE_BYTES:
        raise ExecutableError(f"{path}: damaged: the weights begin at {stored.offset}, inside a page")
    return np.memmap(path, np.uint8, mode="c", offset=stored.offset, shape=(stored.length,))
