"""Multiplications and additions of constants, folded into the convolution or matrix product beside them, or into one
another.

    y = (conv(x, w) + b) * s + t        ->  conv(x, w * s) + (b * s + t)      s, t: per output channel
    y = conv(x * s + t, w) + b          ->  conv(x, w * s) + (b + sum(w * t)) s, t: per input channel

Batch normalisation is such a pair. An addition before a padded convolution stays: the padding is zero, not t.

    (x * a) * b  ->  x * (a * b)        (x + a) + b  ->  x + (a + b)        (x * a + t) * b  ->  x * (a * b) + t * b

A batch normalisation with a scale behind it (DenseNet: before an activation, so that no convolution takes it) is
four such layers, and becomes two. Single numbers stay apart: they may be a model's integers, between whose steps it
rounds. So do constants that cancel, or whose first product may overflow: the model rounds between them (`digits`).

    x / 2^n  ->  affine(x, 2^-n)        (x * a) / 2^n  ->  affine(x, a * 2^-n)

Powers of two change no digit, so that single ones are no exception; a division takes four times the passes of a
product, and a number in the instruction needs no place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import InsertPoint

from frustum.dialects import graph as g
from frustum.passes.analysis.module import node_name
from frustum.passes.dequantised import is_packed, mark_expanded
from frustum.passes.graph.patterns.digits import cancels, is_offset, reverts, swamps
from frustum.passes.weights import Array, WeightStore, is_float, numpy_of

DERIVED = "~"  # marks the keys of constants that a pass has made


@dataclass(frozen=True)
class Constants:
    """The constants of a module, which live in its store."""

    store: WeightStore

    def array(self, value: SSAValue | None) -> Array | None:
        """A floating-point constant, as it is stored; None for any other value, and for one not in the store."""
        if value is None or not isinstance(value.owner, g.WeightOp):
            return None
        key = value.owner.key.data
        if not is_float(g.tensor_of(value).element_type) or key not in self.store:
            return None
        return self.store[key]

    def like(self, value: SSAValue, array: Array, rewriter: PatternRewriter, user: Operation) -> SSAValue:
        """A constant made from the constant `value`, in its element type."""
        source = value.owner
        assert isinstance(source, g.WeightOp)
        stem = source.key.data.partition(DERIVED)[0]
        new = self._insert(stem, array, g.tensor_of(value).element_type, rewriter, user)
        mark_expanded(new.owner, [source], "are folded with other constants")
        return new

    def bias(self, array: Array, rewriter: PatternRewriter, layer: Operation) -> SSAValue:
        """A bias for `layer`: f32 whatever the layer's type, as the machine keeps it."""
        return self._insert(f"{node_name(layer) or layer.name}/bias", array, f32, rewriter, layer)

    def _insert(
        self, stem: str, array: Array, element: Attribute, rewriter: PatternRewriter, user: Operation
    ) -> SSAValue:
        stored = np.ascontiguousarray(array, dtype=numpy_of(element))
        op = g.WeightOp(self.store.add(stem + DERIVED, stored), g.tensor_type(element, array.shape))
        op.location = user.location
        rewriter.insert(op, InsertPoint.before(user))
        return op.result


Layer = g.ConvOp | g.MatmulOp


def scale_and_shift(op: g.BinaryOp, constants: Constants) -> tuple[SSAValue, Array | None, Array | None] | None:
    """(x, s, t) where the operation is x * s or x + t with a constant; None where it is not."""
    right, left = constants.array(op.b), constants.array(op.a)
    if right is not None and left is None:
        constant = right.astype(np.float64)
        match op.kind:
            case g.Arithmetic.MUL:
                return op.a, constant, None
            case g.Arithmetic.DIV if constant.all():
                return op.a, 1 / constant, None
            case g.Arithmetic.ADD:
                return op.a, None, constant
            case g.Arithmetic.SUB:
                return op.a, None, -constant
    if left is not None and right is None:
        constant = left.astype(np.float64)
        match op.kind:
            case g.Arithmetic.MUL:
                return op.b, constant, None
            case g.Arithmetic.ADD:
                return op.b, None, constant
            case g.Arithmetic.SUB:
                return None  # c - x would negate the layer: it is left as it is
    return None


