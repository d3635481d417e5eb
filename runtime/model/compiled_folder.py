"""What `frustum compile` writes: a file for every piece of the model, and `manifest.json`, which lists them in order.

| key of the manifest | holds |
|---|---|
| `schema` | 3; any other is refused |
| `format` | of the executables, 2; older folders, which lack it, have 1 and are refused |
| `model`, `dtype`, `policy`, `host` | as in the report |
| `target`, `machine` | the machine's name, and all of it as executables have it |
| `target_file`, `target_sha256` | the target's file (null: shipped), and the checksum of all that it says |
| `hashes` | checksums of the model, the target and the pipeline that it was made from, as in the report |
| `origin` | for `--check`: zoo: name and the seed of its weights, or the model's path from this folder; or null |
| `inputs`, `outputs` | name, type and shape of each; null where only a run knows |
| `bound` | type, shape and value of each input that `--bind` made a constant |
| `pieces` | in the order in which they run: `name`, `kind`, `file`, `bytes`, `inputs`, `outputs` |
| ... of the device | also `chip`, and `sha256`: the checksum in the file's header, which stands for all of it |
| ... of the host | also `sha256` of the file, and `layers`: name, op, reason, MACs and bytes of each |
| `unsplit_peak_bytes` | of each memory on chip the peak of the network in one piece; null where nobody knows |
| `log` | what was cut and fused again, and why |
| `sha256` | the last line: of all bytes before it |

A device piece is an executable, which carries its own checksums; a host piece is an ONNX model.

Reading: files are looked at only if they are regular ones of the size that the manifest says, so that neither a pipe
nor a device in their place is waited for or fills memory; a symbolic link may stand for a file of the same contents.
"""

from __future__ import annotations

import errno
import hashlib
import json
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from frustum.backend.file.container import ExecutableError
from frustum.backend.file.executable import (
    FORMAT_VERSION,
    Executable,
    fingerprint,
    open_executable,
    read_json,
    write_executable,
)  # fmt: skip
from frustum.dialects.target import digest, from_json, to_json
from frustum.runtime.failures import UsageError
from frustum.runtime.files import cannot_read
from frustum.runtime.model.chain import Chain, DevicePiece, HostedLayer, HostPiece, Interface, Piece, chain_of
from frustum.runtime.model.sources import MANIFEST, Origin

__all__ = ["MANIFEST", "SCHEMA", "open_compiled", "open_file", "open_folder", "read_manifest", "write_chain"]

