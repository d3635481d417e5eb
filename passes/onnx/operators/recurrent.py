# Tests: test/passes/onnx/test_import_recurrent.py
"""RNN, GRU and LSTM: a recurrence for each direction, whose body is a step; all steps read the same weights.

The part of the gates that the inputs make is one product for all steps; what a step has to wait for is the product of
the state before with the recurrent weights, gate by gate, to which its own rows of the other are added.
Source: the equations of the operators' pages in ONNX, https://onnx.ai/onnx/operators/onnx__LSTM.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from xdsl.ir import Block, SSAValue

from frustum.dialects.graph import (
    ConcatOp,
    MatmulOp,
    RecurrenceOp,
    SliceOp,
    StepYieldOp,
    shape_of,
    slice_shape,
    tensor_type,
)
from frustum.passes.errors import Refused
from frustum.passes.onnx.node import Converter, Ints, Node, Result
from frustum.passes.onnx.operators.choices import chosen
from frustum.passes.onnx.operators.moves import turned
from frustum.passes.weights import Array

Activation = Callable[[Node, SSAValue], SSAValue]
State: TypeAlias = "tuple[SSAValue, ...]"
"""What a step hands on: what it gives (h), and the cell of an LSTM (c)."""
Start: TypeAlias = "tuple[SSAValue | None, ...]"
"""The state before the first step; None is 0."""


@dataclass(frozen=True)
class GateWeights:
    """Of one direction: gate by gate those of the inputs [I, H], of the state [H, H], their biases [H], and the
    peepholes [H]; a bias of None is 0."""

    inputs: Sequence[Array]
    state: Sequence[Array]
    bias: Sequence[Array | None]
    state_bias: Sequence[Array | None]
    peepholes: Sequence[Array] = ()


@dataclass
class Loop:
    """One direction of a node: the functions in the order of its attribute, the weights as values of the network."""

    node: Node
    functions: Sequence[Activation]
    weights: GateWeights
    clip: float

    def __post_init__(self) -> None:
        self.state: list[SSAValue] = [self.node.weight(np.ascontiguousarray(each), "R") for each in self.weights.state]

    def gate(self, number: int, x: SSAValue, h: SSAValue) -> SSAValue:
        """What the inputs say of a gate, and what the state before does."""
        return self.node.binary("add", self.of_state(number, h), x)

    def of_state(self, number: int, h: SSAValue) -> SSAValue:
        found = self.weights.state_bias[number]
        bias = None if found is None else self.node.weight(found, "Rb")
        return self.node.emit(MatmulOp(h, self.state[number], bias))

    def applied(self, number: int, x: SSAValue) -> SSAValue:
        """A function of the operator, of what is clipped."""
        if self.clip:
            x = self.node.unary("clip", x, -self.clip, self.clip)
        return self.functions[number](self.node, x)

    def peephole(self, number: int, x: SSAValue, c: SSAValue) -> SSAValue:
        if not self.weights.peepholes:
            return x
        own = self.node.weight(self.weights.peepholes[number], "P")
        return self.node.binary("add", x, self.node.binary("mul", c, own))


def rnn_step(loop: Loop, x: Sequence[SSAValue], before: State) -> State:
    return (loop.applied(0, loop.gate(0, x[0], before[0])),)


def gru_step(loop: Loop, x: Sequence[SSAValue], before: State) -> State:
    """Gates: update, reset, hidden."""
    node, (h,) = loop.node, before
    update = loop.applied(0, loop.gate(0, x[0], h))
    reset = loop.applied(0, loop.gate(1, x[1], h))
    if node.get("linear_before_reset", 0):
        hidden = node.binary("add", x[2], node.binary("mul", reset, loop.of_state(2, h)))
    else:
        hidden = loop.gate(2, x[2], node.binary("mul", reset, h))
    new = loop.applied(1, hidden)
    kept = node.binary("mul", node.unary("affine", update, -1.0, 1.0), new)  # (1 - update) * new
    return (node.binary("add", kept, node.binary("mul", update, h)),)


def lstm_step(loop: Loop, x: Sequence[SSAValue], before: State) -> State:
    """Gates: input, output, forget, cell; peepholes: input, output, forget."""
    node, (h, c) = loop.node, before
    taken = loop.applied(0, loop.peephole(0, loop.gate(0, x[0], h), c))
    if node.get("input_forget", 0):
        forget = node.unary("affine", taken, -1.0, 1.0)
    else:
        forget = loop.applied(0, loop.peephole(2, loop.gate(2, x[2], h), c))
    new = loop.applied(1, loop.gate(3, x[3], h))
    cell = node.binary("add", node.binary("mul", taken, new), node.binary("mul", forget, c))
    given = loop.applied(0, loop.peephole(1, loop.gate(1, x[1], h), cell))
    return node.binary("mul", given, loop.functions[2](node, cell)), cell


@dataclass(frozen=True)
class RecurrentKind:
    """An operator: its number of gates, its functions, what its states are, where its states come in, its step."""

    gates: int
    functions: tuple[str, ...]
    states: int
    step: Callable[[Loop, Sequence[SSAValue], State], State]


KINDS = {
    "RNN": RecurrentKind(1, ("tanh",), 1, rnn_step),
    "GRU": RecurrentKind(3, ("sigmoid", "tanh"), 1, gru_step),
    "LSTM": RecurrentKind(4, ("sigmoid", "tanh", "tanh"), 2, lstm_step),
}
X, W, R, BIAS, LENGTHS, STATE, PEEPHOLES = 0, 1, 2, 3, 4, 5, 7
DIRECTIONS: dict[str, tuple[bool, ...]] = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def recurrent(node: Node) -> Result:
    """Y [T, directions, B, H], Y_h [directions, B, H] and Y_c; with layout 1 the batch is in front."""
    kind, is_batch_first = KINDS[node.op_type], bool(node.get("layout", 0))
    x = node.value(X)
    x = turned(node, x, (1, 0, 2)) if is_batch_first else x
    steps, batch, _ = shape_of(x)
    directions = DIRECTIONS.get(str(node.get("direction", "forward")))
    if directions is None:
        raise Refused(f"direction is '{node.get('direction')}'")
    mask = _mask(node, steps, batch)
    functions = list(_functions(node, kind, len(directions)))
    given: list[SSAValue] = []
    last: list[State] = []
    for number, is_reverse in enumerate(directions):
        loop = Loop(
            node, functions[number * len(kind.functions) :], _weights(node, kind, number), float(node.get("clip", 0.0))
        )
        rows, state = _run(loop, kind, x, _first_state(node, kind, number, batch, is_batch_first), mask, is_reverse)
        given.append(rows)
        last.append(state)
    results = [_together(node, given, (steps, len(directions), batch, -1), 1, (2, 0, 1, 3) if is_batch_first else None)]
    for place in range(kind.states):
        parts = [state[place] for state in last]
        results.append(_together(node, parts, (len(directions), batch, -1), 0, (1, 0, 2) if is_batch_first else None))
    return results


def _together(node: Node, parts: Sequence[SSAValue], shape: Ints, axis: int, perm: Ints | None) -> SSAValue:
    """The directions beside each other along an axis of their own."""
    hidden = shape_of(parts[0])[-1]
    one = (*shape[:axis], 1, *shape[axis + 1 : -1], hidden)
    parts = [node.reshape(part, one) for part in parts]
    found = parts[0] if len(parts) == 1 else node.emit(ConcatOp(parts, axis))
    return turned(node, found, perm) if perm else found


def _run(
    loop: Loop, kind: RecurrentKind, x: SSAValue, start: Start, mask: SSAValue | None, is_reverse: bool
) -> tuple[SSAValue, State]:
    """What all steps give, one after the other [T * B, H], and the last state."""
    node = loop.node
    steps, batch, width = shape_of(x)
    rows = node.reshape(x, (steps * batch, width))
    gates = []
    for weight, bias in zip(loop.weights.inputs, loop.weights.bias, strict=True):
        addend = None if bias is None else node.weight(bias, "Wb")
        gates.append(node.emit(MatmulOp(rows, node.weight(np.ascontiguousarray(weight), "W"), addend)))
    sequences = gates if mask is None else [*gates, mask]
    element = node.network.element
    slices = [tensor_type(element, slice_shape(shape_of(each), 0, steps)) for each in sequences]
    body = Block(arg_types=[*slices, *(slices[0] for _ in start)])
    if node.network.images is not None:
        node.network.images.enter(zip(body.args, (*sequences, *(gates[0] for _ in start)), strict=True))
    with node.network.inside(body):
        own, before = body.args[: len(gates)], body.args[len(sequences) :]
        new = kind.step(loop, own, before)
        output = new[0]
        if mask is not None:
            goes_on = body.args[len(gates)]
            output = node.binary("mask", output, goes_on)
            new = tuple(chosen(node, goes_on, *each) for each in zip(new, before, strict=True))
        body.add_op(StepYieldOp(new, [output]))
    found = RecurrenceOp(sequences, start, body, steps=steps, reverse=is_reverse)
    node.emit(found)
    return found.outputs[0], tuple(found.last_states)


def _first_state(node: Node, kind: RecurrentKind, number: int, batch: int, is_batch_first: bool) -> Start:
    """The states given for a direction, [B, H] each."""
    hidden = node.shape(R)[2]
    found: list[SSAValue | None] = []
    for place in range(STATE, STATE + kind.states):
        if not node.has(place):
            found.append(None)
            continue
        shape = node.shape(place)
        start, size = ((0, number, 0), (batch, 1, hidden)) if is_batch_first else ((number, 0, 0), (1, batch, hidden))
        x = node.value(place)
        x = x if size == shape else node.emit(SliceOp(x, start, size, (1, 1, 1)))
        found.append(node.reshape(x, (batch, hidden)))
    return tuple(found)


def _mask(node: Node, steps: int, batch: int) -> SSAValue | None:
    """Which sequences still go on at each step, [T * B, 1]; None where all do to the end."""
    lengths = node.constant(LENGTHS, "the lengths of the sequences")
    if lengths is None:
        return None
    if lengths.shape != (batch,):
        raise Refused(f"{lengths.shape} lengths for {batch} sequences")
    goes_on = np.arange(steps).reshape(-1, 1) < lengths
    return None if goes_on.all() else node.weight(goes_on.astype(np.float32).reshape(-1, 1), "goes_on")


def _weights(node: Node, kind: RecurrentKind, number: int) -> GateWeights:
    """Of direction `number`; all of them are constants."""
    arrays = [node.constant(place, what) for place, what in ((W, "W"), (R, "R"), (BIAS, "B"))]
    peepholes = node.constant(PEEPHOLES, "P") if kind.states > 1 else None
    w, r, b = arrays
    if w is None or r is None:
        raise Refused("W and R are missing" if w is None else "R is missing")

    def split(array: Array, count: int) -> list[Array]:
        return [np.asarray(each) for each in np.split(array[number], count, axis=0)]

    inputs, state = ([each.T for each in split(array, kind.gates)] for array in (w, r))
    biases: Sequence[Array | None] = [None] * kind.gates * 2
    if b is not None:
        biases = split(b, 2 * kind.gates)
    of_inputs, of_state = biases[: kind.gates], biases[kind.gates :]
    if kind.gates != 3 or not node.get("linear_before_reset", 0):  # one bias is enough
        of_inputs = [None if x is None or y is None else x + y for x, y in zip(of_inputs, of_state, strict=True)]
        of_state = [None] * kind.gates
    of_peepholes = () if peepholes is None else split(peepholes, kind.gates - 1)
    return GateWeights(inputs, state, of_inputs, of_state, of_peepholes)


# --- functions --------------------------------------------------------------------------------------------


def _functions(node: Node, kind: RecurrentKind, directions: int) -> Iterator[Activation]:
    """Those of the node with their parameters, which are listed for the functions that take them."""
    given = node.get("activations") or []
    names = [each.decode() if isinstance(each, bytes) else str(each) for each in given]
    names = names or [*kind.functions] * directions
    if len(names) != len(kind.functions) * directions:
        raise Refused(f"{len(names)} activations for {directions} directions")
    lists = [iter(node.get(name) or ()) for name in ("activation_alpha", "activation_beta")]
    for name in names:
        word = name.lower()
        if word not in ACTIVATIONS:
            raise Refused(f"the activation '{name}' is not supported")
        function, *defaults = ACTIVATIONS[word]
        assert callable(function)
        parameters = [next(each, default) for each, default in zip(lists, defaults, strict=False)]
        yield partial(function, parameters=parameters)


def simple(kind: str) -> Callable[..., SSAValue]:
    return lambda node, x, parameters: node.unary(kind, x, *parameters)


def scaled_tanh(node: Node, x: SSAValue, parameters: Sequence[float]) -> SSAValue:
    inner = node.binary("mul", x, node.scalar(parameters[1], "beta"))
    return node.binary("mul", node.unary("tanh", inner), node.scalar(parameters[0], "alpha"))


def thresholded(node: Node, x: SSAValue, parameters: Sequence[float]) -> SSAValue:
    return node.binary("mask", x, node.binary("less", node.scalar(parameters[0], "alpha"), x))


def softsign(node: Node, x: SSAValue, parameters: Sequence[float]) -> SSAValue:
    return node.binary("div", x, node.unary("affine", node.unary("abs", x), 1.0, 1.0))


ACTIVATIONS: dict[str, tuple[Callable[..., SSAValue] | float, ...]] = {
    "tanh": (simple("tanh"),), "sigmoid": (simple("sigmoid"),), "relu": (simple("relu"),),
    "softplus": (simple("softplus"),), "softsign": (softsign,), "leakyrelu": (simple("leaky_relu"), 0.01),
    "elu": (simple("elu"), 1.0), "thresholdedrelu": (thresholded, 1.0), "affine": (simple("affine"), 1.0, 0.0),
    "hardsigmoid": (simple("hard_sigmoid"), 0.2, 0.5), "scaledtanh": (scaled_tanh, 1.0, 1.0),
}  # fmt: skip
"""By ONNX's word in lower case: the function, and what its alpha and beta are where nobody says."""

CONVERTERS: dict[str, Converter] = dict.fromkeys(KINDS, recurrent)
