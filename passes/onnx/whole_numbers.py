# Tests: test/passes/onnx/test_whole_numbers.py
"""Integers of INT32 and INT64 that the device keeps as whole numbers in floating point, and how far they are exact.

The device has no such integers, and a type of floating point has all of them up to `most_whole` alone.  What an input
holds is not known before a run, so each value has an `IntegerBound` in terms of a limit on the inputs.  Operators that
only move, compare with smaller numbers, look up rows or cast to floating point are right for every integer, because
rounding keeps the order.  Arithmetic is right where all its results are exact: it sets the limit, which the host checks
when it writes the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import ml_dtypes
import numpy as np
import onnx
from xdsl.ir import SSAValue

from frustum.passes.errors import NotConstant, Refused
from frustum.passes.onnx.loading import BOOL, DEFAULT_DOMAINS, FLOATS
from frustum.passes.onnx.node import IntegerBound, Node, Value
from frustum.passes.weights import most_whole, numpy_of

INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
OF_HOST = IntegerBound(1 << 62)
"""Of integers that the host makes during a run: nobody holds them to a limit, so no arithmetic with them is exact."""
OPEN_OUTPUT = "holds integers that inputs give, and the device does not have all of them"
LEAST_LIMIT = 255
"""Arithmetic that would hold its inputs to less is left to the host."""

Rule: TypeAlias = Callable[[Node, Sequence[IntegerBound | None]], IntegerBound | None]


def of_input(name: str) -> IntegerBound:
    return IntegerBound(1, 0, frozenset({name}))


def whole_inputs(
    inputs: Iterable[onnx.ValueInfoProto], outputs: Iterable[onnx.ValueInfoProto], nodes: Sequence[onnx.NodeProto]
) -> dict[str, IntegerBound | None]:
    """The inputs that the device has in floating point: all of INT64, and those of INT32 that are read as numbers,
    not as integers of a quantised network."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    ends = {output.name for output in outputs}

    def is_number(name: str) -> bool:
        own = readers.get(name, [])
        return bool(own) and name not in ends and all(map(reads_number, own))

    def reads_number(node: onnx.NodeProto) -> bool:
        if node.domain not in DEFAULT_DOMAINS or node.op_type not in RULES:
            return False
        return RULES[node.op_type] is not _moved or node.op_type == "Gather" or is_number(node.output[0])

    types = {value.name: value.type.tensor_type.elem_type for value in inputs}
    return {
        name: of_input(name)
        for name, element in types.items()
        if element == onnx.TensorProto.INT64 or (element in INTEGERS and is_number(name))
    }


def is_open(bound: IntegerBound | None) -> bool:
    """Whether the numbers depend on what an input holds."""
    return bound is not None and bound.times > 0


def note_results(node: Node, results: Sequence[Value | None]) -> None:
    """Note which results of a node are integers, with the bounds that follow from those of its operands; Refused where
    they would not be exact."""
    network = node.network
    rule = RULES.get(node.op_type) if node.proto.domain in DEFAULT_DOMAINS else None
    values = [result for result in results if isinstance(result, SSAValue) and result not in network.boolean]
    given = [operand for operand in node.operands if isinstance(operand, SSAValue)]
    if rule in GIVES_INTEGERS and not network.whole.isdisjoint(given):
        network.whole.update(values)
    own = None
    if any(value in network.bounds or value in network.boolean for value in given):
        own = _bound_of(node, rule)
    elif node.op_type in PLACES:
        own, values = IntegerBound(0, max(node.shape(0))), [value for value in values if value in network.whole]
    for value in values if own is not None else ():
        network.keep_whole(value, own)


def _bound_of(node: Node, rule: Rule | None) -> IntegerBound | None:
    """Of the results; None where they are no integers, or nobody knows."""
    given = [_bound(node, operand) for operand in node.operands]
    if rule is not None:
        return rule(node, given)
    for name, bound in zip(node.proto.input, given, strict=False):
        if is_open(bound):
            raise NotConstant(f"'{name}' of INT64", name)
    return None


def _bound(node: Node, operand: Value | None) -> IntegerBound | None:
    """None for what is no integer of the model, and for integers that were floating point."""
    if isinstance(operand, SSAValue):
        return node.network.bounds.get(operand, IntegerBound(0, 1) if operand in node.network.boolean else None)
    if not isinstance(operand, np.ndarray) or operand.dtype.kind not in "iub":
        return None
    return IntegerBound(0, max(abs(int(operand.max())), abs(int(operand.min()))) if operand.size else 0)


def hold(node: Node, bound: IntegerBound | None) -> None:
    """These numbers are exact, since the inputs are held to a limit; or Refused."""
    if bound is None:
        return
    if bound.times >= OF_HOST.times:
        raise Refused("it computes with integers from the host, of which floating point does not have all")
    node.counts_to(bound.times * LEAST_LIMIT + bound.plus)
    for name in bound.inputs:
        node.network.held[name] = bound.joined(node.network.held.get(name, IntegerBound(0)))


# --- rules -------------------------------------------------------------------------------------------------


