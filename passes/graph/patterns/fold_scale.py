"""Multiplications and additions of constants, folded into the convolution or matrix product beside them.

    y = (conv(x, w) + b) * s + t        ->  conv(x, w * s) + (b * s + t)      s, t: per output channel
    y = conv(x * s + t, w) + b          ->  conv(x, w * s) + (b + sum(w * t)) s, t: per input channel

Batch normalisation is such a pair. An addition before a padded convolution stays: the padding is zero, not t.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from frustum.dialects.graph import Arithmetic, BinaryOp, ConvOp, InterleaveOp, MatmulOp, shape_of
from frustum.passes.graph.constants import Constants
from frustum.passes.weights import Array

Layer = ConvOp | MatmulOp


def scale_and_shift(op: BinaryOp, constants: Constants) -> tuple[SSAValue, Array | None, Array | None] | None:
    """(x, s, t) where the operation is x * s or x + t with a constant; None where it is not."""
    right, left = constants.array(op.b), constants.array(op.a)
    if right is not None and left is None:
        constant = right.astype(np.float64)
        match op.kind:
            case Arithmetic.MUL:
                return op.a, constant, None
            case Arithmetic.DIV if constant.all():
                return op.a, 1 / constant, None
            case Arithmetic.ADD:
                return op.a, None, constant
            case Arithmetic.SUB:
                return op.a, None, -constant
    if left is not None and right is None:
        constant = left.astype(np.float64)
        match op.kind:
            case Arithmetic.MUL:
                return op.b, constant, None
            case Arithmetic.ADD:
                return op.b, None, constant
            case Arithmetic.SUB:
                return None  # c - x would negate the layer: it is left as it is
    return None


def along_axis(constant: Array, rank: int, axis: int, extent: int) -> Array | None:
    """The constant as one number per element of one axis; None where it varies along another."""
    if constant.ndim > rank:
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(size != 1 for place, size in enumerate(shape) if place != axis):
        return None
    return np.broadcast_to(constant.reshape(-1), (extent,)) if shape[axis] in (1, extent) else None


def has_one_use(value: SSAValue) -> bool:
    return value.has_one_use()


class FoldScaleAfter(RewritePattern):
    """A scale or shift of a layer's result goes into the layer; of interleaved parts, into every part."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, BinaryOp):
            return
        found = scale_and_shift(op, self.constants)
        if found is None:
            return
        x, scale, shift = found
        layer = x.owner
        if not has_one_use(x) or shape_of(x) != shape_of(op.result):
            return
        constant = scale if scale is not None else shift
        assert constant is not None
        channels = _channels(x)
        if channels is None:
            return
        axis, extent = channels
        values = along_axis(constant, len(shape_of(x)), axis, extent)
        if values is None:
            return
        if isinstance(layer, InterleaveOp):
            self._into_parts(op, layer, x, rewriter)
        elif isinstance(layer, ConvOp | MatmulOp) and layer.act is None and layer.residual is None:
            self._into_layer(op, layer, values, scale is not None, rewriter)

    def _into_parts(self, op: BinaryOp, layer: InterleaveOp, x: SSAValue, rewriter: PatternRewriter) -> None:
        if not all(has_one_use(part) for part in layer.parts):
            return
        parts = []
        for part in layer.parts:
            operands = (part, op.b) if op.a is x else (op.a, part)
            new = BinaryOp(op.kind, *operands, act=op.act)
            new.location = op.location
            rewriter.insert(new)
            parts.append(new.result)
        woven = InterleaveOp(parts, layer.factor)
        woven.location = layer.location
        rewriter.replace(op, woven)
        rewriter.erase(layer)

    def _into_layer(
        self, op: BinaryOp, layer: Layer, values: Array, is_scale: bool, rewriter: PatternRewriter
    ) -> None:
        weight = layer.w if isinstance(layer, ConvOp) else layer.b
        weights, bias = self.constants.array(weight), self.constants.array(layer.bias)
        if weights is None or (layer.bias is not None and bias is None):
            return
        if is_scale:
            scaled = weights.astype(np.float32, copy=False) * _per_output(layer, values)
            weight = self.constants.like(weight, scaled, rewriter, layer)
            new_bias = None if bias is None else bias.astype(np.float64) * values
        else:
            new_bias = values if bias is None else bias.astype(np.float64) + values
        bias_value = None if new_bias is None else self.constants.bias(new_bias, rewriter, layer)
        act = op.act or layer.act
        replacement = rebuilt(layer, layer.operands[0], weight, bias_value, act)
        rewriter.replace(layer, replacement)
        rewriter.replace(op, (), [replacement.result])


