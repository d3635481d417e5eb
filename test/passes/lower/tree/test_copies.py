"""Copies of boxes of any rank, on the emulator's words: dimensions that lie alike are one, more than four are loops."""

import pytest

from frustum.backend import targets
from frustum.dialects import isa
from frustum.dialects.isa.program import ZERO, Affine, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.copies import CopyDim, Side, copy
from frustum.passes.lower.tree.spans import NotLowered


def dims(extents, src, dst):
    return [CopyDim(Span(ZERO, e, e), Side(a), Side(b)) for e, a, b in zip(extents, src, dst, strict=True)]


def written(found, element="f16"):
    code = Code(targets.load("edge"))
    ends = code.allocate("sram", 1 << 16), code.allocate("nram", 1 << 14)
    copy(code, "mvdma", ends, element, found)
    return [op for op in code.block.walk() if isinstance(op, isa.CopyOp | isa.RepeatOp)]


def test_dimensions_without_gaps_are_one():
    (made,) = written(dims((3, 4, 5), (40, 10, 2), (40, 10, 2)))
    assert made.box.data.extent == (1, 1, 1, 60)
    (made,) = written(dims((3, 4, 5), (40, 10, 2), (80, 10, 2)))
    assert made.box.data.extent == (1, 1, 3, 20)


def test_what_is_clipped_is_joined_with_what_is_inside_alone():
    found = dims((3, 4, 5), (40, 10, 2), (40, 10, 2))
    found[1] = CopyDim(Span(Affine(-1), 4, 4), Side(10), Side(10))
    (made,) = written(found)
    assert made.box.data.extent == (1, 1, 3, 20)
    assert made.box.data.start[3] == Affine(-5)


def test_more_dimensions_are_a_loop():
    size = 2, 3, 4, 5, 6
    src = [2 * 7**k for k in reversed(range(5))]
    loop, made = written(dims(size, src, [2 * 9**k for k in reversed(range(5))]))
    assert loop.count.value.data == 2
    assert made.box.data.extent == (3, 4, 5, 6)
    assert made.src_view.data.offset == Affine.index(0, src[0])


def test_loops_nest_only_so_deep():
    code = Code(targets.load("edge"))
    with pytest.raises(NotLowered, match="more than 6 loops"):
        _nested(code, 7)


def _nested(code, depth):
    if depth:
        with code.repeat(2):
            _nested(code, depth - 1)