MOST_SHIFTS = 8
"""Layers that are looked through for constants that were added before."""
MOST_NUMBERS = 64
"""Of constants whose elements have been moved, so many are looked at."""
MOVES = (g.ReshapeOp, g.TransposeOp, g.SliceOp)


def shift_within(x: SSAValue, constants: Constants, left: int = MOST_SHIFTS) -> Array:
    """What constants before have been added to a value, [candidates, ...], each in a shape that broadcasts to its own:
    one, or, behind moves, the numbers that may stand anywhere."""
    op, nothing = x.owner, np.zeros((1,) * (len(g.shape_of(x)) + 1))
    if not left or not isinstance(op, Operation):
        return nothing
    if isinstance(op, g.BinaryOp) and op.act is None:
        found = scale_and_shift(op, constants)
        if found is not None and g.shape_of(found[0]) == g.shape_of(x):
            source, scale, shift = found
            before = shift_within(source, constants, left - 1)
            return before + shift if shift is not None else before * scale
    if isinstance(op, Layer) and op.act is None and op.residual is None:
        bias = constants.array(op.bias)
        if bias is not None:
            channels = (-1, 1, 1) if isinstance(op, g.ConvOp) else (-1,)
            return nothing + bias.astype(np.float64).reshape(channels)
    if isinstance(op, g.InterleaveOp):
        return shift_within(op.parts[0], constants, left - 1)
    if isinstance(op, MOVES):
        numbers = np.unique(shift_within(op.x, constants, left - 1))
        few = numbers[np.linspace(0, len(numbers) - 1, min(len(numbers), MOST_NUMBERS)).astype(int)]
        return few.reshape(-1, *(1,) * len(g.shape_of(x)))
    return nothing


def takes_back(x: SSAValue, shift: Array, constants: Constants) -> bool:
    """Whether a constant that is added to a value takes back one that was added before."""
    return any(cancels(np.abs(before) + np.abs(shift), before + shift) for before in shift_within(x, constants))


def stays_integers(weight: SSAValue) -> bool:
    """Whether weights are stored as integers with scales, which a scale more would make numbers of."""
    return is_packed(weight.owner)


def along_axis(constant: Array, rank: int, axis: int, extent: int) -> Array | None:
    """The constant as one number per element of one axis; None where it varies along another."""
    if constant.ndim > rank:
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(size != 1 for place, size in enumerate(shape) if place != axis):
        return None
    return np.broadcast_to(constant.reshape(-1), (extent,)) if shape[axis] in (1, extent) else None


