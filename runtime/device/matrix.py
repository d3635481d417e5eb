# Tests: test/runtime/device/test_addresses.py
"""Effect of convolutions: of the matrix unit, and with them every matrix product; depthwise ones of the vector unit."""

from __future__ import annotations

from typing import Any

import numpy as np

from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import ELEMENT_BYTES, INTEGER_BITS, Conv, Depthwise, View
from frustum.runtime.device.addresses import buffer_elements
from frustum.runtime.device.effects import Call, effect, store
from frustum.runtime.device.form import Ints, groups_of
from frustum.runtime.device.memory import DTYPES
from frustum.runtime.device.vector import acted, store_real
from frustum.runtime.kernels import Array, conv, integer, widen

IN, WEIGHT, BIAS, ACC, OUT, WEIGHT_ZERO, MULTIPLIER, RESIDUAL = range(8)
GATHERED_ELEMENTS = 1 << 22
"""At a time, so that few are held."""


@effect.register
def convolve(instruction: Conv, work: Call) -> None:
    """Products into accumulators, which start at 0 or from `acc`; then the way out, or back to `acc`."""
    is_strange = work.addresses is not None and work.addresses.strides is None
    way_out(instruction, work, gathered(instruction, work) if is_strange else _products(instruction, work))


def convolve_by_address(instruction: Conv, work: Call) -> None:
    """The same, found address by address wherever there is a table, though its entries be strides."""
    made = _products(instruction, work) if work.addresses is None else gathered(instruction, work)
    way_out(instruction, work, made)


@effect.register
def convolve_channels(instruction: Depthwise, work: Call) -> None:
    """Products of each channel by itself, then the way out of convolutions."""
    source = work.view(IN, instruction.in_view, work.read)
    finish(instruction, work, _sums(instruction, work, source, 1, work.extent[1]))


def way_out(instruction: Conv, work: Call, result: Array) -> None:
    """Add the products `[units..., n, co, h, w]` to the accumulators, and write what they are now."""
    if not work.is_first:
        assert instruction.acc_view is not None
        result += widen(work.view(ACC, instruction.acc_view, work.extent))
    if not work.is_last:
        assert instruction.acc_view is not None
        store(work.view(ACC, instruction.acc_view, work.extent), result)
        return
    finish(instruction, work, result)


def finish(instruction: Conv | Depthwise, work: Call, result: Array) -> None:
    """Write the result that the sums of all products `[units..., n, co, h, w]` make."""
    if instruction.bias_view is not None:
        result += _per_channel(work, BIAS, instruction.bias_view)
    target = work.view(OUT, instruction.out_view, work.extent)
    if instruction.multiplier_view is not None:
        _requantised(instruction, work, result, target)
        return
    if result.dtype.kind == "i" and instruction.out_view.element not in INTEGER_BITS:
        result = result.astype(np.float32, copy=False)
    if instruction.residual_view is not None:
        result += work.view(RESIDUAL, instruction.residual_view, work.extent)
    store(target, acted(instruction.act, result))


def _requantised(instruction: Conv | Depthwise, work: Call, acc: Array, target: Array) -> None:
    """Accumulators as integers of the result's type; a residual is added to the numbers that these stand for."""
    assert instruction.multiplier_view is not None
    multiplier = _per_channel(work, MULTIPLIER, instruction.multiplier_view)
    made = integer.requantise(acc, multiplier, instruction.out_zero, target.dtype)
    act = instruction.act
    if instruction.residual_view is None:
        target[...] = made if act is None else acted(act, made.astype(np.float32))
        return
    assert instruction.scales is not None
    first, own, _ = instruction.scales
    residual = work.view(RESIDUAL, instruction.residual_view, work.extent)
    total = integer.dequantize(made, first.scale, first.zero)
    total += integer.dequantize(residual, own.scale, own.zero)
    store_real(target, acted(act, total), instruction.scales)


def _per_channel(work: Call, slot: int, view: View) -> Array:
    """One number for each output channel of the box, to be broadcast."""
    return work.view(slot, view, (1, work.extent[1], 1, 1), (0, view.strides[1], 0, 0))


def _products(instruction: Conv, work: Call) -> Array:
    """`[units..., n, co, h, w]` in f32; of integers in i64."""
    outputs = work.extent[1]
    groups = groups_of(instruction, outputs)
    channels = work.read[1]
    if channels == 0:
        return _no_products(instruction, work)
    return _sums(instruction, work, _input(instruction, work, groups), channels, groups)


def _sums(instruction: Conv | Depthwise, work: Call, source: Array, channels: int, groups: int) -> Array:
    """The products with the weights of so many groups, each of so many input channels, of `source` without padding."""
    outputs, kernel = work.extent[1], instruction.kernel
    is_integer = DTYPES[instruction.in_view.element].kind == "i"
    weight = work.view(
        WEIGHT, instruction.weight_view, (1, outputs, channels, *kernel), (0, *instruction.weight_view.strides)
    )
    pads = (*work.low[2:], *work.high[2:])
    windows: dict[str, Any] = {
        "strides": instruction.strides, "pads": pads, "dilations": instruction.dilations, "groups": groups,
    }  # fmt: skip
    if not is_integer:
        return conv(source, weight, **windows)
    view = instruction.weight_zero_view
    zeros = None if view is None else work.view(WEIGHT_ZERO, view, (1, outputs), (0, view.strides[1]))
    return integer.conv(source, weight, x_zero=instruction.in_zero, w_zero=zeros, **windows)


