"""Inputs of a run: from a file, or at random."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from frustum.dialects.isa.program import External
from frustum.runtime.failures import UsageError
from frustum.runtime.kernels import BFLOAT16, Array, narrow
from frustum.runtime.memory import host_type
from frustum.runtime.random_arrays import random_array

TWO_BYTES = np.dtype("V2")
"""What numpy makes of bf16 numbers in a file: it does not know the type."""


def read_inputs(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name; UsageError where it is none."""
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise UsageError(f"{path}: error: not an .npz file of arrays by input name, or not all of it")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise UsageError(f"{path}: error: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = "it holds Python objects" if "allow_pickle" in str(error) else f"damaged: {error}"
        raise UsageError(f"{path}: error: not an .npz file of arrays by input name: {reason}") from error


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
