# Tests: test/runtime/report/test_dram_bound.py
"""Whose words the operands of products are: what the bound on bytes of chains of products rests on.

A word of an operand is another form of a word of a *root*, an input or another product's result, if it cannot be made
without that word, and no other word of the operand rests on the same: behind functions of elements, normalisation,
residuals, pooling, moves.  Then whoever multiplies with it has the root's word, or a form of it, on chip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import ceil_div
from frustum.passes.analysis.module import element_bytes, value_bytes

SAME_ELEMENTS = (
    g.UnaryOp, g.NormaliseOp, g.SoftmaxOp, g.LrnOp, g.QuantizeOp, g.DequantizeOp, g.ReshapeOp, g.TransposeOp, g.TurnOp,
    g.VolumeOp, g.ShuffleOp, g.SpaceToDepthOp, g.DepthToSpaceOp, g.SliceOp, g.PickOp, g.RearrangeOp,
)  # fmt: skip
"""Each element of the result needs one of the first operand that no other element needs as its own."""
USE_ALL = (
    g.UnaryOp, g.NormaliseOp, g.SoftmaxOp, g.LrnOp, g.QuantizeOp, g.DequantizeOp, g.ReshapeOp, g.TransposeOp, g.TurnOp,
    g.VolumeOp, g.ShuffleOp, g.SpaceToDepthOp, g.MatmulOp, g.BinaryOp, g.ReduceOp, g.ConcatOp,
    g.RearrangeOp,
)  # fmt: skip
"""Of which all is needed where all of the result is, beside windows and attention."""
MOST_ROOTS = 4
"""Of an operand that are told."""
Windows = Sequence[tuple[int, int, int, int, int]]
"""Of each axis of a window: positions of the operand and of the result, kernel, stride, pad before; dilation is 1."""


class WordOrigin(NamedTuple):
    """An input (its number), or a product's result; the least bytes of an element of it and of the forms."""

    value: SSAValue
    element: int


def windows_of(op: g.ConvOp | g.PoolOp) -> Windows | None:
    """Of a layer's rows and columns; None where windows have holes, or are over slices."""
    if len(op.kernel) != 2 or set(op.dilations) != {1}:
        return None
    sizes = g.shape_of(op.x)[2:], g.shape_of(op.result)[2:], op.kernel, op.strides, op.pads[:2]
    return list(zip(*sizes, strict=True))


def taps(axis: tuple[int, int, int, int, int]) -> list[int]:
    """The places in the window that lie inside the operand for every position of the result."""
    size, count, kernel, stride, pad = axis
    return [tap for tap in range(kernel) if tap >= pad and (count - 1) * stride - pad + tap < size]


def covers(axis: tuple[int, int, int, int, int]) -> bool:
    """Every position of the operand is in some window."""
    size, count, kernel, stride, pad = axis
    return pad >= 0 and stride <= kernel and (count - 1) * stride - pad + kernel >= size


def needed(network: g.NetworkOp) -> set[SSAValue]:
    """Values of which every element is needed for the outputs."""
    found = set(network.terminator.values)
    for op in reversed(list(network.body.block.ops)):
        if op.results and op.results[0] in found:
            if uses_all(op):
                found.update(op.operands)
            elif isinstance(op, g.ConvOp) and op.residual is not None:
                found.add(op.residual)
    return found


def uses_all(op: Operation) -> bool:
    """Where all of the result is needed, all of every operand is."""
    if isinstance(op, g.ConvOp | g.PoolOp):
        windows = windows_of(op)
        return windows is not None and all(map(covers, windows))
    return isinstance(op, USE_ALL) or (isinstance(op, g.AttentionOp) and sees_all(op))


def sees_all(op: g.AttentionOp) -> bool:
    """Each query sees every key, and all of q, k and v is of some head."""
    batch, rows, keys = op.extents
    (queries, groups), (size, value_size) = op.heads, op.sizes
    sizes = batch * queries * rows * size, batch * groups * keys * size, batch * groups * keys * value_size
    whole = all(prod(g.shape_of(x)) == n for x, n in zip((op.q, op.k, op.v), sizes, strict=True))
    return whole and op.causal_from is None and op.mask is None


def forms_of(op: Operation) -> list[SSAValue]:
    """The operands of which each element of the first result needs its own element."""
    if isinstance(op, SAME_ELEMENTS):
        return [op.operands[0]]
    if isinstance(op, g.BinaryOp):
        return [each for each in (op.a, op.b) if g.shape_of(each) == g.shape_of(op.result)]
    if isinstance(op, g.ConvOp | g.PoolOp) and is_by_channel(op):
        windows = windows_of(op)
        return [op.x] if windows is not None and all(map(taps, windows)) else []
    return []


