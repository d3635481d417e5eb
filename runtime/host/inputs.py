# Tests: test/runtime/tools/test_cli_errors.py
"""Inputs of a run: what a network takes, from a file or at random."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
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
