# Tests: test/passes/onnx/test_import_operators.py
"""Operators that work element by element."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from frustum.dialects.graph import shape_of
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Node, Result
from frustum.passes.onnx.operators.conversions import truncated


def unary(kind: str, **defaults: float) -> Converter:
    """A function whose parameters are the attributes named, in the order alpha, beta."""

    def convert(node: Node) -> Result:
        parameters = [float(node.get(name, default)) for name, default in defaults.items()]
        return node.unary(kind, node.value(0), *parameters)

    return convert


def binary(kind: str) -> Converter:
    """Of integers kept in floating point the result is one too: a quotient loses its fraction."""

    def convert(node: Node) -> Result:
        operands = [node.value(0), node.value(1)]
        result = node.binary(kind, *operands)
        if not node.network.whole.intersection(operands):
            return result
        return node.whole(truncated(node, result) if kind == "div" else result, True)

    return convert


def prelu(node: Node) -> Result:
    """One slope for each channel may come as a vector, as it did before opset 7."""
    x, slope = node.value(0), node.value(1)
    shape, own = shape_of(x), shape_of(slope)
    if len(own) == 1 and len(shape) > 2 and own[0] not in (1, shape[-1]) and own[0] == shape[1]:
        slope = node.reshape(slope, (*own, *(1,) * (len(shape) - 2)))
    return node.binary("prelu", x, slope)


def chain(kind: str) -> Converter:
    """An operator of any number of operands as one of two after the other."""

    def convert(node: Node) -> Result:
        first, *others = node.values()
        for other in others:
            first = node.like(node.binary(kind, first, other), first)
        return first

    return convert


def mean(node: Node) -> Result:
    total = chain("add")(node)
    assert isinstance(total, SSAValue)
    return node.binary("mul", total, node.scalar(1 / len(node), "share")) if len(node) > 1 else total


def clip(node: Node) -> Result:
    """With constant ends a function; otherwise a maximum and a minimum."""
    x = node.value(0)
    ends = [_end(node, index, name) for index, name in ((1, "min"), (2, "max"))]
    low, high = ends
    if not isinstance(low, SSAValue) and not isinstance(high, SSAValue):
        if (low, high) == (-math.inf, math.inf):
            return x
        return node.unary("relu", x) if (low, high) == (0.0, math.inf) else node.unary("clip", x, low, high)
    for kind, end in (("max", low), ("min", high)):
        value = end if isinstance(end, SSAValue) else node.scalar(end, kind)
        x = node.binary(kind, x, value)
    return x


def _end(node: Node, index: int, name: str) -> float | SSAValue:
    default = node.get(name, -math.inf if name == "min" else math.inf)
    if not node.has(index):
        return float(default)
    operand = node.operands[index]
    if not isinstance(operand, np.ndarray):
        return node.value(index)
    if operand.size != 1:
        raise Refused(f"'{name}' must be one number, found the shape {operand.shape}")
    end = float(operand.reshape(()))
    smallest, largest = np.finfo(np.float32).min, np.finfo(np.float32).max
    return -math.inf if end <= smallest else math.inf if end >= largest else end


def gelu(node: Node) -> Result:
    return node.unary("gelu_tanh" if node.get("approximate", "none") == "tanh" else "gelu", node.value(0))


def selu(node: Node) -> Result:
    alpha, gamma = node.get("alpha", 1.67326319217681884765625), node.get("gamma", 1.05070102214813232421875)
    return node.binary("mul", node.unary("elu", node.value(0), alpha), node.scalar(gamma, "gamma"))


def celu(node: Node) -> Result:
    alpha = float(node.get("alpha", 1.0))
    if alpha == 1.0:
        return node.unary("elu", node.value(0), 1.0)
    scaled = node.binary("mul", node.value(0), node.scalar(1 / alpha, "inverse"))
    return node.binary("mul", node.unary("elu", scaled, 1.0), node.scalar(alpha, "alpha"))


def swish(node: Node) -> Result:
    alpha = float(node.get("alpha", 1.0))
    x = node.value(0)
    scaled = x if alpha == 1.0 else node.binary("mul", x, node.scalar(alpha, "alpha"))
    return node.binary("mul", x, node.unary("sigmoid", scaled))


def mish(node: Node) -> Result:
    x = node.value(0)
    return node.binary("mul", x, node.unary("tanh", node.unary("softplus", x)))


def softsign(node: Node) -> Result:
    x = node.value(0)
    return node.binary("div", x, node.binary("add", node.unary("abs", x), node.scalar(1.0, "one")))


def dropout(node: Node) -> Result:
    training, ratio = node.constant(2, "training_mode"), node.constant(1, "ratio")
    drops = 0.5 if ratio is None else float(ratio)  # exporters leave training on where nothing is dropped
    if training is not None and bool(training) and drops > 0:
        raise Refused("training is not supported")
    if node.wants(1):
        mask = np.ones(node.shape(0), bool)
        return [node.value(0), mask]
    return node.value(0)


SIMPLE = {
    "Relu": "relu", "Sigmoid": "sigmoid", "HardSwish": "hard_swish", "Tanh": "tanh", "Exp": "exp", "Log": "log",
    "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Neg": "neg", "Abs": "abs", "Floor": "floor", "Ceil": "ceil",
    "Round": "round", "Erf": "erf", "Softplus": "softplus", "Sign": "sign", "Sin": "sin", "Cos": "cos",
}  # fmt: skip
PAIRS = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow"}

CONVERTERS: dict[str, Converter] = {
    **{operator: unary(kind) for operator, kind in SIMPLE.items()},
    **{operator: binary(kind) for operator, kind in PAIRS.items()},
    "LeakyRelu": unary("leaky_relu", alpha=0.01),
    "Elu": unary("elu", alpha=1.0),
    "HardSigmoid": unary("hard_sigmoid", alpha=0.2, beta=0.5),
    "Sum": chain("add"),
    "Max": chain("max"),
    "Min": chain("min"),
    "Mean": mean,
    "PRelu": prelu,
    "Clip": clip,
    "Gelu": gelu,
    "Selu": selu,
    "Celu": celu,
    "Swish": swish,
    "Mish": mish,
    "Softsign": softsign,
    "Dropout": dropout,
    "Identity": lambda node: node.value(0),
}
