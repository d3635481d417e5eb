"""Networks of axes with carried states, from operations of the graph level, and what they make by hand."""

from dataclasses import dataclass, replace

import numpy as np
from xdsl.dialects.builtin import f32
from xdsl.ir import Block

from frustum.dialects import graph as g
from frustum.dialects.axes.access import Affine, Guard, Piece, View
from frustum.dialects.axes.axis import Axis, dim
from frustum.dialects.axes.network import AxisNetwork, Combine, Layer, Operand
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.graph.axes.reader import Reader
from frustum.dialects.plan.count import count
from frustum.dialects.plan.parse import extents_of, read_plan
from frustum.runtime.reference.plan import run_plan


@dataclass
class Recurrent:
    """A network with its inputs and weights by name, and what its outputs are."""

    network: AxisNetwork
    arrays: dict
    wanted: dict

    def bytes_of(self, *names):
        tensors = {tensor.name: tensor for tensor in self.network.tensors}
        return sum(tensors[name].size_bytes for name in names)


class Steps:
    """A network in the making: values are read as layers, states before the layers that make them."""

    def __init__(self, element=f32, seed=0):
        self.reader, self.block, self.element = Reader(), Block(), element
        self.rng, self.arrays, self.states = np.random.default_rng(seed), {}, {}

    def given(self, name, *shape, kind=Kind.WEIGHT):
        value = self.value(shape)
        self.reader.views[value] = self.reader.root(name, value, kind)
        array = self.rng.standard_normal(shape, np.float32) / (shape[-2] ** 0.5 if kind is Kind.WEIGHT else 1)
        self.arrays[name] = array
        return value

    def value(self, shape):
        return self.block.insert_arg(g.tensor_type(self.element, shape), len(self.block.args))

    def state(self, shape, like, first=None):
        """What `carries` makes one step before; `like`: a value with the same steps and batch; `first`: before the
        first step, zero if it is none."""
        value = self.value(shape)
        dims = (*self.reader.view(like).dims[:-1], dim("n", shape[-1]))
        tensor = Tensor("state", dims, 0, Kind.STATE)
        pieces = (Piece(tensor, tuple((axis, Affine.of(axis)) for own in dims for axis in own)),)
        self.reader.views[value] = View(dims, pieces)
        self.states[tensor] = value, first
        return value

    def layer(self, name, op):
        self.reader.read(op)
        layer = self.reader.layers[-1]
        layer.name = layer.result.name = name
        return op.results[0]

    def unary(self, name, kind, x):
        return self.layer(name, g.UnaryOp(kind, x))

    def binary(self, name, kind, a, b):
        return self.layer(name, g.BinaryOp(kind, a, b))

    def part(self, x, k, size):
        """The k-th part of the last dimension."""
        shape = g.shape_of(x)
        op = g.SliceOp(x, (*(0 for _ in shape[1:]), k * size), (*shape[:-1], size), (1,) * len(shape))
        self.reader.read(op)
        return op.results[0]

    def turned(self, x):
        """From the last step to the first one."""
        shape = g.shape_of(x)
        op = g.SliceOp(x, (shape[0] - 1, 0, 0), shape, (-1, 1, 1))
        self.reader.read(op)
        return op.results[0]

    def carries(self, state, made, back=1):
        """The state is what this value was so many steps before."""
        (old,) = (piece.tensor for piece in self.reader.view(state).pieces)
        (new,) = (piece.tensor for piece in self.reader.view(made).pieces)
        _, first = self.states[old]
        initial = None if first is None else self.reader.view(first).pieces[0]
        for layer in self.reader.layers:
            layer.operands = tuple(_carried(operand, old, new, initial, back) for operand in layer.operands)

    def done(self, *outputs):
        for value in outputs:
            for piece in self.reader.view(value).pieces:
                piece.tensor.is_output = True
        return AxisNetwork("net", self.reader.layers, self.reader.tensors)