NUMBERS: dict[str, tuple[int, ...] | None] = {
    "Concat": None, "Max": None, "Min": None, "Clip": None, "Where": (1, 2), "Pad": (0, 2), "ScatterND": (0, 2),
    "ScatterElements": (0, 2),
}  # fmt: skip
"""Operands that are numbers where not the first alone is: None for all."""


def _all_known(node: Node, given: Iterable[IntegerBound | None]) -> list[IntegerBound]:
    """The bounds of all; nothing where one is not known: then the others are exact by themselves."""
    found = list(given)
    known = [bound for bound in found if bound is not None]
    if len(known) == len(found):
        return known
    for bound in filter(is_open, known):
        hold(node, bound)
    return []


def _moved(node: Node, given: Sequence[IntegerBound | None]) -> IntegerBound | None:
    """Numbers of the operands, if with another sign: rounding does not depend on where they are."""
    places = NUMBERS.get(node.op_type, (0,))
    known = _all_known(node, (given[place] for place in (places or range(len(given))) if node.has(place)))
    return known[0].joined(*known[1:]) if known else None


def _sum(node: Node, given: Sequence[IntegerBound | None]) -> IntegerBound | None:
    known = _all_known(node, given)
    if not known:
        return None
    found = IntegerBound(
        sum(each.times for each in known), sum(each.plus for each in known),
        frozenset().union(*(each.inputs for each in known)),
    )  # fmt: skip
    hold(node, found)
    return found


def _product(node: Node, given: Sequence[IntegerBound | None]) -> IntegerBound | None:
    known = _all_known(node, given)
    if not known:
        return None
    a, b = known
    if is_open(a) and is_open(b):
        raise Refused(f"a product of integers of inputs is not exact in {node.network.element}")
    a, b = (b, a) if is_open(b) else (a, b)
    found = IntegerBound(a.times * b.plus, a.plus * b.plus, a.inputs)
    hold(node, found)
    hold(node, a)
    return found


def _quotient(node: Node, given: Sequence[IntegerBound | None]) -> IntegerBound | None:
    """Right when both are exact: a quotient of 24 bits is not nearer than an ulp below a whole number."""
    for bound in given:
        hold(node, bound)
    return given[0]


def _total(node: Node, given: Sequence[IntegerBound | None]) -> IntegerBound | None:
    if given[0] is None:
        return None
    count = math.prod(node.shape(0))
    found = IntegerBound(given[0].times * count, given[0].plus * count, given[0].inputs)
    hold(node, found)
    return found


def _compared(node: Node, given: Sequence[IntegerBound | None]) -> None:
    """An integer that was only moved is right beside numbers of which the type has the next ones too."""
    for bound, other in (given, given[::-1]):
        is_small = other is not None and other.times == 0 and other.plus < most_whole(node.network.element)
        is_moved = bound is not None and bound.plus == 0 and bound.times in (1, OF_HOST.times)
        if is_open(bound) and not (is_moved and is_small):
            hold(node, bound)


def _cast(node: Node, given: Sequence[IntegerBound | None]) -> IntegerBound | None:
    """To floating point as the model rounds, where the network's type is what it names or has more digits."""
    target = int(node.get("to"))
    if target == BOOL:
        return None
    if target not in FLOATS:
        if target == onnx.TensorProto.INT32:
            hold(node, given[0])  # INT32 would wrap around
        return given[0]
    wanted = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(target))
    if ml_dtypes.finfo(wanted).nmant > ml_dtypes.finfo(numpy_of(node.network.element)).nmant:
        hold(node, given[0])
    return None


def _looked_up(node: Node, given: Sequence[IntegerBound | None]) -> IntegerBound | None:
    """Compared with the numbers of the rows, or the places of keys, that there are."""
    return given[0] if node.op_type == "Gather" else None


def _sign(node: Node, given: Sequence[IntegerBound | None]) -> IntegerBound | None:
    return None if given[0] is None else IntegerBound(0, 1)


PLACES = frozenset({"ArgMax", "ArgMin", "TopK"})
MOVES = (
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Concat", "Expand", "Tile",
    "Where", "Max", "Min", "Clip", "Neg", "Abs", "Relu", "ReduceMax", "ReduceMin", "DepthToSpace", "SpaceToDepth",
    "Pad", "Trilu", "GatherND", "GatherElements", "ScatterND", "ScatterElements",
)  # fmt: skip
RULES: dict[str, Rule] = {
    **dict.fromkeys(MOVES, _moved),
    **dict.fromkeys(("Add", "Sub", "Sum"), _sum),
    "Mul": _product,
    "Div": _quotient,
    **dict.fromkeys(("ReduceSum", "CumSum"), _total),
    **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _compared),
    "Cast": _cast,
    **dict.fromkeys(("Gather", "Attention"), _looked_up),
    "Sign": _sign,
}
"""How operators read integers that stand in floating point."""
GIVES_INTEGERS = (_moved, _sum, _product, _quotient, _total, _sign)
"""Rules of operators that give integers of integers."""
