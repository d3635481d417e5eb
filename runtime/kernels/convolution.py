# Tests: test/runtime/kernels/test_kernels.py
"""Matrix products, and convolution as matrix products of windows.

Of a convolution groups become a leading axis, so that a grouped convolution is many plain ones.  A plain one copies its
windows into columns (im2col) and multiplies them, a band of output rows at a time.  Measured on two cores
(AVX2 OpenBLAS): 65 to 100 GMAC/s for 3x3x64x64 at 56x56 and 7x7x3x64 at 112x112; per tap 20 to 90.
Depthwise ones of stride 1 copy whole maps per tap instead of rows: 1.5 times as fast on maps of 14x14.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np

from frustum.runtime.kernels.maps import NO_PADS, Array, Pads, Pair, output_size, padded, widen, windows

T = TypeVar("T")
COLUMNS_BYTES = 8 << 20
"""Most bytes of columns a plain convolution copies at once: they stay in the last-level cache."""
DEPTHWISE_COLUMNS_BYTES = 1 << 20
"""The same for a depthwise one, which reads each column only once: they stay in the second-level cache."""
OPENBLAS_NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads")
"""What OpenBLAS calls its functions in the wheels of numpy, newest first; {} is `get` or `set`."""


def conv(
    x: Array, w: Array, *, strides: Pair = (1, 1), pads: Pads = NO_PADS, dilations: Pair = (1, 1),
    groups: int = 1,
) -> Array:  # fmt: skip
    """Convolution `[..., M, OH, OW]` of `x` `[..., C, H, W]` with `w` `[M, C/groups, KH, KW]`.

    Leading axes of `w` broadcast against those of `x`: one set of weights for each core is `[cores, M, ...]`.
    """
    x, w = padded(x, pads), widen(w)
    channels, height, width = x.shape[-3:]
    out_channels, group_channels, *kernel = w.shape[-4:]
    assert channels == group_channels * groups and out_channels % groups == 0, (x.shape, w.shape, groups)
    size = output_size((height, width), (kernel[0], kernel[1]), strides, dilations)
    if groups == 1:
        return _plain(x, w, strides, dilations, size)
    x = x.reshape(*x.shape[:-3], groups, group_channels, height, width)
    w = w.reshape(*w.shape[:-4], groups, out_channels // groups, group_channels, *kernel)
    if group_channels == 1 and strides == (1, 1):
        result = _depthwise(x[..., 0, :, :], w[..., 0, :, :], dilations, size)
    else:
        result = _plain(x, w, strides, dilations, size)
    return result.reshape(*result.shape[:-4], out_channels, *size)


def _plain(x: Array, w: Array, strides: Pair, dilations: Pair, size: Pair) -> Array:
    """`[..., M, OH, OW]` of padded `x` `[..., C, H, W]` and `w` `[..., M, C, KH, KW]`."""
    rows = w.reshape(*w.shape[:-3], -1)  # ..., m, c*kh*kw
    if w.shape[-2:] == (1, 1) and strides == (1, 1):
        product = np.matmul(rows, x.reshape(*x.shape[:-2], -1))
        return product.reshape(*product.shape[:-1], *size)
    lead = np.broadcast_shapes(x.shape[:-3], w.shape[:-4])
    seen = windows(x, w.shape[-2:], strides, dilations, size)
    result = np.empty((*lead, w.shape[-4], *size), np.result_type(x, w))
    _multiply(
        np.broadcast_to(rows, (*lead, *rows.shape[-2:])),
        np.broadcast_to(seen, (*lead, *seen.shape[-5:])),
        result.reshape(*lead, w.shape[-4], size[0] * size[1]),
    )
    return result


def _multiply(rows: Array, seen: Array, result: Array) -> None:
    """Write `rows` `[..., M, K]` times columns of `seen` `[..., C, KH, KW, OH, OW]` to `[..., M, OH*OW]`."""
    *lead, _, terms = rows.shape
    height, width = seen.shape[-2:]
    row_bytes = prod(lead) * terms * width * seen.itemsize
    if lead and row_bytes * height > COLUMNS_BYTES:
        for part in zip(rows, seen, result, strict=True):
            _multiply(*part)
        return
    band = max(1, COLUMNS_BYTES // row_bytes)
    for start in range(0, height, band):
        stop = min(start + band, height)
        columns = np.ascontiguousarray(seen[..., start:stop, :])
        columns = columns.reshape(*lead, terms, (stop - start) * width)
        np.matmul(rows, columns, out=result[..., start * width : stop * width])


def _depthwise(x: Array, w: Array, dilations: Pair, size: Pair) -> Array:
    """`[..., G, M/G, OH, OW]` of padded `x` `[..., G, H, W]` and `w` `[..., G, M/G, KH, KW]` with stride 1.

    In a map flattened to H*W elements every tap is a shift, so a column is one run; what it has too many
    (the last W - OW elements of each row) is dropped at the end.
    """
    *lead, groups, height, width = x.shape
    kernel_h, kernel_w = w.shape[-2:]
    shifts = [i * dilations[0] * width + j * dilations[1] for i in range(kernel_h) for j in range(kernel_w)]
    run, length = (size[0] - 1) * width + size[1], size[0] * width
    flat = x.reshape(*lead, groups, height * width)
    rows = w.reshape(*w.shape[:-2], -1)  # ..., g, m/g, kh*kw
    result = np.empty((*np.broadcast_shapes((*lead, groups), w.shape[:-3]), w.shape[-3], *size), rows.dtype)
    block = max(1, DEPTHWISE_COLUMNS_BYTES // (prod(lead) * len(shifts) * length * x.itemsize))
    for start in range(0, groups, block):
        part = slice(start, min(start + block, groups))
        columns = np.zeros((*lead, part.stop - start, len(shifts), length), x.dtype)
        for index, shift in enumerate(shifts):
            columns[..., index, :run] = flat[..., part, shift : shift + run]
        product = np.matmul(rows[..., part, :, :], columns)
        result[..., part, :, :, :] = product.reshape(*product.shape[:-1], size[0], width)[..., : size[1]]
    return result


def matmul(a: Array, b: Array, *, trans_a: bool = False, trans_b: bool = False) -> Array:
    """`[..., M, N]` of `a` `[..., M, K]` and `b` `[..., K, N]` (transposed: `[..., K, M]`, `[..., N, K]`)."""
    a, b = widen(a), widen(b)
    with np.errstate(all="ignore"):
        return np.matmul(a.swapaxes(-1, -2) if trans_a else a, b.swapaxes(-1, -2) if trans_b else b)


# --- threads ---------------------------------------------------------------------------------------------
# Products of tiles are too small to share: on two cores OpenBLAS with two threads took 1.2 to 5 s where one took 0.3 s
# (ResNet-50 on `default`, other work on the machine), because its threads wait for each other spinning.


def in_two(other: Executor, work: Callable[[T], None], first: T, second: T) -> None:
    """Both halves of a work, the first on another thread, which does not inherit that overflows are no errors here."""

    def quietly() -> None:
        with np.errstate(all="ignore"):
            work(first)

    future = other.submit(quietly)
    work(second)
    future.result()


@contextmanager
def single_threaded() -> Iterator[None]:
    """Products take one thread inside.  Does nothing where numpy brings no OpenBLAS of its own."""
    found = _functions()
    if found is None:
        yield
        return
    get, put = found
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's own functions to ask for and to set the number of threads."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            library = ctypes.CDLL(str(path))
            for name in OPENBLAS_NAMES:
                if hasattr(library, name.format("set")):
                    return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None
