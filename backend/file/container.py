# Tests: test/backend/file/test_executable.py
"""A file of named sections, each with its length and SHA-256; nothing of it is used before all of that is verified.

    header    magic, version, number of sections, length of the file, SHA-256 of all that and the table (64 bytes)
    table     name, offset, length, SHA-256 of each section (64 bytes each)
    sections  each begins at a multiple of its alignment

Numbers are little endian.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from frustum.dialects.errors import Error

MAGIC = b"\x89FRU\r\n\x1a\n"  # not text; shows a transfer that changed line ends
VERSION = 2
"""2: address tables are what convolutions are computed from, and have heads with a checksum."""
HEADER = struct.Struct("<8sIIQ8x32s")
ENTRY = struct.Struct("<16sQQ32s")
ALIGNMENT_BYTES = 64
MOST_ALIGNMENT_BYTES = 4096
"""Sections are aligned to no more than this."""
MOST_SECTIONS = 64
CHUNK_BYTES = 1 << 20

Piece: TypeAlias = bytes | memoryview


class ExecutableError(Error, ValueError):
    """The file is no executable of ours, or is damaged; the message names the file and what is wrong."""


class WriteError(OSError):
    """The file could not be written; nothing of it was left behind."""

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True)
class Section:
    """What to write: pieces of bytes, one after the other."""

    name: str
    pieces: Iterable[Piece]
    alignment: int = ALIGNMENT_BYTES


@dataclass(frozen=True)
class Stored:
    """Where a section lies in a file."""

    offset: int
    length: int
    sha256: bytes


def write_container(path: Path, sections: Sequence[Section]) -> None:
    """Write the file as a whole or not at all; WriteError (an OSError) where that is impossible."""
    if not path.name:
        raise WriteError(errno.EISDIR, f"cannot write {path}: not the name of a file")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with open(part, "xb") as file:
                _write(file, sections)
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise WriteError(error.errno, f"cannot write {path}: {reason}") from error


def container_bytes(sections: Iterable[tuple[int, int]]) -> int:
    """Length of the file that holds sections of these (length, alignment)."""
    sections = list(sections)
    position = HEADER.size + ENTRY.size * len(sections)
    for length, alignment in sections:
        position += -position % alignment + length
    return position


def read_container(path: Path, names: Sequence[str]) -> dict[str, Stored]:
    """Verify the file and tell where its sections lie: exactly those in `names`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            raise ExecutableError(f"{path}: not an executable of Frustum: no regular file")
        with open(path, "rb") as file:
            return _read(file, path, names)
    except IsADirectoryError:
        raise ExecutableError(f"{path}: not an executable of Frustum: a directory") from None


def read_section(path: Path, stored: Stored) -> bytes:
    """The bytes of a small section."""
    with open(path, "rb") as file:
        file.seek(stored.offset)
        return file.read(stored.length)


# ------------------------------------------------------------------------------------------ writing


def _write(file: BinaryIO, sections: Sequence[Section]) -> None:
    position = HEADER.size + ENTRY.size * len(sections)
    file.write(bytes(position))
    table = b""
    for section in sections:
        padding = -position % section.alignment
        file.write(bytes(padding))
        offset = position + padding
        length, digest = _write_pieces(file, section.pieces)
        table += ENTRY.pack(section.name.encode(), offset, length, digest)
        position = offset + length
    file.seek(0)
    file.write(_header(len(sections), position, table) + table)


def _write_pieces(file: BinaryIO, pieces: Iterable[Piece]) -> tuple[int, bytes]:
    digest, length = hashlib.sha256(), 0
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), CHUNK_BYTES):  # small enough to be hashed from the cache
            chunk = view[start : start + CHUNK_BYTES]
            digest.update(chunk)
            file.write(chunk)
        length += len(view)
    return length, digest.digest()


def _header(count: int, length: int, table: bytes) -> bytes:
    start = HEADER.pack(MAGIC, VERSION, count, length, bytes(32))
    return HEADER.pack(MAGIC, VERSION, count, length, hashlib.sha256(start + table).digest())


# ------------------------------------------------------------------------------------------ reading


def _read(file: BinaryIO, path: Path, names: Sequence[str]) -> dict[str, Stored]:
    size = os.fstat(file.fileno()).st_size
    header = file.read(HEADER.size)
    if header[: len(MAGIC)] != MAGIC:
        raise ExecutableError(f"{path}: not an executable of Frustum")
    if len(header) < HEADER.size:
        raise ExecutableError(f"{path}: damaged: the header is cut off")
    _, version, count, length, _ = HEADER.unpack(header)
    if version < VERSION:
        raise ExecutableError(f"{path}: has format version {version}; compile it again")
    if version != VERSION:
        raise ExecutableError(f"{path}: has format version {version}; this Frustum reads version {VERSION}")
    if length != size:
        raise ExecutableError(f"{path}: damaged: {size} bytes long, but should be {length}")
    if count > MOST_SECTIONS:
        raise ExecutableError(f"{path}: damaged: {count} sections")
    table = file.read(ENTRY.size * count)
    if header != _header(count, length, table):
        raise ExecutableError(f"{path}: damaged: the checksum of the header does not match")
    found = _verified(file, path, _entries(table, path, size, names))
    _check_gaps(file, path, found.values(), size)
    return found


def _check_gaps(file: BinaryIO, path: Path, sections: Iterable[Stored], size: int) -> None:
    """Between the sections there is nothing but the zeros that align them: no byte of the file is unaccounted for."""
    position = HEADER.size + ENTRY.size * len(found := sorted(sections, key=lambda each: each.offset))
    for stored in found:
        gap = stored.offset - position
        file.seek(position)
        if not 0 <= gap < MOST_ALIGNMENT_BYTES or any(file.read(gap)):
            raise ExecutableError(f"{path}: damaged: {gap} bytes before offset {stored.offset} that are no padding")
        position = stored.offset + stored.length
    if position != size:
        raise ExecutableError(f"{path}: damaged: {size - position} bytes behind the last section")


def _entries(table: bytes, path: Path, size: int, names: Sequence[str]) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    for name, offset, length, digest in ENTRY.iter_unpack(table):
        text = name.rstrip(b"\0").decode(errors="replace")
        if offset + length > size or text in found:
            raise ExecutableError(f"{path}: damaged: section '{text}' is not inside the file or is there twice")
        found[text] = Stored(offset, length, digest)
    if sorted(found) != sorted(names):
        have, want = ", ".join(found) or "none", ", ".join(names)
        raise ExecutableError(f"{path}: damaged: has sections {have} instead of {want}")
    return found


def _verified(file: BinaryIO, path: Path, sections: dict[str, Stored]) -> dict[str, Stored]:
    for name, stored in sections.items():
        digest, left = hashlib.sha256(), stored.length
        file.seek(stored.offset)
        while left:
            chunk = file.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise ExecutableError(f"{path}: damaged: section '{name}' is cut off")
            digest.update(chunk)
            left -= len(chunk)
        if digest.digest() != stored.sha256:
            raise ExecutableError(f"{path}: damaged: the checksum of section '{name}' does not match")
    return sections