def _carried(operand, old, new, initial, back):
    pieces = []
    for piece in operand.pieces:
        if piece.tensor is not old:
            pieces.append(piece)
            continue
        index = [position for _, position in piece.index]
        (time, *inner), before = new.axes, index[0] + Affine((), -back)
        fill = 0.0 if initial is None else None
        guard = Guard(before, 0, time.extent, fill)
        places = ((time, before), *zip(inner, index[1:], strict=True))
        pieces.append(Piece(new, tuple(places), (guard, *piece.guards)))
        if initial is not None:
            there = zip(initial.tensor.axes, index[1:], strict=True)
            pieces.append(Piece(initial.tensor, tuple(there), (Guard(index[0], 0, back, None), *piece.guards)))
    return replace(operand, pieces=tuple(pieces)) if isinstance(operand, Operand) else operand


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(steps, channels, batch=1, inputs=None, *, is_begun=False, is_last=False, element=f32):
    """Layers `w`, `r`, `i`, `f`, `g`, `o`, `keep`, `new`, `c`, `act`, `h`; with `is_last` one more, `y`, of the last
    step's `h` alone."""
    net = Steps(element)
    x = net.given("x", steps, batch, inputs or channels, kind=Kind.INPUT)
    first = [net.given(name, batch, channels, kind=Kind.INPUT) for name in ("h0", "c0")] if is_begun else [None] * 2
    h = _lstm(net, x, channels, first)
    last = net.unary("y", "abs", _step(net, h, steps - 1)) if is_last else h
    found = lstm_by_hand(**net.arrays)
    return Recurrent(net.done(last), net.arrays, {"y": abs(found[-1:])} if is_last else {"h": found})


def _lstm(net, x, channels, first=(None, None), end=""):
    """The hidden state of a network's own layer; `end`: of the names of its layers and weights."""
    steps, batch, size = g.shape_of(x)
    weights = net.given(f"W{end}", size, 4 * channels), net.given(f"R{end}", channels, 4 * channels)
    before, cell = (net.state((steps, batch, channels), x, each) for each in first)
    w = net.layer(f"w{end}", g.MatmulOp(x, weights[0]))
    r = net.layer(f"r{end}", g.MatmulOp(before, weights[1], residual=w))
    kinds = {"i": "sigmoid", "f": "sigmoid", "g": "tanh", "o": "sigmoid"}
    gates = [net.unary(f"{n}{end}", kind, net.part(r, k, channels)) for k, (n, kind) in enumerate(kinds.items())]
    keep, new = (net.binary(f"{n}{end}", "mul", *own) for n, own in (("keep", (gates[1], cell)), ("new", gates[::2])))
    c = net.binary(f"c{end}", "add", keep, new)
    h = net.binary(f"h{end}", "mul", gates[3], net.unary(f"act{end}", "tanh", c))
    net.carries(before, h)
    net.carries(cell, c)
    return h


def stacked(steps, channels, layers, *, element=f32):
    """Several, each over what the one before makes; names end in its number."""
    net = Steps(element)
    h = net.given("x", steps, 1, channels, kind=Kind.INPUT)
    for k in range(layers):
        h = _lstm(net, h, channels, end=str(k))
    found = net.arrays["x"]
    for k in range(layers):
        found = lstm_by_hand(found, net.arrays[f"W{k}"], net.arrays[f"R{k}"])
    return Recurrent(net.done(h), net.arrays, {f"h{layers - 1}": found})


def both_ways(steps, channels, *, element=f32):
    """One from the first step on, one from the last step back, side by side; names end in `0` and `1`."""
    net = Steps(element)
    x = net.given("x", steps, 1, channels, kind=Kind.INPUT)
    ways = [_lstm(net, x, channels, end="0"), net.turned(_lstm(net, net.turned(x), channels, end="1"))]
    concat = g.ConcatOp(ways, 2)
    net.reader.read(concat)
    y = net.unary("y", "abs", concat.results[0])
    a = net.arrays
    found = lstm_by_hand(a["x"], a["W0"], a["R0"]), lstm_by_hand(a["x"][::-1], a["W1"], a["R1"])[::-1]
    return Recurrent(net.done(y), a, {"y": abs(np.concatenate(found, -1))})


