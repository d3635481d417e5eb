"""Effect of the matrix unit: convolution, and with it every matrix product."""

from __future__ import annotations

import numpy as np

from frustum.dialects.isa.program import Conv
from frustum.runtime.effects import Work, effect, store
from frustum.runtime.kernels import Array, conv, unary

IN, WEIGHT, BIAS, ACC, OUT = range(5)


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
        stride = instruction.bias_view.strides[1]
        result += work.view(BIAS, instruction.bias_view, (1, work.extent[1], 1, 1), (0, stride, 0, 0))
    if instruction.act is not None:
        result = unary(instruction.act.kind, result, instruction.act.alpha, instruction.act.beta)
    store(work.view(OUT, instruction.out_view, work.extent), result)


def _products(instruction: Conv, work: Work) -> Array:
    """`[units..., n, co, h, w]` in f32."""
    outputs = work.extent[1]
    groups = groups_of(instruction, outputs)
    channels, kernel = work.read[1], instruction.kernel
    if channels == 0:
        return np.zeros(work.view(OUT, instruction.out_view, work.extent).shape, np.float32)
    weight = work.view(
        WEIGHT, instruction.weight_view, (1, outputs, channels, *kernel), (0, *instruction.weight_view.strides)
    )
    pads = (work.low[2], work.low[3], work.high[2], work.high[3])
    return conv(
        _input(instruction, work, groups), weight, strides=instruction.strides, pads=pads,
        dilations=instruction.dilations, groups=groups,
    )  # fmt: skip


def groups_of(instruction: Conv, outputs: int) -> int:
    """How many groups a clipped box still has."""
    per_group = instruction.box.extent[1] // instruction.groups
    assert instruction.groups == 1 or outputs % per_group == 0, "groups are cut whole"
    return 1 if instruction.groups == 1 else outputs // per_group


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
