"""Random ONNX files: about ninety operators in every opset from 7 on, of any rank from 1 to 5 and extents from 0 on.

    drawn = random_onnx(seed)                  # drawn.model, drawn.inputs
    drawn = random_onnx(seed, images=True)     # inputs whose first extent is a static 1, for `--batch`

A file is a chain of blocks with branches: residuals, concatenations, products of values (attention), operands of
lower rank, nodes with several outputs, integers (a value quantised and back, INT64 shapes that are computed, BOOL
masks), nodes that the device lacks, dead ends, values inside that are outputs too.

Values are `exact` that come without rounding from the inputs, which are sixteenths: only they are rounded, compared or
sorted, so that a last bit that differs does not become another number.

Left out, as onnxruntime is at fault there: auto_pad SAME with a stride above the kernel (it pads by less than 0), a
window of MaxPool wholly in the padding (-3.4e38 instead of -inf), MeanVarianceNormalization of constants (NaN).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

OLDEST, NEWEST = 7, 26
"""The opsets that onnxruntime 1.31 runs."""
MOST_ELEMENTS = 600
FLOATS = {T.FLOAT: np.float32, T.FLOAT16: np.float16}


@dataclass(frozen=True)
class Value:
    name: str
    shape: tuple[int, ...]
    type: int
    exact: bool
    bound: float = 4.0
    """About how large its elements are."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.type in FLOATS

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass
class Drawn:
    """A model, inputs for it, and what it was made with."""

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    element: str = "f32"
    operators: tuple[str, ...] = ()


class Impossible(Exception):
    """This operator does not take this value."""


@dataclass
class Graph:
    """A graph that grows."""

    seed: int
    images: bool = False
    rng: np.random.Generator = field(init=False)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng((self.seed, self.images))
        self.opset = int(
            self.rng.choice([7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26])
        )
        self.element = T.FLOAT16 if self.rng.random() < 0.12 else T.FLOAT
        self.dtype = FLOATS[self.element]

    # --- draws

    def among(self, *choices):
        return choices[int(self.rng.integers(len(choices)))]

    def often(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    # --- what a graph is made of

    def input(self, shape: Sequence[int]) -> Value:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, self.element, shape))
        sixteenths = np.clip(np.round(self.rng.standard_normal(tuple(shape)) * 16), -48, 48) / 16
        self.arrays[name] = sixteenths.astype(self.dtype)
        return self._kept(Value(name, tuple(shape), self.element, True))

    def constant(self, array: np.ndarray) -> Value:
        name = f"c{len(self.tensors)}"
        array = np.asarray(array)
        self.tensors.append(numpy_helper.from_array(array, name))
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        return Value(name, array.shape, element, False)

    def weight(self, *shape: int, scale: float = 1.0) -> Value:
        return self.constant((self.rng.standard_normal(shape) * scale).astype(self.dtype))

    def positive(self, *shape: int) -> Value:
        return self.constant((self.rng.random(shape) + 0.5).astype(self.dtype))

    def number(self, value: float) -> Value:
        return self.constant(np.asarray(value, self.dtype))

    def ints(self, *values: int) -> Value:
        return self.constant(np.asarray(values, np.int64))

    def node(
        self,
        op: str,
        operands: Sequence[Value | None],
        outputs: int = 1,
        exact: bool = False,
        bound: float | None = None,
        **attributes: object,
    ) -> list[Value]:
        """Results of a new node; `exact`: if its operands are."""
        schema = self.schema(op)
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        proto = helper.make_node(
            op,
            ["" if o is None else o.name for o in operands],
            names,
            f"{op}_{len(self.nodes)}",
            **attributes,
        )
        types = {o.name: helper.make_tensor_type_proto(o.type, o.shape) for o in operands if o is not None}
        data = {t.name: t for t in self.tensors if t.name in types and math.prod(t.dims) <= 64}
        opsets = [helper.make_opsetid("", self.opset)]
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, proto, types, data, opset_imports=opsets, ir_version=10
            )
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as error:
            raise Impossible(str(error)) from error
        given = [o for o in operands if o is not None]
        known = {value.name for value in self.values}
        results = []
        for name in names:
            type_ = found.get(name)
            if type_ is None or not type_.tensor_type.HasField("shape"):
                raise Impossible(f"{op}: no shape")
            dims = type_.tensor_type.shape.dim
            if not all(dim.HasField("dim_value") for dim in dims):
                raise Impossible(f"{op}: an open shape")
            shape = tuple(dim.dim_value for dim in dims)
            if math.prod(shape) > MOST_ELEMENTS or len(shape) > 6:
                raise Impossible(f"{op}: too large")
            size = max((o.bound for o in given if o.is_float), default=4.0) if bound is None else bound
            is_exact = exact and all(o.exact for o in given if o.name in known)
            results.append(Value(name, shape, type_.tensor_type.elem_type, is_exact, size))
        self.nodes.append(proto)
        self.read.update(o.name for o in given)
        for result in results:
            self._kept(result)
        return results

    def one(self, op: str, *operands: Value | None, **options: object) -> Value:
        return self.node(op, operands, **options)[0]

    def schema(self, op: str):
        try:
            schema = onnx.defs.get_schema(op, self.opset)
        except onnx.defs.SchemaError as error:
            raise Impossible(f"{op} is not of opset {self.opset}") from error
        if schema.deprecated:
            raise Impossible(f"{op} is deprecated")
        return schema

    def need(self, condition: bool) -> None:
        if not condition:
            raise Impossible("needs another operand")

    def listed(self, op: str, x: Value, since: int, **lists: Sequence[int]) -> list[Value]:
        """A node whose lists of integers are attributes before an opset and operands from it on."""
        if self.opset < since:
            return self.node(op, [x], exact=True, **lists)
        return self.node(op, [x, *(self.ints(*numbers) for numbers in lists.values())], exact=True)

    def partner(self, x: Value) -> Value:
        """An operand that is broadcast with x: another value, of any rank, or a constant."""

        def goes(y: Value) -> bool:
            pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
            return y.type == x.type and y.bound < 64 and all(a == b or 1 in (a, b) for a, b in pairs)

        fitting = [y for y in self.values if goes(y)]
        if fitting and self.often(0.7):
            return self.among(*fitting)
        shape = [1 if self.often(0.3) else extent for extent in x.shape]
        return self.weight(*shape[self.between(0, len(shape)) if self.often() else 0 :])

    def _kept(self, value: Value) -> Value:
        self.values.append(value)
        return value


