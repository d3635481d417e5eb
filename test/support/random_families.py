"""Random ONNX files of the families that people run: attention with masks and caches, norms, MLPs, U-Nets, recurrent
networks, operators of com.microsoft, quantised networks (QDQ).

`family_runs.py` makes cases of them and runs these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"


@dataclass
class Drawing:
    """A graph that grows: draws, values, nodes; `step`: the largest step of its quantised values; `size`: what extents
    are multiplied by."""

    rng: np.random.Generator
    opset: int = 21
    dtype: type[np.floating] = np.float32
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    step: float = 0.0
    size: int = 1

    def among(self, *choices):
        return choices[int(self.rng.integers(len(choices)))]

    def often(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def between(self, low: int, high: int) -> int:
        """Both ends are drawn too."""
        return int(self.rng.integers(low, high + 1))

    def sized(self, extent: int) -> int:
        """An extent that was drawn, `size` times as large; one stays one."""
        return extent if extent == 1 else self.size * extent

    def input(self, *shape: int) -> str:
        return self.given(self.rng.standard_normal(shape).astype(self.dtype))

    def given(self, array: np.ndarray) -> str:
        """A new input with these values."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = array
        return name

    def constant(self, array: object, element: int | None = None) -> str:
        name, array = f"c{len(self.constants)}", np.asarray(array)
        if element is None:
            self.constants.append(numpy_helper.from_array(array, name))
        else:
            self.constants.append(helper.make_tensor(name, element, array.shape, array.ravel()))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.asarray(values, np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.asarray(value, self.dtype))

    def weight(self, *shape: int, terms: int | None = None) -> str:
        """Numbers for sums of so many terms."""
        scale = 1.0 if terms is None else terms**-0.5
        return self.constant((self.rng.standard_normal(shape) * scale).astype(self.dtype))

    def node(
        self, op: str, operands: Sequence[str], outputs: int = 1, domain: str = "", **attributes: object
    ) -> list[str]:
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op, operands, names, f"{op}_{len(self.nodes)}", domain=domain, **attributes))
        return names

    def one(self, op: str, *operands: str, **options: object) -> str:
        return self.node(op, operands, **options)[0]

    def shaped(self, x: str, *shape: int) -> str:
        return self.one("Reshape", x, self.ints(*shape))


# --- parts that several families have ---------------------------------------------------------------------------


def linear(g: Drawing, x: str, inputs: int, outputs: int) -> str:
    """A product with a weight of the last axis."""
    y = g.one("MatMul", x, g.weight(inputs, outputs, terms=inputs))
    if g.often():
        return y
    b = g.weight(outputs)
    return g.one("Add", y, b) if g.often() else g.one("Add", b, y)


def row_norm(g: Drawing, x: str, size: int) -> str:
    """A norm of the last axis, as one node or as the nodes that exporters write."""
    kind = g.among("layer", "layer", "decomposed", "rms", *(["RMSNormalization"] if g.opset >= 23 else []))
    scale, shift = g.weight(size), g.weight(size)
    if kind == "layer":
        return g.one("LayerNormalization", x, scale, *([shift] if g.often() else []), axis=-1, epsilon=1e-4)
    if kind == "RMSNormalization":
        return g.one(kind, x, scale, axis=-1, epsilon=1e-4)
    if kind == "decomposed":
        x = g.one("Sub", x, g.one("ReduceMean", x, g.ints(-1), keepdims=1))
    squares = g.one("ReduceMean", g.one("Pow", x, g.number(2)), g.ints(-1), keepdims=1)
    root = g.one("Sqrt", g.one("Add", squares, g.number(1e-4)))
    made = g.one("Div", x, root) if g.often() else g.one("Mul", x, g.one("Reciprocal", root))
    made = g.one("Mul", made, scale)
    return g.one("Add", made, shift) if kind == "decomposed" else made


def activated(g: Drawing, x: str) -> str:
    kind = g.among("Relu", "Tanh", "Sigmoid", "erf", "tanh", "silu", "HardSwish", "LeakyRelu", "Gelu")
    if kind == "erf":
        inside = g.one("Add", g.one("Erf", g.one("Div", x, g.number(math.sqrt(2)))), g.number(1))
        return g.one("Mul", g.one("Mul", x, inside), g.number(0.5))
    if kind == "tanh":
        cubed = g.one("Mul", g.one("Pow", x, g.number(3)), g.number(0.044715))
        inside = g.one("Tanh", g.one("Mul", g.one("Add", x, cubed), g.number(math.sqrt(2 / math.pi))))
        return g.one("Mul", g.one("Mul", x, g.number(0.5)), g.one("Add", inside, g.number(1)))
    return g.one("Mul", x, g.one("Sigmoid", x)) if kind == "silu" else g.one(kind, x)


