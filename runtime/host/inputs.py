# Tests: test/runtime/tools/test_cli_errors.py
"""Inputs of a run: what a network takes, from a file or at random."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
from numpy.lib import format as npy

from frustum.dialects.isa.program import Element, External
from frustum.runtime.device.memory import DTYPES, host_type
from frustum.runtime.failures import UsageError
from frustum.runtime.kernels import BFLOAT16, Array, narrow

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

HostArray: TypeAlias = Any
"""An array; a list is a sequence, None an absent optional, a dictionary a map."""
SMALL_INTEGERS = 8
"""Random integers are below this."""
TWO_BYTES = np.dtype("V2")
"""What numpy makes of bf16 numbers in a file: it does not know the type."""
OBJECTS = "it holds Python objects"
MOST_HEADER_BYTES = 10_000
"""As numpy has it."""
MOST_EXPANSION = 1032
"""Bytes that one of a deflated stream can stand for."""
DAMAGE = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, SyntaxError, RuntimeError, struct.error, zlib.error,
    zipfile.BadZipFile,
)  # fmt: skip
"""What reading raises on an archive, or on the header of an array, that says what cannot be."""


@dataclass(frozen=True)
class ArchivedInputs:
    """The arrays of an .npz file, of which the headers alone are read: an array may be a thousand times its file."""

    path: Path
    stand_ins: Mapping[str, Array]
    """By input name arrays of the same types and shapes, which take no memory."""

    @classmethod
    def open(cls, path: Path) -> ArchivedInputs:
        """UsageError where it is no such file, or an array says that it has more than its part of the file can hold."""
        with _archive(path) as file:
            return cls(path, _stand_ins(file))

    def read(self) -> dict[str, Array]:
        """The arrays themselves."""
        with _archive(self.path) as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


def read_inputs(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name; UsageError where it is none, before memory is asked for on its word."""
    return ArchivedInputs.open(path).read()


@contextmanager
def _archive(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise UsageError(f"{path}: error: not an .npz file of arrays by input name, or not all of it")
            file.seek(0)
            yield file
    except OSError as error:
        raise UsageError(f"{path}: error: cannot be read: {error.strerror or error}") from error
    except DAMAGE as error:
        reason = OBJECTS if "allow_pickle" in str(error) or OBJECTS in str(error) else f"damaged: {error}"
        raise UsageError(f"{path}: error: not an .npz file of arrays by input name: {reason}") from error


def _stand_ins(file: BinaryIO) -> dict[str, Array]:
    """Of the arrays in an archive; ValueError where one says that it has more than its part can hold."""
    length = os.fstat(file.fileno()).st_size
    found: dict[str, Array] = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"'{member.filename}' is compressed in another way than numpy does")
            if member.file_size > min(member.compress_size, length) * MOST_EXPANSION:
                raise ValueError(f"'{member.filename}' cannot hold the {member.file_size:,} bytes that it says")
            with archive.open(member) as content:
                shape, dtype = _header(content, member.filename)
            needed = prod(shape) * dtype.itemsize
            if needed > member.file_size:
                says = f"says that it has {needed:,} bytes, it has {member.file_size:,}"
                raise ValueError(f"'{member.filename}' {says}")
            found[member.filename.removesuffix(".npy")] = np.broadcast_to(np.zeros((), dtype), shape)
    return found


def _header(content: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array in numpy's format."""
    start = content.read(len(npy.MAGIC_PREFIX) + 2)
    if not start.startswith(npy.MAGIC_PREFIX):
        raise ValueError(f"'{name}' is no array")
    known = {1: ("<H", npy.read_array_header_1_0), 2: ("<I", npy.read_array_header_2_0)}.get(start[-2])
    if known is None:
        raise ValueError(f"an array of format version {start[-2]}: 1 and 2 are read")
    form, read = known
    size = content.read(struct.calcsize(form))
    (length,) = struct.unpack(form, size)
    if length > MOST_HEADER_BYTES:
        raise ValueError(f"'{name}' has a header of {length:,} bytes: at most {MOST_HEADER_BYTES:,} are read")
    shape, _, dtype = read(io.BytesIO(size + content.read(length)))
    if min(shape, default=0) < 0:
        raise ValueError(f"an array has the shape {shape}")
    if dtype.hasobject:
        raise ValueError(OBJECTS)
    return shape, dtype


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


def network_inputs(module: ModuleOp) -> list[External] | None:
    """What a network takes, as far as a machine checks it; None for a module that has no network any more."""
    from xdsl.dialects.builtin import ArrayAttr, StringAttr

    from frustum.dialects import graph
    from frustum.dialects.module import MODEL_DTYPES
    from frustum.runtime.reference.layers import numpy_type

    network = next((op for op in module.walk() if isinstance(op, graph.NetworkOp)), None)
    if network is None:
        return None
    noted = network.attributes.get(MODEL_DTYPES)
    dtypes = [a.data for a in noted.data if isinstance(a, StringAttr)] if isinstance(noted, ArrayAttr) else []
    found = []
    for index, (name, value) in enumerate(zip(network.inputs, network.body.block.args, strict=True)):
        own = numpy_type(graph.tensor_of(value).element_type)
        element: Element | None = next((element for element, dtype in DTYPES.items() if dtype == own), None)
        if element is None:
            raise UsageError(
                f"error: input '{name}' has elements of {graph.tensor_of(value).element_type}, which no engine of the "
                f"device computes: allowed are {', '.join(DTYPES)}"
            )
        dtype = dtypes[index] if dtypes else ""
        found.append(External(name, "input", 0, 0, graph.shape_of(value), element, dtype))
    return found


def random_array(seed: int, index: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Input number `index`: floats evenly in [0, 1), as images are, integers in [0, `SMALL_INTEGERS`).

    With unit normal floats some trained networks amplify the rounding of f32 beyond any tolerance.
    """
    rng = np.random.default_rng([seed, index])
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype.kind == "b" else SMALL_INTEGERS, shape).astype(dtype)
    return narrow(rng.random(shape, np.float32), dtype)
