# Tests: test/passes/lower/tree/test_lower_plan.py
"""The kernels with which cores can make a layer, by its operation and role."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from xdsl.ir import Operation

from frustum.dialects import graph as g
from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.axis import Axis, leaves
from frustum.dialects.axes.network import Layer
from frustum.dialects.functions import Interpolation, Pooling, Reduction
from frustum.dialects.graph.axes.reader import least_of, zero_of
from frustum.passes.lower.tree.kernels.kernel import Kernel, Want, coordinate
from frustum.passes.lower.tree.kernels.norms import (
    MomentsKernel,
    NormalisedKernel,
    NormKernel,
    OnlineSoftmaxKernel,
    PowersKernel,
    SharesKernel,
    StatisticsKernel,
    WeightsKernel,
)
from frustum.passes.lower.tree.kernels.products import ProductKernel, product_kernels
from frustum.passes.lower.tree.kernels.reductions import PartedReduceKernel
from frustum.passes.lower.tree.kernels.shared import shared_kernels
from frustum.passes.lower.tree.kernels.vectors import (
    BinaryKernel,
    LrnKernel,
    NormaliseKernel,
    NothingKernel,
    PoolKernel,
    ReduceKernel,
    ResizeKernel,
    SoftmaxKernel,
    UnaryKernel,
    axes_of,
    plain_want,
    pooled_ends,
)
from frustum.passes.lower.tree.kernels.windows import is_padded, windows_of
from frustum.passes.lower.tree.spans import NotLowered

STATISTICS = 2
"""Numbers of an element of what is known of a norm's or a softmax's operand."""
Makes = Callable[[Layer], Iterator[Kernel]]


def kernels_of(
    layer: Layer, *, is_parted: bool = False, running: Iterable[Axis] = (), is_divided: bool = True,
    in_passes: bool = True,
) -> list[Kernel]:  # fmt: skip
    """The ways in which cores make a layer; `is_parted`: of a norm or a softmax with statistics that are kept;
    `running`: axes of the numbers that an online reduction carries, from pass to pass (`in_passes`) or to its reader;
    `is_divided`: it divides its result in each pass, rather than its reader dividing the sums once at the end.
    NotLowered where there is none."""
    found = None
    if isinstance(layer.source, g.AttentionOp) and layer.source.scales is not None:
        raise NotLowered(f"{layer.name}: attention of integers")
    if not any(operand.is_all for operand in layer.operands):
        kind = type(layer.source), layer.role
        found = (PARTED.get(kind) if is_parted else None) or KERNELS.get(kind)  # type: ignore[arg-type]
    kernels = [] if found is None else list(found(layer))
    if running and not layer.macs:
        kept, made = frozenset(running), OnlineSoftmaxKernel if in_passes else WeightsKernel
        kernels = [made(k.layer, k.wants, k.out, k.whole, kept=kept, is_divided=is_divided) for k in kernels]
    elif running:
        products = (k for k in kernels if isinstance(k, ProductKernel))
        kept = frozenset(running)
        kernels = [replace(k, kept=kept, divides=not is_divided, in_passes=in_passes) for k in products]
    if not kernels:
        what = getattr(layer.source, "name", "no operation")
        raise NotLowered(f"{layer.name}: no kernel makes '{layer.role}' of {what}")
    return kernels


def _summed(layer: Layer) -> frozenset[Axis]:
    return frozenset(layer.combine) - frozenset(layer.result.axes)


def _elements(layer: Layer, count: int | None = None) -> tuple[Want, ...]:
    return tuple(plain_want(layer, k, layer.axes) for k in range(len(layer.operands) if count is None else count))


def _products(layer: Layer) -> Iterator[Kernel]:
    for kernel in product_kernels(layer):
        yield kernel
        if kernel.on_vector:
            yield from shared_kernels(replace(kernel, on_vector=False))


def _unary(layer: Layer) -> Iterator[Kernel]:
    yield UnaryKernel(layer, _elements(layer), layer.result.axes)


def _binary(layer: Layer) -> Iterator[Kernel]:
    yield BinaryKernel(layer, _elements(layer), layer.result.axes)


def _nothing(layer: Layer) -> Iterator[Kernel]:
    yield NothingKernel(layer, (), layer.result.axes)


def _powers(layer: Layer) -> Iterator[Kernel]:
    """Of attention: all keys at a time."""
    axes, keys = layer.result.axes, frozenset(layer.combine)
    yield WeightsKernel(layer, _elements(layer), axes, keys, kept=frozenset(axes) - keys)


def _softmax(layer: Layer) -> Iterator[Kernel]:
    """Of what the statistics are of all is read again."""
    known = axes_of(layer.operands[1])
    yield SoftmaxKernel(layer, _elements(layer, 1), layer.result.axes, frozenset(layer.result.axes) - known)


def _normalise(layer: Layer) -> Iterator[Kernel]:
    known = axes_of(layer.operands[1])
    wants = tuple(plain_want(layer, k, layer.axes) for k in range(len(layer.operands)) if k != 1)
    yield NormaliseKernel(layer, wants, layer.result.axes, frozenset(layer.result.axes) - known)


def _statistics(kernel: type[StatisticsKernel]) -> Makes:
    def made(layer: Layer) -> Iterator[Kernel]:
        axes = layer.result.axes
        yield kernel(layer, _elements(layer), axes, planes=STATISTICS, kept=frozenset(axes))

    return made


def _with_statistics(kernel: type[NormKernel]) -> Makes:
    def made(layer: Layer) -> Iterator[Kernel]:
        wants = tuple(replace(e, planes=STATISTICS if e.operand == 1 else 1) for e in _elements(layer))
        yield kernel(layer, wants, layer.result.axes, kept=axes_of(layer.operands[1]))

    return made


def _lrn(layer: Layer) -> Iterator[Kernel]:
    yield LrnKernel(layer, _elements(layer, 1), layer.result.axes, frozenset(leaves(layer.result.dims[1])))


def _reduce(layer: Layer) -> Iterator[Kernel]:
    assert isinstance(layer.source, g.ReduceOp)
    kind = Reduction(layer.source.kind)
    if kind.is_of_parts:
        yield PartedReduceKernel(layer, _elements(layer), layer.result.axes)
    else:
        yield ReduceKernel(layer, _elements(layer), layer.result.axes, _summed(layer))


def _pool(layer: Layer) -> Iterator[Kernel]:
    windows = tuple(windows_of(layer, 0))
    moved = {axis for window in windows for axis in window.made}
    first = next((k for k, axis in enumerate(layer.result.axes) if axis in moved), len(layer.result.axes))
    before, behind = layer.result.axes[:first], [axis for axis in layer.result.axes[first:] if axis not in moved]
    dims = [*map(coordinate, before), *(w.coordinate for w in windows), *map(coordinate, behind)]
    assert isinstance(layer.source, g.PoolOp)
    beyond = least_of(layer.source.x) if layer.source.kind == Pooling.MAX else zero_of(layer.source)
    ends = pooled_ends(layer, windows)
    padded = is_padded(
        layer, 0, [w.coordinate for w in windows], beyond, lambda k, guard: ends[k].is_padding(guard)
    )
    yield PoolKernel(
        layer, (Want(0, "nram", tuple(dims)),), layer.result.axes, _summed(layer), windows=windows,
        padded=frozenset({0} if padded else ()),
    )  # fmt: skip


def _resize(layer: Layer) -> Iterator[Kernel]:
    (operand,) = layer.operands
    if len(operand.pieces) > 1:
        raise NotLowered(f"{layer.name}: several tensors are resized together")
    images, channels, rows, columns = map(leaves, layer.result.dims)
    read: list[Position | None] = [None, None]
    dims = [coordinate(axis) for axis in (*images, *channels)]
    op, taps = layer.source, iter(layer.combine)
    assert isinstance(op, g.ResizeOp)
    for number, made in enumerate((rows, columns)):
        sizes = {g.shape_of(each)[2 + number] for each in (op.x, op.result)}
        if len(sizes) == 1 and op.scale[number] == 1 and op.offset[number] == 0:
            dims += [coordinate(axis) for axis in made]
            continue
        tap = itertools.islice(taps, int(op.mode == Interpolation.LINEAR))
        moved = {*made, *tap}
        positions = (each.refined() for _, each in operand.pieces[0].index if each is not None)
        own = [each for each in positions if {axis for axis, _ in each.terms} & moved]
        if len(own) > 1:
            raise NotLowered(f"{layer.name}: resized positions that are several axes")
        if own:
            read[number] = replace(own[0], bend="", extent=0)
            dims.append(replace(own[0], bend="", extent=0))
    yield ResizeKernel(
        layer, (Want(0, "nram", tuple(dims)),), layer.result.axes, _summed(layer),
        four=(images, channels, rows, columns), read=tuple(read),
    )  # fmt: skip


KERNELS: dict[tuple[type[Operation], str], Makes] = {
    (g.ConvOp, ""): _products,
    (g.MatmulOp, ""): product_kernels,
    (g.AttentionOp, "scores"): product_kernels,
    (g.AttentionOp, "softmax"): _powers,
    (g.AttentionOp, "context"): product_kernels,
    (g.SoftmaxOp, "sums"): _nothing,
    (g.SoftmaxOp, ""): _softmax,
    (g.NormaliseOp, "sums"): _nothing,
    (g.NormaliseOp, ""): _normalise,
    (g.LrnOp, "squares"): _nothing,
    (g.LrnOp, ""): _lrn,
    (g.PoolOp, ""): _pool,
    (g.ReduceOp, ""): _reduce,
    (g.ResizeOp, ""): _resize,
    (g.UnaryOp, ""): _unary,
    (g.BinaryOp, ""): _binary,
    (g.QuantizeOp, ""): _unary,
    (g.DequantizeOp, ""): _unary,
}
"""Operation and role of a layer -> its kernels."""
PARTED: dict[tuple[type[Operation], str], Makes] = {
    (g.SoftmaxOp, "sums"): _statistics(PowersKernel),
    (g.SoftmaxOp, ""): _with_statistics(SharesKernel),
    (g.NormaliseOp, "sums"): _statistics(MomentsKernel),
    (g.NormaliseOp, ""): _with_statistics(NormalisedKernel),
}
"""The same where statistics are kept."""