SCHEMA = 3
SUFFIXES: dict[str, str] = {"device": ".frustum", "host": ".onnx"}
SEAL = b' "sha256": "%s"\n}\n'
DIGEST_LETTERS = 64
MOST_MANIFEST_BYTES = 64 << 20
"""No manifest is longer."""
CHUNK_BYTES = 1 << 20
FAILURES = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading a manifest that says something else raises; a TargetError is a ValueError."""
Json: TypeAlias = dict[str, Any]


def write_chain(folder: Path, chain: Chain, origin: Origin | None) -> None:
    """The files of a chain."""
    pieces = [_write_piece(folder, piece) for piece in chain.pieces]
    manifest = {
        "schema": SCHEMA,
        "format": FORMAT_VERSION,
        "model": chain.model,
        "target": chain.target.name,
        "target_file": _told(chain.target_file),
        "target_sha256": digest(chain.target),
        "hashes": dict(chain.hashes),
        "machine": to_json(chain.target),
        "dtype": chain.dtype,
        "policy": chain.policy,
        "host": chain.host,
        "origin": origin.stored(folder) if origin else None,
        "inputs": [{"name": i.name, "dtype": i.dtype, "shape": i.shape} for i in chain.inputs],
        "bound": {name: [x.dtype.name, list(x.shape), x.item()] for name, x in chain.bound.items()},
        "outputs": [_output(chain, name) for name in chain.outputs],
        "pieces": pieces,
        "unsplit_peak_bytes": None if chain.unsplit_peak_bytes is None else dict(chain.unsplit_peak_bytes),
        "log": list(chain.log),
        "sizes": chain.sizes,
    }
    (folder / MANIFEST).write_bytes(sealed(manifest))


def _told(file: str | None) -> str | None:
    """The name of a file, without where it lies on this machine."""
    return Path(file).name if file is not None and Path(file).is_absolute() else file


def is_own(folder: Path) -> bool:
    """Whether there is nothing in a folder but what `write_chain` writes."""
    return all(map(_is_own_file, folder.iterdir())) and _is_own_manifest(folder / MANIFEST)


def remove_folder(folder: Path) -> None:
    """Remove a compiled folder: the manifest first, so that nobody takes the rest for whole; other files stay."""
    with suppress(OSError):
        for file in sorted(folder.iterdir(), key=lambda each: each.name != MANIFEST):
            if _is_own_file(file):
                file.unlink(missing_ok=True)
        folder.rmdir()


def _is_own_file(path: Path) -> bool:
    return (path.name == MANIFEST or path.suffix in SUFFIXES.values()) and path.is_file()


def _is_own_manifest(path: Path) -> bool:
    """Whether it may be ours, damaged or of another version: programs of other kinds have files of this name."""
    try:
        return b'"pieces"' in path.read_bytes() if _size(path) <= MOST_MANIFEST_BYTES else False
    except OSError:
        return False


def sealed(manifest: Json) -> bytes:
    """The text of a manifest with its checksum as the last key."""
    text = json.dumps(manifest, indent=1, ensure_ascii=False).removesuffix("\n}").encode() + b",\n"
    return text + SEAL % hashlib.sha256(text).hexdigest().encode()


def read_manifest(folder: Path) -> Json:
    """The manifest of a compiled folder; UsageError where it is none of ours, or a byte of it has changed."""
    path = folder / MANIFEST
    data, text = _parsed(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise UsageError(
            f"{path}: error: not the manifest of a compiled folder, or of another version of Frustum"
        )
    version = data.get("format", 1)
    if version != FORMAT_VERSION:
        raise UsageError(f"{path}: error: has format version {version}; {_remedy(version)}")
    _check_seal(path, text)
    return data


def read_sealed(path: Path) -> Json:
    """What `sealed` made the text of; UsageError where a byte of it has changed."""
    data, text = _parsed(path)
    _check_seal(path, text)
    return dict(data)


def _parsed(path: Path) -> tuple[Any, bytes]:
    """What a manifest says, of whatever kind, and its text."""
    try:
        size = _size(path)
        if size > MOST_MANIFEST_BYTES:
            raise UsageError(f"{path}: error: damaged: {size} bytes long, more than any manifest")
        text = path.read_bytes()
        return read_json(text), text
    except FileNotFoundError as error:
        raise UsageError(f"{path.parent}: error: not a compiled folder: it has no {MANIFEST}") from error
    except OSError as error:
        raise UsageError(f"{path}: error: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: error: damaged: {error}") from error


def _check_seal(path: Path, text: bytes) -> None:
    rest = text[: -len(SEAL % bytes(DIGEST_LETTERS))]
    if text != rest + SEAL % hashlib.sha256(rest).hexdigest().encode():
        raise UsageError(f"{path}: error: damaged: its checksum does not match")


def _remedy(version: object) -> str:
    is_older = isinstance(version, int) and version < FORMAT_VERSION
    return "compile it again" if is_older else f"this Frustum reads version {FORMAT_VERSION}"


def open_chain(folder: Path, manifest: Json) -> Chain:
    """The chain of a compiled folder, all its files checked; UsageError naming the file that is wrong."""
    path = folder / MANIFEST
    try:
        chain = Chain(
            Path(str(manifest["model"])).stem,
            from_json(manifest["machine"]),
            str(manifest["policy"]),
            str(manifest["host"]),
            tuple(_read_input(each) for each in manifest["inputs"]),
            tuple(str(each["name"]) for each in manifest["outputs"]),
            tuple(_read_piece(folder, each) for each in manifest["pieces"]),
            str(manifest["model"]),
            _peaks(manifest["unsplit_peak_bytes"]),
            tuple(map(str, manifest["log"])),
            {str(key): str(value) for key, value in manifest.get("hashes", {}).items()},
            None if (file := manifest.get("target_file")) is None else str(file),
            {str(name): _bound(*each) for name, each in manifest.get("bound", {}).items()},
        )
    except FAILURES as error:
        words = (str(error).splitlines() or [""])[0]
        raise UsageError(f"{path}: error: damaged: {type(error).__name__} {words}") from error
    _check_order(path, chain)
    _check_shapes(path, chain)
    return chain


def _bound(dtype: str, shape: Sequence[int], number: float) -> np.ndarray:
    return np.full(tuple(shape), number, np.dtype(dtype))


def open_folder(folder: Path) -> tuple[Chain, Origin | None]:
    """The chain of a compiled folder, and where its model came from if the manifest tells."""
    manifest = read_manifest(folder)
    try:
        origin = manifest["origin"]
        found = Origin.read(origin, folder, str(manifest.get("hashes", {}).get("model", ""))) if origin else None
    except FAILURES as error:
        raise UsageError(f"{folder / MANIFEST}: error: damaged: {type(error).__name__} {error}") from error
    return open_chain(folder, manifest), found


def open_compiled(path: Path) -> tuple[Chain, Origin | None]:
    """The chain of a compiled folder, with its origin, or of one executable."""
    return open_folder(path) if path.is_dir() else (chain_of(open_file(path)), None)


def open_file(path: Path) -> Executable:
    """The executable in a file; UsageError for anything but an undamaged one."""
    try:
        with cannot_read(path):
            return open_executable(path)
    except ExecutableError as error:
        raise UsageError(f"{path}: error: {str(error).removeprefix(f'{path}: ')}") from error


def _write_piece(folder: Path, piece: Piece) -> Json:
    file = folder / f"{piece.name}{SUFFIXES[piece.kind]}"
    if isinstance(piece, DevicePiece):
        write_executable(piece.executable, file)
        extra: Json = {"chip": piece.chip, "sha256": fingerprint(file)}
    else:
        file.write_bytes(piece.model.to_bytes())
        layers = [vars(each) for each in piece.fallbacks]
        extra = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "layers": layers}
    return {
        "name": piece.name,
        "kind": piece.kind,
        "file": file.name,
        "bytes": file.stat().st_size,
        "inputs": list(piece.inputs),
        "outputs": list(piece.outputs),
        **extra,
    }


def _output(chain: Chain, name: str) -> Json:
    """As the piece on the device that makes it has it; open where the host does."""
    for executable in chain.executables:
        for found in executable.manifest["outputs"]:
            if found["name"] == name:
                return {key: found[key] for key in ("name", "dtype", "shape")}
    return {"name": name, "dtype": None, "shape": None}


def _read_input(data: Mapping[str, Any]) -> Interface:
    shape, dtype = data["shape"], data["dtype"]
    if dtype not in ("", "object"):
        np.dtype(str(dtype))  # a TypeError where there is none of that name
    return Interface(str(data["name"]), str(dtype), None if shape is None else tuple(map(int, shape)))


def _read_piece(folder: Path, data: Mapping[str, Any]) -> Piece:
    name, file, kind = str(data["name"]), str(data["file"]), data["kind"]
    if Path(file).name != file:
        raise ValueError(f"'{file}' is not the name of a file in this folder")
    if kind not in SUFFIXES:
        raise ValueError(f"a piece of kind {kind!r}: device and host are known")
    path = folder / file
    with cannot_read(path):
        is_right = _size(path) == data["bytes"] and (kind == "device" or _digest(path) == data["sha256"])
    if not is_right:
        raise UsageError(f"{path}: error: damaged: it is not the file that {MANIFEST} lists")
    piece = _device_piece(path, name, data) if kind == "device" else _host_piece(path, name, data)
    if [*piece.inputs] != data["inputs"] or [*piece.outputs] != data["outputs"]:
        raise UsageError(f"{path}: error: damaged: its inputs and outputs are not those that {MANIFEST} lists")
    return piece


def _device_piece(path: Path, name: str, data: Mapping[str, Any]) -> DevicePiece:
    executable = open_file(path)
    if fingerprint(path) != data["sha256"]:
        raise UsageError(f"{path}: error: damaged: it is not the file that {MANIFEST} lists")
    return DevicePiece(name, executable, int(data["chip"]))


def _host_piece(path: Path, name: str, data: Mapping[str, Any]) -> HostPiece:
    from frustum.runtime.host.host_model import HostModel

    layers = tuple(
        HostedLayer(str(e["name"]), str(e["op"]), str(e["reason"]), _count(e.get("macs", 0)), _count(e.get("bytes", 0)))
        for e in data["layers"]
    )
    return HostPiece(name, HostModel.from_bytes(path.read_bytes(), str(path)), layers)


def _count(number: Any) -> int:
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"found {number!r} where a layer of the host says what it does")
    return number


def _size(path: Path) -> int:
    """Of a regular file, in bytes; OSError for anything else."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    return status.st_size


