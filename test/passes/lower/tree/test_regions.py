"""Copies of regions, on words that say which element goes where: those that satisfy the inequalities, and no others."""

import itertools
import random
from dataclasses import replace

import pytest

from frustum.backend import targets
from frustum.dialects import isa
from frustum.dialects.isa.program import ZERO, Affine, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.regions import Clip, End, Linear, Region, Term, can_fill, move

SIZE = 2


def run(block, counts, indices=()):
    """What copies do, in their order: of every address that is written the one that is read, or the value."""
    found = {}
    for op in block.ops:
        if isinstance(op, isa.RepeatOp):
            for k in range(op.count.value.data):
                found |= run(op.body.block, counts, (*indices, k))
        elif isinstance(op, isa.CopyOp):
            found |= copied(op, indices)
    return found


def copied(op, indices):
    box, (src, dst) = op.box.data, (op.src_view.data, op.dst_view.data)
    limits = box.limit or (None,) * 4
    found = {}
    for steps in itertools.product(*map(range, box.extent)):
        place = [start.at(indices) + step for start, step in zip(box.start, steps, strict=True)]
        if any(limit is not None and p >= limit.at(indices) for p, limit in zip(place, limits, strict=True)):
            continue
        is_inside = all(0 <= p < bound for p, bound in zip(place, box.bound, strict=True))
        if is_inside:
            found[address(dst, place, steps, indices)] = address(src, place, steps, indices)
        elif op.fill is not None:
            found[address(dst, place, steps, indices)] = op.fill.data
    return found


def address(view, place, steps, indices):
    total = view.offset.at(indices)
    for number, (step, stride) in enumerate(zip(steps, view.strides, strict=True)):
        wrap = view.wrap
        if wrap is not None and wrap.dim == number:
            step = (place[number] + wrap.phase.at(indices)) % wrap.size
        total += step * stride
    return total


def wanted(region, src, dst, counts):
    """The same of the region's definition."""
    found = {}
    for indices in itertools.product(*map(range, counts)):
        if any(condition.at(indices) < 0 for condition in region.conditions):
            continue
        ranges = [range(extent) for _, extent in region.dims.values()]
        for steps in itertools.product(*ranges):
            at = {k: start.at(indices) + s for (k, (start, _)), s in zip(region.dims.items(), steps, strict=True)}
            values = [value_of(each.value, at, indices) for each in region.clips]
            if all(v >= 0 and (c.size is None or v < c.size) for c, v in zip(region.clips, values, strict=True)):
                found[place_of(dst, at, indices)] = place_of(src, at, indices)
    return found


def value_of(linear, at, indices):
    return linear.rest.at(indices) + sum(factor * at[number] for number, factor in linear.factors.items())


def place_of(end, at, indices):
    values = ((term, value_of(term.position, at, indices)) for term in end.terms)
    return end.offset + sum((v % term.ring if term.ring else v) * term.stride for term, v in values)


def opened(counts, write):
    """A program in which `write` adds to the body of loops of so many passes."""
    code = Code(targets.load("edge"))
    ends = code.allocate("sram", 1 << 16), code.allocate("nram", 1 << 14)

    def nest(left):
        if left:
            with code.repeat(left[0]):
                nest(left[1:])
        else:
            write(code, ends)

    nest(list(counts))
    return code


@pytest.mark.parametrize("seed", [*range(60), 1466])
def test_random_regions(seed):
    """Windows, phases, mirrored ends, rings, ranges that move with loops, and conditions."""
    draw = random.Random(seed)
    counts = [draw.randint(2, 4) for _ in range(draw.randint(0, 2))]

    def affine(low, high):
        loops = tuple(draw.randint(-1, 2) for _ in counts)
        return Affine(draw.randint(low, high), loops)

    rank = draw.randint(1, 4)
    dims = {k: (affine(-1, 2), draw.randint(1, 5)) for k in range(rank)}
    clips = []
    for _ in range(draw.randint(0, 3)):
        moved = draw.sample(range(rank), min(rank, draw.choice([1, 1, 1, 2])))
        factors = {k: draw.choice([1, 1, 1, -1, 2]) for k in moved}
        clips.append(Clip(Linear(factors, affine(-3, 3)), draw.choice([None, draw.randint(1, 6)])))
    conditions = tuple(affine(-1, 2) for _ in range(draw.randint(0, 1)))
    region = Region(dims, tuple(clips), conditions)
    weights = [SIZE * 40**k for k in range(rank)]
    base = 40**4 * SIZE
    terms = [Term(Linear({k: 1}), w) for k, w in enumerate(weights)]
    src, dst = End(None, tuple(terms), base), End(None, tuple(terms), 2 * base)
    if draw.random() < 0.3:
        position = Linear({0: 1}, Affine(40))
        src = replace(src, terms=(Term(position, weights[0], 7), *terms[1:]))
    code = opened(counts, lambda code, ends: move(
        code, "mvdma", "f16", region, replace(src, buffer=ends[0]), replace(dst, buffer=ends[1])
    ))  # fmt: skip
    assert run(code.block, counts) == wanted(region, src, dst, counts)


def test_what_is_filled_is_beyond_the_ends():
    """A window of five positions of a map of four, that begins one before it."""
    region = Region({0: (Affine.index(0), 5)}, (Clip(Linear({0: 1}, Affine(-1)), 4, is_filled=True),))
    end = End(None, (Term(Linear({0: 1}, Affine.index(0, -1)), SIZE),))
    src = End(None, (Term(Linear({0: 1}, Affine(-1)), SIZE),), 100)
    code = opened([2], lambda code, ends: move(
        code, "mvdma", "f16", region, replace(src, buffer=ends[0]), replace(end, buffer=ends[1]), 9.0
    ))  # fmt: skip
    (loop,) = (op for op in code.block.ops if isinstance(op, isa.RepeatOp))
    assert run_once(loop, 0) == {0: 9.0, 2: 100, 4: 102, 6: 104, 8: 106}
    assert run_once(loop, 1) == {0: 100, 2: 102, 4: 104, 6: 106, 8: 9.0}


def run_once(loop, index):
    return {key: value for op in loop.body.block.ops for key, value in copied(op, (index,)).items()}


def test_one_copy_fills_only_what_it_can_say():
    code = Code(targets.load("edge"))
    end = End(None, (Term(Linear({0: 1}), SIZE),))
    plain = Region({0: (ZERO, 6)}, (Clip(Linear({0: 1}, Affine(-1)), 4, is_filled=True),))
    assert can_fill(code, plain, end, end)
    skewed = Region({0: (ZERO, 6), 1: (ZERO, 3)}, (Clip(Linear({0: 1, 1: 1}, Affine(-1)), 4, is_filled=True),))
    assert not can_fill(code, skewed, end, end)
    gated = replace(plain, conditions=(Affine(1),))
    assert not can_fill(code, gated, end, end)


def test_spans_are_regions_of_the_positions_that_there_are():
    region = Region.of([Span(Affine(-1), 4, 8, Affine(2))])
    plain = End(None, (Term(Linear({0: 1}), 1),))
    assert set(wanted(region, plain, plain, [])) == {0, 1}
