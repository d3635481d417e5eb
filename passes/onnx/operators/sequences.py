# Tests: test/passes/onnx/test_import_sequences.py
"""Sequences whose length and places are known when importing: their members are values of the network, and no
sequence is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
from xdsl.ir import SSAValue

from frustum.passes.errors import NotConstant, Refused
from frustum.passes.onnx.node import Converter, Node, Result, SequenceValue, Value, extents_of
from frustum.passes.onnx.operators.moves import cut, joined


def of_members(edit: Callable[[Node], list[Value]]) -> Converter:
    """An operator that gives a sequence."""
    return lambda node: cast(Result, [SequenceValue(tuple(edit(node)))])


def members(node: Node) -> list[Value]:
    found = node.operands[0] if node.has(0) else None
    if not isinstance(found, SequenceValue):
        raise NotConstant("the length of the sequence", node.proto.input[0])
    return list(found.members)


def place(node: Node, index: int, count: int, *, end: int | None = None) -> int:
    """A position in a sequence, which may count from its end; `end` where it is left out."""
    given = node.constant(index, "the position")
    found = end if given is None else int(given.reshape(()))
    if found is None or not -count <= found <= (count if end == count else count - 1):
        raise Refused(f"position {found} is not inside a sequence of {count}")
    return found + count if found < 0 else found


def parts(node: Node) -> list[Value]:
    """Of a tensor: as long as they are told to be, or of one element, whose axis may go."""
    x = node.operands[0]
    if x is None:
        raise Refused("its operand is missing")
    shape = extents_of(x)
    axis = node.axis(int(node.get("axis", 0)), len(shape))
    extent, given = shape[axis], node.constant(1, "the sizes")
    if given is None or not given.ndim:
        size = 1 if given is None else int(given)
        if size < 1:
            raise Refused(f"parts of {size} elements are not supported")
        sizes = [min(size, extent - start) for start in range(0, extent, size)]
    else:
        sizes = [int(each) for each in given]
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise Refused(f"parts of {sizes} do not make up an extent of {extent}")
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    found = [part(node, x, axis, *run) for run in zip(starts, sizes, strict=True)]
    if given is None and not node.get("keepdims", 1):
        found = [reshaped(node, each, (*shape[:axis], *shape[axis + 1 :])) for each in found]
    return found


def part(node: Node, x: Value, axis: int, start: int, size: int) -> Value:
    if isinstance(x, np.ndarray):
        return np.take(x, np.arange(start, start + size), axis)
    return cut(node, x, axis, start, size)


def reshaped(node: Node, x: Value, shape: tuple[int, ...]) -> Value:
    return x.reshape(shape) if isinstance(x, np.ndarray) else node.reshape(x, shape)


def inserted(node: Node) -> list[Value]:
    own, new = members(node), node.operands[1] if node.has(1) else None
    if new is None:
        raise Refused("what it inserts is missing")
    own.insert(place(node, 2, len(own), end=len(own)), new)
    return own


def erased(node: Node) -> list[Value]:
    own = members(node)
    del own[place(node, 1, len(own), end=len(own) - 1)]
    return own


def given(node: Node) -> list[Value]:
    return [operand for operand in node.operands if operand is not None]


def member(node: Node) -> Result:
    own = members(node)
    return own[place(node, 1, len(own))]


def length(node: Node) -> Result:
    return np.asarray(len(members(node)), np.int64)


def concatenation(node: Node) -> Result:
    own, axis = members(node), int(node.get("axis"))
    if not own:
        raise Refused("it joins no members")
    is_new = bool(node.get("new_axis", 0))
    axis = node.axis(axis, len(extents_of(own[0])) + is_new)
    if is_new:
        shapes = [extents_of(each) for each in own]
        own = [reshaped(node, x, (*s[:axis], 1, *s[axis:])) for x, s in zip(own, shapes, strict=True)]
    arrays = [each for each in own if isinstance(each, np.ndarray)]
    if len(arrays) == len(own):
        return np.concatenate(arrays, axis)
    return joined(node, [x if isinstance(x, SSAValue) else node.weight(x, "member") for x in own], axis)


CONVERTERS: dict[str, Converter] = {
    "ConcatFromSequence": concatenation,
    "SequenceAt": member,
    "SequenceConstruct": of_members(given),
    "SequenceEmpty": of_members(lambda node: []),
    "SequenceErase": of_members(erased),
    "SequenceInsert": of_members(inserted),
    "SequenceLength": length,
    "SplitToSequence": of_members(parts),
}
