"""Layers between dequantising and quantising become layers of integers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, f32, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.dialects.graph.attributes import float_attr, int_array
from frustum.dialects.module import INPUT_RANGES, SCALE, TARGET
from frustum.dialects.target import Target
from frustum.dialects.weights.scaled import BYTE_BITS
from frustum.passes.analysis.module import node_name, target_of
from frustum.passes.dequantised import Dequantised, dequantised_of, note
from frustum.passes.graph.canonicalize import remove_unused
from frustum.passes.weights import Array, WeightStore, numpy_of, store_of

CONVERTS = (g.BinaryOp, g.UnaryOp, g.ReduceOp, g.SoftmaxOp, g.LrnOp)
"""Computed in f32 inside one operation."""
CHOOSES = (g.ConcatOp, g.InterleaveOp)
"""Put integers of one scale together."""
MARGIN = 1 << 30
"""Biases above this, in steps of the accumulator, are left in f32: the accumulator has 31 bits."""


@dataclass(frozen=True)
class FoldQuantisation(ModulePass):
    """Turn dequantize -> layer -> quantize into the layer on integers.

    1. dequantize below what only chooses elements: reshape, transpose, slice, max-pool, pad, nearest resize;
       quantize above reshape and transpose
    2. convolutions and matrix products with constant weights that were integers, relu and clip included:
       exact sums, a multiplier for each output channel, biases in steps of the accumulator
    3. other layers: one operation with a scale for each operand and the result
    4. attention without mask and cap, of networks that `frustum-graph-quantise` has quantised, whose keys and values
       have the zero point 0: where pieces with all keys fit the target
    5. quantize of a dequantize: nothing, or the change of scale

    Before: integers where the model stores them; canonical.  After: what matched computes with them.
    """

    name = "frustum-graph-fold-quantisation"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        networks = g.networks_of(op)
        for network in networks:
            if any(isinstance(inner, g.QuantizeOp | g.DequantizeOp) for inner in network.body.block.ops):
                _fold(network, Folder(store_of(op), target_of_quantised(op, network)))
        if networks:
            remove_unused(op)


def target_of_quantised(module: ModuleOp, network: g.NetworkOp) -> Target | None:
    """The target, where attention may be of integers: a model that says itself what is quantised says no such thing."""
    return target_of(module) if INPUT_RANGES in network.attributes and TARGET in module.attributes else None


def _fold(network: g.NetworkOp, folder: Folder) -> None:
    block = network.body.block
    for op in list(block.ops):
        _sink(op)
    for op in reversed(list(block.ops)):
        _hoist(op)
    for op in list(block.ops):
        if isinstance(op, g.QuantizeOp):
            new = folder.folded(op)
            if new is not None:
                op.result.replace_all_uses_with(new)
                Rewriter.erase_op(op)


# --- moving conversions out of the way ----------------------------------------------------------------------


def _sink(op: Operation) -> None:
    """dequantize -> choice becomes choice -> dequantize."""
    if not op.operands or not isinstance(op.operands[0].owner, g.DequantizeOp):
        return
    source = op.operands[0].owner
    if not _chooses(op, source.from_):
        return
    element = g.tensor_of(source.x).element_type
    properties = dict(op.properties)
    if isinstance(op, g.PadOp):
        properties["value"] = float_attr(_step_of(op.value, source.from_))
    new = _rebuilt(op, [source.x], element, properties)
    after = g.DequantizeOp(new.results[0], source.from_)
    _place(op, new, after)
    op.results[0].replace_all_uses_with(after.result)
    Rewriter.erase_op(op)


def _chooses(op: Operation, scale: g.ScaleAttr) -> bool:
    match op:
        case g.ReshapeOp() | g.TransposeOp() | g.SliceOp():
            return True
        case g.PoolOp():
            return op.kind == g.Pooling.MAX and op.act is None
        case g.ResizeOp():
            return op.mode == g.Interpolation.NEAREST
        case g.PadOp():
            assert isinstance(op.x.owner, g.DequantizeOp)
            low, high = g.bounds(g.tensor_of(op.x.owner.x).element_type)
            step = _step_of(op.value, scale)
            return low <= step <= high and (step - scale.zero) * scale.scale == op.value
        case _:
            return False


def _step_of(value: float, scale: g.ScaleAttr) -> float:
    return float(np.rint(value / scale.scale) + scale.zero)


def _hoist(op: Operation) -> None:
    """view -> quantize becomes quantize -> view, where nobody else uses the view."""
    if not isinstance(op, g.QuantizeOp) or not op.x.has_one_use():
        return
    view = op.x.owner
    if not isinstance(view, g.ReshapeOp | g.TransposeOp) or not view.x.has_one_use():
        return
    element = g.tensor_of(op.result).element_type
    before = g.QuantizeOp(view.x, op.to, element)
    new = _rebuilt(view, [before.result], element, dict(view.properties))
    _place(view, before, new)
    op.result.replace_all_uses_with(new.results[0])
    for old in (op, view):
        Rewriter.erase_op(old)
    _hoist(before)


def _place(at: Operation, *new: Operation) -> None:
    for op in new:
        op.location = at.location
    Rewriter.insert_op(list(new), InsertPoint.before(at))


def _rebuilt(
    op: Operation, operands: list[Any], element: Attribute, properties: dict[str, Attribute]
) -> Operation:
    """The same operation on other operands, with elements of another type."""
    result = g.tensor_type(element, g.shape_of(op.results[0]))
    assert isinstance(op, IRDLOperation)
    return type(op).build(operands=operands, properties=properties, result_types=[result])


# --- layers -------------------------------------------------------------------------------------------------


@dataclass
class Integers:
    """An operand's integers, and what they stand for: one scale or one for each of `axis`."""

    value: SSAValue
    scales: Array
    zeros: Array
    axis: int = 0

    @property
    def attribute(self) -> g.ScaleAttr:
        return g.ScaleAttr.of(float(self.scales.reshape(-1)[0]), int(self.zeros.reshape(-1)[0]))


