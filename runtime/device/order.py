"""Which instances of each instruction run, and in which order: loops and stages as numbers.

A loop body of weight W (how many instructions it holds, inner loops counted pass by pass) takes W numbers of the
program order for each of its passes; a child with stage s and index i runs in pass i + s.  So the key of an instance
is a sum over its loops, and sorting the keys gives the program order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frustum.dialects.isa.program import MAX_LOOPS, Instruction, Node, Repeat

Ints = np.ndarray


@dataclass(frozen=True)
class Instances:
    """All executions of one instruction: `keys` [n] sorts them among all others; `index` [n, MAX_LOOPS]."""

    instruction: Instruction
    counts: tuple[int, ...]
    keys: Ints
    index: Ints


def instances(body: Sequence[Node]) -> list[Instances]:
    """The executions of every instruction, in textual order; at the top level stages mean nothing."""
    found: list[Instances] = []
    start = np.zeros(1, np.int64)
    _visit(body, (), start, np.zeros((1, MAX_LOOPS), np.int64), 0, found)
    return found


def _weight(node: Node) -> int:
    """How many numbers of the program order one execution of this node takes."""
    if not isinstance(node, Repeat):
        return 1
    return (node.count + _last_stage(node)) * _body_weight(node)


def _body_weight(node: Repeat) -> int:
    return sum(_weight(child) for child in node.body)


def _last_stage(node: Repeat) -> int:
    return max((child.stage for child in node.body), default=0)


def _visit(
    body: Sequence[Node], counts: tuple[int, ...], keys: Ints, index: Ints, pass_weight: int, found: list[Instances]
) -> None:
    """`keys` [n] and `index` [n, MAX_LOOPS] are those of the start of this body in each of its n iterations."""
    for child in body:
        own = keys + child.stage * pass_weight
        if isinstance(child, Repeat):
            weight = _body_weight(child)
            inner = (own[:, None] + np.arange(child.count) * weight).ravel()
            deeper = np.repeat(index, child.count, axis=0)
            deeper[:, len(counts)] = np.tile(np.arange(child.count), len(own))
            _visit(child.body, (*counts, child.count), inner, deeper, weight, found)
        else:
            found.append(Instances(child, counts, own, index))
        keys = keys + _weight(child)
