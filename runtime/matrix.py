"""Effect of the matrix unit: convolution, and with it every matrix product."""

from __future__ import annotations

import numpy as np

from frustum.dialects.isa.program import Conv, View
from frustum.runtime.effects import Work, effect, store
from frustum.runtime.form import groups_of
from frustum.runtime.kernels import Array, conv, integer, unary
from frustum.runtime.memory import DTYPES
from frustum.runtime.vector import store_real

IN, WEIGHT, BIAS, ACC, OUT, WEIGHT_ZERO, MULTIPLIER, RESIDUAL = range(8)


@effect.register
def convolve(instruction: Conv, work: Work) -> None:
    """Products into accumulators, which start at 0 or from `acc`; then the way out, or back to `acc`."""
    way_out(instruction, work, _products(instruction, work))


def way_out(instruction: Conv, work: Work, result: Array) -> None:
    """Add the products `[units..., n, co, h, w]` to the accumulators, and write what they are now."""
    if not work.is_first:
        assert instruction.acc_view is not None
        result += work.view(ACC, instruction.acc_view, work.extent)
    if not work.is_last:
        assert instruction.acc_view is not None
        store(work.view(ACC, instruction.acc_view, work.extent), result)
        return
    if instruction.bias_view is not None:
        result += _per_channel(work, BIAS, instruction.bias_view)
    target = work.view(OUT, instruction.out_view, work.extent)
    if instruction.multiplier_view is not None:
        _requantised(instruction, work, result, target)
        return
    if instruction.residual_view is not None:
        result += work.view(RESIDUAL, instruction.residual_view, work.extent)
    if instruction.act is not None:
        result = unary(instruction.act.kind, result, instruction.act.alpha, instruction.act.beta)
    store(target, result)


def _requantised(instruction: Conv, work: Work, acc: Array, target: Array) -> None:
    """Accumulators as integers of the result's type; a residual is added to the numbers that these stand for."""
    assert instruction.multiplier_view is not None
    multiplier = _per_channel(work, MULTIPLIER, instruction.multiplier_view)
    made = integer.requantise(acc, multiplier, instruction.out_zero, target.dtype)
    act = instruction.act
    if instruction.residual_view is None:
        target[...] = made if act is None else unary(act.kind, made.astype(np.float32), act.alpha, act.beta)
        return
    assert instruction.scales is not None
    first, own, _ = instruction.scales
    residual = work.view(RESIDUAL, instruction.residual_view, work.extent)
    total = integer.dequantize(made, first.scale, first.zero)
    total += integer.dequantize(residual, own.scale, own.zero)
    store_real(target, total if act is None else unary(act.kind, total, act.alpha, act.beta), instruction.scales)


def _per_channel(work: Work, slot: int, view: View) -> Array:
    """One number for each output channel of the box, to be broadcast."""
    return work.view(slot, view, (1, work.extent[1], 1, 1), (0, view.strides[1], 0, 0))


def _products(instruction: Conv, work: Work) -> Array:
    """`[units..., n, co, h, w]` in f32; of integers in i64."""
    outputs = work.extent[1]
    groups = groups_of(instruction, outputs)
    channels, kernel = work.read[1], instruction.kernel
    is_integer = DTYPES[instruction.in_view.element].kind == "i"
    if channels == 0:
        shape = work.view(OUT, instruction.out_view, work.extent).shape
        return np.zeros(shape, np.int64 if is_integer else np.float32)
    weight = work.view(
        WEIGHT, instruction.weight_view, (1, outputs, channels, *kernel), (0, *instruction.weight_view.strides)
    )
    pads = (work.low[2], work.low[3], work.high[2], work.high[3])
    if is_integer:
        view = instruction.weight_zero_view
        zeros = None if view is None else work.view(WEIGHT_ZERO, view, (1, outputs), (0, view.strides[1]))
        return integer.conv(
            _input(instruction, work, groups), weight, x_zero=instruction.in_zero, w_zero=zeros,
            strides=instruction.strides, pads=pads, dilations=instruction.dilations, groups=groups,
        )  # fmt: skip
    return conv(
        _input(instruction, work, groups), weight, strides=instruction.strides, pads=pads,
        dilations=instruction.dilations, groups=groups,
    )  # fmt: skip


def _input(instruction: Conv, work: Work, groups: int) -> Array:
    """`[units..., n, groups * channels, h, w]`, without the padding."""
    images, (channels, rows, columns) = work.extent[0], work.read[1:]
    view = instruction.in_view
    n, c, h, w = view.strides
    if groups == 1:
        return work.view(IN, view, (images, channels, rows, columns))
    shape = (images, groups, channels, rows, columns)
    parts = work.view(IN, view, shape, (n, c * instruction.channels.extent, c, h, w))
    return parts.reshape(*parts.shape[:-4], groups * channels, rows, columns)
