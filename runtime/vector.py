"""Effects of the vector unit: everything between maps that is not a matrix product."""

from __future__ import annotations

import numpy as np

from frustum.dialects.isa.program import Act, Binary, Lrn, Pool, Reduce, Resize, Softmax, Unary
from frustum.runtime.effects import Work, effect, store
from frustum.runtime.kernels import (
    Array,
    Axis,
    average_pool,
    binary,
    lrn,
    max_pool,
    reduce,
    resize,
    softmax,
    unary,
    widen,
)

IN, OUT = 0, 1
A, B, BINARY_OUT = 0, 1, 2
RANK = 4


@effect.register
def pool(instruction: Pool, work: Work) -> None:
    """Largest element or mean of each window; what lies beyond `pad_high` never counts in a mean."""
    source = work.view(IN, instruction.in_view, work.read)
    (top, left), (bottom, right) = work.low[2:], work.high[2:]
    if instruction.kind == "max":
        result = max_pool(
            source, instruction.kernel, strides=instruction.strides, pads=(top, left, bottom, right),
            dilations=instruction.dilations,
        )  # fmt: skip
    else:
        counted = min(bottom, instruction.pad_high[0]), min(right, instruction.pad_high[1])
        result = average_pool(
            source, instruction.kernel, strides=instruction.strides, pads=(top, left, *counted),
            dilations=instruction.dilations, ceil_pads=(bottom - counted[0], right - counted[1]),
            count_include_pad=instruction.include_pad,
        )  # fmt: skip
    store(work.view(OUT, instruction.out_view, work.extent), _acted(instruction.act, result))


@effect.register
def of_each(instruction: Unary, work: Work) -> None:
    source = work.view(IN, instruction.in_view, work.extent)
    result = unary(instruction.kind, source, instruction.alpha, instruction.beta)
    store(work.view(OUT, instruction.out_view, work.extent), result)


@effect.register
def of_pairs(instruction: Binary, work: Work) -> None:
    a = work.view(A, instruction.a_view, work.extent)
    b = work.view(B, instruction.b_view, work.extent)
    result = _acted(instruction.act, binary(instruction.kind, a, b))
    store(work.view(BINARY_OUT, instruction.out_view, work.extent), result)


@effect.register
def normalise(instruction: Softmax, work: Work) -> None:
    result = softmax(work.view(IN, instruction.in_view, work.extent), instruction.axis - RANK)
    store(work.view(OUT, instruction.out_view, work.extent), result)


@effect.register
def fold(instruction: Reduce, work: Work) -> None:
    """Sum, maximum or minimum over axes; a mean is a sum scaled in the last pass."""
    kind = "sum" if instruction.kind == "mean" else instruction.kind
    axes = tuple(axis - RANK for axis in instruction.axes)
    result = reduce(kind, work.view(IN, instruction.in_view, work.extent), axes)
    target = work.view(OUT, instruction.out_view, result.shape[-RANK:])
    if not work.is_first:
        combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[kind]
        result = combine(result, widen(target))
    if work.is_last and instruction.scale != 1:
        result = result * np.float32(instruction.scale)
    store(target, result)


@effect.register
def local_response(instruction: Lrn, work: Work) -> None:
    """The neighbours at hand include all that the outputs need, so that the outputs are a part of the result."""
    source = work.view(IN, instruction.in_view, work.read)
    result = lrn(source, instruction.size, instruction.alpha, instruction.beta, instruction.bias)
    first = work.lower[1] - work.origin[1]
    part = result[..., first : first + work.extent[1], :, :]
    store(work.view(OUT, instruction.out_view, work.extent), part)


@effect.register
def rescale(instruction: Resize, work: Work) -> None:
    source = work.view(IN, instruction.in_view, work.read)
    rows, columns = (
        Axis(instruction.scale[d - 2], instruction.offset[d - 2], span.bound, work.lower[d], work.origin[d])
        for d, span in ((2, instruction.rows), (3, instruction.cols))
    )
    size = (work.extent[2], work.extent[3])
    result = resize(source, size, (rows, columns), mode=instruction.mode, rounding=instruction.rounding)
    store(work.view(OUT, instruction.out_view, work.extent), result)


def _acted(act: Act | None, result: Array) -> Array:
    return result if act is None else unary(act.kind, result, act.alpha, act.beta)
