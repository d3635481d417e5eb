# Tests: test/runtime/tools/test_check_layers.py
"""One element of an instruction's result, computed in the plainest way from the operands as they lie in memory.

Apart from the kernels, to tell a wrong kernel from an instruction that says the wrong thing.  None where it is not
known: integers, and instructions that are not here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from frustum.dialects.isa.program import Act, Binary, Conv, Depthwise, Pool, Unary, View
from frustum.runtime.device.expand import Expanded
from frustum.runtime.device.memory import DTYPES, Memories

BINARY: dict[str, Callable[[float, float], float]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "max": max, "min": min,
}  # fmt: skip
"""What is known of two numbers."""


@dataclass(frozen=True)
class Execution:
    """What one unit does in one row of the core's table, with the memories as they are."""

    expanded: Expanded
    memories: Memories
    row: int
    unit: int

    def read(self, slot: int, view: View, at: Sequence[int]) -> float:
        """The element of an operand so many positions behind the first that it uses."""
        rows, static = self.expanded.core, int(self.expanded.core.static[self.row])
        kind = int(self.expanded.memory[static, slot])
        place, address = int(rows.place[slot, self.row, self.unit]), int(rows.address[slot, self.row, self.unit])
        address += place * self.memories.capacities[kind]
        address += sum(i * stride for i, stride in zip(at, view.strides, strict=True))
        return float(self.memories.view(kind, DTYPES[view.element], address, (), ()))

    def window(self, instruction: Any, at: Sequence[int]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Of each position of the kernel that lies on the map: itself, and the row and column of the operand."""
        rows = self.expanded.core
        low, read = rows.low[2:, self.row, self.unit].tolist(), rows.read[2:, self.row, self.unit].tolist()
        found = []
        for kernel in product(*map(range, instruction.kernel)):
            place = [
                at[2 + d] * instruction.strides[d] + kernel[d] * instruction.dilations[d] - low[d] for d in (0, 1)
            ]
            if all(0 <= p < size for p, size in zip(place, read, strict=True)):
                found.append(((kernel[0], kernel[1]), (place[0], place[1])))
        return found


def plain_value(instruction: Any, run: Execution, at: Sequence[int]) -> float | None:
    """The element `at` positions behind the first of the box."""
    if any(getattr(instruction, name, None) is not None for name in ("scales", "multiplier_view", "weight_zero_view")):
        return None
    match instruction:
        case Conv():
            return _acted(instruction.act, _conv(instruction, run, at))
        case Depthwise():
            return _acted(instruction.act, _depthwise(instruction, run, at))
        case Pool():
            return _acted(instruction.act, _pool(instruction, run, at))
        case Unary():
            x = run.read(0, instruction.in_view, at)
            return _acted(Act(instruction.kind, instruction.alpha, instruction.beta), x)
        case Binary() if instruction.kind in BINARY:
            pair = run.read(0, instruction.a_view, at), run.read(1, instruction.b_view, at)
            return _acted(instruction.act, BINARY[instruction.kind](*pair))
    return None


def _conv(op: Conv, run: Execution, at: Sequence[int]) -> float:
    rows = run.expanded.core
    n, co, _, _ = at
    channels = int(rows.read[1, run.row, run.unit])
    per_group = int(rows.extent[1, run.row, run.unit]) // op.groups
    total = 0.0
    for (kh, kw), (row, col) in run.window(op, at):
        for c in range(channels if op.groups == 1 else op.channels.extent):
            x = run.read(0, op.in_view, (n, co // per_group * op.channels.extent + c, row, col))
            total += x * run.read(1, op.weight_view, (co, c, kh, kw))
    if not rows.is_first[run.row]:
        assert op.acc_view is not None
        total += run.read(3, op.acc_view, at)
    return total + _more(op, run, at)


def _more(op: Conv | Depthwise, run: Execution, at: Sequence[int]) -> float:
    """Bias and residual."""
    more = 0.0
    if op.bias_view is not None:
        more += run.read(2, op.bias_view, (0, at[1], 0, 0))
    if op.residual_view is not None:
        more += run.read(7, op.residual_view, at)
    return more


def _depthwise(op: Depthwise, run: Execution, at: Sequence[int]) -> float:
    window = run.window(op, at)
    products = (
        run.read(0, op.in_view, (at[0], at[1], row, col)) * run.read(1, op.weight_view, (at[1], 0, kh, kw))
        for (kh, kw), (row, col) in window
    )
    return sum(products) + _more(op, run, at)


def _pool(op: Pool, run: Execution, at: Sequence[int]) -> float | None:
    values = [run.read(0, op.in_view, (*at[:2], row, col)) for _, (row, col) in run.window(op, at)]
    if op.kind == "max":
        return max(values)
    return None if op.include_pad else sum(values) / len(values)


def _acted(act: Act | None, x: float | None) -> float | None:
    if act is None or x is None:
        return x
    known = {"identity": x, "relu": max(x, 0.0), "neg": -x, "abs": abs(x), "affine": act.alpha * x + act.beta}
    known["leaky_relu"] = x if x >= 0 else act.alpha * x
    known["clip"] = min(max(x, act.alpha), act.beta)
    return known.get(act.kind)