class FoldScaleAfter(RewritePattern):
    """A scale or shift of a layer's result goes into the layer; of interleaved parts, into every part."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, g.BinaryOp):
            return
        found = scale_and_shift(op, self.constants)
        if found is None:
            return
        x, scale, shift = found
        layer = x.owner
        if not x.has_one_use() or g.shape_of(x) != g.shape_of(op.result):
            return
        constant = scale if scale is not None else shift
        assert constant is not None
        channels = _channels(x)
        if channels is None:
            return
        axis, extent = channels
        values = along_axis(constant, len(g.shape_of(x)), axis, extent)
        if values is None or (shift is not None and takes_back(x, shift, self.constants)):
            return
        if isinstance(layer, g.InterleaveOp):
            self._into_parts(op, layer, x, rewriter)
        elif isinstance(layer, g.ConvOp | g.MatmulOp) and layer.act is None and layer.residual is None:
            self._into_layer(op, layer, values, scale is not None, rewriter)

    def _into_parts(self, op: g.BinaryOp, layer: g.InterleaveOp, x: SSAValue, rewriter: PatternRewriter) -> None:
        if not all(part.has_one_use() for part in layer.parts):
            return
        parts = []
        for part in layer.parts:
            operands = (part, op.b) if op.a is x else (op.a, part)
            new = g.BinaryOp(op.kind, *operands, act=op.act)
            new.location = op.location
            rewriter.insert(new)
            parts.append(new.result)
        woven = g.InterleaveOp(parts, layer.factor)
        woven.location = layer.location
        rewriter.replace(op, woven)
        rewriter.erase(layer)

    def _into_layer(
        self, op: g.BinaryOp, layer: Layer, values: Array, is_scale: bool, rewriter: PatternRewriter
    ) -> None:
        weight = layer.w if isinstance(layer, g.ConvOp) else layer.b
        if is_scale and stays_integers(weight):
            return
        weights, bias = self.constants.array(weight), self.constants.array(layer.bias)
        if weights is None or (layer.bias is not None and bias is None):
            return
        if is_scale:
            each = _outputs_first(layer, weights)
            largest = np.maximum(each.max(axis=1), -each.min(axis=1))
            if reverts(largest, values) or (bias is not None and is_offset(bias, np.abs(each).sum(axis=1))):
                return
            scaled = weights.astype(np.float32, copy=False) * _per_output(layer, values)
            weight = self.constants.like(weight, scaled, rewriter, layer)
            new_bias = None if bias is None else bias.astype(np.float64) * values
        else:
            if bias is not None and swamps(bias, values):
                return
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
        if not isinstance(op, g.ConvOp | g.MatmulOp) or op.residual is not None:
            return
        source = op.operands[0]
        before = source.owner
        if not isinstance(before, g.BinaryOp) or before.act is not None or not source.has_one_use():
            return
        found = scale_and_shift(before, self.constants)
        weight = op.w if isinstance(op, g.ConvOp) else op.b
        weights, bias = self.constants.array(weight), self.constants.array(op.bias)
        if found is None or weights is None or (op.bias is not None and bias is None):
            return
        x, scale, shift = found
        constant = None if scale is not None and stays_integers(weight) else scale if scale is not None else shift
        if constant is None or g.shape_of(x) != g.shape_of(source) or not _takes(op, scale is not None, weights):
            return
        rank = len(g.shape_of(x))
        axis = 1 if isinstance(op, g.ConvOp) else rank - 2 if op.trans_a else rank - 1
        values = along_axis(constant, rank, axis, g.shape_of(x)[axis])
        if values is None:
            return
        if scale is not None:
            if reverts(values, np.abs(weights).max(initial=0.0)):
                return
            scaled = weights.astype(np.float32, copy=False) * _per_input(op, weights, values)
            weight = self.constants.like(weight, scaled, rewriter, op)
            bias_value = op.bias
        else:
            new_bias = self._with_shift(op, x, weights.astype(np.float64), values, bias)
            if new_bias is None:
                return
            bias_value = self.constants.bias(new_bias, rewriter, op)
        replacement = rebuilt(op, x, weight, bias_value, op.act)
        rewriter.replace(op, replacement)
        rewriter.erase(before)


    def _with_shift(
        self, op: Layer, x: SSAValue, weights: Array, values: Array, bias: Array | None
    ) -> Array | None:
        """The bias of a layer whose operand is `values` less; None where that would lose digits."""
        own = np.zeros(()) if bias is None else bias.astype(np.float64)
        total = own + _shift_of_output(op, weights, values)
        size = np.abs(own) + _shift_of_output(op, np.abs(weights), np.abs(values))
        shift = values.reshape(-1, 1, 1) if isinstance(op, g.ConvOp) else values
        return None if cancels(size, total) or takes_back(x, shift, self.constants) else total


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
    shape = g.shape_of(x)
    if isinstance(x.owner, g.ConvOp | g.InterleaveOp):
        return 1, shape[1]
    return (len(shape) - 1, shape[-1]) if isinstance(x.owner, g.MatmulOp) else None


def _per_output(layer: Layer, values: Array) -> Array:
    """One number per output channel, in the shape that multiplies the weights."""
    values = values.astype(np.float32)
    if isinstance(layer, g.ConvOp):
        return values.reshape(-1, 1, 1, 1)
    return values.reshape(-1, 1) if layer.trans_b else values


def _outputs_first(layer: Layer, weights: Array) -> Array:
    """The weights as a matrix of one row per output channel."""
    if isinstance(layer, g.ConvOp):
        return weights.reshape(len(weights), -1).astype(np.float32, copy=False)
    last = weights if layer.trans_b else np.swapaxes(weights, -1, -2)
    return np.moveaxis(last, -2, 0).reshape(last.shape[-2], -1).astype(np.float32, copy=False)


def _per_input(layer: Layer, weights: Array, values: Array) -> Array:
    """One number per input channel, in the shape that multiplies the weights."""
    values = values.astype(np.float32)
    if isinstance(layer, g.ConvOp):
        grouped = values.reshape(layer.groups, 1, weights.shape[1], 1, 1)
        per_group = (layer.groups, weights.shape[0] // layer.groups, weights.shape[1], 1, 1)
        return np.broadcast_to(grouped, per_group).reshape(*weights.shape[:2], 1, 1)
    return values if layer.trans_b else values.reshape(-1, 1)


def _shift_of_output(layer: Layer, weights: Array, values: Array) -> Array:
    """What adding `values` to every input element adds to every output element."""
    if isinstance(layer, g.ConvOp):
        sums = weights.sum(axis=(2, 3)).reshape(layer.groups, -1, weights.shape[1])
        return np.einsum("gmc,gc->gm", sums, values.reshape(layer.groups, -1)).reshape(-1)
    return weights @ values if layer.trans_b else values @ weights


def _takes(layer: Layer, is_scale: bool, weights: Array) -> bool:
    """Whether the layer can take over what comes before it."""
    if isinstance(layer, g.MatmulOp):
        return weights.ndim == 2 or is_scale
    return is_scale or max(layer.pads) <= 0


SMALLEST, LARGEST = 2.0**-14, 2.0**15
"""Factors in which every 16-bit type keeps all its digits."""
Step = tuple[SSAValue, Array | None, Array | None]


class MergeScales(RewritePattern):
    """A scale or shift goes into the one before it; a scale moves before a shift where it finds another there."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        outer = self._step(op)
        if outer is None or not isinstance(op, g.BinaryOp):
            return
        before = outer[0].owner
        inner = self._before(outer[0])
        if inner is None or not isinstance(before, g.BinaryOp):
            return
        x = inner[0]
        steps = self._merged(op, outer, inner)
        if not steps or not self._fits(op, before, *steps[-1]):
            return
        for step in steps[:-1]:
            scaled = self._made(op, x, *step, None, rewriter)
            rewriter.insert(scaled)
            x = scaled.result
        rewriter.replace(op, self._made(op, x, *steps[-1], op.act, rewriter))
        rewriter.erase(before)

    def _merged(self, op: g.BinaryOp, outer: Step, inner: Step) -> list[tuple[g.Arithmetic, Array]]:
        """What the two do in other steps, if that rounds as they do; else nothing."""
        (made, scale, shift), (x, inner_scale, inner_shift) = outer, inner
        if scale is not None and inner_scale is not None:
            return [] if reverts(inner_scale, scale) else [(g.Arithmetic.MUL, scale * inner_scale)]
        if shift is not None and inner_shift is not None:
            is_lost = takes_back(made, shift, self.constants) or swamps(inner_shift, shift)
            return [] if is_lost else [(g.Arithmetic.ADD, shift + inner_shift)]
        further = self._before(x) if scale is not None and inner_shift is not None else None
        if further is None or further[1] is None or scale is None or inner_shift is None:
            return []
        if not is_kept(further[1] * scale, op) or is_offset(inner_shift, further[1]):
            return []
        return [(g.Arithmetic.MUL, scale), (g.Arithmetic.ADD, inner_shift * scale)]

    def _fits(self, op: g.BinaryOp, before: g.BinaryOp, kind: g.Arithmetic, constant: Array) -> bool:
        """Whether a constant is no larger than the two that it stands for, and no single number."""
        most = max(math.prod(g.shape_of(self._constant(each))) for each in (op, before))
        is_scale = kind is g.Arithmetic.MUL
        return most > 1 and constant.size <= most and is_kept(constant, op, is_scale=is_scale)

    def _step(self, op: Operation) -> Step | None:
        """What an operation does, if that is a scale or shift by no more than its result's shape."""
        if not isinstance(op, g.BinaryOp):
            return None
        found = scale_and_shift(op, self.constants)
        return found if found is not None and g.shape_of(found[0]) == g.shape_of(op.result) else None

    def _before(self, x: SSAValue) -> Step | None:
        """What makes a value, if it is a scale or shift for one reader, without activation."""
        op = x.owner
        if not isinstance(op, g.BinaryOp) or op.act is not None or not x.has_one_use():
            return None
        return self._step(op)

    def _constant(self, op: g.BinaryOp) -> SSAValue:
        return op.b if self.constants.array(op.b) is not None else op.a

    def _made(
        self, op: g.BinaryOp, x: SSAValue, kind: g.Arithmetic, constant: Array, act: g.ActAttr | None,
        rewriter: PatternRewriter,
    ) -> g.BinaryOp:  # fmt: skip
        value = self.constants.like(self._constant(op), constant, rewriter, op)
        new = g.BinaryOp(kind, x, value, act=act)
        new.location = op.location
        return new


