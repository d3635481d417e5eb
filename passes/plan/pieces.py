"""How one layer's region is cut into the pieces that cores compute, and a unit's output into tiles.

Pure searches over plain numbers: capacities and rates of the target in, extents and modelled cycles and bytes out.
All candidates of one question are evaluated at once in numpy.

Source: docs/techniques/tfu.md, "On-chip unit map" (splitting over H, W, Cout, Cin; halving along each dimension).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import MAX_LOOPS
from frustum.dialects.target import Target, VectorUnit
from frustum.dialects.target.durations import vector_passes
from frustum.dialects.tile import Access, ConvLayer, Outer, Residency, SubMap, Whole
from frustum.passes.analysis.layer import SAME4, Layer
from frustum.passes.plan.busy_lines import Kernel, busy_cycles, filling_heights
from frustum.passes.plan.model import COMPACT_GAIN, LATE
from frustum.passes.plan.nest_cycles import clipped, copy_cycles, load_cycles, moves, nest_cycles, over

ACCUMULATOR_BYTES = 4
WIDE_BYTES = 4  # of a number that integers stand for: what is narrower and has scales is converted
CHUNKS = 5  # the loop over input channels, the innermost of a product
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """What the search must know of a layer on a region (hashable, so that equal layers are planned once)."""

    is_matrix: bool
    extent: Extents
    accesses: tuple[Access, ...]
    map_bytes: tuple[int, ...]  # of an element of each map
    out_bytes: int
    whole: tuple[int, ...] = ()
    align: Extents = (1, 1, 1, 1)
    kernel: Extents = (1, 1)
    strides: Extents = (1, 1)
    channels: int = 0
    one_image: bool = False
    """Every image has its own weights."""
    groups: int = 1
    group_outputs: int = 1
    weight_bytes: int = 4
    channel_bytes: tuple[int, ...] = ()
    accumulator_bytes: int = 4
    operations: tuple[tuple[str, int], ...] = ()
    """Of the vector unit."""
    reduced: tuple[int, ...] = ()
    may_compact: bool = False
    """The copy into a core may leave out what the strides leave out."""
    are_outputs_apart: bool = True  # the weights of an output channel follow each other in DRAM


@dataclass(frozen=True)
class LayerPlan:
    """A layer's sub-map, its modelled cycles for one region, and how often its weights cross the bus."""

    map: SubMap
    cycles: float
    weight_loads: int
    stream_bytes: int
    """SRAM bytes for streamed weights (both copies); 0 where they stay."""


def work_of(layer: Layer, extent: Extents, *, in_ring: bool = True) -> Work:
    """The search's view of a layer whose region has these extents (of the input for reductions); `in_ring`: whether
    its operand may lie in a ring."""
    p = layer.kind
    accesses = tuple(m.access for m in layer.maps)
    map_bytes = tuple(m.element_bytes for m in layer.maps)
    if isinstance(p, ConvLayer):
        return Work(
            True,
            extent,
            accesses,
            map_bytes,
            layer.out_bytes,
            layer.axes_all,
            layer.align,
            p.kernel,
            p.strides,
            p.channels,
            p.is_batched,
            p.groups,
            layer.out_dims[1] // p.groups,
            layer.weight_bytes,
            layer.channel_bytes,
            layer.accumulator_bytes,
            may_compact=not in_ring and leaves_out(layer, p),
            are_outputs_apart=p.weight_strides[1] <= p.weight_strides[0],
        )
    return Work(
        False,
        extent,
        accesses,
        map_bytes,
        layer.out_bytes,
        layer.axes_all,
        layer.align,
        operations=layer.operations,
        reduced=p.reduced,
    )


def leaves_out(layer: Layer, conv: ConvLayer) -> bool:
    """Whether a convolution has a kernel of one tap that does not read every position, and no padding."""
    operand = layer.maps[0]
    axes = [axis for axis in operand.access[2:] if not isinstance(axis, Whole)]
    ends = zip(axes, layer.out_dims[2:], operand.dims[2:], strict=False)
    is_plain = len(axes) == 2 and all(a.low == 0 and a.den == 1 and (out - 1) * a.num < size for a, out, size in ends)
    return conv.kernel == (1, 1) and conv.strides != (1, 1) and is_plain