class FoldScaleBefore(RewritePattern):
    """A scale or shift of a layer's operand goes into the layer."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, ConvOp | MatmulOp) or op.residual is not None:
            return
        source = op.operands[0]
        before = source.owner
        if not isinstance(before, BinaryOp) or before.act is not None or not has_one_use(source):
            return
        found = scale_and_shift(before, self.constants)
        weight = op.w if isinstance(op, ConvOp) else op.b
        weights, bias = self.constants.array(weight), self.constants.array(op.bias)
        if found is None or weights is None or (op.bias is not None and bias is None):
            return
        x, scale, shift = found
        constant = scale if scale is not None else shift
        if constant is None or shape_of(x) != shape_of(source) or not _takes(op, scale is not None, weights):
            return
        rank = len(shape_of(x))
        axis = 1 if isinstance(op, ConvOp) else rank - 2 if op.trans_a else rank - 1
        values = along_axis(constant, rank, axis, shape_of(x)[axis])
        if values is None:
            return
        if scale is not None:
            scaled = weights.astype(np.float32, copy=False) * _per_input(op, weights, values)
            weight = self.constants.like(weight, scaled, rewriter, op)
            bias_value = op.bias
        else:
            total = _shift_of_output(op, weights.astype(np.float64), values)
            new_bias = total if bias is None else bias.astype(np.float64) + total
            bias_value = self.constants.bias(new_bias, rewriter, op)
        replacement = rebuilt(op, x, weight, bias_value, op.act)
        rewriter.replace(op, replacement)
        rewriter.erase(before)


def rebuilt(
    layer: Layer, x: SSAValue, weight: SSAValue, bias: SSAValue | None, act: Attribute | None
) -> Layer:
    """The layer with other operands; its result's type, attributes and location stay."""
    properties = dict(layer.properties)
    if act is not None:
        properties["act"] = act
    properties.pop("operandSegmentSizes")  # follows from the operands
    others = [getattr(layer, name) for name, _ in layer.get_irdl_definition().operands[3:]]
    new = type(layer).build(
        operands=[x, weight, bias, *others],
        properties=properties,
        attributes=layer.attributes,
        result_types=[layer.result.type],
    )
    new.location = layer.location
    return new


def _channels(x: SSAValue) -> tuple[int, int] | None:
    """(axis, extent) of what a layer has one bias for."""
    shape = shape_of(x)
    if isinstance(x.owner, ConvOp | InterleaveOp):
        return 1, shape[1]
    return (len(shape) - 1, shape[-1]) if isinstance(x.owner, MatmulOp) else None


def _per_output(layer: Layer, values: Array) -> Array:
    """One number per output channel, in the shape that multiplies the weights."""
    values = values.astype(np.float32)
    if isinstance(layer, ConvOp):
        return values.reshape(-1, 1, 1, 1)
    return values.reshape(-1, 1) if layer.trans_b else values


def _per_input(layer: Layer, weights: Array, values: Array) -> Array:
    """One number per input channel, in the shape that multiplies the weights."""
    values = values.astype(np.float32)
    if isinstance(layer, ConvOp):
        grouped = values.reshape(layer.groups, 1, weights.shape[1], 1, 1)
        per_group = (layer.groups, weights.shape[0] // layer.groups, weights.shape[1], 1, 1)
        return np.broadcast_to(grouped, per_group).reshape(*weights.shape[:2], 1, 1)
    return values if layer.trans_b else values.reshape(-1, 1)


def _shift_of_output(layer: Layer, weights: Array, values: Array) -> Array:
    """What adding `values` to every input element adds to every output element."""
    if isinstance(layer, ConvOp):
        sums = weights.sum(axis=(2, 3)).reshape(layer.groups, -1, weights.shape[1])
        return np.einsum("gmc,gc->gm", sums, values.reshape(layer.groups, -1)).reshape(-1)
    return weights @ values if layer.trans_b else values @ weights


def _takes(layer: Layer, is_scale: bool, weights: Array) -> bool:
    """Whether the layer can take over what comes before it."""
    if isinstance(layer, MatmulOp):
        return weights.ndim == 2 or is_scale
    return is_scale or max(layer.pads) <= 0
