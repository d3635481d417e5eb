"""The classic networks inside the `onnx` package, with random weights in place of their placeholders.

    model = zoo_model("resnet50", weights_seed=0)

The graphs come with every weight 0.02, so that all classes are equal and most mistakes go unseen.  Here each
convolution and matrix product gets weights that bring its result to unit variance: their deviation is
1 / sqrt(fan-in * mean square of the input), which is He initialisation without the assumption that the input is
a rectified normal.  The mean squares come from one walk over the graph with the distribution of every value, as
quantiles.  Sums of branches then need no damping: a residual trunk's variance grows by 1 with each branch, and
the layer after it divides by what has come together.  Batch normalisation gets statistics near (0, 1).  The last
layer is scaled to `LOGIT_DEVIATION`, which keeps the soft-max away from saturation.

Weights are uniform 16-bit integers times a factor: the same everywhere, and 100 million of them in 0.1 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import TypeAlias
from zlib import crc32

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from frustum.dialects.diagnostic import did_you_mean
from frustum.passes.errors import ModelError

ZOO = (
    "alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip
"""The networks' names."""

LOGIT_DEVIATION = 0.5
BALANCE = 0.5
"""How much of its mean a filter loses.  At 0 a deep network's outputs hardly depend on its input (ResNet-50 changes
by 1 % from one noise image to another, at 0.5 by 20 %); at 1 it amplifies every rounding error by 100.
"""
SHIFT_DEVIATION = 0.1
"""Of biases, and of a normalisation's means and shifts."""
SCALE_DEVIATION = 0.1
"""Of a normalisation's scales and variances, around 1."""
GLOBAL_WINDOW = 7 * 7
"""Elements under a global pool: the last map of most of these networks."""
QUANTILES = 1024
FREE_INITIALIZERS_IR = 4
"""From this version of the file format on, an initializer need not be an input too."""

Samples: TypeAlias = NDArray[np.float64]
LEVELS: Samples = (np.arange(QUANTILES) + 0.5) / QUANTILES
STANDARD_NORMAL: Samples = np.array([NormalDist().inv_cdf(level) for level in LEVELS])


def zoo_model(name: str, weights_seed: int = 0) -> onnx.ModelProto:
    """The network `name` of `ZOO` with weights drawn from `weights_seed`; ModelError for an unknown name."""
    if name not in ZOO:
        hint = did_you_mean(name, list(ZOO))
        raise ModelError(f"zoo:{name}: error: no such network{hint} (there are {', '.join(ZOO)})")
    model = onnx.load(_path(name))
    graph = model.graph
    shapes = _placeholders(graph)
    spreads = _Walk(shapes).spreads(graph.node)
    _remove(graph, shapes)
    for key, spread in spreads.items():
        tensor = graph.initializer.add(name=key, dims=shapes[key], data_type=onnx.TensorProto.FLOAT)
        tensor.raw_data = _uniform(shapes[key], spread, seed=(weights_seed, crc32(key.encode())))
    model.ir_version = max(model.ir_version, FREE_INITIALIZERS_IR)
    return model


def _path(name: str) -> Path:
    file = "light_bvlc_alexnet" if name == "alexnet" else f"light_{name}"
    return Path(onnx.__file__).parent / "backend/test/data/light" / f"{file}.onnx"


@dataclass(frozen=True)
class _Spread:
    """A uniform distribution by its mean and standard deviation."""

    mean: float
    deviation: float
    terms: int = 0
    """Where not 0: each so many weights belong together, and lose `BALANCE` of their mean."""