class DivideByPowers(RewritePattern):
    """Division by a power of two is a product, with that of a number before it if there is one."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, g.BinaryOp) or op.kind is not g.Arithmetic.DIV:
            return
        divisor = self._number(op.b)
        if divisor is None or abs(math.frexp(divisor)[0]) != 0.5 or g.shape_of(op.a) != g.shape_of(op.result):
            return
        (x, number), maker = self._scaled(op.a), op.a.owner
        made = [g.UnaryOp(g.ActAttr.of("affine", number / divisor, 0.0), x)]
        if op.act is not None:
            made.append(g.UnaryOp(op.act, made[0].result))
        for each in made:
            each.location = op.location
        rewriter.replace(op, made)
        if isinstance(maker, Operation) and x in maker.operands:
            rewriter.erase(maker)

    def _scaled(self, value: SSAValue) -> tuple[SSAValue, float]:
        """A value and a number whose product it is: itself and 1, or what its maker multiplies for it alone."""
        maker = value.owner
        if not isinstance(maker, g.BinaryOp) or maker.kind is not g.Arithmetic.MUL or maker.act is not None:
            return value, 1.0
        for x, by in ((maker.a, maker.b), (maker.b, maker.a)) if value.has_one_use() else ():
            number = self._number(by)
            if number is not None and g.shape_of(x) == g.shape_of(value):
                return x, number
        return value, 1.0

    def _number(self, value: SSAValue) -> float | None:
        """A constant that is one number."""
        array = self.constants.array(value)
        return float(array.item()) if array is not None and array.size == 1 else None


def is_kept(constant: Array, op: g.BinaryOp, is_scale: bool = True) -> bool:
    """Whether a constant loses nothing but its last digits in the types that the network may be converted to, and has
    no more dimensions than the map."""
    if constant.ndim > len(g.shape_of(op.result)):
        return False
    size = np.abs(constant)
    return bool((size <= LARGEST).all()) and not (is_scale and bool(((size < SMALLEST) & (size > 0)).any()))
