"""Find normalisations that a network has as plain layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.module import keep_range
from frustum.passes.analysis.module import absorb, absorb_between, node_name
from frustum.passes.graph.canonicalize import remove_unused
from frustum.passes.weights import Array, WeightStore, numpy_of, store_of

Affine = tuple[Array, ...]
"""Scale, or scale and shift, in f64."""


@dataclass(frozen=True)
class FindNormalise(ModulePass):
    """Write what amounts to a normalisation as one operation.

    1. A difference to the mean (or x itself: RMS) divided by the root of the mean of its squares plus a constant.
    2. A normalisation of a map that was reshaped to [N, groups, ...], and is reshaped back: one by groups of channels.
    3. A constant factor behind it, and a constant that is added then, are its scale and shift.

    Before: operators as the file has them.  After: `fgraph.normalise` where nothing between has another reader.
    Source: ONNX operators 21, LayerNormalization and GroupNormalization as functions; torch.onnx of group_norm.
    """

    name = "frustum-graph-find-normalise"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        is_changed = False
        for each in [o for o in op.walk() if isinstance(o, g.BinaryOp)]:
            is_changed |= write_plain(each, store_of(op))
        for found in [o for o in op.walk() if isinstance(o, g.NormaliseOp) and o.act is None]:
            grouped = by_groups(found, store_of(op)) or found
            scaled = with_affine(grouped, store_of(op))
            is_changed |= grouped is not found or scaled
        if is_changed:
            remove_unused(op)


def constant(value: SSAValue | None, store: WeightStore) -> Array | None:
    if value is None or not isinstance(value.owner, g.WeightOp) or g.is_integer(value):
        return None
    return np.asarray(store[value.owner.key.data]).astype(np.float64)


def number(value: SSAValue, store: WeightStore) -> float | None:
    array = constant(value, store)
    return float(array.ravel()[0]) if array is not None and array.size == 1 else None


def only_reader(value: SSAValue) -> Operation | None:
    """What reads a value, where one operand alone does."""
    uses = list(value.uses)
    return uses[0].operation if len(uses) == 1 else None


# --- the parts of a normalisation --------------------------------------------------------------------------------


def write_plain(op: g.BinaryOp, store: WeightStore) -> bool:
    """A division by a deviation, or a product with the inverse of one."""
    if op.act is not None or op.scales is not None or g.is_integer(op.a):
        return False
    for x, other in ((op.a, op.b), (op.b, op.a)) if op.kind == "mul" else ((op.a, op.b),):
        root = inverted(other) if op.kind == "mul" else other if op.kind == "div" else None
        if root is None or not isinstance(root.owner, g.UnaryOp) or root.owner.kind != "sqrt":
            continue
        found = variance_of(root.owner.x, x, store)
        if found is None or g.shape_of(op.result) != g.shape_of(x):
            continue
        mean, epsilon = found
        source, rms = centred(x, mean)
        made = g.NormaliseOp(source, axes=mean.axes, epsilon=epsilon, rms=rms)
        made.location = op.location
        absorb_between(op, [source], made.results)
        keep_range(op, made)
        Rewriter.replace_op(op, [made])
        return True
    return False


def inverted(value: SSAValue) -> SSAValue | None:
    owner = value.owner
    if isinstance(owner, g.UnaryOp) and owner.kind == "reciprocal":
        return owner.x
    if isinstance(owner, g.BinaryOp) and owner.kind == "div" and owner.act is None:
        is_one = isinstance(owner.a.owner, g.WeightOp) and g.shape_of(owner.a) in ((), (1,))
        return owner.b if is_one else None
    return None


def variance_of(value: SSAValue, x: SSAValue, store: WeightStore) -> tuple[g.ReduceOp, float] | None:
    """The mean of the squares of x, and what is added to it."""
    total = value.owner
    if not isinstance(total, g.BinaryOp) or total.kind != "add" or total.act is not None:
        return None
    for mean, epsilon in ((total.a.owner, number(total.b, store)), (total.b.owner, number(total.a, store))):
        if not isinstance(mean, g.ReduceOp) or not is_mean(mean) or epsilon is None or epsilon < 0:
            continue
        if is_square(mean.x, x, store):
            return mean, epsilon
    return None


def is_mean(op: g.ReduceOp) -> bool:
    return bool(op.kind == "mean" and op.keepdims and op.scales is None)


def is_square(value: SSAValue, x: SSAValue, store: WeightStore) -> bool:
    owner = value.owner
    if not isinstance(owner, g.BinaryOp) or owner.act is not None or owner.a is not x:
        return False
    return (owner.kind == "mul" and owner.b is x) or (owner.kind == "pow" and number(owner.b, store) == 2)


def centred(x: SSAValue, mean: g.ReduceOp) -> tuple[SSAValue, bool]:
    """What x is the difference to the mean of; x itself, of which the mean counts as 0."""
    owner = x.owner
    if isinstance(owner, g.BinaryOp) and owner.kind == "sub" and owner.act is None and owner.scales is None:
        own = owner.b.owner
        if isinstance(own, g.ReduceOp) and is_mean(own) and own.x is owner.a and own.axes == mean.axes:
            return owner.a, False
    return x, True


# --- groups ------------------------------------------------------------------------------------------------------


def by_groups(op: g.NormaliseOp, store: WeightStore) -> g.NormaliseOp | None:
    """The same of the map before it was reshaped, and is again after."""
    before, after = op.x.owner, only_reader(op.result)
    if not isinstance(before, g.ReshapeOp) or not isinstance(after, g.ReshapeOp) or op.groups > 1:
        return None
    shape, split = g.shape_of(before.x), g.shape_of(op.x)
    if g.shape_of(after.result) != shape or len(shape) < 3 or len(split) < 3 or split[0] != shape[0]:
        return None
    groups, affine = split[1], affine_of(op, store)
    if op.axes != tuple(range(2, len(split))) or shape[1] % groups or affine is None:
        return None
    each = [spread(array, split, groups) for array in affine]
    if any(array is None for array in each):
        return None
    of_channels = tuple(np.repeat(array, shape[1] // groups) for array in each if array is not None)
    axes = tuple(range(1 if groups < shape[1] else 2, len(shape)))
    made = rebuilt(op, before.x, axes, groups if groups < shape[1] else 1, of_channels, store)
    Rewriter.replace_op(after, [], [made.result])
    return made


def affine_of(op: g.NormaliseOp, store: WeightStore) -> Affine | None:
    """Its scale and shift; None where they are not known."""
    arrays = [constant(value, store) for value in (op.scale, op.shift) if value is not None]
    return None if any(array is None for array in arrays) else tuple(a for a in arrays if a is not None)


def spread(array: Array, split: Extents, groups: int) -> Array | None:
    """One number for each group; None where there are others."""
    shape = (1,) * (len(split) - array.ndim) + array.shape
    if any(extent > 1 for axis, extent in enumerate(shape) if axis != 1):
        return None
    return np.broadcast_to(array.ravel(), (groups,))


def rebuilt(
    op: g.NormaliseOp, x: SSAValue, axes: Extents, groups: int, affine: Affine, store: WeightStore
) -> g.NormaliseOp:
    """Before `op`, of x, with numbers for each channel; those that say nothing are left out."""
    block, channels = op.parent, (-1, *(1,) * (len(g.shape_of(x)) - 2))
    assert block is not None
    if np.all([np.all(array == neutral) for array, neutral in zip(affine, (1, 0), strict=False)]):
        affine = ()
    weights = [weight_of(op, array.reshape(channels), word, store) for array, word in zip(affine, WORDS, strict=False)]
    made = g.NormaliseOp(x, *(w.result for w in weights), axes=axes, epsilon=op.epsilon, groups=groups, rms=op.rms)
    made.location = op.location
    keep_range(op, made)
    block.insert_ops_before([*weights, made], op)
    return made


WORDS = ("scale", "shift")


def weight_of(op: g.NormaliseOp, array: Array, word: str, store: WeightStore) -> g.WeightOp:
    element = g.tensor_of(op.x).element_type
    key = store.add(f"{node_name(op) or op.name}/{word}", array.astype(numpy_of(element)))
    return g.WeightOp(key, g.tensor_type(element, array.shape))


# --- what follows ------------------------------------------------------------------------------------------------


def with_affine(op: g.NormaliseOp, store: WeightStore) -> bool:
    """Take a factor and a term that follow as scale and shift."""
    is_changed = False
    for word, kind in zip(WORDS, ("mul", "add"), strict=True):
        if op.shift is not None or (word == "scale" and op.scale is not None) or (word == "shift" and op.scale is None):
            continue
        user = only_reader(op.result)
        if not isinstance(user, g.BinaryOp) or user.kind != kind or user.act is not None or user.scales is not None:
            break
        other = user.b if user.a is op.result else user.a
        is_known = isinstance(other.owner, g.WeightOp) and not g.is_integer(other)
        if not is_known or g.shape_of(user.result) != g.shape_of(op.x) or math.prod(g.shape_of(other)) == 1:
            break
        operands = (other,) if word == "scale" else (op.scale, other)
        made = g.NormaliseOp(
            op.x, *operands, axes=op.axes, epsilon=op.epsilon, groups=op.groups, rms=op.rms
        )
        made.location = op.location
        absorb(user, made.results)
        keep_range(user, made)
        Rewriter.replace_op(user, [made])
        op, is_changed = made, True
    return is_changed
