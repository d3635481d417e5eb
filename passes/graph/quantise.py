# Tests: test/runtime/model/test_calibration.py
"""A floating-point network in integers, by the ranges that a calibration has left in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, ModuleOp, StringAttr, f32, i8
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.dialects import graph as g
from frustum.dialects.module import DTYPE, INPUT_RANGES, RANGE
from frustum.passes.dequantised import Dequantised, note
from frustum.passes.weights import Array, WeightStore, store_of

LEVELS = 255
LARGEST = 127
MARGIN = 1 << 29
"""A bias is at most so many steps of its accumulator."""
LAYERS = (
    g.ConvOp, g.MatmulOp, g.ReduceOp, g.BinaryOp, g.UnaryOp, g.LrnOp, g.SoftmaxOp, g.ConcatOp, g.InterleaveOp,
    g.AttentionOp, g.NormaliseOp,
)  # fmt: skip
CHOOSE = (g.ReshapeOp, g.TransposeOp, g.SliceOp, g.PadOp, g.PoolOp, g.ResizeOp)
COMPARES = (g.Arithmetic.EQUAL, g.Arithmetic.LESS, g.Arithmetic.LESS_EQUAL)
CLIPS = (g.Function.RELU, g.Function.CLIP)


@dataclass(frozen=True)
class QuantiseNetwork(ModulePass):
    """Quantize and dequantize every value that has a range; integers for the weights of products.

    Activations: one scale and zero point per tensor; keys and values of attention, which are weights of its products,
    have the zero point 0. Weights: one scale per output channel, zero point 0.
    Operands of a concat that nobody else uses take the concat's range, so that it only moves integers.

    Before: f32, ranges on layers.  After: `frustum-graph-fold-quantisation` finds layers of integers.
    """

    name = "frustum-graph-quantise"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for network in g.networks_of(op):
            if INPUT_RANGES in network.attributes:
                _quantise(network, store_of(op))
                op.attributes[DTYPE] = StringAttr("int8")


def separate_activations(network: g.NetworkOp) -> None:
    """Activations that no integer product applies become layers of their own."""
    for op in list(network.body.block.ops):
        if isinstance(op, g.ConvOp | g.MatmulOp) and op.act is not None and op.act.kind not in CLIPS:
            after = g.UnaryOp(op.act, op.result)
            after.location = op.location
            del op.properties["act"]
            for use in [use for use in op.result.uses if use.operation is not after]:
                use.operation.operands[use.index] = after.result
            Rewriter.insert_op(after, InsertPoint.after(op))


def values_to_quantise(network: g.NetworkOp) -> list[SSAValue]:
    """Inputs and results of layers in f32 that a product comes after, or that a product gives."""
    needed: set[SSAValue] = set()
    chosen: list[SSAValue] = []
    for op in reversed(list(network.body.block.ops)):
        is_product = isinstance(op, g.ConvOp | g.MatmulOp)
        if not is_product and not any(result in needed for result in op.results):
            continue
        if isinstance(op, g.WeightOp):
            continue
        if not is_comparison(op):
            needed.update(op.operands)
        layer = isinstance(op, LAYERS) or (isinstance(op, g.PoolOp) and op.kind == g.Pooling.AVG)
        layer = layer or (isinstance(op, g.ResizeOp) and op.mode == g.Interpolation.LINEAR)
        if layer and g.tensor_of(op.results[0]).element_type == f32:
            chosen.append(op.results[0])
    inputs = [value for value in network.body.block.args if value in needed and g.tensor_of(value).element_type == f32]
    return [*inputs, *reversed(chosen)]


def is_comparison(op: Operation) -> bool:
    """Whether the truth of its operands is asked, which steps of integers would change: an index is a row's number."""
    return isinstance(op, g.BinaryOp) and op.kind in COMPARES


def scale_of_range(low: float, high: float) -> g.ScaleAttr:
    """The scale and zero point whose 256 integers cover the range, zero among them."""
    low, high = min(low, 0.0), max(high, 0.0)
    step = float(np.float32((high - low) / LEVELS)) or 1.0
    return g.ScaleAttr.of(step, round(float(np.clip(np.rint(-128 - low / step), -128, LARGEST))))


def centred_scale(low: float, high: float) -> g.ScaleAttr:
    """The scale whose 255 integers around 0 cover the range, with the zero point 0."""
    return g.ScaleAttr.of(float(np.float32(max(-low, high, 0.0) / LARGEST)) or 1.0, 0)


def keys_and_values(network: g.NetworkOp) -> set[SSAValue]:
    """What attention reads as keys and values, where these could be integers: before what only chooses elements."""
    found: set[SSAValue] = set()
    for op in network.body.block.ops:
        if isinstance(op, g.AttentionOp) and op.mask is None and op.softcap == 0:
            for value in (op.k, op.v):
                while isinstance(value.owner, CHOOSE):
                    value = value.owner.operands[0]
                found.add(value)
    return found