@dataclass
class Folder:
    """Makes layers of integers; constants are stored once for each that they come from."""

    store: WeightStore
    target: Target | None = None
    """That attention of integers has to fit; None: it stays one of floats."""
    made: dict[tuple[SSAValue, Attribute], SSAValue] = field(default_factory=dict)

    def folded(self, op: g.QuantizeOp) -> SSAValue | None:
        """The result of integers that `op` gives; None where its producer does not match."""
        producer = op.x.owner
        if isinstance(producer, g.DequantizeOp):
            return self._requantised(op, producer.x, producer.from_)
        if not op.x.has_one_use() or not isinstance(producer, Operation):
            return None
        layer, act = _layer_and_end(producer)
        if layer is not None:
            return self._product(op, layer, act)
        if isinstance(producer, CHOOSES):
            return self._chosen(op, producer)
        if isinstance(producer, g.AttentionOp):
            return self._attention(op, producer)
        if isinstance(producer, CONVERTS) or _converts(producer):
            return self._converted(op, producer)
        return None

    def _requantised(self, op: g.QuantizeOp, x: SSAValue, scale: g.ScaleAttr) -> SSAValue | None:
        element = g.tensor_of(op.result).element_type
        if g.tensor_of(x).element_type != element:
            return None
        return x if scale == op.to else self._emit(op, g.UnaryOp("identity", x, [scale, op.to]))

    def _chosen(self, op: g.QuantizeOp, producer: Operation) -> SSAValue | None:
        element = g.tensor_of(op.result).element_type
        operands = [self._integers(value, element) for value in producer.operands]
        if any(operand is None or operand.scales.size != 1 for operand in operands):
            return None
        values = [
            operand.value
            if operand.attribute == op.to
            else self._emit(op, g.UnaryOp("identity", operand.value, [operand.attribute, op.to]))
            for operand in operands
            if operand is not None
        ]
        return self._emit(op, _rebuilt(producer, [values], element, dict(producer.properties)), producer)

    def _attention(self, op: g.QuantizeOp, producer: g.AttentionOp) -> SSAValue | None:
        from frustum.passes.graph.composites.expand_attention import fits_integers  # which loads the planner

        zeros = [x.owner.from_.zero for x in (producer.k, producer.v) if isinstance(x.owner, g.DequantizeOp)]
        is_plain = producer.mask is None and producer.softcap == 0 and zeros == [0, 0]
        if self.target is None or not is_plain or not fits_integers(producer, self.target):
            return None
        return self._converted(op, producer)

    def _converted(self, op: g.QuantizeOp, producer: Operation) -> SSAValue | None:
        element = g.tensor_of(op.result).element_type
        operands = [self._integers(value, element) for value in producer.operands]
        if any(operand is None or operand.scales.size != 1 for operand in operands):
            return None
        found = [operand for operand in operands if operand is not None]
        scales = ArrayAttr([*(operand.attribute for operand in found), op.to])
        properties = {**producer.properties, "scales": scales}
        assert isinstance(producer, IRDLOperation)
        absent = [None] * (len(producer.get_irdl_definition().operands) - len(found))
        new = _rebuilt(producer, [*(operand.value for operand in found), *absent], element, properties)
        return self._emit(op, new, producer)

    def _product(self, op: g.QuantizeOp, layer: g.ConvOp | g.MatmulOp, act: g.ActAttr | None) -> SSAValue | None:
        element = g.tensor_of(op.result).element_type
        x, w = self._integers(layer.operands[0], element), self._integers(layer.operands[1], element)
        axis = _column_axis(layer)
        if x is None or w is None or x.scales.size != 1 or (w.scales.size != 1 and w.axis != axis):
            return None
        columns = g.shape_of(layer.operands[1])[axis]
        steps = x.scales.astype(np.float32) * w.scales.astype(np.float32)
        bias = self._bias(layer, np.broadcast_to(steps, (columns,)))
        if layer.bias is not None and bias is None:
            return None
        multiplier = np.broadcast_to(steps / np.float32(op.to.scale), (columns,)).astype(np.float32)
        w_zero = None
        if w.zeros.any():
            zeros = np.broadcast_to(w.zeros, (columns,)).astype(numpy_of(element))
            w_zero = self._constant(op, zeros, element, "w_zero")
        properties = {name: value for name, value in layer.properties.items() if name not in ("act", SEGMENTS)}
        properties["zeros"] = int_array((x.attribute.zero, op.to.zero))
        clip = clip_of(act, op.to, element)
        if clip is not None:
            properties["act"] = clip
        bias_value = None if bias is None else self._constant(op, bias, i32, "bias")
        scaled = self._constant(op, multiplier, f32, "multiplier")
        others = [None] * (len(layer.get_irdl_definition().operands) - 5)
        new = _rebuilt(layer, [x.value, w.value, bias_value, w_zero, scaled, *others], element, properties)
        new.attributes[SCALE] = op.to
        return self._emit(op, new, layer)

    def _bias(self, layer: g.ConvOp | g.MatmulOp, steps: Array) -> Array | None:
        """The bias in steps of the accumulator; None where it is no constant, or too large."""
        if layer.bias is None or not isinstance(layer.bias.owner, g.WeightOp):
            return None
        known = dequantised_of(layer.bias, self.store)
        if known is not None and known.is_by_channel and not known.zeros.any() and np.array_equal(
            np.broadcast_to(known.scales.reshape(-1), steps.shape), steps
        ):
            return known.integers.astype(np.int32)
        counts = np.rint(self.store[layer.bias.owner.key.data].astype(np.float64) / steps)
        return counts.astype(np.int32) if np.abs(counts).max(initial=0) < MARGIN else None

    def _integers(self, value: SSAValue, element: Attribute) -> Integers | None:
        """What the dequantised value was before, in this type."""
        if isinstance(value.owner, g.DequantizeOp):
            source = value.owner
            if g.tensor_of(source.x).element_type != element:
                return None
            scale, zero = source.from_.data
            return Integers(source.x, np.asarray([scale], np.float32), np.asarray([zero]))
        known = dequantised_of(value, self.store)
        if known is None or not known.is_by_channel or not _fits(known, element):
            return None
        if (value, element) not in self.made:
            assert isinstance(value.owner, g.WeightOp)
            self.made[value, element] = _stored(self.store, value.owner, known, element)
        return Integers(self.made[value, element], known.scales.astype(np.float32).reshape(-1), known.zeros, known.axis)

    def _constant(self, at: Operation, array: Array, element: Attribute, suffix: str) -> SSAValue:
        key = self.store.add(f"{node_name(at) or at.name}/{suffix}~", np.ascontiguousarray(array))
        weight = g.WeightOp(key, g.tensor_type(element, array.shape))
        return self._emit(at, weight)

    def _emit(self, at: Operation, new: Operation, like: Operation | None = None) -> SSAValue:
        new.location = (like or at).location
        Rewriter.insert_op(new, InsertPoint.before(at))
        return new.results[0]