# --- blocks: what to do with a value ------------------------------------------------------------------------

Block = Callable[[Graph, Value], object]

CONTINUOUS = (
    "Relu",
    "LeakyRelu",
    "Sigmoid",
    "Tanh",
    "Abs",
    "Neg",
    "Elu",
    "Selu",
    "Softplus",
    "Softsign",
    "HardSigmoid",
    "HardSwish",
    "Gelu",
    "Mish",
    "Erf",
    "Celu",
    "Sin",
    "Cos",
    "Identity",
    "Atan",
    "Asinh",
)
EXACT = {"Relu", "Abs", "Neg", "Identity", "Floor", "Ceil", "Round", "Sign"}


def unary(g: Graph, x: Value):
    g.need(x.is_float)
    op = g.among(*CONTINUOUS)
    return g.one(op, x, exact=op in EXACT)


def rounded(g: Graph, x: Value):
    """Functions that jump, of exact values."""
    g.need(x.is_float and x.exact)
    op = g.among("Floor", "Ceil", "Round", "Sign", "ThresholdedRelu", "Shrink")
    if op in EXACT:
        return g.one(op, x, exact=True)
    return g.one(op, x, **({"alpha": 0.7} if op == "ThresholdedRelu" else {"lambd": 0.6}))


def positive(g: Graph, x: Value):
    g.need(x.is_float)
    y = g.one("Add", g.one("Abs", x), g.number(1.0), bound=x.bound + 1)
    return g.one(g.among("Sqrt", "Log", "Reciprocal"), y)


def exponential(g: Graph, x: Value):
    g.need(x.is_float)
    return g.one("Exp", g.one("Tanh", x, bound=1))


def clip(g: Graph, x: Value):
    g.need(x.is_float)
    if g.opset < 11:
        return g.one("Clip", x, exact=True, bound=1, min=-0.5, max=1.0)
    low, high = g.number(-0.5), g.number(1.0)
    return g.node("Clip", g.among([x, low, high], [x, None, high], [x, low]), exact=True)


def binary(g: Graph, x: Value):
    g.need(x.is_float)
    op = g.among("Add", "Add", "Sub", "Mul", "Mul", "Max", "Min", "Mean", "Sum")
    y = g.partner(x)
    if op in ("Max", "Min", "Mean", "Sum") and g.opset < 8:
        g.need(x.shape == y.shape)
    operands = [x, y] if g.often() else [y, x]
    bound = x.bound * y.bound if op == "Mul" else x.bound + y.bound
    g.need(bound < 256)
    return g.node(op, operands, bound=bound, exact=op in ("Max", "Min"))


