# Tests: test/passes/graph/patterns/test_phase_slices.py
"""Every s-th row and t-th column of a map, from each of the first on, side by side: the phases of the map.

    concat(x[0::2, 0::2], x[1::2, 0::2], x[0::2, 1::2], x[1::2, 1::2])  ->  space_to_depth(x)     along channels

Phases in another order (as YOLO's focus has them) are read so by a convolution whose weights are put in order.
"""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.passes.dequantised import follow
from frustum.passes.graph.canonicalize import remove_unused
from frustum.passes.weights import WeightStore, store_of

CHANNELS, MAP_RANK = 1, 4
ORDERED = "~ordered"
"""Marks the keys of weights whose inputs are in another order."""


def find_phase_slices(module: ModuleOp) -> None:
    """Write concatenations of all phases of a map as one layer."""
    found = False
    for op in [each for each in module.walk() if isinstance(each, g.ConcatOp)]:
        found |= replaced(op, module)
    if found:
        remove_unused(module)


def replaced(op: g.ConcatOp, module: ModuleOp) -> bool:
    """Replace one concatenation, if it is of phases that can be read in order."""
    if op.axis != CHANNELS or len(op.xs) < 2 or len(g.shape_of(op.result)) != MAP_RANK:
        return False
    parts = [taken(x) for x in op.xs]
    x, _, factor = parts[0]
    down, across = factor[2:]
    if factor[:2] != (1, 1) or down * across != len(parts) or g.shape_of(x)[2] % down or g.shape_of(x)[3] % across:
        return False
    if any(root is not x or starts[:2] != (0, 0) or steps != factor for root, starts, steps in parts):
        return False
    if len({g.shape_of(each) for each in op.xs}) > 1 or g.shape_of(op.xs[0])[CHANNELS] != g.shape_of(x)[CHANNELS]:
        return False
    order = [starts[2] * across + starts[3] for _, starts, _ in parts]
    if sorted(order) != list(range(len(parts))):
        return False
    if order != sorted(order):
        reader = ordering_reader(op.result)
        if reader is None or not put_in_order(reader, order, store_of(module)):
            return False
    whole = g.SpaceToDepthOp(x, (down, across), g.shape_of(x)[CHANNELS])
    whole.location = op.location
    Rewriter.replace_op(op, whole)
    return True


def taken(x: SSAValue) -> tuple[SSAValue, Extents, Extents]:
    """What slices of slices take: of which map, from where on, every how many-th."""
    starts, steps = (0,) * MAP_RANK, (1,) * MAP_RANK
    while isinstance(x.owner, g.SliceOp) and len(g.shape_of(x)) == MAP_RANK:
        cut = x.owner
        starts = tuple(a + s * b for a, b, s in zip(cut.starts, starts, cut.steps, strict=True))
        steps = tuple(a * b for a, b in zip(cut.steps, steps, strict=True))
        x = cut.x
    return x, starts, steps


def ordering_reader(value: SSAValue) -> g.ConvOp | None:
    """The convolution of all channels that alone reads a map."""
    users = [use.operation for use in value.uses]
    reader = users[0] if len(users) == 1 else None
    return reader if isinstance(reader, g.ConvOp) and reader.x is value and reader.groups == 1 else None


def put_in_order(reader: g.ConvOp, order: list[int], store: WeightStore) -> bool:
    """Give a convolution its constant weights with the inputs of phase k as the k-th."""
    weight = reader.w.owner
    if not isinstance(weight, g.WeightOp) or weight.key.data not in store:
        return False
    key, shape = weight.key.data, g.shape_of(reader.w)
    own = shape[CHANNELS] // len(order)
    chosen = np.concatenate([np.arange(own) + order.index(phase) * own for phase in range(len(order))])
    assert prod(chosen.shape) == shape[CHANNELS]
    kind = g.tensor_type(g.tensor_of(reader.w).element_type, shape)
    new = g.WeightOp(store.add(key + ORDERED, lambda: np.ascontiguousarray(store[key][:, chosen])), kind)
    follow(new, [weight], store, lambda known: known.taken(CHANNELS, chosen))
    new.location = weight.location
    Rewriter.insert_op(new, InsertPoint.before(reader))
    reader.operands[1] = new.result
    return True