SEGMENTS = "operandSegmentSizes"


def _fits(known: Dequantised, element: Attribute) -> bool:
    low, high = g.bounds(element)
    return known.integers.dtype.itemsize <= numpy_of(element).itemsize and bool(
        (known.zeros >= low).all() and (known.zeros <= high).all()
    )


def _stored(store: WeightStore, source: g.WeightOp, known: Dequantised, element: Attribute) -> SSAValue:
    """A constant of the integers beside the f32 one; where they have fewer bits in the file, it knows them."""
    integers = known.integers.astype(numpy_of(element), copy=False)
    key = store.add(f"{source.key.data}~{element}", integers)
    weight = g.WeightOp(key, g.tensor_type(element, integers.shape))
    if known.bits < BYTE_BITS * integers.itemsize:
        note(weight, store, key, Dequantised(integers, np.ones(1, np.float32), np.zeros(1, np.int64), 0, known.bits))
    weight.location = source.location
    Rewriter.insert_op(weight, InsertPoint.before(source))
    return weight.result


def _layer_and_end(producer: Operation) -> tuple[g.ConvOp | g.MatmulOp | None, g.ActAttr | None]:
    """The product that ends in `producer`, and its activation, where that can be applied to integers."""
    if isinstance(producer, g.UnaryOp) and producer.x.has_one_use():
        layer = producer.x.owner
        if isinstance(layer, g.ConvOp | g.MatmulOp) and layer.act is None and _is_clip(producer.act):
            return layer, producer.act
    act = getattr(producer, "act", None)
    if isinstance(producer, g.ConvOp | g.MatmulOp) and (act is None or _is_clip(act)) and producer.zeros is None:
        return producer, act
    return None, None


def _is_clip(act: g.ActAttr) -> bool:
    return act.kind in (g.Function.RELU, g.Function.CLIP)


def _converts(producer: Operation) -> bool:
    match producer:
        case g.PoolOp():
            return producer.kind == g.Pooling.AVG
        case g.ResizeOp():
            return producer.mode == g.Interpolation.LINEAR
        case _:
            return False


def _column_axis(layer: g.ConvOp | g.MatmulOp) -> int:
    if isinstance(layer, g.ConvOp):
        return 0
    rank = len(g.shape_of(layer.b))
    return rank - 2 if layer.trans_b else rank - 1


def clip_of(act: g.ActAttr | None, scale: g.ScaleAttr, element: Attribute) -> g.ActAttr | None:
    """relu or clip in steps of the result; None where the type's own ends do the same."""
    if act is None:
        return None
    low, high = g.bounds(element)
    first, last = (0.0, np.inf) if act.kind == g.Function.RELU else (act.alpha, act.beta)
    ends = [float(np.clip(np.rint(end / scale.scale) + scale.zero, low, high)) for end in (first, last)]
    return None if ends == [low, high] else g.ActAttr.of("clip", *ends)