def _step(net, x, k):
    shape = g.shape_of(x)
    op = g.SliceOp(x, (k, *(0 for _ in shape[1:])), (1, *shape[1:]), (1,) * len(shape))
    net.reader.read(op)
    return op.results[0]


def lstm_by_hand(x, W, R, h0=0.0, c0=0.0):
    h, c, found = np.zeros((x.shape[1], len(R))) + h0, c0, []
    for own in x:
        i, f, g_, o = np.split(own @ W + h @ R, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g_)
        h = sigmoid(o) * np.tanh(c)
        found.append(h)
    return np.array(found)


def rnn(steps, channels):
    """Layers `w` and `h`, which reads itself."""
    net, shape = Steps(), (steps, 1, channels)
    x = net.given("x", *shape, kind=Kind.INPUT)
    weights = net.given("W", channels, channels), net.given("R", channels, channels)
    before = net.state(shape, x)
    w = net.layer("w", g.MatmulOp(x, weights[0]))
    h = net.layer("h", g.MatmulOp(before, weights[1], residual=w, act=g.ActAttr.of("tanh")))
    net.carries(before, h)
    state, found = np.zeros((1, channels)), []
    for own in net.arrays["x"]:
        state = np.tanh(own @ net.arrays["W"] + state @ net.arrays["R"])
        found.append(state)
    return Recurrent(net.done(h), net.arrays, {"h": np.array(found)})


def page_lstm(steps=80, channels=64):
    """The network of the page on plans: layers without operations."""

    def axis(name, extent):
        return Axis(name, extent, is_named=True)

    def tensor(name, *axes, kind=Kind.INTERMEDIATE):
        return Tensor(name, tuple((each,) for each in axes), 16, kind)

    def read(tensor, *positions, guards=()):
        places = (Affine.of(each) if isinstance(each, Axis) else each for each in positions)
        return Operand((Piece(tensor, tuple(zip(tensor.axes, places, strict=True)), guards),))

    time, gate, n, size, k = (
        axis(name, extent) for name, extent in
        (("time", steps), ("gate", 4), ("n", channels), ("size", channels), ("k", channels))
    )  # fmt: skip
    x = tensor("x", time, size, kind=Kind.INPUT)
    w, r, b = (
        tensor(f"lstm.{name}", *axes, kind=Kind.WEIGHT) for name, axes in
        (("w", (size, gate, n)), ("r", (k, gate, n)), ("b", (gate, n)))
    )  # fmt: skip
    of_x, gates = (tensor(f"lstm.{name}", time, gate, n) for name in ("input", "gates"))
    c, h = (tensor(f"lstm.{name}", time, n) for name in "ch")
    h.is_output = True
    before = Affine.of(time, 1, -1)
    guards = (Guard(before, 0, steps),)
    parts = [read(gates, time, Affine((), part), n) for part in range(4)]
    layers = [
        _layer("input", of_x, [read(x, time, size), read(w, size, gate, n), read(b, gate, n)], size),
        _layer("gates", gates, [read(h, before, k, guards=guards), read(r, k, gate, n), read(of_x, time, gate, n)], k),
        _layer("cell", c, [*parts[:3], read(c, before, n, guards=guards)]),
        _layer("hidden", h, [parts[3], read(c, time, n)]),
    ]
    return AxisNetwork("lstm", layers, [x, w, r, b, of_x, gates, c, h])


def _layer(role, result, operands, *summed):
    return Layer(f"lstm.{role}", role, result, tuple(operands), dict.fromkeys(summed, Combine.SUM), macs=len(summed))


