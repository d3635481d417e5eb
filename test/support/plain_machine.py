"""The contract of docs/ir-isa.md, executed in the plainest way: one unit, one position, one element at a time.

Written apart from the runtime, of which it takes the types of elements alone, to test it.
`run(program, memories, clusters, cores)` changes `memories`, a dictionary of lists of uint8 arrays by memory name.
"""

from __future__ import annotations

import math
import struct
from itertools import product

import numpy as np
import plain_codec

from frustum.dialects.isa.program import CORE_ENGINES, MEMORIES, Program, Repeat, View
from frustum.runtime.device.memory import DTYPES


def new_memories(clusters, cores, sizes, rng=None):
    """Random small integers as f32 everywhere, so that sums are exact."""
    counts = {"dram": 1, "sram": clusters, "nram": clusters * cores, "wram": clusters * cores}
    rng = rng or np.random.default_rng(0)
    fill = lambda size: rng.integers(-4, 5, size // 4).astype(np.float32).view(np.uint8)  # noqa: E731
    return {name: [fill(sizes[name]) for _ in range(counts[name])] for name in MEMORIES}


def run(program: Program, memories, clusters, cores):
    _body(program.body, (), (), _Chip(memories, clusters, cores), 1, top=True)


def _body(body, indices, counts, chip, count, top=False):
    last = 0 if top else max((child.stage for child in body), default=0)
    for t in range(count + last):
        for child in body:
            i = t if top else t - child.stage
            if not 0 <= i < count:
                continue
            inner = indices if top else (*indices, i)
            inner_counts = counts if top else (*counts, count)
            if isinstance(child, Repeat):
                _body(child.body, inner, inner_counts, chip, child.count)
            else:
                _everywhere(child, inner, inner_counts, chip)


class _Chip:
    def __init__(self, memories, clusters, cores):
        self.memories, self.clusters, self.cores = memories, clusters, cores


def _everywhere(instruction, indices, counts, chip):
    name = type(instruction).__name__.lower()
    if name in ("fetch", "barrier", "hold", "tableload", "linebuffer"):
        return
    on_core = instruction.engine in CORE_ENGINES
    for cluster, core in product(range(chip.clusters), range(chip.cores if on_core else 1)):
        if not (getattr(instruction, "multicast", False) and cluster):
            unit = _Unit(instruction, indices, counts, chip, cluster, core)
            if all(unit.ranges):
                globals()[f"_{name}"](instruction, unit)


class _Unit:
    """One instruction on one core: its clipped ranges and its operands element by element."""

    def __init__(self, instruction, indices, counts, chip, cluster, core):
        self.instruction, self.chip = instruction, chip
        self.indices, self.counts, self.cluster, self.core = indices, counts, cluster, core
        self.start = [self.at(affine) for affine in instruction.box.start]
        clip = self.fill_range if getattr(instruction, "fill", None) is not None else self.clip
        self.ranges = [clip(span) for span in instruction.box.spans]

    def at(self, affine):
        return affine.at(self.indices, self.cluster, self.core)

    def clip(self, span):
        return range(*span.clip(self.indices, self.cluster, self.core))

    def fill_range(self, span):
        stop = self.at(span.start) + span.extent
        return range(self.at(span.start), stop if span.limit is None else min(stop, self.at(span.limit)))

    def positions(self):
        return product(*self.ranges)

    def element(self, view, position, start=None, where=None):
        """The element at a position of the map, as an array of one element to read or write."""
        start = self.start if start is None else start
        address = self.at(view.offset)
        if view.ring is not None:
            address += view.ring.copy(self.indices, self.counts) * view.ring.bytes
        for d, (p, s, stride) in enumerate(zip(position, start, view.strides, strict=True)):
            if view.wrap is not None and view.wrap.dim == d:
                address += (p + self.at(view.wrap.phase)) % view.wrap.size * stride
            else:
                address += (p - s) * stride
        units = {"dram": 0, "sram": self.cluster}
        unit = units.get(view.memory, self.cluster * self.chip.cores + self.core) if where is None else where
        dtype = DTYPES[view.element]
        assert address >= 0, "below the memory"
        return self.chip.memories[view.memory][unit][address : address + dtype.itemsize].view(dtype)

    def byte(self, view, k):
        """Byte k from the view's offset on."""
        whole = View("i8", view.offset + k, (0, 0, 0, 0), view.memory, view.ring)
        return self.element(whole, self.start).view(np.uint8)[0]

    def flags(self):
        level = self.instruction.accumulate
        if level is None:
            return True, True
        is_first = self.indices[level] == 0 and not getattr(self.instruction, "continues", False)
        return is_first, self.indices[level] == self.counts[level] - 1

    def acted(self, value):
        act = self.instruction.act
        value = np.float32(value)
        return value if act is None else np.float32(activated(act.kind, float(value), act.alpha, act.beta))


def _copy(copy, unit):
    if copy.engine == "bus":
        targets = [unit.cluster * unit.chip.cores + k for k in range(unit.chip.cores)]
    elif copy.multicast:
        targets = list(range(unit.chip.clusters))
    else:
        targets = [None if copy.peer is None else unit.at(copy.peer)]
    expanded = None if copy.expand is None else iter(_expanded(copy, unit))
    for position in unit.positions():
        inside = all(0 <= p < bound for p, bound in zip(position, copy.box.bound, strict=True))
        if expanded is not None:
            value = next(expanded)
        else:
            value = unit.element(copy.src_view, position)[0] if inside else copy.fill
        for target in targets:
            unit.element(copy.dst_view, position, where=target)[0] = value


def _expanded(copy, unit):
    """The elements that a slot's block stands for, read byte by byte."""
    dtype = DTYPES[copy.src_view.element]
    positions = list(unit.positions())
    count = len(positions)
    slot = [int(unit.byte(copy.src_view, k)) for k in range(copy.expand)]
    if count and slot[0] == 4:
        extents = [last - first + 1 for first, last in zip(positions[0], positions[-1], strict=True)]
        return np.array(plain_codec.scaled(slot, extents)).astype(dtype)
    return np.array(plain_codec.expand(slot, count * dtype.itemsize), np.uint8).view(dtype)


def _conv(conv, unit):
    is_first, is_last = unit.flags()
    rows, cols, channels = unit.at(conv.rows.start), unit.at(conv.cols.start), unit.at(conv.channels.start)
    per_group = conv.box.extent[1] // conv.groups
    found = {}
    for n, co, h, w in unit.positions():
        total = np.float32(0)
        for c, kh, kw in product(unit.clip(conv.channels), *map(range, conv.kernel)):
            row = rows + (h - unit.start[2]) * conv.strides[0] + kh * conv.dilations[0]
            col = cols + (w - unit.start[3]) * conv.strides[1] + kw * conv.dilations[1]
            if 0 <= row < conv.rows.bound and 0 <= col < conv.cols.bound:
                group = (co - unit.start[1]) // per_group
                at = (n, group * conv.channels.extent + c, row, col)
                x = unit.element(conv.in_view, at, (unit.start[0], channels, rows, cols))[0]
                weight = unit.element(conv.weight_view, (co, c, kh, kw), (unit.start[1], channels, 0, 0))[0]
                total += np.float32(x) * np.float32(weight)
        if not is_first:
            total += unit.element(conv.acc_view, (n, co, h, w))[0]
        if is_last:
            if conv.bias_view is not None:
                total += unit.element(conv.bias_view, (n, co, h, w))[0]
            total = unit.acted(total)
        found[n, co, h, w] = total
    for position, value in found.items():
        unit.element(conv.out_view if is_last else conv.acc_view, position)[0] = value


def _depthwise(op, unit):
    rows, cols = unit.at(op.rows.start), unit.at(op.cols.start)
    found = {}
    for n, c, h, w in unit.positions():
        total = np.float32(0)
        for kh, kw in product(*map(range, op.kernel)):
            row = rows + (h - unit.start[2]) * op.strides[0] + kh * op.dilations[0]
            col = cols + (w - unit.start[3]) * op.strides[1] + kw * op.dilations[1]
            if 0 <= row < op.rows.bound and 0 <= col < op.cols.bound:
                x = unit.element(op.in_view, (n, c, row, col), (*unit.start[:2], rows, cols))[0]
                weight = unit.element(op.weight_view, (c, 0, kh, kw), (unit.start[1], 0, 0, 0))[0]
                total += np.float32(x) * np.float32(weight)
        for view in (op.bias_view, op.residual_view):
            if view is not None:
                total += unit.element(view, (n, c, h, w))[0]
        found[n, c, h, w] = unit.acted(total)
    for position, value in found.items():
        unit.element(op.out_view, position)[0] = value


def _pool(pool, unit):
    rows, cols = unit.at(pool.rows.start), unit.at(pool.cols.start)
    for n, c, h, w in unit.positions():
        values, counted = [], 0
        for kh, kw in product(*map(range, pool.kernel)):
            row = rows + (h - unit.start[2]) * pool.strides[0] + kh * pool.dilations[0]
            col = cols + (w - unit.start[3]) * pool.strides[1] + kw * pool.dilations[1]
            padded = all(
                -low <= p < span.bound + high
                for p, low, high, span in zip(
                    (row, col), pool.pad_low, pool.pad_high, (pool.rows, pool.cols), strict=True
                )
            )
            if 0 <= row < pool.rows.bound and 0 <= col < pool.cols.bound:
                start = (unit.start[0], unit.start[1], rows, cols)
                values.append(np.float32(unit.element(pool.in_view, (n, c, row, col), start)[0]))
                counted += 1
            elif pool.include_pad and padded:
                counted += 1
        result = max(values) if pool.kind == "max" else sum(values) / max(counted, 1)
        unit.element(pool.out_view, (n, c, h, w))[0] = unit.acted(result)


def _gather(unit, view):
    shape = [len(r) for r in unit.ranges]
    values = [np.float32(unit.element(view, position)[0]) for position in unit.positions()]
    return np.array(values, np.float32).reshape(shape)


def _scatter(unit, view, values):
    for position, value in zip(unit.positions(), values.ravel(), strict=True):
        unit.element(view, position)[0] = value


def _unary(op, unit):
    values = _gather(unit, op.in_view)
    _scatter(unit, op.out_view, np.array([activated(op.kind, x, op.alpha, op.beta) for x in values.ravel().tolist()]))


def _binary(op, unit):
    pairs = zip(_gather(unit, op.a_view).ravel().tolist(), _gather(unit, op.b_view).ravel().tolist(), strict=True)
    _scatter(unit, op.out_view, np.array([unit.acted(combined(op.kind, a, b)) for a, b in pairs]))


def _softmax(op, unit):
    values = _gather(unit, op.in_view).astype(np.float64)
    rows = np.moveaxis(values, op.axis, -1)
    for at in np.ndindex(rows.shape[:-1]):
        row = rows[at].tolist()
        powers = [math.exp(x - max(row)) for x in row]
        rows[at] = [power / sum(powers) for power in powers]
    _scatter(unit, op.out_view, values)


def _normalise(op, unit):
    """Positions of which the axes' places, or all but the group's, are left out belong together."""
    rows = {}
    for position in unit.positions():
        key = tuple(0 if axis in op.axes else at for axis, at in enumerate(position))
        key = (key[0], key[1] // op.group, *key[2:]) if op.group else key
        rows.setdefault(key, []).append(position)
    results = []
    for positions in rows.values():
        row = [float(unit.element(op.in_view, position)[0]) for position in positions]
        mean = 0.0 if op.rms else math.fsum(row) / len(row)
        deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in row) / len(row) + op.epsilon)
        results += zip(positions, ((x - mean) / deviation for x in row), strict=True)
    for position, result in results:
        if op.scale_view is not None:
            result *= float(unit.element(op.scale_view, position)[0])
        if op.shift_view is not None:
            result += float(unit.element(op.shift_view, position)[0])
        unit.element(op.out_view, position)[0] = unit.acted(result)