def passes_of(operations: tuple[tuple[str, int], ...], unit: VectorUnit) -> int:
    """Passes over the elements for all of these operations."""
    return sum(vector_passes(unit, kind, window) for kind, window in operations)


@lru_cache(maxsize=20_000)
def plan_layer(work: Work, target: Target, residency: Residency, loops: int) -> LayerPlan | None:
    """The fastest sub-map of at most `loops` nested loops that fits NRAM and WRAM; None where nothing fits."""
    return (
        plan_matrix(work, target, residency, loops)
        if work.is_matrix
        else plan_vector(work, target, loops)
    )


def halves(value: int, align: int = 1, least: int = 1) -> list[int]:
    """value, value/2, value/4 ... rounded up to multiples of `align`."""
    result = []
    while True:
        rounded = -(-value // align) * align
        if rounded not in result:
            result.append(rounded)
        if value <= least:
            return result
        value = -(-value // 2)


def shares(extent: int, cores: int, align: int = 1) -> list[int]:
    """Piece extents when a dimension is dealt to cores."""
    return halves(-(-extent // cores), align)


def grid(*choices: Sequence[int]) -> list[Ints]:
    """The cartesian product of the choices as flat arrays."""
    return [a.ravel() for a in np.meshgrid(*[np.asarray(c, np.int64) for c in choices], indexing="ij")]


def aligned(size: Ints) -> Ints:
    return over(size, 16) * 16


def needs(access: Access, extents: Sequence[Ints]) -> list[Ints]:
    """Extents of the operand that pieces of these extents need."""
    return [
        np.full_like(e, axis.size)
        if isinstance(axis, Whole)
        else (e - 1) * axis.num // axis.den + 1 + axis.reach
        for axis, e in zip(access, extents, strict=True)
    ]


def plan_matrix(work: Work, target: Target, residency: Residency, loops: int) -> LayerPlan | None:
    """The fastest pieces; compacted ones where they are clearly faster."""
    plain, compact = (
        fastest(
            plan_matrix_with(work, target, residency, loops, cores_dim, outer, compact=is_compact)
            for cores_dim in (1, 2, 3, 0)
            for outer in ("space", "channels")
            if work.may_compact or not is_compact
        )
        for is_compact in (False, True)
    )
    if plain is None or compact is None:
        return plain or compact
    return compact if compact.cycles < COMPACT_GAIN * plain.cycles else plain


def fastest(plans: Iterable[LayerPlan | None]) -> LayerPlan | None:
    """The first of the fastest plans; None where there is none."""
    return min((plan for plan in plans if plan is not None), key=lambda plan: plan.cycles, default=None)


def plan_matrix_with(
    work: Work,
    target: Target,
    residency: Residency,
    loops: int,
    cores_dim: int,
    outer: str,
    *,
    compact: bool = False,
) -> LayerPlan | None:
    """The best pieces when dimension `cores_dim` is dealt to the cores and the loops `outer` are outside."""
    if compact:
        axes = (*work.accesses[0][:2], *SAME4[2:])
        work = replace(work, accesses=(axes, *work.accesses[1:]), strides=(1, 1))
    core, cores, e = target.core, target.cluster.cores, work.map_bytes[0]
    free = [work.extent[d] for d in range(4) if d not in work.whole]
    if cores > 1 and (cores_dim in work.whole or (work.extent[cores_dim] == 1 and max(free, default=1) > 1)):
        return None
    if cores_dim == 0 and (work.extent[0] == 1 or work.one_image):
        return None
    is_grouped = work.groups > 1
    dims = piece_extents(work, target, cores_dim)
    sn, sc, sh, sw, ci = grid(*dims, [work.channels] if is_grouped else halves(work.channels))
    in_groups = np.maximum(sc // work.group_outputs, 1) if is_grouped else np.ones_like(sc)
    per_group = sc // in_groups
    images, _, rows, cols = needs(work.accesses[0], [sn, sc, sh, sw])
    taps = work.kernel[0] * work.kernel[1]

    dealt = [cores if d == cores_dim else 1 for d in range(4)]
    n_dim = [over(over(work.extent[d], s), dealt[d]) for d, s in enumerate((sn, sc, sh, sw))]
    split_groups = is_grouped & (sc < work.group_outputs)
    n_groups = np.where(split_groups, over(work.extent[1], work.group_outputs), 1)
    n_dim[1] = np.where(split_groups, over(over(work.group_outputs, sc), dealt[1]), n_dim[1])
    n_space = n_dim[0] * n_dim[2] * n_dim[3]
    n_c = n_dim[1] * n_groups
    n_ci = over(work.channels, ci)
    used_loops = sum((n > 1).astype(np.int64) for n in (*n_dim, n_groups, n_ci))

    positions = sn * sh * sw
    in_bytes = aligned(images * ci * in_groups * rows * cols * e)
    weight_bytes = aligned(sc * ci * taps * work.weight_bytes)
    out_bytes = aligned(sc * positions * work.out_bytes)
    for size in work.map_bytes[1:]:  # a residual lies as the output does and moves with it
        out_bytes = out_bytes + aligned(sc * positions * size)
    acc_bytes = aligned(sc * positions * work.accumulator_bytes) * (n_ci > 1)
    copies = np.where(n_space * n_c * n_ci > 1, 2, 1)
    in_copies = np.where((n_space > 1) | (n_ci > 1) | (is_grouped & (n_c > 1)), 2, 1)
    nram = in_bytes * in_copies + out_bytes * copies + acc_bytes
    weight_copies = np.where(n_c * n_ci > 1, 2, 1)
    channel_bytes = sum((aligned(sc * size) for size in work.channel_bytes), np.zeros_like(sc))
    wram = (weight_bytes + channel_bytes) * weight_copies
    fits = (nram <= core.nram.capacity_bytes) & (wram <= core.wram.capacity_bytes) & (used_loops <= loops)

    if outer == "space":
        weight_loads = np.where(n_c * n_ci > 1, n_space, 1) * n_c * n_ci
    else:
        weight_loads = n_c * n_ci * np.where(n_ci > 1, n_space, 1)
    if residency == "stream":
        fits &= weight_loads == n_c * n_ci
        fits &= (
            aligned(weight_bytes * (cores if cores_dim == 1 else 1)) * 2
            <= target.cluster.sram.capacity_bytes // 2
        )
    if not fits.any():
        return None

    slices = over(per_group, core.matrix.channels) * in_groups
    compute = n_c * slices * work.channels * space_cycles(work, target, n_dim, (sn, sh, sw), dealt)
    space, inside = [n_dim[0], n_dim[2], n_dim[3]], [n_groups, n_dim[1]]
    counts = [*space, *inside, n_ci] if outer == "space" else [*inside, *space, n_ci]
    of_space, of_channels = ((0, 1, 2), (3, 4)) if outer == "space" else ((2, 3, 4), (0, 1))
    of_input = (*of_space, *(of_channels if is_grouped else ()), CHUNKS)
    is_wide = sw >= work.extent[3]
    in_runs, out_runs = (np.where(is_wide, a, b) for a, b in ((rows * cols * e, cols * e), (positions, sw)))
    of_weights = weight_runs(work, sc * dealt[1], ci)
    loads = moves(counts, of_input), copy_cycles(target, in_bytes, e if compact else in_runs, cores)
    stores = (
        moves(counts, (*of_space, *of_channels), is_stored=True),
        copy_cycles(target, out_bytes, out_runs * work.out_bytes, cores),
    )
    fills, moved = moves(counts, (*of_channels, CHUNKS)), [loads, stores]
    bus = np.zeros_like(compute)
    if cores_dim == 1 or cores == 1:
        moved.append((fills, copy_cycles(target, weight_bytes, of_weights, cores)))
    else:
        bus = fills.times * over(weight_bytes, target.cluster.bus.bytes_per_cycle)
    cycles = np.maximum(nest_cycles(target, compute, n_space * n_c * n_ci, moved), bus)
    chunks = weight_bytes * (cores if cores_dim == 1 else 1)
    from_dram = fills.times * load_cycles(target, chunks, of_weights)
    # in a unit of one pass weights that are read once come as the pieces need them; else all are waited for
    is_once, is_alone = (weight_loads == n_c * n_ci) & (n_c * n_ci > 1), loops == MAX_LOOPS
    is_streamed = (residency == "stream") | (is_alone & is_once)
    whole = np.asarray(work.extent[1] * work.channels * taps * work.weight_bytes)
    cycles = cycles + is_alone * ~is_streamed * (load_cycles(target, whole, whole) * LATE).astype(np.int64)
    padding = from_dram - fills.times * load_cycles(target, chunks, chunks)  # of the port, which others need
    cycles = np.where(is_streamed, np.maximum(cycles, from_dram) + padding, cycles)
    k = int(np.argmin(np.where(fits, cycles, np.iinfo(np.int64).max)))
    chunk = int(aligned(weight_bytes[k] * (cores if cores_dim == 1 else 1)))
    piece: Extents = (int(sn[k]), int(sc[k]), int(sh[k]), int(sw[k]))
    submap = SubMap(piece, cores_dim, int(ci[k]), cast(Outer, outer), residency, compact)
    return LayerPlan(
        submap, float(cycles[k]), int(weight_loads[k]), 2 * chunk if residency == "stream" else 0
    )


def space_cycles(
    work: Work, target: Target, counts: Sequence[Ints], piece: tuple[Ints, Ints, Ints], dealt: Sequence[int]
) -> Ints:
    """Cycles of the matrix unit for one input channel and one block of output channels over `counts` pieces of `piece`
    (images, rows, columns), those at the ends as large as they are."""
    variants = [
        clipped(work.extent[d], x, counts[d], dealt[d]) for d, x in zip((0, 2, 3), piece, strict=True)
    ]
    total = np.zeros_like(piece[0])
    for images, rows, columns in itertools.product(*variants):
        times = images[1] * rows[1] * columns[1]
        if times.any():
            total = total + times * busy_cycles(
                target.core.matrix, kernel_of(work), images[0], rows[0], columns[0]
            )
    return total


def piece_extents(work: Work, target: Target, cores_dim: int) -> list[list[int]]:
    """Extents of pieces to be looked at in each dimension: halvings, and heights whose windows fill the lines."""
    cores, dims = target.cluster.cores, []
    for d in range(4):
        align = work.extent[d] if d in work.whole else work.align[d]
        share = -(-work.extent[d] // cores) if d == cores_dim else work.extent[d]
        found = [1] if d == 0 and work.one_image else halves(share, align)
        if d == 2 and align == 1:
            heights = filling_heights(work.extent[3], target.core.matrix.lines)
            found = sorted({*found, *(h for h in heights if h < share)}, reverse=True)
        dims.append(found)
    if work.groups > 1:
        dims[1] = sorted({g for c in dims[1] for g in group_pieces(c, work, cores_dim == 1)})
    return dims


def kernel_of(work: Work) -> Kernel:
    """What the matrix unit must know of the windows; the reach of the columns says how far apart its taps are."""
    axis = work.accesses[0][3]
    reach = 0 if isinstance(axis, Whole) else axis.reach
    dilation = reach // (work.kernel[1] - 1) if work.kernel[1] > 1 else 1
    return Kernel(work.kernel, work.strides, (1, dilation), work.map_bytes[0])


def weight_runs(work: Work, outputs: Ints, inputs: Ints) -> Ints:
    """Bytes of the contiguous runs in DRAM that hold the weights of so many output and input channels."""
    taps = work.kernel[0] * work.kernel[1]
    if work.are_outputs_apart:
        return np.where(inputs < work.channels, inputs, outputs * inputs) * taps * work.weight_bytes
    return np.where(outputs < work.group_outputs, outputs, outputs * inputs) * work.weight_bytes


def group_pieces(channels: int, work: Work, dealt: bool) -> list[int]:
    """Output channels of a piece near `channels` of a grouped convolution: whole groups, or a part of one."""
    if channels >= work.group_outputs:
        return [channels // work.group_outputs * work.group_outputs]
    return [channels] if not dealt else [max(1, min(channels, work.group_outputs))]


def plan_vector(work: Work, target: Target, loops: int) -> LayerPlan | None:
    best: LayerPlan | None = None
    for splits_reduced in (False, True) if work.reduced else (False,):
        for cores_dim in (1, 2, 3, 0):
            plan = plan_vector_with(work, target, loops, cores_dim, splits_reduced)
            if plan is not None and (best is None or plan.cycles < best.cycles):
                best = plan
        if best is not None:
            return best
    return best


def plan_vector_with(
    work: Work, target: Target, loops: int, cores_dim: int, splits_reduced: bool
) -> LayerPlan | None:
    core, cores = target.core, target.cluster.cores
    if cores_dim in work.whole or cores_dim in work.reduced:
        return None
    if (
        cores > 1
        and work.extent[cores_dim] == 1
        and any(x > 1 for d, x in enumerate(work.extent) if d not in work.whole and d not in work.reduced)
    ):
        return None
    split = next((d for d in work.reduced if work.extent[d] > 1), None) if splits_reduced else None
    dims: list[list[int]] = []
    for d, extent in enumerate(work.extent):
        if d in work.whole or (d in work.reduced and d != split):
            dims.append([extent])
        elif d == cores_dim:
            dims.append(shares(extent, cores, work.align[d]))
        else:
            dims.append([1] if d == 0 else halves(extent, work.align[d]))
    pieces = grid(*dims)
    counts = [over(over(work.extent[d], s), cores if d == cores_dim else 1) for d, s in enumerate(pieces)]
    total = np.prod(np.stack(counts), axis=0)
    used_loops = sum((n > 1).astype(np.int64) for n in counts)
    out = np.ones_like(total)
    for d, s in enumerate(pieces):
        out = out * (1 if d in work.reduced else s)
    out_bytes = aligned(out * (ACCUMULATOR_BYTES if split is not None else work.out_bytes))
    if work.reduced:
        ins = [aligned(np.prod(np.stack(pieces), axis=0) * work.map_bytes[0])]
        out_bytes = out_bytes + aligned(out * work.out_bytes) * (split is not None)
    else:
        ins = [
            aligned(np.prod(np.stack(needs(access, pieces)), axis=0) * size)
            for access, size in zip(work.accesses, work.map_bytes, strict=True)
        ]
    in_bytes = sum(ins, np.zeros_like(total))
    copies = np.where(total > 1, 2, 1)
    fits = ((in_bytes + out_bytes) * copies <= core.nram.capacity_bytes) & (used_loops <= loops)
    if not fits.any():
        return None
    elements = np.prod(np.stack(pieces), axis=0)
    widest = max(work.out_bytes, *work.map_bytes)
    order = [*(d for d in range(4) if d not in work.reduced), *work.reduced]
    nest, of_result = [counts[d] for d in order], range(4 - len(work.reduced))
    run = np.where(pieces[3] >= work.extent[3], pieces[2] * pieces[3], pieces[3])
    moved = [
        (moves(nest, range(4)), copy_cycles(target, x, run * each, cores))
        for x, each in zip(ins, work.map_bytes, strict=True)
    ]
    moved.append(
        (moves(nest, of_result, is_stored=True), copy_cycles(target, out_bytes, run * work.out_bytes, cores))
    )
    busy = over(elements * core.vector.cycles_per_element.of(widest), core.vector.lanes)
    compute = total * busy * passes_of(work.operations, core.vector)
    cycles = nest_cycles(target, compute, total, moved)
    k = int(np.argmin(np.where(fits, cycles, np.iinfo(np.int64).max)))
    n, c, h, w = (int(s[k]) for s in pieces)
    return LayerPlan(SubMap((n, c, h, w), cores_dim), float(cycles[k]), 0, 0)