def gru(steps, channels, batch=1, *, element=f32):
    """Layers `w`, `r`, `total`, `z`, `gate`, `reset`, `some`, `raw`, `n`, `less`, `part`, `h`."""
    net, shape = Steps(element), (steps, batch, channels)
    x = net.given("x", *shape, kind=Kind.INPUT)
    weights = net.given("W", channels, 3 * channels), net.given("R", channels, 3 * channels)
    before = net.state(shape, x)
    w, r = (net.layer(name, g.MatmulOp(a, b)) for name, a, b in zip("wr", (x, before), weights, strict=True))
    (wz, wg, wn), (rz, rg, rn) = ([net.part(each, k, channels) for k in range(3)] for each in (w, r))
    z = net.unary("z", "sigmoid", net.binary("total", "add", wz, rz))
    reset = net.unary("reset", "sigmoid", net.binary("gate", "add", wg, rg))
    n = net.unary("n", "tanh", net.binary("raw", "add", wn, net.binary("some", "mul", reset, rn)))
    part = net.binary("part", "mul", z, net.binary("less", "sub", before, n))
    h = net.binary("h", "add", n, part)
    net.carries(before, h)
    network = net.done(h)
    return Recurrent(network, net.arrays, {"h": gru_by_hand(**net.arrays)})


def gru_by_hand(x, W, R):
    h, found = np.zeros((x.shape[1], len(R))), []
    for own in x:
        (wz, wg, wn), (rz, rg, rn) = (np.split(each, 3, axis=-1) for each in (own @ W, h @ R))
        z, n = sigmoid(wz + rz), np.tanh(wn + sigmoid(wg + rg) * rn)
        h = n + z * (h - n)
        found.append(h)
    return np.array(found)


def filtered(steps, channels, *, back=1, ahead=0, batch=1):
    """Layers `keep` and `c`, a running mean; with `ahead` one more, `y`, of what is so many steps later (or earlier):
    zero beyond the first and last step."""
    net, shape = Steps(), (steps, batch, channels)
    x = net.given("x", *shape, kind=Kind.INPUT)
    a = net.given("a", 1, channels)
    before = net.state(shape, x)
    c = net.binary("c", "add", net.binary("keep", "mul", a, before), x)
    net.carries(before, c, back)
    found = list(np.zeros((back, batch, channels)))
    for own in net.arrays["x"]:
        found.append(net.arrays["a"] * found[-back] + own)
    found = np.array(found[back:])
    if not ahead:
        return Recurrent(net.done(c), net.arrays, {"c": found})
    later = net.state(shape, x)
    y = net.unary("y", "abs", later)
    net.carries(later, c, -ahead)
    nothing = np.zeros((abs(ahead), batch, channels))
    found = [*found[ahead:], *nothing] if ahead > 0 else [*nothing, *found[:ahead]]
    return Recurrent(net.done(y), net.arrays, {"y": abs(np.array(found))})


def summed(steps, channels):
    """One layer, a running sum: it reads what it made a step ago."""
    net, shape = Steps(), (steps, 1, channels)
    x = net.given("x", *shape, kind=Kind.INPUT)
    before = net.state(shape, x)
    c = net.binary("c", "add", x, before)
    net.carries(before, c, 1)
    return Recurrent(net.done(c), net.arrays, {"c": np.cumsum(net.arrays["x"], axis=0)})


def checked(case, text):
    """The count of a plan, after it has run on the values."""
    return checked_plan(case, read_plan(f'plan @net for "edge" {text}', lambda _: extents_of(case.network)).node)


def checked_plan(case, plan):
    """The same of a tree."""
    counted, run = count(case.network, plan), run_plan(case.network, plan, case.arrays)
    assert [run.read_bytes, run.write_bytes, run.link_bytes] == [
        counted.read_bytes, counted.write_bytes, counted.link_bytes
    ]  # fmt: skip
    assert dict(run.points) == dict(counted.points)
    assert run.sram_bytes <= counted.sram_bytes
    check_wanted(case, run)
    return counted


def check_wanted(case, run, rtol=1e-5):
    made = {tensor.name: array for tensor, array in run.values.items()}
    for name, wanted in case.wanted.items():
        np.testing.assert_allclose(made[name].reshape(wanted.shape), wanted, rtol=rtol, atol=rtol)