def _placeholders(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors to replace: results of ConstantOfShape, and initializers of floats."""
    initial = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {
        node.output[0]: tuple(numpy_helper.to_array(initial[node.input[0]]).tolist())
        for node in graph.node
        if node.op_type == "ConstantOfShape"
    }
    floats = (tensor for tensor in initial.values() if tensor.data_type == onnx.TensorProto.FLOAT)
    return shapes | {tensor.name: tuple(tensor.dims) for tensor in floats}


def _remove(graph: onnx.GraphProto, keys: Iterable[str]) -> None:
    """Take out the nodes and initializers that give `keys`, and the inputs that initializers came with."""
    dropped = {*keys}
    nodes = [node for node in graph.node if node.output[0] not in dropped]
    used = {name for node in nodes for name in node.input} - dropped
    initial = {tensor.name for tensor in graph.initializer}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    inputs = [value for value in graph.input if value.name not in initial]
    for field, values in ((graph.node, nodes), (graph.initializer, kept), (graph.input, inputs)):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        del field[:]
        field.extend(copies)


def _uniform(shape: tuple[int, ...], spread: _Spread, seed: tuple[int, ...]) -> bytes:
    """Little-endian f32 numbers, uniform around the mean, on a grid of 2^16 steps."""
    count, levels = prod(shape), 1 << 16
    factor = np.float32(spread.deviation * sqrt(12) / levels)
    words = np.random.PCG64(seed).random_raw(-(-count // 4)).astype("<u8", copy=False)
    steps = words.view("<i2")[:count]
    numbers = steps * factor  # numpy keeps the factor's type
    if spread.terms:
        rows = numbers.reshape(-1, spread.terms)
        rows -= (steps.reshape(rows.shape).mean(axis=1, keepdims=True) * (BALANCE * factor)).astype(
            np.float32
        )
    elif spread.mean:
        numbers += np.float32(spread.mean)
    return numbers.astype("<f4", copy=False).tobytes()


@dataclass(frozen=True)
class _Value:
    """What is known of a feature map: quantiles of its elements, in order, and its number of channels."""

    quantiles: Samples
    channels: int

    def power(self, balance: float = 0.0) -> float:
        """Mean square of the elements less `balance` of their mean."""
        return float(np.mean((self.quantiles - balance * self.quantiles.mean()) ** 2))

    def map(self, function: Callable[[Samples], Samples]) -> _Value:
        """The value after a monotonic function of each element."""
        return replace(self, quantiles=function(self.quantiles))


class _Walk:
    """One walk over a graph in order, which finds the spread of every placeholder."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self.values: dict[str, _Value] = {}
        self.views = {key: key for key in shapes}
        """Which placeholder a tensor is a view of."""
        self.found: dict[str, _Spread] = {}

    def spreads(self, nodes: Iterable[onnx.NodeProto]) -> dict[str, _Spread]:
        nodes = [node for node in nodes if node.op_type != "ConstantOfShape"]
        last = [node for node in nodes if node.op_type in PRODUCTS][-1]
        for node in nodes:
            if node.input[0] in self.views:
                self.views[node.output[0]] = self.views[node.input[0]]
            elif node.op_type in PRODUCTS:
                self._product(node, LOGIT_DEVIATION if node is last else 1.0)
            else:
                self._other(node)
        return self.found

    def _value(self, name: str) -> _Value:
        """The walk's knowledge of a tensor; a network's input is unit normal."""
        return self.values.get(name) or _normal(1.0, 0)

    def _product(self, node: onnx.NodeProto, deviation: float) -> None:
        key = self.views[node.input[1]]
        shape = self.shapes[key]
        terms = prod(shape[1:]) if node.op_type == "Conv" else shape[-1]
        # a depthwise filter sees neighbours only, which are alike: it would lose nearly all
        balanced = node.op_type == "Gemm" or shape[1] > 1
        power = self._value(node.input[0]).power(BALANCE if balanced else 0.0)
        weights = deviation / sqrt(terms * power)
        weights = float(f"{weights:.4g}")  # the same where a logarithm differs in its last place
        self.found[key] = _Spread(0.0, weights, terms if balanced else 0)
        self._shift(node.input[2:])
        self.values[node.output[0]] = _normal(deviation, prod(shape) // terms)

    def _other(self, node: onnx.NodeProto) -> None:
        operands = [self._value(name) for name in node.input if name not in self.views]
        constants = [name for name in node.input if name in self.views]
        if node.op_type == "BatchNormalization":
            scale, shift, mean, variance = constants
            self._scale([scale, variance])
            self._shift([shift, mean])
        elif node.op_type == "Mul":
            self._scale(constants)
        else:
            self._shift(constants)
        self.values[node.output[0]] = RULES.get(node.op_type, _same)(node, operands)

    def _scale(self, names: Iterable[str]) -> None:
        self.found |= {self.views[name]: _Spread(1.0, SCALE_DEVIATION) for name in names}

    def _shift(self, names: Iterable[str]) -> None:
        self.found |= {self.views[name]: _Spread(0.0, SHIFT_DEVIATION) for name in names}


def _normal(deviation: float, channels: int) -> _Value:
    return _Value(STANDARD_NORMAL * deviation, channels)


def _same(node: onnx.NodeProto, operands: list[_Value]) -> _Value:
    return operands[0]


def _relu(node: onnx.NodeProto, operands: list[_Value]) -> _Value:
    return operands[0].map(lambda x: np.maximum(x, 0))


def _max_pool(node: onnx.NodeProto, operands: list[_Value]) -> _Value:
    """The largest of n independent elements lies at quantile q where one of them lies at q ** (1/n).

    Neighbours are alike: a window counts as the square root of its elements.
    """
    places = np.floor(QUANTILES * LEVELS ** (1 / sqrt(_window(node)))).astype(int)
    return operands[0].map(lambda x: x[places])


def _average(node: onnx.NodeProto, operands: list[_Value]) -> _Value:
    """The mean of n independent elements: deviations shrink by sqrt(n).

    Averages come late, where maps are nearly constant: a window counts as the fourth root of its elements.
    """
    return operands[0].map(lambda x: x.mean() + (x - x.mean()) / _window(node) ** 0.125)


def _window(node: onnx.NodeProto) -> int:
    """Number of elements in a pool's window."""
    kernel = {attribute.name: attribute.ints for attribute in node.attribute}.get("kernel_shape")
    return prod(kernel) if kernel else GLOBAL_WINDOW


def _sum(node: onnx.NodeProto, operands: list[_Value]) -> _Value:
    """The sum of independent values: paired at random (the same on every call)."""
    rng = np.random.Generator(np.random.PCG64(0))
    total = sum((rng.permutation(value.quantiles) for value in operands[1:]), operands[0].quantiles)
    return replace(operands[0], quantiles=np.sort(total))


def _concat(node: onnx.NodeProto, operands: list[_Value]) -> _Value:
    """Elements of all operands, as many of each as it has channels."""
    shares = np.concatenate([np.full(QUANTILES, value.channels) for value in operands])
    elements = np.concatenate([value.quantiles for value in operands])
    order = np.argsort(elements, kind="stable")
    places = np.searchsorted(np.cumsum(shares[order]), LEVELS * shares.sum())
    return _Value(elements[order][places], sum(value.channels for value in operands))


def _lrn(node: onnx.NodeProto, operands: list[_Value]) -> _Value:
    given = {attribute.name: attribute.f for attribute in node.attribute}
    divisor = given.get("bias", 1.0) + given.get("alpha", 1e-4) * operands[0].power()
    return operands[0].map(lambda x: x / divisor ** given.get("beta", 0.75))


PRODUCTS = ("Conv", "Gemm")
RULES: dict[str, Callable[[onnx.NodeProto, list[_Value]], _Value]] = {
    "Relu": _relu,
    "MaxPool": _max_pool,
    "AveragePool": _average,
    "GlobalAveragePool": _average,
    "Sum": _sum,
    "Add": _sum,
    "Concat": _concat,
    "LRN": _lrn,
}
"""What an operation does to distributions; all others keep them."""
