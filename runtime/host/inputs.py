"""Inputs of a run: from a file, or at random."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from numpy.lib import format as npy

from frustum.dialects.isa.program import External
from frustum.runtime.device.memory import host_type
from frustum.runtime.failures import UsageError
from frustum.runtime.host.random_arrays import random_array
from frustum.runtime.kernels import BFLOAT16, Array, narrow

TWO_BYTES = np.dtype("V2")
"""What numpy makes of bf16 numbers in a file: it does not know the type."""


MOST_EXPANSION = 1032
"""Bytes that one of a deflated stream can stand for."""
DAMAGE = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, SyntaxError, RuntimeError, struct.error, zlib.error,
    zipfile.BadZipFile,
)  # fmt: skip
"""What reading raises on an archive, or on the header of an array, that says what cannot be."""


def read_inputs(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name; UsageError where it is none, before memory is asked for on its word."""
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise UsageError(f"{path}: error: not an .npz file of arrays by input name, or not all of it")
            _check_sizes(file)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise UsageError(f"{path}: error: cannot be read: {error.strerror or error}") from error
    except DAMAGE as error:
        reason = "it holds Python objects" if "allow_pickle" in str(error) else f"damaged: {error}"
        raise UsageError(f"{path}: error: not an .npz file of arrays by input name: {reason}") from error


def _check_sizes(file: BinaryIO) -> None:
    """ValueError where an array says that it has more than its part of the archive can hold."""
    length = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"'{member.filename}' is compressed in another way than numpy does")
            if member.file_size > min(member.compress_size, length) * MOST_EXPANSION:
                raise ValueError(f"'{member.filename}' cannot hold the {member.file_size:,} bytes that it says")
            with archive.open(member) as content:
                needed = _needed_bytes(content)
                if needed > member.file_size:
                    found = f"says that it has {needed:,} bytes, it has {member.file_size:,}"
                    raise ValueError(f"'{member.filename}' {found}")


def _needed_bytes(content: IO[bytes]) -> int:
    """Of the elements of an array in numpy's format, as its header says; 0 for what is none."""
    start = content.read(len(npy.MAGIC_PREFIX) + 2)
    if not start.startswith(npy.MAGIC_PREFIX):
        return 0  # numpy gives its bytes
    read = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}.get(start[-2])
    if read is None:
        raise ValueError(f"an array of format version {start[-2]}: 1 and 2 are read")
    shape, _, dtype = read(content)
    if min(shape, default=0) < 0:
        raise ValueError(f"an array has the shape {shape}")
    return prod(shape) * dtype.itemsize


def random_inputs(expected: Sequence[External], seed: int) -> dict[str, Array]:
    """Inputs for a program in its types."""
    return {e.name: random_array(seed, index, e.shape, dtype_of(e)) for index, e in enumerate(expected)}


def in_types_of(expected: Sequence[External], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs; bf16 ones, which no .npz file can hold as such, may be two bytes each or f32."""
    found = dict(inputs)
    for external in expected:
        array = found.get(external.name)
        if array is None or dtype_of(external) != BFLOAT16:
            continue
        if array.dtype == TWO_BYTES:
            found[external.name] = array.view(BFLOAT16)
        elif array.dtype == np.float32:
            found[external.name] = narrow(array, BFLOAT16)
    return found


def dtype_of(external: External) -> np.dtype:
    """The type in which the host passes it."""
    return np.dtype(host_type(external).dtype)