def conv(g: Drawing, x: str, inputs: int, outputs: int, kernel: int = 3, **attributes: object) -> str:
    groups = inputs if inputs == outputs and g.often(0.2) else 1
    w = g.weight(outputs, inputs // groups, kernel, kernel, terms=inputs // groups * kernel**2)
    bias = [g.weight(outputs)] if g.often() else []
    return g.one("Conv", x, w, *bias, pads=[kernel // 2] * 4, group=groups, **attributes)


# --- the families: each gives its outputs -----------------------------------------------------------------------


def attention(g: Drawing) -> list[str]:
    """A layer of attention as exporters write it, or ONNX's operator, between projections."""
    batch, groups, share, size = g.between(1, 2), g.between(1, 3), g.between(1, 2), g.sized(2 * g.between(2, 8))
    rows, past, heads = g.sized(g.among(1, 4, 7, 16, 24)), g.sized(g.among(0, 0, 3, 16)), groups * share
    width, total = g.sized(g.among(16, 24, 40)), rows + past
    given = g.input(batch, rows, width)
    x = row_norm(g, given, width) if g.often() else given
    q, k, v = (_in_heads(g, linear(g, x, width, n * size), batch, rows, n, size) for n in (heads, groups, groups))
    if g.often(0.4):
        q, k = _rotated(g, q, past, rows, size), _rotated(g, k, past, rows, size)
    presents = []
    if past:
        presents = [g.one("Concat", g.input(batch, groups, past, size), each, axis=2) for each in (k, v)]
        k, v = presents
    if g.opset >= 23 and g.often(0.4):
        mask = _mask(g, batch, rows, total, past)
        whole = [g.one("Expand", mask, g.ints(1, 1, rows, 1))] if mask else []  # onnxruntime broadcasts no rows
        made = g.one("Attention", q, k, v, *whole, scale=size**-0.5)
    else:
        k, v = (_repeated(g, each, batch, groups, share, total, size) for each in (k, v))
        scores = g.one("MatMul", q, g.one("Transpose", k, perm=[0, 1, 3, 2]))
        scores = g.one("Mul", scores, g.number(size**-0.5)) if g.often() else g.one("Div", scores, g.number(size**0.5))
        mask = _mask(g, batch, rows, total, past)
        scores = g.one("Add", scores, mask) if mask else scores
        made = g.one("MatMul", g.one("Softmax", scores, axis=-1), v)
    merged = g.shaped(g.one("Transpose", made, perm=[0, 2, 1, 3]), batch, rows, heads * size)
    y = linear(g, merged, heads * size, width)
    return [g.one("Add", y, given) if g.often() else y, *(presents if g.often() else [])]


def _in_heads(g: Drawing, x: str, batch: int, rows: int, heads: int, size: int) -> str:
    return g.one("Transpose", g.shaped(x, batch, rows, heads, size), perm=[0, 2, 1, 3])


def _rotated(g: Drawing, x: str, past: int, rows: int, size: int) -> str:
    """Rotary embedding in halves."""
    angles = np.arange(past, past + rows)[:, None] * 10.0 ** -(np.arange(size) % (size // 2) / size)
    first, second = g.node("Split", [x, g.ints(size // 2, size // 2)], 2, axis=-1)
    turned = g.one("Concat", g.one("Neg", second), first, axis=-1)
    cos, sin = (g.constant(f(angles).astype(g.dtype)) for f in (np.cos, np.sin))
    return g.one("Add", g.one("Mul", x, cos), g.one("Mul", turned, sin))


def _repeated(g: Drawing, x: str, batch: int, groups: int, share: int, rows: int, size: int) -> str:
    """Each group's rows for all of its heads."""
    if share == 1:
        return x
    wide = g.one("Expand", g.one("Unsqueeze", x, g.ints(2)), g.ints(batch, groups, share, rows, size))
    return g.shaped(wide, batch, groups * share, rows, size)


def _mask(g: Drawing, batch: int, rows: int, keys: int, past: int) -> str | None:
    """What is added to scores of (batch, heads, rows, keys), if anything; every row sees its first key."""
    kind = g.among("none", "causal", "added", "bool", "padding", "window")
    low = -1e4
    seen = np.tri(rows, keys, past, dtype=bool)
    if kind == "window":
        seen &= ~np.tri(rows, keys, past - 4, dtype=bool)
        seen[:, 0] = True
    if kind in ("causal", "window"):
        return g.constant(np.where(seen, 0, low).astype(g.dtype)[None, None])
    if kind == "added":
        return g.input(batch, 1, g.among(1, rows), keys)
    kept = g.rng.random((batch, 1, 1, keys)) < 0.7
    kept[..., 0] = True
    if kind == "bool":
        return g.one("Where", g.given(kept), g.number(0), g.number(low))
    if kind == "padding":
        element = helper.np_dtype_to_tensor_dtype(np.dtype(g.dtype))
        numbers = g.one("Cast", g.given(kept[:, 0, 0].astype(np.int64)), to=element)
        hidden = g.one("Mul", g.one("Sub", g.number(1), numbers), g.number(low))
        return g.shaped(hidden, batch, 1, 1, keys)
    return None


def norms(g: Drawing) -> list[str]:
    """Products or convolutions, each with a norm."""
    if g.often():
        width, rows = g.sized(g.among(8, 20, 33, 64)), g.sized(g.among(1, 5, 16, 40))
        x = g.input(g.between(1, 2), rows, width)
        for _ in range(g.between(1, 3)):
            y = linear(g, row_norm(g, x, width), width, width)
            x = g.one("Add", activated(g, y), x) if g.often() else row_norm(g, y, width)
        return [x]
    channels, extent = 4 * g.between(1, 4), g.sized(g.among(4, 7, 12))
    x = g.input(g.between(1, 2), channels, extent, extent + 1)
    for _ in range(g.between(1, 3)):
        x = activated(g, _plane_norm(g, conv(g, x, channels, channels), channels))
    return [x]


def _plane_norm(g: Drawing, x: str, channels: int) -> str:
    scale, shift = g.weight(channels), g.weight(channels)
    kind = g.among("InstanceNormalization", "GroupNormalization", "grouped", "BatchNormalization", "LpNormalization")
    if kind == "BatchNormalization":
        positive = g.constant((g.rng.random(channels) + 0.5).astype(g.dtype))
        return g.one(kind, x, scale, shift, g.weight(channels), positive)
    if kind == "GroupNormalization":
        return g.one(kind, x, scale, shift, num_groups=channels // 4, epsilon=1e-4)
    if kind == "LpNormalization":
        return g.one(kind, x, axis=1, p=2)
    if kind == "InstanceNormalization":
        return g.one(kind, x, scale, shift, epsilon=1e-4)
    groups, back = channels // 4, g.one("Shape", x)
    ones, zeros = (g.constant(np.full(groups, value, g.dtype)) for value in (1, 0))
    made = g.one("Reshape", g.one("InstanceNormalization", g.shaped(x, 0, groups, -1), ones, zeros, epsilon=1e-4), back)
    column = [g.constant(g.rng.standard_normal((channels, 1, 1)).astype(g.dtype)) for _ in range(2)]
    return g.one("Add", g.one("Mul", made, column[0]), column[1])


def mlp(g: Drawing) -> list[str]:
    """Products with activations between them, gated ones too."""
    width, rows = g.sized(g.among(8, 24, 50, 96)), g.sized(g.among(1, 3, 16, 33, 130))
    is_flat = g.often(0.4)
    x = g.input(rows, width) if is_flat else g.input(g.between(1, 2), rows, width)
    for _ in range(g.between(1, 3)):
        hidden, given = g.among(16, 40, 40, 130, 1040), x
        x = row_norm(g, x, width) if g.often(0.4) else x
        if g.often(0.3):
            gate, up = g.node("Split", [linear(g, x, width, 2 * hidden), g.ints(hidden, hidden)], 2, axis=-1)
            x = g.one("Mul", activated(g, gate), up)
        elif is_flat and g.often():
            w = g.weight(hidden, width, terms=width)
            x = activated(g, g.one("Gemm", x, w, g.weight(hidden), transB=1))
        else:
            x = activated(g, linear(g, x, width, hidden))
        x = linear(g, x, hidden, width)
        x = g.one("Add", x, given) if g.often() else x
    return [g.one("Softmax", x, axis=-1) if g.often(0.2) else x]


def unet(g: Drawing) -> list[str]:
    """Maps that get smaller and larger again, with skips."""
    levels, channels = g.between(1, 3), g.among(2, 4, 8)
    height, width = (g.sized(2**levels * g.between(2, 4)) for _ in range(2))
    x, skips = g.input(1, 3, height, width), []
    x, count = activated(g, conv(g, x, 3, channels)), channels
    for _ in range(levels):
        skips.append((x, count))
        kind = g.among("MaxPool", "AveragePool", "conv")
        more = count + g.among(0, 2, 4)
        if kind == "conv":
            x = conv(g, x, count, more, strides=[2, 2])
        else:
            x = conv(g, g.one(kind, x, kernel_shape=[2, 2], strides=[2, 2]), count, more)
        x, count = activated(g, x), more
        x = activated(g, conv(g, x, count, count)) if g.often() else x
    for skip, skipped in reversed(skips):
        x, count = _upsampled(g, x, count)
        x = activated(g, conv(g, g.one("Concat", x, skip, axis=1), count + skipped, skipped))
        count = skipped
    return [g.one("Sigmoid", conv(g, x, count, g.between(1, 3), kernel=1))]


def _upsampled(g: Drawing, x: str, channels: int) -> tuple[str, int]:
    kind = g.among("nearest", "linear", "transposed", "DepthToSpace")
    if kind == "transposed":
        kernel, pad = g.among((2, 0), (4, 1))
        w = g.weight(channels, channels, kernel, kernel, terms=4 * channels)
        return g.one("ConvTranspose", x, w, strides=[2, 2], pads=[pad] * 4), channels
    if kind == "DepthToSpace":
        return g.one(kind, conv(g, x, channels, 4 * channels, kernel=1), blocksize=2), channels
    scales = g.constant(np.array([1, 1, 2, 2], np.float32))
    how = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"} if kind == "nearest" else {}
    return g.one("Resize", x, "", scales, mode=kind, **how), channels


def recurrent(g: Drawing) -> list[str]:
    """LSTM, GRU or RNN, both ways too, and a product of its steps or of its last state."""
    op, gates = g.among(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    steps, batch, inputs, hidden = g.between(1, 6), g.between(1, 2), g.between(2, 9), g.between(2, 9)
    inputs, hidden = g.sized(inputs), g.sized(hidden)
    direction = g.among("forward", "reverse", "bidirectional")
    ways = 2 if direction == "bidirectional" else 1
    w = g.weight(ways, gates * hidden, inputs, terms=inputs)
    r = g.weight(ways, gates * hidden, hidden, terms=hidden)
    bias = g.weight(ways, 2 * gates * hidden) if g.often() else ""
    states = [g.input(ways, batch, hidden) for _ in range(2 if op == "LSTM" else 1)] if g.often() else []
    attributes = {"linear_before_reset": g.between(0, 1)} if op == "GRU" else {}
    y, last, *_ = g.node(
        op, [g.input(steps, batch, inputs), w, r, bias, "", *states], 3 if op == "LSTM" else 2,
        hidden_size=hidden, direction=direction, **attributes,
    )  # fmt: skip
    if g.often():
        rows = g.shaped(g.one("Transpose", y, perm=[0, 2, 1, 3]), steps, batch, ways * hidden)
        return [linear(g, rows, ways * hidden, 5), last]
    return [linear(g, g.shaped(g.one("Transpose", last, perm=[1, 0, 2]), batch, ways * hidden), ways * hidden, 5)]


def microsoft(g: Drawing) -> list[str]:
    """A chain of operators of com.microsoft."""
    width, rows = g.sized(32 * g.between(1, 2)), g.sized(g.among(1, 4, 9))
    x = g.input(1, rows, width)
    for _ in range(g.between(1, 4)):
        kind = g.among("FusedMatMul", "MatMulNBits", "QuickGelu", "BiasGelu", "Skip")
        if kind == "FusedMatMul":
            w = g.weight(width, width, terms=width)
            x = g.one(kind, x, w, domain=MICROSOFT, transB=g.between(0, 1), alpha=g.among(1.0, 0.5, 2.0))
        elif kind == "MatMulNBits":
            x = _n_bits(g, x, width)
        elif kind == "QuickGelu":
            x = g.one(kind, x, domain=MICROSOFT, alpha=g.among(1.0, 1.702))
        elif kind == "BiasGelu":
            x = g.one(kind, x, g.weight(width), domain=MICROSOFT)
        else:
            operands = [x, g.input(1, rows, width), g.weight(width), g.weight(width)]
            x = g.one("SkipLayerNormalization", *operands, domain=MICROSOFT, epsilon=1e-4)
    return [x]


def _n_bits(g: Drawing, x: str, width: int) -> str:
    bits, block = g.among(4, 8), g.among(16, 32)
    blocks = width // block
    packed = g.rng.integers(0, 256, (width, blocks, block * bits // 8)).astype(np.uint8)
    scales = ((g.rng.random((width, blocks)) + 0.5) * width**-0.5 / 2 ** (bits - 1)).astype(g.dtype)
    zeros = g.rng.integers(0, 256, (width, -(-blocks * bits // 8))).astype(np.uint8)
    operands = [x, g.constant(packed), g.constant(scales), *([g.constant(zeros)] if g.often() else [])]
    return g.one("MatMulNBits", *operands, domain=MICROSOFT, K=width, N=width, bits=bits, block_size=block)


def qdq(g: Drawing) -> list[str]:
    """Convolutions or products between QuantizeLinear and DequantizeLinear, or with weights of 4 bits in blocks."""
    if g.often(0.3):
        return _four_bits(g)
    channels, extent = g.among(3, 8), g.sized(g.among(5, 8, 12))
    x = _quantised(g, g.input(1, channels, extent, extent), 0.03)
    for _ in range(g.between(1, 3)):
        outputs, kernel = g.sized(g.among(4, 8)), g.among(1, 3)
        scales = (g.rng.random(outputs) * 0.5 + 0.5) / 127 / math.sqrt(channels * kernel**2 / 3)
        numbers = g.rng.integers(-127, 128, (outputs, channels, kernel, kernel)).astype(np.int8)
        operands = numbers, scales.astype(np.float32), np.zeros(outputs, np.int8)
        w = g.one("DequantizeLinear", *map(g.constant, operands), axis=0)
        y = g.one("Conv", x, w, pads=[kernel // 2] * 4)
        y = _quantised(g, g.one("Relu", y) if g.often() else y, 0.04)
        if outputs == channels and g.often():
            y = _quantised(g, g.one("Add", y, x), 0.05)
        x, channels = y, outputs
    if g.often():
        x = _quantised(g, g.one("GlobalAveragePool", x), 0.02)
    return [x]


def _quantised(g: Drawing, x: str, scale: float) -> str:
    """The value in 8 bits and back, in steps near `scale`: sums of others are no halves of them, which either way of
    adding could round up or down."""
    scale = float(np.float32(scale * g.rng.uniform(0.9, 1.1)))
    element, zero = g.among((np.int8, 0), (np.uint8, 128), (np.int8, -3))
    operands = g.number(scale), g.constant(np.asarray(zero, element))
    g.step = max(g.step, scale)
    return g.one("DequantizeLinear", g.one("QuantizeLinear", x, *operands), *operands)


def _four_bits(g: Drawing) -> list[str]:
    inputs, outputs, block = g.sized(32 * g.between(1, 3)), g.sized(g.among(8, 24)), g.among(16, 32)
    numbers, zeros = (g.rng.integers(-8, 8, (rows, outputs)) for rows in (inputs, inputs // block))
    scales = (g.rng.random(zeros.shape) + 0.5) / 8 / math.sqrt(inputs)
    operands = [g.constant(numbers, TensorProto.INT4), g.constant(scales.astype(np.float32))]
    operands += [g.constant(zeros, TensorProto.INT4)] if g.often() else []
    w = g.one("DequantizeLinear", *operands, axis=0, block_size=block)
    x = g.one("MatMul", g.input(g.among(1, 6), inputs), w)
    return [activated(g, x)]


FAMILIES: dict[str, Callable[[Drawing], list[str]]] = {
    each.__name__: each for each in (attention, norms, mlp, unet, recurrent, microsoft, qdq)
}
