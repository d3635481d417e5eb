# Tests: test/passes/lower/test_keep_tensors.py
"""How many bytes of a memory are in use while each part of a program runs, before buffers have their places.

In a loop buffers of several copies, rolling ones, and those of operations of different stages are in use throughout;
others from their first to their last use.  Operations of different stages run at the same time.
Source: `backend/memory/interference.py` lets the same buffers share their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from xdsl.ir import Block, Operation

from frustum.dialects.extents import aligned
from frustum.dialects.isa.instruction import value_of
from frustum.dialects.isa.sync import AllocOp, BarrierOp, RepeatOp

Users = Mapping[AllocOp, Sequence[Operation]]


def most_in_use(children: Sequence[Operation], memory: str) -> list[int]:
    """Of each child of a program the most bytes that are in use while it runs: in it, and over it."""
    users = users_of(children, memory)
    number = {op: k for k, op in enumerate(children)}
    rises = [0] * (len(children) + 1)
    for child in children:
        if isinstance(child, AllocOp) and child in users:
            places = [number[inside(user, child.parent)] for user in users[child]]
            rises[min(places)] += size_of(child)
            rises[max(places) + 1] -= size_of(child)
    over = accumulate(rises[:-1])
    return [own + in_loop(child, users) for own, child in zip(over, children, strict=True)]


def side_by_side(children: Sequence[Operation], memory: str) -> list[int]:
    """Of each child the bytes of all buffers of its unit, and of those that live over it, each in its own place."""
    units = units_of(children)
    number = dict(zip(children, units, strict=True))
    used = [0] * (max(units, default=0) + 1)
    for buffer, users in users_of(children, memory).items():
        own = [number[inside(user, children[0].parent)] for user in users]
        for k in range(min(own), max(own) + 1):
            used[k] += size_of(buffer)
    return [used[unit] for unit in units]


def units_of(children: Sequence[Operation]) -> list[int]:
    """Between which barriers each child stands: each unit has its own part."""
    return list(accumulate(int(isinstance(child, BarrierOp)) for child in children))


def users_of(children: Sequence[Operation], memory: str) -> dict[AllocOp, list[Operation]]:
    """The operations that use each buffer of a memory."""
    found: dict[AllocOp, list[Operation]] = {}
    for child in children:
        for op in child.walk():
            for operand in op.operands:
                if isinstance(buffer := operand.owner, AllocOp) and buffer.memory == memory:
                    found.setdefault(buffer, []).append(op)
    return found


def in_loop(op: Operation, users: Users) -> int:
    """The most bytes of buffers of a loop that are in use at once; 0 of what is none."""
    if not isinstance(op, RepeatOp):
        return 0
    body = list(op.body.block.ops)
    number = {each: k for k, each in enumerate(body)}
    stages = [stage_of(each) for each in body]
    used, throughout = [in_loop(each, users) for each in body], 0
    for buffer in body:
        if not isinstance(buffer, AllocOp) or buffer not in users:
            continue
        places = [number[inside(user, op.body.block)] for user in users[buffer]]
        if buffer.depth.value.data > 1 or buffer.rolling is not None or len({stages[k] for k in places}) > 1:
            throughout += size_of(buffer)
            continue
        for k in range(min(places), max(places) + 1):
            used[k] += size_of(buffer) if stages[k] == stages[places[0]] else 0
    return throughout + sum(max(own for own, its in zip(used, stages, strict=True) if its == s) for s in set(stages))


def stage_of(op: Operation) -> int:
    return int(str(value_of(op.properties["stage"]))) if "stage" in op.properties else 0


def inside(op: Operation, block: Block | None) -> Operation:
    """The operation of a block in which another one is, or which it is."""
    while op.parent is not block:
        parent = op.parent_op()
        assert parent is not None
        op = parent
    return op


def size_of(buffer: AllocOp) -> int:
    return aligned(buffer.bytes.value.data) * buffer.depth.value.data