def _hide(op, unit):
    for position in unit.positions():
        value = unit.element(op.in_view, position)[0]
        unit.element(op.out_view, position)[0] = -math.inf if position[1] > position[3] + op.ahead else value


def _variance(op, unit):
    """By the mean of squares, in doubles."""
    values = {}
    for position in unit.positions():
        key = tuple(unit.ranges[axis][0] if axis in op.axes else p for axis, p in enumerate(position))
        values.setdefault(key, []).append(float(unit.element(op.in_view, position)[0]))
    for key, own in values.items():
        mean = sum(own) / len(own)
        unit.element(op.out_view, key)[0] = sum(x * x for x in own) / len(own) - mean * mean


def _reduce(op, unit):
    if op.kind == "variance":
        _variance(op, unit)
        return
    is_first, is_last = unit.flags()
    combine = {"mean": np.add, "sum": np.add, "max": np.maximum, "min": np.minimum}[op.kind]
    seen = set()
    for position in unit.positions():
        key = tuple(0 if axis in op.axes else p for axis, p in enumerate(position))
        value = np.float32(unit.element(op.in_view, position)[0])
        result = unit.element(op.out_view, position)
        result[0] = value if is_first and key not in seen else combine(result[0], value)
        seen.add(key)
    if is_last:
        for key in seen:
            firsts = [r[0] for r in unit.ranges]
            position = [firsts[axis] if axis in op.axes else key[axis] for axis in range(4)]
            unit.element(op.out_view, position)[0] *= np.float32(op.scale)