def _no_products(instruction: Conv, work: Call) -> Array:
    """Sums of nothing."""
    shape = work.view(OUT, instruction.out_view, work.extent).shape
    is_integer = DTYPES[instruction.in_view.element].kind == "i"
    return np.zeros(shape, np.int64 if is_integer else np.float32)


def gathered(conv: Conv, work: Call) -> Array:
    """As `_products`, every element found at an address of the table; elements between rows that are neither map nor
    padding read as padding."""
    assert work.addresses is not None
    images, outputs, rows, columns = work.extent
    channels, groups = work.read[1], groups_of(conv, outputs)
    if channels == 0:
        return _no_products(conv, work)
    threads = work.addresses.threads(groups, images, rows, columns).reshape(groups, -1)
    rel = work.addresses.products(channels).reshape(-1)
    memory = _buffer(conv, work, groups)
    units, per_group = len(memory), outputs // groups
    weights = weights_of(conv, work).reshape(units, groups, per_group, len(rel)).swapaxes(2, 3)
    sums = np.zeros((units, groups, threads.shape[1], per_group), memory.dtype)
    most = max(1, GATHERED_ELEMENTS // (units * len(rel)))
    for group in range(groups):
        gather(memory, threads[group], rel, weights[:, group], sums[:, group], most)
    lead = work.view(OUT, conv.out_view, work.extent).shape[:-4]
    apart = sums.reshape(*lead, groups, images, rows, columns, per_group)
    made = np.moveaxis(apart, (-5, -1), (-4, -3))  # images, groups, outputs of each, rows, columns
    return accumulators(np.ascontiguousarray(made).reshape(*lead, images, outputs, rows, columns))


def _buffer(conv: Conv, work: Call, groups: int) -> Array:
    """`[units, elements]`, less their zero point: what the windows lie in, with 0 where they have padding."""
    view, size = conv.in_view, ELEMENT_BYTES[conv.in_view.element]
    n, c, h, w = view.strides
    steps = (n, c * conv.channels.extent, c, h, w)
    shape = (work.extent[0], groups, *work.read[1:])
    held = work.view(IN, view, shape, steps)
    held = wide(held.reshape(-1, *shape), conv.in_zero)
    elements = buffer_elements(conv, work.extent, work.read, work.low, work.high)
    memory = np.zeros((len(held), elements), held.dtype)
    start = (work.low[2] * h + work.low[3] * w) // size
    strides = [memory.itemsize * each for each in (elements, *(step // size for step in steps))]
    np.ndarray(held.shape, memory.dtype, memory.data, start * memory.itemsize, strides)[...] = held
    return memory


def accumulators(sums: Array) -> Array:
    """In the type of accumulators: f32, of integers i64."""
    return sums if sums.dtype == np.float32 else sums.astype(np.int64)


def weights_of(conv: Conv, work: Call) -> Array:
    """`[units..., co, ci, kh, kw]`, less their zero points."""
    shape = (1, work.extent[1], work.read[1], *conv.kernel)
    lead = work.view(OUT, conv.out_view, work.extent).shape[:-4]
    zeros: Array | int = 0
    view = conv.weight_zero_view
    if view is not None:
        zeros = work.view(WEIGHT_ZERO, view, (*shape[:2], 1, 1, 1), (0, view.strides[1], 0, 0, 0))
    given = work.view(WEIGHT, conv.weight_view, shape, (0, *conv.weight_view.strides))
    return wide(given, zeros).reshape(*lead, *shape[1:])


def wide(values: Array, zero: Array | int) -> Array:
    """In a type that sums products exactly as the accumulators do: f32, for integers (less their zero point) f64."""
    return np.subtract(values, zero, dtype=np.float64) if values.dtype.kind == "i" else np.asarray(widen(values))


def _input(instruction: Conv, work: Call, groups: int) -> Array:
    """`[units..., n, groups * channels, h, w]`, without the padding."""
    images, (channels, rows, columns) = work.extent[0], work.read[1:]
    view = instruction.in_view
    (n, c, h, w), group = input_strides(instruction, work)
    if groups == 1:
        return work.view(IN, view, (images, channels, rows, columns), (n, c, h, w))
    shape = (images, groups, channels, rows, columns)
    parts = work.view(IN, view, shape, (n, group, c, h, w))
    return parts.reshape(*parts.shape[:-4], groups * channels, rows, columns)


def gather(memory: Array, base: Ints, rel: Ints, weights: Array, sums: Array, threads: int) -> None:
    """Write to `sums` `[units, T, co]` the sums over k of `memory[base[t] + rel[k]]` `[units, elements]` times
    `weights` `[units, K, co]`, so many threads at a time."""
    for start in range(0, len(base), threads):
        address = base[start : start + threads, None] + rel
        np.matmul(memory[:, address], weights, out=sums[:, start : start + threads])


def input_strides(conv: Conv, work: Call) -> tuple[Extents, int]:
    """Bytes between neighbours of the input in n, c, h, w, and from group to group: of the table that the
    convolution names, or of its view where it names none."""
    view = conv.in_view
    if work.addresses is None:
        return view.strides, conv.channels.extent * view.strides[1]
    assert work.addresses.strides is not None, "entries that are no strides have addresses only"
    n, c, h, w, group = (stride * ELEMENT_BYTES[view.element] for stride in work.addresses.strides)
    return (n, c, h, w), group
