# Tests: test/passes/graph/composites/test_split_sums.py
"""The pass that gives every matrix unit a part of a product's sums, where it has too few results for all of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import ceil_div
from frustum.dialects.plan.clusters import linked_clusters
from frustum.dialects.plan.layer_cycles import ClusterCycles
from frustum.dialects.target import Target
from frustum.dialects.target.durations import vector_cycles
from frustum.passes.analysis.module import target_of
from frustum.passes.weights import is_float


@dataclass(frozen=True)
class SplitSums(ModulePass):
    """Products over K as several over K / parts, and the sum of these.

    Before: matrix products and convolutions of floats, of one group.  After: where all matrix units of the machine take
    fewer cycles with parts, the cycles that the parts take to be added up with them, the product has one dimension
    more, of parts, and a reduction of it follows; then the bias, the residual and the activation.  Sums of a part are
    of the type of elements.
    """

    name = "frustum-graph-split-sums"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for each in [o for o in op.walk() if isinstance(o, g.MatmulOp | g.ConvOp)]:
            if may_split(each) and (parts := best_parts(sums_of(each), target)) > 1:
                split(each, parts)


@dataclass(frozen=True)
class ProductSums:
    """Of a product what fills lines and channels of the matrix unit, times groups; positions along which it sums, in
    dimensions as they lie, and how many there are inside of each."""

    groups: int
    lines: int
    channels: int
    sums: tuple[int, ...]
    inside: int
    element_bytes: int

    def parts(self) -> list[int]:
        """Numbers of parts that are views: of whole positions of the outermost dimensions."""
        found, outer = [1], 1
        for extent in self.sums:
            found += (outer * d for d in range(2, extent + 1) if extent % d == 0)
            outer *= extent
        return found


def may_split(op: g.MatmulOp | g.ConvOp) -> bool:
    is_plain = op.multiplier is None and is_float(g.tensor_of(op.operands[0]).element_type)
    return is_plain and (not op.trans_a if isinstance(op, g.MatmulOp) else op.groups == 1)


def sums_of(op: g.MatmulOp | g.ConvOp) -> ProductSums:
    made, width = g.shape_of(op.result), g.tensor_of(op.result).element_type.bitwidth // 8
    if isinstance(op, g.ConvOp):
        _, channels, *kernel = g.shape_of(op.w)
        return ProductSums(1, math.prod(made) // made[1], made[1], (channels,), math.prod(kernel), width)
    groups = math.prod(made[:-2]) if len(g.shape_of(op.b)) > 2 else 1
    return ProductSums(groups, math.prod(made[:-1]) // groups, made[-1], dims_of(op.a), 1, width)


def dims_of(x: SSAValue) -> tuple[int, ...]:
    """The last dimension, as those of which a reshape has made it."""
    last = g.shape_of(x)[-1]
    if isinstance(x.owner, g.ReshapeOp):
        before = g.shape_of(x.owner.x)
        for first in range(len(before)):
            if math.prod(before[first:]) == last:
                return tuple(before[first:])
    return (last,)


def best_parts(own: ProductSums, target: Target) -> int:
    """The number of parts with which the machine takes the fewest cycles."""
    return min(own.parts(), key=lambda parts: in_parts(own, parts, target) + adding(own, parts, target))


def in_parts(own: ProductSums, parts: int, target: Target) -> int:
    """Cycles of a matrix unit for its share: clusters share one of the product's axes, and cores of each one."""
    unit, total = target.core.matrix, math.prod(own.sums)
    whole = parts, own.groups, own.lines, own.channels
    found = list[int]()
    for by_clusters, by_cores in itertools.product(range(len(whole)), repeat=2):
        share = list(whole)
        for axis, count in (by_clusters, linked_clusters(target)), (by_cores, target.cluster.cores):
            share[axis] = ceil_div(share[axis], min(count, share[axis]))
        *several, lines, channels = share
        fills = min(
            ceil_div(a, unit.lines) * ceil_div(b, unit.channels) for a, b in ((lines, channels), (channels, lines))
        )
        found.append(math.prod(several) * fills)
    return min(found) * (total // parts) * own.inside * unit.cycles_per_step.of(own.element_bytes)


def adding(own: ProductSums, parts: int, target: Target) -> float:
    """Cycles in which the parts of a product go to SRAM, to other clusters, and are added up, by two more layers,
    which wait for DRAM as units of their own do: for loads, and behind stores."""
    if parts == 1:
        return 0.0
    cluster, clusters = target.cluster, linked_clusters(target)
    cores = clusters * cluster.cores
    elements = own.groups * own.lines * own.channels * parts
    size = elements * own.element_bytes
    restarts = 4 * ClusterCycles(cluster).restart + 2 * 2 * target.chip.dram.latency_cycles
    moved = 2 * size / (cores * cluster.core.mvdma.bytes_per_cycle)
    sent = 0.0 if cluster.cdma is None else size / clusters * (clusters - 1) / cluster.cdma.bytes_per_cycle
    added = vector_cycles(cluster.core.vector, 1, ceil_div(elements, cores), own.element_bytes)
    return restarts + moved + sent + float(added)


def split(op: g.MatmulOp | g.ConvOp, parts: int) -> None:
    """The product in parts, in place of the product."""
    new = list[Operation]()

    def added(step: Operation) -> SSAValue:
        step.location = op.location
        new.append(step)
        return step.results[0]

    def turned(x: SSAValue, shape: tuple[int, ...], order: tuple[int, ...]) -> SSAValue:
        x = x if g.shape_of(x) == shape else added(g.ReshapeOp(x, shape))
        return x if order == tuple(range(len(order))) else added(g.TransposeOp(x, order))

    shape = g.shape_of(op.result)
    if isinstance(op, g.ConvOp):
        made, channels, *kernel = g.shape_of(op.w)
        w = turned(op.w, (made, parts, channels // parts, *kernel), (1, 0, 2, *range(3, 3 + len(kernel))))
        w = added(g.ReshapeOp(w, (parts * made, channels // parts, *kernel)))
        x = added(g.ConvOp(op.x, w, None, op.strides, op.pads, op.dilations, parts))
        x = added(g.ReshapeOp(x, (shape[0], parts, *shape[1:])))
        x = added(g.ReduceOp("sum", x, (1,), False))
    else:
        *outer, rows, k = g.shape_of(op.a)
        n = len(outer)
        a = turned(op.a, (*outer, rows, parts, k // parts), (*range(n), n + 1, n, n + 2))
        *batch, _, _ = g.shape_of(op.b)
        m = len(batch)
        inner = (shape[-1], parts, k // parts) if op.trans_b else (parts, k // parts, shape[-1])
        order = (*range(m), m + 1, m, m + 2) if op.trans_b else tuple(range(m + 3))
        b = turned(op.b, (*batch, *inner), order)
        x = added(g.MatmulOp(a, b, None, trans_b=op.trans_b))
        x = added(g.ReduceOp("sum", x, (len(shape) - 2,), False))
    bias = op.bias
    if bias is not None and isinstance(op, g.ConvOp):
        bias = added(g.ReshapeOp(bias, (shape[1], *[1] * (len(shape) - 2))))
    terms = [each for each in (bias, op.residual) if each is not None]
    element = g.tensor_of(op.result).element_type
    for number, term in enumerate(terms, 1):
        x = added(g.BinaryOp("add", x, term, op.act if number == len(terms) else None, element=element))
    if op.act is not None and not terms:
        x = added(g.UnaryOp(op.act, x))
    Rewriter.insert_op(new, InsertPoint.before(op))
    Rewriter.replace_op(op, [], [x])
