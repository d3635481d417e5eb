# Tests: test/runtime/device/test_effects.py
"""Effects of the vector unit: everything between maps that is not a matrix product."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frustum.dialects.isa import program as p
from frustum.runtime import kernels
from frustum.runtime.device.effects import Call, effect, store
from frustum.runtime.kernels import Array, integer, unary, widen

IN, OUT = 0, 1
A, B, BINARY_OUT = 0, 1, 2
SCALE, SHIFT, NORMALISED = 1, 2, 3
RANK = 4
Written = p.Pool | p.Unary | p.Binary | p.Softmax | p.Lrn | p.Resize
"""What writes its whole box at once."""


@effect.register
def pool(instruction: p.Pool, work: Call) -> None:
    """Largest element or mean of each window; what lies beyond `pad_high` never counts in a mean."""
    source = real(work, IN, instruction.in_view, work.read, instruction.scales)
    (top, left), (bottom, right) = work.low[2:], work.high[2:]
    counted = min(bottom, instruction.pad_high[0]), min(right, instruction.pad_high[1])
    windows = {
        "strides": instruction.strides, "dilations": instruction.dilations, "pads": (top, left, *counted),
        "ceil_pads": (bottom - counted[0], right - counted[1]),
    }  # fmt: skip
    if instruction.kind == "max":
        result = kernels.max_pool(source, instruction.kernel, **windows)
    else:
        include_pad = instruction.include_pad
        result = kernels.average_pool(source, instruction.kernel, count_include_pad=include_pad, **windows)
    _put(work, instruction, acted(instruction.act, result))


@effect.register
def of_each(instruction: p.Unary, work: Call) -> None:
    source = real(work, IN, instruction.in_view, work.extent, instruction.scales)
    result = unary(instruction.kind, source, instruction.alpha, instruction.beta)
    _put(work, instruction, result)


@effect.register
def of_pairs(instruction: p.Binary, work: Call) -> None:
    a = real(work, A, instruction.a_view, work.extent, instruction.scales)
    b = real(work, B, instruction.b_view, work.extent, instruction.scales)
    _put(work, instruction, acted(instruction.act, kernels.binary(instruction.kind, a, b)), BINARY_OUT)


@effect.register
def normalise(instruction: p.Softmax, work: Call) -> None:
    source = real(work, IN, instruction.in_view, work.extent, instruction.scales)
    result = kernels.softmax(source, instruction.axis - RANK)
    _put(work, instruction, result)


@effect.register
def hide_later(instruction: p.Hide, work: Call) -> None:
    """Positions are those of the map, the same for all units of the call."""
    source = widen(work.view(IN, instruction.in_view, work.extent))
    (_, later, _, own), (_, count, _, rows) = work.lower, work.extent
    ahead = (later + np.arange(count))[:, np.newaxis, np.newaxis] - (own + np.arange(rows))
    store(work.view(OUT, instruction.out_view, work.extent), np.where(ahead > instruction.ahead, -np.inf, source))


@effect.register
def by_deviation(instruction: p.Normalise, work: Call) -> None:
    """Operands are in, scale, shift, out; the box is clipped by whole groups."""
    source = work.view(IN, instruction.in_view, work.extent)
    result = kernels.normalise(
        source, instruction.axes, instruction.epsilon, group=instruction.group, rms=instruction.rms
    )
    for slot, view in ((SCALE, instruction.scale_view), (SHIFT, instruction.shift_view)):
        if view is not None:
            operand = widen(work.view(slot, view, work.extent))
            result = result * operand if slot == SCALE else result + operand
    store(work.view(NORMALISED, instruction.out_view, work.extent), acted(instruction.act, result))


@effect.register
def fold(instruction: p.Reduce, work: Call) -> None:
    """Sum, maximum or minimum over axes; a mean is a sum scaled in the last pass."""
    kind = "sum" if instruction.kind == "mean" else instruction.kind
    axes = tuple(axis - RANK for axis in instruction.axes)
    result = kernels.reduce(kind, real(work, IN, instruction.in_view, work.extent, instruction.scales), axes)
    target = work.view(OUT, instruction.out_view, result.shape[-RANK:])
    if not work.is_first:
        combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[kind]
        result = combine(result, widen(target))
    if work.is_last and instruction.scale != 1:
        result = result * np.float32(instruction.scale)
    store_real(target, result, instruction.scales)


@effect.register
def local_response(instruction: p.Lrn, work: Call) -> None:
    """The neighbours at hand include all that the outputs need, so that the outputs are a part of the result."""
    source = real(work, IN, instruction.in_view, work.read, instruction.scales)
    result = kernels.lrn(source, instruction.size, instruction.alpha, instruction.beta, instruction.bias)
    first = work.lower[1] - work.origin[1]
    part = result[..., first : first + work.extent[1], :, :]
    _put(work, instruction, part)


@effect.register
def rescale(instruction: p.Resize, work: Call) -> None:
    source = real(work, IN, instruction.in_view, work.read, instruction.scales)
    spans, first, origin = (instruction.rows, instruction.cols), work.lower[2:], work.origin[2:]
    facts = zip(instruction.scale, instruction.offset, (span.bound for span in spans), first, origin, strict=True)
    rows, columns = (kernels.ResizedAxis(*each) for each in facts)
    size = work.extent[2], work.extent[3]
    result = kernels.resize(source, size, (rows, columns), mode=instruction.mode, rounding=instruction.rounding)
    _put(work, instruction, result)


def real(work: Call, slot: int, view: p.View, shape: Sequence[int], scales: p.Scales | None) -> Array:
    """An operand as the numbers it stands for; integers without scales, which are only chosen among, as they are."""
    source = work.view(slot, view, shape)
    if source.dtype.kind != "i":
        return source
    if scales is None:
        return source.astype(np.float32)
    return integer.dequantize(source, scales[slot].scale, scales[slot].zero)


def _put(work: Call, instruction: Written, result: Array, slot: int = OUT) -> None:
    """Write the numbers of the whole box."""
    store_real(work.view(slot, instruction.out_view, work.extent), result, instruction.scales)


def store_real(target: Array, result: Array, scales: p.Scales | None) -> None:
    """Write numbers, rounded to the type of the target or as the integers that stand for them."""
    if scales is None or target.dtype.kind != "i":
        store(target, result)
        return
    target[...] = integer.quantize(result, scales[-1].scale, scales[-1].zero, target.dtype)


def acted(act: p.Act | None, result: Array) -> Array:
    """What an activation on the way out makes of a result."""
    return result if act is None else unary(act.kind, result, act.alpha, act.beta)