def _quantise(network: g.NetworkOp, store: WeightStore) -> None:
    _forget_infinite(network, store)
    ranges = _ranges(network)
    for value in reversed(list(ranges)):
        if isinstance(value.owner, g.ConcatOp):
            for part in value.owner.xs:
                if part in ranges and part.has_one_use():
                    ranges[part] = ranges[value]
    centred = keys_and_values(network)
    scales = {value: (centred_scale if value in centred else scale_of_range)(*ends) for value, ends in ranges.items()}
    for value, scale in scales.items():
        _insert_conversions(network, value, scale)
    for op in list(network.body.block.ops):
        if isinstance(op, g.ConvOp | g.MatmulOp):
            _quantise_weights(op, store)
        elif isinstance(op, g.BinaryOp) and not is_comparison(op):
            _quantise_constants(op, store)


def _forget_infinite(network: g.NetworkOp, store: WeightStore) -> None:
    """Results of constants with infinite elements have no range."""
    for op in network.body.block.ops:
        if isinstance(op, g.BinaryOp) and RANGE in op.attributes and _is_with_infinite(op, store):
            del op.attributes[RANGE]


def _is_with_infinite(op: g.BinaryOp, store: WeightStore) -> bool:
    """Whether elements are combined with a constant that has infinite ones, a mask's: no integers stand for these, nor
    for what they make."""
    constants = [x.owner for x in op.operands if isinstance(x.owner, g.WeightOp)]
    return not all(np.isfinite(store[weight.key.data]).all() for weight in constants)


def _ranges(network: g.NetworkOp) -> dict[SSAValue, tuple[float, float]]:
    noted = network.attributes[INPUT_RANGES]
    assert isinstance(noted, ArrayAttr)
    found = {value: _ends(ends) for value, ends in zip(network.body.block.args, noted, strict=True)}
    for op in network.body.block.ops:
        if RANGE in op.attributes:
            found[op.results[0]] = _ends(op.attributes[RANGE])
    return {value: ends for value, ends in found.items() if ends is not None}


def _ends(attribute: object) -> tuple[float, float] | None:
    if not isinstance(attribute, DenseArrayBase) or len(attribute) != 2:
        return None
    low, high = attribute.get_values()
    return float(low), float(high)


def _insert_conversions(network: g.NetworkOp, value: SSAValue, scale: g.ScaleAttr) -> None:
    to = g.QuantizeOp(value, scale, i8)
    back = g.DequantizeOp(to.result, scale)
    value.replace_uses_with_if(back.result, lambda use: use.operation is not to)
    owner = value.owner
    place = InsertPoint.after(owner) if isinstance(owner, Operation) else InsertPoint.at_start(network.body.block)
    if isinstance(owner, Operation):
        to.location = back.location = owner.location
        owner.attributes.pop(RANGE, None)
    Rewriter.insert_op([to, back], place)


def _quantise_weights(op: g.ConvOp | g.MatmulOp, store: WeightStore) -> None:
    weight, x = op.operands[1].owner, _source(op.operands[0])
    if not isinstance(weight, g.WeightOp) or x is None:
        return
    values = store[weight.key.data].astype(np.float32)
    axis = 0 if isinstance(op, g.ConvOp) else values.ndim - (2 if op.trans_b else 1)
    others = tuple(place for place in range(values.ndim) if place != axis)
    steps = np.abs(values).max(axis=others, initial=0.0) / LARGEST
    if op.bias is not None and isinstance(op.bias.owner, g.WeightOp):
        bias = np.abs(store[op.bias.owner.key.data].astype(np.float32))
        steps = np.maximum(steps, bias / np.float32(x.from_.scale * MARGIN))
    steps = np.where(steps > 0, steps, 1).astype(np.float32)
    shape = [-1 if place == axis else 1 for place in range(values.ndim)]
    integers = np.clip(np.rint(values / steps.reshape(shape)), -LARGEST, LARGEST).astype(np.int8)
    op.operands[1] = _noted(weight, store, Dequantised(integers, steps, np.zeros(1, np.int64), axis), op)


def _source(value: SSAValue) -> g.DequantizeOp | None:
    """The dequantize that a value comes from, through what only chooses elements."""
    while isinstance(value.owner, CHOOSE):
        value = value.owner.operands[0]
    return value.owner if isinstance(value.owner, g.DequantizeOp) else None


def _quantise_constants(op: g.BinaryOp, store: WeightStore) -> None:
    """A constant beside an activation of integers: one scale, zero point 0.  One with infinite elements stays."""
    if _is_with_infinite(op, store):
        return
    for index, value in enumerate(op.operands):
        weight = value.owner
        if not isinstance(weight, g.WeightOp) or _source(op.operands[1 - index]) is None:
            continue
        values: Array = store[weight.key.data].astype(np.float32)
        step = np.float32(np.abs(values).max(initial=0.0) / LARGEST) or np.float32(1)
        integers = np.rint(values / step).astype(np.int8)
        found = Dequantised(integers, np.asarray([step], np.float32), np.zeros(1, np.int64), 0)
        op.operands[index] = _noted(weight, store, found, op)


def _noted(weight: g.WeightOp, store: WeightStore, found: Dequantised, at: Operation) -> SSAValue:
    new = g.WeightOp(store.add(f"{weight.key.data}~q", lambda: found.values), g.tensor_type(f32, found.integers.shape))
    new.location = weight.location
    note(new, store, new.key.data, found)
    Rewriter.insert_op(new, InsertPoint.before(at))
    return new.result