def _lrn(op, unit):
    channels = unit.at(op.channels.start)
    start = (unit.start[0], channels, *unit.start[2:])
    results = []
    for n, c, h, w in unit.positions():
        around = range(c - (op.size - 1) // 2, c + op.size // 2 + 1)
        inside = [k for k in around if 0 <= k < op.channels.bound]
        total = sum(float(unit.element(op.in_view, (n, k, h, w), start)[0]) ** 2 for k in inside)
        x = unit.element(op.in_view, (n, c, h, w), start)[0]
        results.append(x / (op.bias + op.alpha / op.size * total) ** op.beta)
    _scatter(unit, op.out_view, np.array(results, np.float32))


def _resize(op, unit):
    start = (*unit.start[:2], unit.at(op.rows.start), unit.at(op.cols.start))
    results = []
    for n, c, h, w in unit.positions():
        places = [
            min(max(o * op.scale[k] + op.offset[k], 0), (op.rows, op.cols)[k].bound - 1)
            for k, o in enumerate((h, w))
        ]
        read = lambda row, col: float(unit.element(op.in_view, (n, c, row, col), start)[0])  # noqa: E731, B023
        if op.mode == "nearest":
            results.append(read(*(nearest(op.rounding, place) for place in places)))
        else:
            results.append(_between(read, *places))
    _scatter(unit, op.out_view, np.array(results, np.float32))


def nearest(rounding, place):
    """The element next to a position; of the two next to one half way between them as the rounding says."""
    below = math.floor(place)
    upper = {
        "floor": False, "ceil": place > below, "round_prefer_floor": place - below > 0.5,
        "round_prefer_ceil": place - below >= 0.5,
    }  # fmt: skip
    return below + upper[rounding]


def activated(kind, x, alpha=0.0, beta=0.0):
    """One number; what is larger than a float holds is infinite, what has no value is not a number."""
    try:
        return ACTIVATIONS[kind](x, float(np.float32(alpha)), float(np.float32(beta)))
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan


def logistic(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def to_f16(x):
    """The nearest number of 11 digits that f16 has, or infinity."""
    try:
        return struct.unpack("<e", struct.pack("<e", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def to_bf16(x):
    """The nearest number of 8 digits: half of the upper bits of f32, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", rounded))[0]


ACTIVATIONS = {
    "identity": lambda x, a, b: x,
    "relu": lambda x, a, b: x if x > 0 else 0.0,
    "leaky_relu": lambda x, a, b: a * x if x < 0 else x,
    "clip": lambda x, a, b: b if x > b else a if x < a else x,
    "sigmoid": lambda x, a, b: logistic(x),
    "hard_sigmoid": lambda x, a, b: min(1.0, max(0.0, a * x + b)),
    "hard_swish": lambda x, a, b: x * min(1.0, max(0.0, x / 6 + 0.5)),
    "tanh": lambda x, a, b: math.tanh(x),
    "silu": lambda x, a, b: x * logistic(x),
    "elu": lambda x, a, b: a * (math.exp(x) - 1) if x < 0 else x,
    "gelu": lambda x, a, b: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x, a, b: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "exp": lambda x, a, b: math.exp(x),
    "log": lambda x, a, b: math.log(x) if x else -math.inf,
    "sqrt": lambda x, a, b: math.sqrt(x),
    "reciprocal": lambda x, a, b: 1 / x if x else math.copysign(math.inf, x),
    "neg": lambda x, a, b: -x,
    "abs": lambda x, a, b: -x if x < 0 else x,
    "floor": lambda x, a, b: float(math.floor(x)),
    "ceil": lambda x, a, b: float(math.ceil(x)),
    "round": lambda x, a, b: float(round(x)),  # to even
    "erf": lambda x, a, b: math.erf(x),
    "softplus": lambda x, a, b: x if x > 40 else math.log(1 + math.exp(x)),
    "affine": lambda x, a, b: a * x + b,
    "sign": lambda x, a, b: float((x > 0) - (x < 0)),
    "sin": lambda x, a, b: math.sin(x),
    "cos": lambda x, a, b: math.cos(x),
    "round_f16": lambda x, a, b: to_f16(x),
    "round_bf16": lambda x, a, b: to_bf16(x),
}


def combined(kind, a, b):
    """Two numbers, as `activated`."""
    try:
        return COMBINATIONS[kind](a, b)
    except OverflowError:
        return math.inf


def quotient(a, b):
    if b:
        return a / b
    return math.copysign(math.inf, a) * math.copysign(1, b) if a else math.nan


def power(a, b):
    if a == 0:
        return 1.0 if b == 0 else 0.0 if b > 0 else math.inf
    return a**b if a > 0 or b == int(b) else math.nan


COMBINATIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": quotient,
    "max": max,
    "min": min,
    "pow": power,
    "prelu": lambda a, b: a * b if a < 0 else a,
    "mask": lambda a, b: a if b != 0 else 0.0,
    "keep": lambda a, b: a if b != 0 else -0.0,
    "drop": lambda a, b: a if b == 0 else -0.0,
    "equal": lambda a, b: float(a == b),
    "less": lambda a, b: float(a < b),
    "less_equal": lambda a, b: float(a <= b),
}


def _between(read, row, col):
    total = 0.0
    for r, c in product((int(row), int(row) + 1), (int(col), int(col) + 1)):
        share = (1 - abs(row - r)) * (1 - abs(col - c))
        if share:
            total += share * read(r, c)
    return total