def is_by_channel(op: g.ConvOp | g.PoolOp) -> bool:
    """Each channel comes from the same one of the operand alone."""
    return isinstance(op, g.PoolOp) or op.groups == g.shape_of(op.x)[1] == g.shape_of(op.result)[1]


class _ProductSizes(NamedTuple):
    """Products made at least, how often a word of the map is in windows, fewest products of an element."""

    macs: int
    reuse: int
    depth: int
    operands: tuple[SSAValue, SSAValue]


def _product(op: Operation) -> _ProductSizes | None:
    if isinstance(op, g.MatmulOp):
        depth = g.shape_of(op.a)[-2 if op.trans_a else -1]
        return _ProductSizes(prod(g.shape_of(op.result)) * depth, 1, depth, (op.a, op.b))
    windows = windows_of(op) if isinstance(op, g.ConvOp) else None
    if not isinstance(op, g.ConvOp) or windows is None or is_by_channel(op):
        return None
    inside = [
        [sum(0 <= at * stride - pad + tap < size for tap in range(kernel)) for at in range(count)]
        for size, count, kernel, stride, pad in windows
    ]
    channels = g.shape_of(op.w)[1]
    macs = prod(g.shape_of(op.result)[:2]) * channels * prod(map(sum, inside))
    reuse = prod(ceil_div(kernel, stride) for _, _, kernel, stride, _ in windows)
    return _ProductSizes(macs, reuse, channels * prod(map(min, inside)), (op.x, op.w))


def product_chains(network: g.NetworkOp, number: dict[SSAValue, int]) -> dict[Operation, dict[str, Any]]:
    """Of each product one of whose operands is a weight or an input that no other product reads, and whose other
    operand has roots:

    - `matrix product`: products made at least, how often a word of the map is in windows of an output channel, the
      fewest products of an element of the result, elements of the result, least bytes of a word, bytes of the operand
      of its own;
    - `roots`: of the other operand, numbers of layers, or -1 - number of an input, the best first;
    - `own`: -1 - number of an input, where the operand of its own is one.
    """
    block = network.body.block
    roots: dict[SSAValue, list[WordOrigin]] = {arg: [WordOrigin(arg, element_bytes(arg))] for arg in block.args}
    products: list[tuple[Operation, _ProductSizes]] = []
    whole = needed(network)
    for op in block.ops:
        if not op.results or not isinstance(op.results[0].type, TensorType):  # an operation of others
            continue
        result = op.results[0]
        if isinstance(op, g.WeightOp):
            roots[result] = [WordOrigin(result, element_bytes(result))]
            continue
        found = [root for value in forms_of(op) for root in roots.get(value, [])]
        if (made := _product(op)) is not None:
            products.append((op, made))
            found.append(WordOrigin(result, element_bytes(result)))
            residual = op.residual if isinstance(op, g.ProductOp) else None
            found += roots.get(residual, []) if residual is not None else []
        own = element_bytes(result)
        least = {root.value: min(root.element, own) for root in found}
        ordered = sorted(least, key=lambda value: isinstance(value.owner, Operation))  # inputs are there for nothing
        roots[result] = [WordOrigin(value, least[value]) for value in ordered]
    readers = Counter(
        value for _, made in products for x in made.operands for value in {root.value for root in roots.get(x, [])}
    )
    return {
        op: facts
        for op, made in products
        if op.results[0] in whole and (facts := _facts(op, made, roots, readers, number)) is not None
    }


def _facts(
    op: Operation,
    made: _ProductSizes,
    roots: dict[SSAValue, list[WordOrigin]],
    readers: Counter[SSAValue],
    number: dict[SSAValue, int],
) -> dict[str, Any] | None:
    """Of one product; None where neither operand is its own, or the other has no root."""
    for own, other in (made.operands[::-1], made.operands):
        leaves = [root for root in roots.get(own, []) if _is_given(root.value) and readers[root.value] == 1]
        others = [root for root in roots.get(other, []) if root.value in number][:MOST_ROOTS]
        if leaves and others:
            leaf, result = leaves[0], op.results[0]
            element = min(leaf.element, element_bytes(result), *(root.element for root in others))
            size = prod(g.shape_of(result))
            facts = {
                "matrix product": [made.macs, made.reuse, made.depth, size, element, value_bytes(leaf.value)],
                "roots": [number[root.value] for root in others],
            }
            return facts | ({"own": [number[leaf.value]]} if leaf.value in number else {})
    return None


def _is_given(value: SSAValue) -> bool:
    return not isinstance(value.owner, Operation) or isinstance(value.owner, g.WeightOp)
