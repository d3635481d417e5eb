# Tests: test/passes/plan/test_pieces.py
"""The extents that pieces of a product may have: halvings, and what fills the lines of the matrix unit, or WRAM; what
pieces of such extents read, and how many there are.

Source: docs/techniques/tfu.md, "On-chip unit map" (halving along each dimension).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, reduce

import numpy as np

from frustum.dialects.extents import Extents, aligned, ceil_div
from frustum.dialects.target import MatrixUnit, Target
from frustum.dialects.tile import Access, Residency, Whole
from frustum.passes.plan.layer_work import LayerWork
from frustum.passes.plan.model import MOSTLY_WEIGHTS
from frustum.passes.plan.piece_cycles import Ints, Kernel, busy_cycles, clipped, filling_heights, load_cycles

ACCUMULATOR_BYTES = 4
IN_TURN = (1, 2, 3, 0)
"""Dimensions that are dealt to the cores, in the order in which they are looked at."""

SCALE_SHARE, MOST_PADDING = 1 / 4, 1 / 50
"""Of weights with scales: what a scale takes of the weights that share it (at most: f32 for 32 of 4 bits), and what
pieces may add to what the file has (a block of a language model, f16 on `default`: 1.032 without, 2026-11-27)."""


def halves(value: int, align: int = 1, least: int = 1) -> list[int]:
    """value, value/2, value/4 ... rounded up to multiples of `align`."""
    result = []
    while True:
        extent = aligned(value, align)
        if extent not in result:
            result.append(extent)
        if value <= least:
            return result
        value = ceil_div(value, 2)


def piece_extents(work: LayerWork, target: Target, cores_dim: int) -> list[list[int]]:
    """Extents of pieces to be looked at in each dimension: halvings, and heights whose windows fill the lines."""
    cores, dims = target.cluster.cores, []
    for d in range(4):
        align = work.extent[d] if d in work.whole else work.align[d]
        share = ceil_div(work.extent[d], cores) if d == cores_dim else work.extent[d]
        found = [1] if d == 0 and work.one_image else halves(share, align)
        if d == work.owned:
            dims.append(found[:1])
            continue
        if d == 2 and align == 1:
            widths = {work.extent[3], ceil_div(work.extent[3], cores if work.owned == 3 else 1)}
            heights = {h for width in widths for h in filling_heights(width, target.core.matrix.lines)}
            found = sorted({*found, *(h for h in heights if h < share)}, reverse=True)
        dims.append(found)
    if work.groups > 1:
        dims[1] = sorted({g for c in dims[1] for g in group_pieces(c, work, cores_dim == 1)})
    return dims


def product_choices(
    work: LayerWork, target: Target, cores_dim: int, inputs: int, residency: Residency
) -> tuple[tuple[int, ...], ...]:
    """Extents of pieces of a product to be looked at in each dimension, and numbers of their input channels, of which
    a core has so many `inputs`."""
    extents, is_grouped = piece_extents(work, target, cores_dim), work.groups > 1
    channels = [work.channels] if is_grouped else halves(inputs)
    if residency == "stream" and not is_grouped:
        channels = sorted({*channels, *filling_inputs(work, target, extents[1], inputs)}, reverse=True)
    channels = in_runs(channels, inputs, *work.run)
    return tuple(map(tuple, (*extents, channels)))


def in_runs(channels: Sequence[int], inputs: int, run: int, least: int) -> list[int]:
    """Numbers of input channels near these, at least so many, of pieces whose slots take little more than the weights:
    a run that shares a scale is cut where the last piece would otherwise be much smaller than others."""
    if least == 1:
        return list(channels)
    found = {inputs}
    for each in channels:
        count = ceil_div(inputs, max(each, least))
        equal = ceil_div(inputs, count)
        whole = aligned(equal, run)
        padded = ceil_div(inputs, whole) * whole - inputs
        scales = max(ceil_div((nth + 1) * equal, run) - nth * equal // run for nth in range(count)) * count
        cut = count * equal - inputs + (scales - ceil_div(inputs, run)) * run * SCALE_SHARE
        if min(padded, cut) <= MOST_PADDING * inputs:
            found.add(whole if padded <= cut else equal)
    return sorted(found, reverse=True)


def dealt_along(work: LayerWork, dims: Sequence[int]) -> Sequence[int]:
    """The dimensions that may be dealt to the cores."""
    return dims if work.owned is None else (work.owned,)


def leaves_cores_idle(work: LayerWork, cores_dim: int) -> bool:
    """A single position would be dealt to the cores, while another dimension that may be cut has several."""
    free = (size for d, size in enumerate(work.extent) if d not in work.whole and d not in work.reduced)
    return work.extent[cores_dim] == 1 and any(size > 1 for size in free)


def waits_for_weights(work: LayerWork, target: Target, cycles: float) -> bool:
    """Whether a plan's time is for a good part that in which the weights come from DRAM: then the cores are seldom what
    the layer waits for, and memory for sums is better spent on what comes next."""
    size = np.asarray(work.extent[1] * work.channels * math.prod(work.kernel) * work.weight_bytes)
    return bool(load_cycles(target, size, size) > MOSTLY_WEIGHTS * cycles)


def group_pieces(channels: int, work: LayerWork, dealt: bool) -> list[int]:
    """Output channels of a piece near `channels` of a grouped convolution: whole groups, or a part of one."""
    if channels >= work.group_outputs:
        return [channels // work.group_outputs * work.group_outputs]
    return [channels] if not dealt else [max(1, min(channels, work.group_outputs))]


def is_bias(work: LayerWork) -> bool:
    """All that there is for each output channel is a bias, which may be in NRAM; beside streamed weights it is."""
    return len(work.channel_bytes) == 1 and work.multiplies_nothing


def filling_inputs(work: LayerWork, target: Target, outputs: Sequence[int], inputs: int) -> set[int]:
    """Input channels whose weights, for pieces of so many output channels, fill half of WRAM; in equal chunks."""
    taps, found = math.prod(work.kernel) * work.weight_bytes, set()
    for made in outputs:
        vectors = (
            0 if is_bias(work) else made * sum(work.channel_bytes) * (1 if made >= work.extent[1] else 2)
        )
        most = (target.core.wram.capacity_bytes - vectors) // (2 * made * taps)
        if 0 < most < inputs:
            found.add(ceil_div(inputs, ceil_div(inputs, most)))
    return found


def vector_extents(work: LayerWork, cores_dim: int, cores: int, split: int | None) -> list[list[int]]:
    """Extents of pieces to be looked at in each dimension; of what is reduced only `split` is cut."""
    dims = []
    for d, extent in enumerate(work.extent):
        if d in work.whole or (d in work.reduced and d != split):
            dims.append([extent])
        elif d == cores_dim:
            parts = halves(ceil_div(extent, cores), work.align[d])
            dims.append(parts[:1] if d == work.owned else parts)
        else:
            dims.append([1] if d == 0 else halves(extent, work.align[d]))
    return dims


def kernel_of(work: LayerWork) -> Kernel:
    """What the matrix unit must know of the windows; the reach of the columns says how far apart its taps are."""
    axis = work.accesses[0][3]
    reach = 0 if isinstance(axis, Whole) else axis.reach
    dilation = reach // (work.kernel[1] - 1) if work.kernel[1] > 1 else 1
    return Kernel(work.kernel, work.strides, (1, dilation), work.map_bytes[0])


# ---------------------------------------------------------------- pieces of these extents


def grid(*choices: Sequence[int]) -> list[Ints]:
    """The cartesian product of the choices as flat arrays, the last choice first; they are not to be written to."""
    return list(_grid(tuple(map(tuple, choices))))


@lru_cache(maxsize=256)
def _grid(choices: tuple[tuple[int, ...], ...]) -> tuple[Ints, ...]:
    shape = tuple(map(len, choices))
    found = []
    for d, values in enumerate(choices):
        along = np.array(values, np.int64).reshape([-1 if k == d else 1 for k in range(len(shape))])
        every = np.broadcast_to(along, shape).ravel()
        every.setflags(write=False)
        found.append(every)
    return tuple(found)


def product(arrays: Iterable[Ints]) -> Ints:
    return reduce(np.multiply, arrays)


def needs(access: Access, extents: Sequence[Ints]) -> list[Ints]:
    """Extents of the operand that pieces of these extents need."""
    return [
        np.full_like(e, axis.size)
        if isinstance(axis, Whole)
        else (e - 1) * axis.num // axis.den + 1 + axis.reach
        for axis, e in zip(access, extents, strict=True)
    ]


def pieces_of_a_core(work: LayerWork, extents: Sequence[Ints], cores_dim: int, cores: int) -> list[Ints]:
    """How many pieces of these extents the core with the most has along each dimension."""
    tiles = [ceil_div(size, extent) for size, extent in zip(work.extent, extents, strict=True)]
    return [ceil_div(count, cores) if d == cores_dim else count for d, count in enumerate(tiles)]


def over_space(
    extent: Sequence[int], sizes: Sequence[Ints], counts: Sequence[Ints], dealt: Sequence[int],
    busy: Callable[[Ints, Ints, Ints], Ints],
) -> Ints:  # fmt: skip
    """The sum of the cycles that pieces of so many images, rows and columns are `busy`: of `sizes`, `counts` of each
    for the core with the most, along dimensions of which `dealt` cores have their part."""
    variants = [clipped(*end) for end in zip(extent, sizes, counts, dealt, strict=True)]
    parts = [
        (images[1] * rows[1] * columns[1], images[0], rows[0], columns[0])
        for images, rows, columns in itertools.product(*variants)
    ]
    times, *each = (np.stack(of_all) for of_all in zip(*(x for x in parts if x[0].any()), strict=True))
    total: Ints = (times * busy(*each)).sum(axis=0)
    return total


@lru_cache(maxsize=4096)
def busy_over_space(
    unit: MatrixUnit, kernel: Kernel, extent: Extents, sizes: tuple[tuple[int, ...], ...], dealt: Extents
) -> Ints:
    """`over_space` of the matrix unit for pieces of these numbers of images, rows and columns, as `grid` has them."""
    each = grid(*sizes)
    counts = [ceil_div(ceil_div(*of), n) for *of, n in zip(extent, each, dealt, strict=True)]
    found = over_space(extent, each, counts, dealt, lambda *piece: busy_cycles(unit, kernel, *piece))
    found.setflags(write=False)
    return found


def nested(counts: Iterable[Ints]) -> Ints:
    """Loops that have more than one pass."""
    return reduce(np.add, [(count > 1).astype(np.int64) for count in counts])


def read_runs(access: Access, pieces: Sequence[Ints], work: LayerWork, made: Ints) -> Ints:
    """Elements of the contiguous runs that pieces read of an operand, where runs of `made` are made."""
    if work.reduced:
        return made
    *_, rows, columns = needs(access, pieces)
    return np.where(pieces[3] >= work.extent[3], rows * columns, columns)


def operand_bytes(work: LayerWork, pieces: Sequence[Ints], split: int | None) -> tuple[list[Ints], Ints]:
    """NRAM bytes of each operand of a piece, and of its result, with the sums where what is reduced is cut."""
    out = product(np.ones_like(size) if d in work.reduced else size for d, size in enumerate(pieces))
    made = aligned(out * work.out_bytes)
    if work.reduced:
        sums = made + aligned(out * ACCUMULATOR_BYTES)
        return [aligned(product(pieces) * work.map_bytes[0])], made if split is None else sums
    sizes = zip(work.accesses, work.map_bytes, strict=True)
    return [aligned(product(needs(access, pieces)) * size) for access, size in sizes], made