def _digest(path: Path) -> str:
    """SHA-256 of the contents, in hexadecimal."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def _peaks(data: Mapping[str, Any] | None) -> dict[str, int] | None:
    return None if data is None else {name: int(data[name]) for name in ("sram", "nram", "wram")}


def _check_shapes(path: Path, chain: Chain) -> None:
    """An input has the shape with which the pieces take it; where they leave it open, one that the machine can hold."""
    known: dict[str, tuple[int, ...]] = {}
    for piece in chain.pieces:
        if isinstance(piece, DevicePiece):
            known |= {each.name: each.shape for each in piece.executable.program.externals_of("input")}
        else:
            known |= piece.model.shapes
    for each in chain.inputs:
        if each.shape is None:
            continue
        most = chain.target.chip.dram.capacity_bytes
        is_possible = min(each.shape, default=0) >= 0 and prod(filter(None, each.shape)) <= most
        if each.shape != known.get(each.name, each.shape) or not is_possible:
            raise UsageError(f"{path}: error: damaged: input '{each.name}' has another shape where it is taken")


def _check_order(path: Path, chain: Chain) -> None:
    """Every piece reads what is there before it, on a machine and chip that there is."""
    for piece in chain.pieces:
        if isinstance(piece, DevicePiece):
            if from_json(piece.executable.manifest["target"]) != chain.target:
                raise UsageError(f"{path}: error: damaged: piece '{piece.name}' is made for another machine")
            if not 0 <= piece.chip < chain.target.chips:
                raise UsageError(f"{path}: error: damaged: piece '{piece.name}' is on chip {piece.chip}")
    known = {each.name for each in chain.inputs}
    for piece in chain.pieces:
        missing = [name for name in piece.inputs if name not in known]
        if missing:
            raise UsageError(f"{path}: error: damaged: piece '{piece.name}' reads '{missing[0]}', which nothing gives")
        known.update(piece.outputs)
    missing = [name for name in chain.outputs if name not in known]
    if missing:
        raise UsageError(f"{path}: error: damaged: no piece gives the output '{missing[0]}'")
