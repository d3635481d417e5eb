"""Another element type for a whole network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, f32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.foreign import is_foreign, name_of
from frustum.dialects.graph import ConvOp, MatmulOp, NetworkOp, WeightOp, networks_of, tensor_of, tensor_type
from frustum.dialects.module import COUNTS, DTYPE, MODEL
from frustum.passes.errors import Problem, Unsupported
from frustum.passes.weights import BY_NAME, Array, WeightStore, is_float, most_whole, numpy_of, store_of


@dataclass(frozen=True)
class ConvertType(ModulePass):
    """Every floating-point tensor of every network in the type `to`; biases in f32, as the machine keeps them.

    Before: any floating-point type; batch normalisation folded, which is more exact in the wider type.
    After: one type, said by the module attribute `frustum.dtype`; converted weights have new keys.
    """

    name = "frustum-graph-convert-type"
    to: Literal["f32", "f16", "bf16"]

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        networks = networks_of(op)
        for network in networks:
            if any(_is_converted(value, BY_NAME[self.to]) for value in _values(network)):
                _refuse_foreign(network)
            _refuse_counts(op, network, BY_NAME[self.to])
        for network in networks:
            _convert(network, store_of(op), BY_NAME[self.to])
        if networks:
            op.attributes[DTYPE] = StringAttr(self.to)


def _refuse_foreign(network: NetworkOp) -> None:
    foreign = sorted({name_of(op) for op in network.body.walk() if is_foreign(op)})
    if foreign:
        reason = f"it contains {', '.join(foreign)}, whose types are not ours to change"
        raise PassFailedException(f"network @{network.sym_name.data} cannot be converted: {reason}")


def _refuse_counts(module: ModuleOp, network: NetworkOp, element: Attribute) -> None:
    """Unsupported, by node, where the type does not have all integers that a node counts with."""
    counts = network.attributes.get(COUNTS)
    if not isinstance(counts, StringAttr):
        return
    own, model = most_whole(element), module.attributes.get(MODEL)
    problems = [
        Problem(model.data if isinstance(model, StringAttr) else network.sym_name.data,
                f"it needs integers up to {most}, and {element} has all up to {own}", node, operator)
        for node, (operator, most) in json.loads(counts.data).items()
        if most > own
    ]  # fmt: skip
    if problems:
        raise Unsupported(problems)


def _convert(network: NetworkOp, store: WeightStore, element: Attribute) -> None:
    _separate_biases(network)
    for value in _values(network):
        if not _is_converted(value, element):
            continue
        target = _target_of(value, element)
        if isinstance(value.owner, WeightOp):
            _convert_weight(value.owner, store, target)
        Rewriter.replace_value_with_new_type(value, tensor_type(target, tensor_of(value).get_shape()))


def _values(network: NetworkOp) -> list[SSAValue]:
    """Arguments and results, those inside recurrences included."""
    found: list[SSAValue] = []
    for op in network.walk():
        found += op.results
        found += (argument for region in op.regions for block in region.blocks for argument in block.args)
    return found


def _target_of(value: SSAValue, element: Attribute) -> Attribute:
    return f32 if is_bias(value) else element


def _is_converted(value: SSAValue, element: Attribute) -> bool:
    """Whether a value is of a floating-point type that it does not keep."""
    if not isinstance(value.type, TensorType) or not is_float(value.type.element_type):
        return False
    return value.type.element_type != _target_of(value, element)


def _convert_weight(op: WeightOp, store: WeightStore, target: Attribute) -> None:
    source = op.key.data
    key = f"{source}:{target}"
    if key not in store:
        store.add(key, lambda: _cast(store[source], target))
    op.properties["key"] = StringAttr(key)


def _cast(array: Array, target: Attribute) -> Array:
    with np.errstate(over="ignore"):
        return array.astype(numpy_of(target))


def is_bias(value: SSAValue) -> bool:
    """Whether a constant is nothing but a bias."""
    return isinstance(value.owner, WeightOp) and all(_is_bias_use(use.operation, value) for use in value.uses)


def _is_bias_use(op: Operation, value: SSAValue) -> bool:
    return isinstance(op, ConvOp | MatmulOp) and op.bias is value and value not in op.operands[:2]


def _separate_biases(network: NetworkOp) -> None:
    """A constant that is a bias here and something else there becomes two."""
    for op in list(network.body.walk()):
        if not isinstance(op, ConvOp | MatmulOp) or op.bias is None:
            continue
        weight = op.bias.owner
        if not isinstance(weight, WeightOp) or is_bias(op.bias):
            continue
        copy = WeightOp(weight.key.data, tensor_of(op.bias))
        copy.location = weight.location
        Rewriter.insert_op(copy, InsertPoint.before(op))
        op.operands[2] = copy.result