def quotient(g: Graph, x: Value):
    g.need(x.is_float)
    y = g.one("Add", g.one("Abs", g.partner(x)), g.number(1.0))
    return g.one("Div", x, y)


def power(g: Graph, x: Value):
    g.need(x.is_float and x.bound < 16)
    y = g.one("Add", g.one("Abs", x), g.number(0.5))
    return g.one("Pow", y, g.number(g.among(0.5, 2.0, 1.5)), bound=x.bound**2)


def prelu(g: Graph, x: Value):
    g.need(x.is_float and x.rank > 1)
    return g.one("PRelu", x, g.weight(x.shape[1], *(1,) * (x.rank - 2)))


def conv(g: Graph, x: Value):
    g.need(x.is_float and 3 <= x.rank <= 5 and all(x.shape) and x.bound < 64)
    channels = x.shape[1]
    group = g.among(*(n for n in (1, 1, 2, 3, channels) if channels % n == 0))
    kernel = [g.between(1, min(3, extent)) for extent in x.shape[2:]]
    strides = [g.between(1, 2) for _ in kernel]
    window = {"strides": strides}
    if g.often(0.3) and all(s <= k for s, k in zip(strides, kernel, strict=True)):
        window["auto_pad"] = g.among("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        window["pads"] = [g.between(0, k - 1) for k in [*kernel, *kernel]]
    outputs = group * g.between(1, max(1, 6 // group))
    depth = channels // group * math.prod(kernel)
    w = g.weight(outputs, channels // group, *kernel, scale=depth**-0.5)
    bias = [g.weight(outputs)] if g.often() else []
    return g.node("Conv", [x, w, *bias], kernel_shape=kernel, group=group, **window)


def transposed(g: Graph, x: Value):
    g.need(x.is_float and x.rank == 4 and all(x.shape) and x.size < 200)
    kernel = [g.between(1, 3), g.between(1, 3)]
    w = g.weight(x.shape[1], g.between(1, 4), *kernel, scale=0.4)
    return g.one("ConvTranspose", x, w, kernel_shape=kernel, strides=[g.between(1, 2), g.between(1, 2)])


def pool(g: Graph, x: Value):
    g.need(x.is_float and 3 <= x.rank <= 5 and all(x.shape))
    op = g.among("MaxPool", "AveragePool", "LpPool")
    g.need(op != "LpPool" or x.rank == 4)
    kernel = [g.between(1, min(3, extent)) for extent in x.shape[2:]]
    options = {
        "strides": [g.between(1, 2) for _ in kernel],
        "pads": [g.between(0, (k - 1) // 2) for k in kernel] * 2,
    }
    if op == "AveragePool" and g.often():
        options["count_include_pad"] = 1
    if op == "MaxPool" and g.opset >= 10 and g.often(0.3):
        options["ceil_mode"] = 1
        options["pads"] = [0] * (2 * len(kernel))
        options["strides"] = [min(s, k) for s, k in zip(options["strides"], kernel, strict=True)]
    return g.one(op, x, kernel_shape=kernel, exact=op == "MaxPool", **options)


def global_pool(g: Graph, x: Value):
    g.need(x.is_float and 3 <= x.rank <= 5 and all(x.shape))
    op = g.among("GlobalAveragePool", "GlobalMaxPool")
    return g.one(op, x, exact=op == "GlobalMaxPool")


def normalization(g: Graph, x: Value):
    g.need(x.is_float and x.rank > 1 and all(x.shape) and x.bound < 64)
    op, channels = (
        g.among(
            "BatchNormalization",
            "InstanceNormalization",
            "LRN",
            "LayerNormalization",
            "GroupNormalization",
            "RMSNormalization",
        ),
        x.shape[1],
    )
    varied = math.prod(x.shape[2:]) > 3 and x.exact  # of what is all but constant a normalisation is noise
    if op == "BatchNormalization":
        return g.one(
            op, x, g.positive(channels), g.weight(channels), g.weight(channels), g.positive(channels)
        )
    if op == "LRN":
        g.need(x.rank == 4)
        return g.one(op, x, size=g.among(1, 3, 5), alpha=0.1)
    g.need(varied)
    if op == "InstanceNormalization":
        g.need(x.rank > 2)
        return g.one(op, x, g.positive(channels), g.weight(channels), epsilon=0.1)
    if op == "GroupNormalization":
        g.need(x.rank > 2 and g.opset >= 21)
        groups = g.among(*(n for n in (1, 2, 3) if channels % n == 0))
        return g.one(op, x, g.positive(channels), g.weight(channels), num_groups=groups, epsilon=0.1)
    axis = g.between(1, x.rank - 1)
    shape = x.shape[axis:]
    g.need(math.prod(shape) > 2)
    extra = [g.weight(*shape)] if op == "LayerNormalization" and g.often() else []
    return g.node(op, [x, g.positive(*shape), *extra], axis=axis, epsilon=0.1)


def softmax(g: Graph, x: Value):
    g.need(x.is_float and x.rank > 0 and x.size > 0 and x.bound < 64)
    g.need(g.opset >= 13 or x.rank == 2)  # before, all axes from this one on were one
    axis = g.between(-x.rank, x.rank - 1) if not g.images else g.between(1 - x.rank if x.rank > 1 else -1, -1)
    return g.one(g.among("Softmax", "LogSoftmax", "Softmax"), x, axis=axis)


def reduction(g: Graph, x: Value):
    g.need(x.is_float and x.rank > 0 and x.size > 0 and x.bound < 32)
    kind = g.among("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Sum", "SumSquare", "Prod")
    if kind in ("LogSum", "L2"):  # of sums near 0 both are noise
        x = g.one("Add", g.one("Abs", x), g.number(1.0))
    g.need(kind != "Prod" or x.bound < 5)
    rank, op = x.rank, f"Reduce{kind}"
    axes = sorted({g.between(0, rank - 1) for _ in range(g.between(1, rank))})
    if g.often(0.3):
        axes = [axis - rank for axis in axes] if g.opset >= 11 else axes
    options = {"keepdims": int(g.often())}
    count = math.prod(x.shape[axis] for axis in axes)
    options["bound"] = (
        x.bound * count if kind in ("Sum", "L1") else x.bound**2 * count if kind == "SumSquare" else x.bound
    )
    if kind == "Prod":
        g.need(count <= 4)
        options["bound"] = x.bound**count
    g.need(options["bound"] < 1000)
    options["exact"] = kind in ("Max", "Min")
    if g.opset < (13 if kind == "Sum" else 18):
        return g.one(op, x, axes=axes, **options)
    return g.one(op, x, g.ints(*axes), **options)


def gemm(g: Graph, x: Value):
    g.need(x.is_float and x.rank == 2 and all(x.shape) and x.bound < 64)
    inner, columns, turned = x.shape[1], g.between(1, 8), int(g.often())
    w = g.weight(*((columns, inner) if turned else (inner, columns)), scale=inner**-0.5)
    c = g.among(g.weight(columns), g.weight(1, columns), g.weight(1))
    return g.one("Gemm", x, w, c, transB=turned, alpha=g.among(1.0, 0.5), beta=g.among(1.0, 2.0))


def product(g: Graph, x: Value):
    g.need(x.is_float and x.rank > 0 and x.size > 0 and x.bound < 64)
    inner = x.shape[-1]
    front = [g.among(1, extent) for extent in x.shape[:-2]][g.between(0, max(x.rank - 2, 0)) :]
    shape = (inner,) if g.often(0.15) else (*front, inner, g.between(1, 8))
    return g.one("MatMul", x, g.weight(*shape, scale=inner**-0.5))


def attention(g: Graph, x: Value):
    g.need(x.is_float and x.rank in (3, 4) and x.size > 0 and x.bound < 16 and g.opset >= 13)
    width = x.shape[-1]
    q, k, v = (g.one("MatMul", x, g.weight(width, 4, scale=0.3 * width**-0.5)) for _ in range(3))
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    scores = g.one("MatMul", q, g.one("Transpose", k, perm=perm))
    if g.often():
        rows = x.shape[-2]
        mask = g.constant(np.where(np.tril(np.ones((rows, rows), bool)), 0, -1e4).astype(g.dtype))
        scores = g.one("Add", scores, mask)
    return g.one("MatMul", g.one("Softmax", scores, axis=-1, bound=1), v, bound=x.bound)


def residual(g: Graph, x: Value):
    g.need(x.is_float and x.rank == 4 and all(x.shape) and x.bound < 64)
    channels = x.shape[1]
    a = g.one("Conv", x, g.weight(channels, channels, 3, 3, scale=0.2), pads=[1, 1, 1, 1])
    return g.one("Relu", g.one("Add", a, x), bound=2 * x.bound)


def transpose(g: Graph, x: Value):
    g.need(x.rank > 1)
    return g.one("Transpose", x, perm=[int(axis) for axis in g.rng.permutation(x.rank)], exact=True)


def reshape(g: Graph, x: Value):
    g.need(x.rank > 0 and x.size > 0)
    way = g.among("merge", "split", "flatten", "squeeze", "unsqueeze", "told")
    if way == "flatten":
        return g.one("Flatten", x, axis=g.between(0, x.rank), exact=True)
    if way == "squeeze":
        ones = [axis for axis, extent in enumerate(x.shape) if extent == 1]
        g.need(bool(ones))
        if g.often(0.2):
            return g.one("Squeeze", x, exact=True)
        return g.listed("Squeeze", x, 13, axes=[g.among(*ones)])
    if way == "unsqueeze":
        g.need(x.rank < 5)
        return g.listed("Unsqueeze", x, 13, axes=[g.between(0, x.rank)])
    if way == "told":  # a target that the graph computes
        shape = g.one("Shape", x, exact=True)
        first = g.one("Slice", shape, g.ints(0), g.ints(1), exact=True) if g.opset >= 10 else None
        g.need(first is not None)
        target = g.one("Concat", first, g.ints(-1), axis=0, exact=True)
        return _reshaped(g, x, target, (x.shape[0], x.size // x.shape[0]))
    if way == "merge":
        g.need(x.rank > 1)
        axis = g.between(0, x.rank - 2)
        shape = [*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]]
    else:
        axis = g.between(0, x.rank - 1)
        part = g.among(*(n for n in range(1, x.shape[axis] + 1) if x.shape[axis] % n == 0))
        shape = [*x.shape[:axis], part, x.shape[axis] // part, *x.shape[axis + 1 :]]
    result = tuple(shape)
    if g.often():
        shape[g.between(0, len(shape) - 1)] = -1
    zeros = [axis for axis in range(min(len(shape), x.rank)) if shape[axis] == x.shape[axis]]
    if zeros and g.often(0.3):
        shape[g.among(*zeros)] = 0
    return _reshaped(g, x, g.ints(*shape), result)


def _reshaped(g: Graph, x: Value, target: Value, shape: tuple[int, ...]) -> Value:
    """A Reshape whose shape is known where nobody infers the numbers of its target."""
    g.need(len(shape) <= 5)
    name = f"v{len(g.nodes)}_0"
    g.nodes.append(helper.make_node("Reshape", [x.name, target.name], [name], f"Reshape_{len(g.nodes)}"))
    g.read.update((x.name, target.name))
    return g._kept(replace(x, name=name, shape=shape))


def slice_(g: Graph, x: Value):
    g.need(x.rank > 0 and x.size > 0)
    axis = g.between(0, x.rank - 1)
    extent = x.shape[axis]
    start = g.between(0, extent - 1)
    end = g.among(g.between(start + 1, extent), 2**40, extent)
    if g.opset < 10:
        return g.one("Slice", x, starts=[start], ends=[end], axes=[axis], exact=True)
    if g.often(0.3):
        start, end, step = extent - 1, -extent - 1, -g.between(1, 2)
    else:
        step = g.between(1, 2)
    return g.one(
        "Slice",
        x,
        g.ints(start),
        g.ints(end),
        g.ints(axis - x.rank if g.often() else axis),
        g.ints(step),
        exact=True,
    )


def split(g: Graph, x: Value):
    g.need(x.rank > 0)
    axis = g.between(0, x.rank - 1)
    g.need(x.shape[axis] > 1)
    first = g.between(1, x.shape[axis] - 1)
    sizes = [first, x.shape[axis] - first]
    if g.opset < 13:
        return g.node("Split", [x], 2, exact=True, axis=axis, split=sizes)
    return g.node("Split", [x, g.ints(*sizes)], 2, exact=True, axis=axis)


def concat(g: Graph, x: Value):
    g.need(x.rank > 0)
    axis = g.between(0, x.rank - 1)

    def goes(y: Value) -> bool:
        beside = (a == b for place, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if place != axis)
        return y.type == x.type and all(beside)

    fitting = [y for y in g.values if y.rank == x.rank and goes(y)]
    operands = [x, *(g.among(*fitting) for _ in range(g.between(1, 2)))]
    return g.node(
        "Concat", operands, exact=True, axis=axis - x.rank if g.often(0.3) and g.opset >= 11 else axis
    )


def gather(g: Graph, x: Value):
    g.need(x.rank > 0 and x.size > 0)
    axis = g.between(0, x.rank - 1)
    extent = x.shape[axis]
    low = -extent if g.opset >= 11 else 0
    shape = g.among((), (1,), (2,), (2, 2))
    indices = g.constant(g.rng.integers(low, extent, shape))
    return g.one("Gather", x, indices, axis=axis, exact=True)


def expand(g: Graph, x: Value):
    g.need(x.size > 0 and x.rank < 5)
    shape = [g.between(2, 3) if extent == 1 and g.often() else g.among(1, extent) for extent in x.shape]
    return g.one("Expand", x, g.ints(*([2] if g.often(0.3) else []), *shape), exact=True)


def tile(g: Graph, x: Value):
    g.need(x.rank > 0 and x.size > 0)
    return g.one("Tile", x, g.ints(*(g.between(1, 2) for _ in x.shape)), exact=True)


def pad(g: Graph, x: Value):
    g.need(x.is_float and x.rank > 0 and x.size > 0)
    mode = g.among("constant", "constant", "edge", "reflect", *["wrap"] * (g.opset >= 19))
    g.need(mode == "constant" or x.rank in (3, 4))
    most = [1 if mode != "reflect" or extent > 1 else 0 for extent in x.shape]
    pads = [g.between(0, m) for m in [*most, *most]]
    if g.opset < 11:
        return g.one("Pad", x, mode=mode, pads=pads, exact=True)
    value = [g.number(0.5)] if mode == "constant" and g.often() else []
    return g.node("Pad", [x, g.ints(*pads), *value], exact=True, mode=mode)


def resize(g: Graph, x: Value):
    g.need(x.is_float and x.rank == 4 and x.size > 0)
    scales = np.asarray([1, 1, g.among(1, 2, 3), g.among(1, 2)], np.float32)
    mode = g.among("nearest", "linear")
    if g.opset < 9:
        return g.one("Upsample", x, mode=mode, scales=scales.tolist(), exact=mode == "nearest")
    if g.opset < 11:
        op = "Upsample" if g.opset == 9 else "Resize"
        return g.one(op, x, g.constant(scales), mode=mode, exact=mode == "nearest")
    options = {
        "mode": mode,
        "exact": mode == "nearest",
        "coordinate_transformation_mode": g.among("half_pixel", "asymmetric", "pytorch_half_pixel"),
    }
    if mode == "nearest":
        options |= {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    if g.opset >= 13 and g.often():
        sizes = [int(extent * scale) for extent, scale in zip(x.shape, scales, strict=True)]
        return g.node("Resize", [x, None, None, g.ints(*sizes)], **options)
    roi = g.constant(np.zeros(0, np.float32)) if g.opset < 13 else None
    return g.node("Resize", [x, roi, g.constant(scales)], **options)


def space(g: Graph, x: Value):
    g.need(x.is_float and x.rank == 4 and x.size > 0)
    if x.shape[1] % 4 == 0:
        return g.one(
            "DepthToSpace",
            x,
            blocksize=2,
            exact=True,
            **({"mode": g.among("DCR", "CRD")} if g.opset >= 11 else {}),
        )
    g.need(x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0)
    return g.one("SpaceToDepth", x, blocksize=2, exact=True)


def quantised(g: Graph, x: Value):
    """There and back; scales are powers of two, so that nothing is rounded twice."""
    g.need(x.type == T.FLOAT and x.exact and x.size > 0 and x.rank > 0 and g.opset >= 10)
    dtype = g.among(np.int8, np.uint8)
    zero = g.between(-4, 4) if dtype is np.int8 else g.between(100, 140)
    parameters = [g.constant(np.asarray(2.0**-4, np.float32)), g.constant(np.asarray(zero, dtype))]
    if g.opset >= 13 and x.rank > 1 and g.often(0.3):
        channels = x.shape[1]
        scales = 2.0 ** g.rng.integers(-5, -2, channels)
        parameters = [g.constant(scales.astype(np.float32)), g.constant(np.full(channels, zero, dtype))]
    q = g.one("QuantizeLinear", x, *parameters, exact=True)
    if g.often(0.3):
        q = g.among(transpose, concat, gather)(g, q)
        g.need(len(parameters[0].shape) == 0)
        q = q[0] if isinstance(q, list) else q
    return g.one("DequantizeLinear", q, *parameters, exact=True)


def quantised_conv(g: Graph, x: Value):
    """A convolution between quantised operands: every sum is exact in f32."""
    g.need(x.type == T.FLOAT and x.exact and x.rank == 4 and all(x.shape) and g.opset >= 13)
    scale = [g.constant(np.asarray(2.0**-4, np.float32)), g.constant(np.asarray(g.between(-3, 3), np.int8))]
    a = g.one("DequantizeLinear", g.one("QuantizeLinear", x, *scale, exact=True), *scale, exact=True)
    outputs, kernel = g.between(1, 5), [g.between(1, min(3, extent)) for extent in x.shape[2:]]
    w = g.constant(g.rng.integers(-20, 21, (outputs, x.shape[1], *kernel)).astype(np.int8))
    w = g.one(
        "DequantizeLinear", w, g.constant(np.asarray(2.0**-5, np.float32)), g.constant(np.asarray(0, np.int8))
    )
    y = g.one("Conv", a, replace(w, exact=True), kernel_shape=kernel)
    end = [g.constant(np.asarray(2.0**-3, np.float32)), g.constant(np.asarray(0, np.int8))]
    q = g.one("QuantizeLinear", replace(y, exact=True), *end)
    return g.one("DequantizeLinear", q, *end)


def whole_numbers(g: Graph, x: Value):
    """To integers and back, with arithmetic between."""
    g.need(x.is_float and x.exact)
    kind = g.among(T.INT32, T.INT64)
    y = g.one("Cast", x, to=kind, exact=True)
    if g.often():
        y = g.one(
            g.among("Add", "Mul", "Sub"),
            y,
            g.constant(np.asarray(g.between(1, 5), helper.tensor_dtype_to_np_dtype(kind))),
            exact=True,
        )
    if g.often(0.3):
        return y
    return g.one("Cast", y, to=g.element, exact=True, bound=64)


def masked(g: Graph, x: Value):
    """A choice, by a mask that is constant or compares."""
    g.need(x.is_float and x.size > 0 and g.opset >= 9)
    y = g.number(-2.0) if g.often() else g.partner(x)
    if g.often():
        mask = g.constant(g.rng.random(x.shape) < 0.5)
    else:
        g.need(x.exact)
        mask = g.one(g.among("Less", "Greater"), x, g.number(0.25), exact=True)
        if g.often():
            mask = g.one("Not", mask, exact=True)
    operands = [x, y] if g.often() else [y, x]
    return g.one("Where", mask, *operands, exact=y.exact or y.size == 1)


def sorted_out(g: Graph, x: Value):
    """Places of elements, of exact values (equal ones are a matter of order)."""
    g.need(x.is_float and x.exact and x.rank > 0 and x.size > 0 and g.opset >= 11)
    op = g.among("ArgMax", "TopK", "CumSum", "Hardmax", "ArgMin")
    axis = g.between(-x.rank, x.rank - 1)
    if op == "CumSum":
        return g.one(op, x, g.constant(np.asarray(axis, np.int64)))
    if op == "Hardmax":
        return g.one(op, x, axis=-1, exact=True)
    if op == "TopK":
        return g.node(op, [x, g.ints(g.between(1, x.shape[axis]))], 2, exact=True, axis=axis)
    return g.one(op, x, axis=axis, keepdims=int(g.often()), exact=True)


def of_the_host(g: Graph, x: Value):
    """What the device has not."""
    g.need(x.is_float and x.size > 0)
    op = g.among(
        "LpNormalization", "Trilu", "GatherElements", "ReduceProd", "Sinh", "IsNaN", "Det", "Einsum", "Mod"
    )
    if op == "LpNormalization":
        g.need(x.rank > 1)
        return g.one(op, g.one("Add", g.one("Abs", x), g.number(1.0)), axis=-1, bound=1)
    if op == "Trilu":
        g.need(x.rank > 1)
        return g.one(op, x, upper=int(g.often()), exact=True)
    if op == "GatherElements":
        g.need(x.rank > 0)
        return g.one(op, x, g.constant(g.rng.integers(0, x.shape[-1], x.shape)), axis=-1, exact=True)
    if op == "Sinh":
        return g.one(op, g.one("Tanh", x, bound=1), bound=2)
    if op == "IsNaN":
        return g.one(op, x, exact=True)
    if op == "Einsum":
        g.need(x.rank == 2)
        return g.one(op, x, g.weight(*x.shape), equation="ij,ij->i", bound=16)
    if op == "Mod":
        g.need(x.exact and g.opset >= 10)
        return g.one(op, x, g.number(0.75), fmod=1, exact=True)
    raise Impossible(op)


def empty(g: Graph, x: Value):
    """An operand of extent 0 that is joined on."""
    g.need(x.is_float and x.rank > 0)
    axis = g.between(0, x.rank - 1)
    nothing = (
        g.input((*x.shape[:axis], 0, *x.shape[axis + 1 :]))
        if not g.images
        else g.constant(np.zeros((*x.shape[:axis], 0, *x.shape[axis + 1 :]), g.dtype))
    )
    return g.node("Concat", [x, nothing], exact=True, axis=axis)


def dropout(g: Graph, x: Value):
    g.need(x.is_float)
    return g.one("Dropout", x, exact=True)


def filled(g: Graph, x: Value):
    """A constant of another value's shape, added."""
    g.need(x.is_float and x.size > 0 and g.opset >= 9)
    shape = g.one("Shape", x, exact=True)
    value = numpy_helper.from_array(np.asarray([0.5], g.dtype))
    name = f"v{len(g.nodes)}_0"
    g.nodes.append(
        helper.make_node("ConstantOfShape", [shape.name], [name], f"Fill_{len(g.nodes)}", value=value)
    )
    g.read.add(shape.name)
    return g.one("Add", x, g._kept(Value(name, x.shape, g.element, True)))


BLOCKS: tuple[tuple[Block, int], ...] = (
    (unary, 6),
    (rounded, 1),
    (positive, 1),
    (exponential, 1),
    (clip, 1),
    (binary, 6),
    (quotient, 1),
    (power, 1),
    (prelu, 1),
    (conv, 6),
    (transposed, 1),
    (pool, 3),
    (global_pool, 1),
    (normalization, 3),
    (softmax, 2),
    (reduction, 3),
    (gemm, 2),
    (product, 2),
    (attention, 2),
    (residual, 2),
    (transpose, 3),
    (reshape, 5),
    (slice_, 2),
    (split, 2),
    (concat, 3),
    (gather, 2),
    (expand, 1),
    (tile, 1),
    (pad, 2),
    (resize, 2),
    (space, 1),
    (quantised, 2),
    (quantised_conv, 2),
    (whole_numbers, 1),
    (masked, 2),
    (sorted_out, 1),
    (of_the_host, 1),
    (empty, 1),
    (dropout, 1),
    (filled, 1),
)
SHARES = np.asarray([share for _, share in BLOCKS]) / sum(share for _, share in BLOCKS)


def random_onnx(seed: int, *, images: bool = False, blocks: int = 9) -> Drawn:
    """The model of a seed, with inputs; `images`: every input is a batch of 1."""
    g = Graph(seed, images)
    rank = g.among(1, 2, 3, 4, 4, 4, 5)
    shape = [
        g.among(1, 1, 2, 3),
        g.among(1, 2, 3, 4, 6),
        *(g.between(1, 7 if rank < 5 else 4) for _ in range(3)),
    ][:rank]
    if images:
        shape = [1, *shape[1:]] if rank > 1 else [1, g.between(1, 6)]
    g.input(shape)
    if g.often(0.3):
        g.input([1, *shape[1:]] if images or g.often() else shape[-g.between(1, len(shape)) :])
    wanted, tries = g.between(2, blocks), 0
    while wanted and tries < 200:
        tries += 1
        mark = len(g.nodes), len(g.tensors), len(g.inputs), len(g.values), set(g.read)
        block = BLOCKS[int(g.rng.choice(len(BLOCKS), p=SHARES))][0]
        x = g.values[-1] if g.often(0.7) else g.among(*g.values)
        try:
            block(g, x)
        except Impossible:
            for items, length in zip((g.nodes, g.tensors, g.inputs, g.values), mark, strict=False):
                del items[length:]
            g.read = mark[4]
        else:
            wanted -= 1
    return _drawn(g)


def _drawn(g: Graph) -> Drawn:
    """Outputs are most of what nobody reads, and some of what somebody does; the rest of it are dead ends."""
    made = [value for value in g.values if value.name.startswith("v")]
    ends = [value for value in made if value.name not in g.read]
    outputs = [v for v in ends if v is ends[-1] or g.often(0.85)]
    inner = [v for v in made if v.name in g.read]
    if inner and g.often(0.4):
        outputs.append(g.among(*inner))
    if not outputs:
        outputs = [g.one("Identity", g.values[0])]
    graph = helper.make_graph(
        g.nodes,
        f"seed{g.seed}",
        g.inputs,
        [helper.make_tensor_value_info(v.name, v.type, v.shape) for v in outputs],
        g.tensors,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", g.opset)], ir_version=8 if g.opset < 21 else 10
    )
    names = {value.name for value in g.inputs}
    inputs = {name: array for name, array in g.arrays.items() if name in names}
    return Drawn(model, inputs, "f16" if g.element == T.FLOAT16 else "f32", tuple(n.op_type for n in g.nodes))
