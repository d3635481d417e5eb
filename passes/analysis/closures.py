# Tests: test/runtime/report/test_dram_bound.py
"""Where a layer can begin only when all of an input was read, and then needs as many words of it, or made from it.

For each value and each input (its *root*) a `Trace` says of which positions of the root every element needs all, and
how many ways that share no word lead from words of the root to elements of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.graph.attributes import Ints
from frustum.passes.analysis.module import element_bytes
from frustum.passes.analysis.product_chains import covers, is_by_channel, needed, sees_all, taps, windows_of


class TracedAxis(NamedTuple):
    """Which axes of the root lie along an axis of a value.  `exact`: an element needs the root's elements of its own
    index there; else those of some part, and all elements along the axis together need all of the root's."""

    of: Ints = ()
    exact: bool = True


class Ends(NamedTuple):
    """Ways end at all elements, or at so many `ways` of each line along `axis`."""

    axis: int | None = None
    ways: int = 0


class InputSpace(NamedTuple):
    """A root: an input by its number, under a shape (that behind a reshape is another space)."""

    input: int
    shape: Ints


@dataclass(frozen=True)
class Trace:
    """Of the elements of a value: the root's axes that lie along its own, those of which it needs all positions, where
    ways end (None: nothing known), and the least bytes of an element on the ways."""

    axes: tuple[TracedAxis, ...]
    seen: frozenset[int]
    ends: Ends | None
    element: int


Traces = dict[InputSpace, Trace]


class Closure(NamedTuple):
    """Words of `groups` equal parts of an input, `words` ways of each; a word has `element` bytes or more."""

    groups: int
    words: int
    element: int
    input: int


def closures(network: g.NetworkOp) -> dict[Operation, Closure]:
    """Layers whose every element needs all words of a part of an input, while so many words of it, or of what was made
    of them, are still needed for the others of the part; of those with as many parts that with most words."""
    block = network.body.block
    traces: dict[SSAValue, Traces] = {}
    for number, value in enumerate(block.args):
        traces[value] = pure(number, value)
    whole, best = needed(network), dict[tuple[int, int], int]()
    found: dict[Operation, Closure] = {}
    for op in block.ops:
        if isinstance(op, g.WeightOp) or len(op.results) != 1:
            continue
        result = op.results[0]
        traces[result] = dict(_kept(op, [traces.get(operand, {}) for operand in op.operands]))
        for space, trace in traces[result].items() if result in whole else ():
            closure = _closure(space, trace, g.shape_of(result))
            key = (space.input, closure.groups) if closure is not None else (0, 0)
            if closure is not None and closure.words * closure.element > best.get(key, 0):
                best[key], found[op] = closure.words * closure.element, closure
    return found


def pure(number: int, value: SSAValue) -> Traces:
    """Of an input, or of one under another shape."""
    shape = g.shape_of(value)
    axes = tuple(TracedAxis((k,)) for k in range(len(shape)))
    ones = frozenset(k for k, size in enumerate(shape) if size == 1)
    return {InputSpace(number, shape): Trace(axes, ones, Ends(), element_bytes(value))}


def _closure(space: InputSpace, trace: Trace, shape: Ints) -> Closure | None:
    ones = {k for k, size in enumerate(space.shape) if size == 1}
    unseen = set(range(len(space.shape))) - trace.seen
    if trace.ends is None or trace.seen <= ones:
        return None
    along = {k: (place, axis) for place, axis in enumerate(trace.axes) for k in axis.of}
    for k in unseen:
        place, axis = along[k]
        if not axis.exact or place == trace.ends.axis:
            return None
    groups = prod(space.shape[k] for k in unseen)
    ends = trace.ends
    words = prod(shape) if ends.axis is None else prod(shape) // shape[ends.axis] * ends.ways
    return Closure(groups, words // groups, trace.element, space.input)


def _kept(op: Operation, operands: Sequence[Traces]) -> Iterator[tuple[InputSpace, Trace]]:
    """What is known of the result: of each space all that the operands say of it, joined."""
    parts: dict[InputSpace, Trace] = {}
    for number, traces in enumerate(operands):
        for space, trace in traces.items():
            for new_space, new in _through(op, number, space, trace):
                mapped = {k for axis in new.axes for k in axis.of} | new.seen
                if len(mapped) < len(new_space.shape):
                    continue
                new = replace(new, element=min(new.element, element_bytes(op.results[0])))
                old = parts.get(new_space)
                parts[new_space] = new if old is None else _joined(old, new, len(new_space.shape))
    yield from parts.items()


def _joined(a: Trace, b: Trace, rank: int) -> Trace:
    """The ways of one, the needs of another, where both lie alike along the axes of which not all is needed."""
    options = [a, b]
    for ways, needs in ((a, b), (b, a)):
        unseen = set(range(rank)) - needs.seen
        alike = all(
            x == y for x, y in zip(ways.axes, needs.axes, strict=True) if unseen & {*x.of, *y.of}
        )
        if ways.ends is not None and alike:
            options.append(replace(ways, seen=needs.seen))
    return max(options, key=lambda each: (each.ends is not None, len(each.seen)))


def _through(op: Operation, number: int, space: InputSpace, trace: Trace) -> Iterator[tuple[InputSpace, Trace]]:
    """What a trace of operand `number` says of the result."""
    if isinstance(op, g.ReshapeOp):
        yield from _reshaped(op, space, trace)
    elif (handler := HANDLERS.get(type(op))) is not None and (new := handler(op, number, trace)) is not None:
        yield space, new


# ---------------------------------------------------------------- layers


def _elementwise(op: Operation, number: int, trace: Trace) -> Trace | None:
    """Also of a smaller operand, which broadcasts."""
    x, result = g.shape_of(op.operands[number]), g.shape_of(op.results[0])
    ahead = len(result) - len(x)
    axes = [TracedAxis()] * ahead
    for axis, size, new in zip(trace.axes, x, result[ahead:], strict=True):
        axes.append(axis if size == new else TracedAxis())
    ends = trace.ends
    if prod(x) < prod(result):
        ends = None
    elif ends is not None and ends.axis is not None:
        ends = Ends(ends.axis + ahead, ends.ways)
    return replace(trace, axes=tuple(axes), ends=ends)


def _gathered(trace: Trace, places: Sequence[int]) -> frozenset[int]:
    """What an element needs that needs all elements along these axes."""
    return trace.seen | {k for place in places for k in trace.axes[place].of}


def _softmax(op: g.SoftmaxOp, number: int, trace: Trace) -> Trace | None:
    return replace(trace, seen=_gathered(trace, [op.axis % len(trace.axes)]))


def _normalise(op: g.NormaliseOp, number: int, trace: Trace) -> Trace | None:
    """Of channels in groups only the positions are all needed."""
    if number:
        return None
    return replace(trace, seen=_gathered(trace, [axis for axis in op.axes if axis != 1 or op.groups == 1]))


def _reduce(op: g.ReduceOp, number: int, trace: Trace) -> Trace | None:
    rank = len(trace.axes)
    gone = {axis % rank for axis in op.axes}
    axes = [TracedAxis() if k in gone else axis for k, axis in enumerate(trace.axes) if op.keepdims or k not in gone]
    return Trace(tuple(axes), _gathered(trace, sorted(gone)), None, trace.element)


def _windowed(op: g.ConvOp | g.PoolOp, trace: Trace) -> tuple[list[TracedAxis], bool, list[int]] | None:
    """The axes of rows and columns behind windows, whether each window has an element of its own, and which of the
    two axes a window has whole."""
    windows = windows_of(op)
    if windows is None or not all(map(covers, windows)):
        return None
    axes, whole = [], []
    for place, (axis, window) in enumerate(zip(trace.axes[2:], windows, strict=True), 2):
        size, count, _, stride, pad = window
        same = size == count and stride == 1 and pad in taps(window)
        axes.append(axis if same else TracedAxis(axis.of, exact=False))
        if count == 1:
            whole.append(place)
    return axes, all(map(taps, windows)), whole


def _pool(op: g.PoolOp, number: int, trace: Trace) -> Trace | None:
    found = _windowed(op, trace)
    if found is None:
        return None
    axes, has_own, whole = found
    ends = trace.ends if has_own and (trace.ends is None or trace.ends.axis in (None, 1)) else None
    return Trace((*trace.axes[:2], *axes), _gathered(trace, whole), ends, trace.element)


def _conv(op: g.ConvOp, number: int, trace: Trace) -> Trace | None:
    if number:
        return _residual(op, number, trace)
    found = _windowed(op, trace)
    if found is None:
        return None
    axes, has_own, whole = found
    if is_by_channel(op):
        ends = trace.ends if has_own and (trace.ends is None or trace.ends.axis in (None, 1)) else None
        return Trace((*trace.axes[:2], *axes), _gathered(trace, whole), ends, trace.element)
    if op.groups > 1:
        channels = TracedAxis(trace.axes[1].of, exact=False)
        return Trace((trace.axes[0], channels, *axes), _gathered(trace, whole), None, trace.element)
    ends = _mixed(trace.ends, 1, g.shape_of(op.x)[1], 1, g.shape_of(op.result)[1]) if has_own else None
    return Trace((trace.axes[0], TracedAxis(), *axes), _gathered(trace, [1, *whole]), ends, trace.element)


def _residual(op: g.ConvOp | g.MatmulOp, number: int, trace: Trace) -> Trace | None:
    return _elementwise(op, number, trace) if number > 1 and op.operands[number] is op.residual else None


def _mixed(ends: Ends | None, axis: int, size: int, new_axis: int, new_size: int) -> Ends | None:
    """Behind a product that makes each of `new_size` elements from all of a line of `size`."""
    if ends is None or ends.axis not in (None, axis):
        return None
    count = min(size if ends.axis is None else ends.ways, new_size)
    return Ends() if count == new_size else Ends(new_axis, count)


def _matmul(op: g.MatmulOp, number: int, trace: Trace) -> Trace | None:
    shape, out = g.shape_of(op.operands[number]), g.shape_of(op.result)
    if number > 1:
        return _residual(op, number, trace)
    rank = len(out)
    is_a = number == 0
    turned = op.trans_a if is_a else op.trans_b
    if len(shape) < 2 or rank < 2:
        return None
    line, depth = (-1, -2) if is_a == turned else (-2, -1)  # the axis that stays, the one that is summed up
    ahead = rank - len(shape)
    axes = [TracedAxis()] * rank
    for place, (size, new) in enumerate(zip(shape[:-2], out[ahead:-2], strict=True)):
        axes[ahead + place] = trace.axes[place] if size == new else TracedAxis()
    kept, other = (rank - 2, rank - 1) if is_a else (rank - 1, rank - 2)
    axes[kept] = trace.axes[line]
    ends = trace.ends if prod(shape[:-2]) == prod(out[:-2]) else None
    ends = _mixed(ends, len(shape) + depth, shape[depth], other, out[other])
    return Trace(tuple(axes), _gathered(trace, [len(shape) + depth]), ends, trace.element)


def _attention(op: g.AttentionOp, number: int, trace: Trace) -> Trace | None:
    """Every element needs all keys and values of its image and head; of q, k and v that are no mixed channels only
    what has one head."""
    if number > 2 or not sees_all(op):
        return None
    rank = len(trace.axes)
    channels = 1 if op.is_channels_first else rank - 1
    heads = op.heads[0] if number == 0 else op.heads[1]
    has_heads = rank == 4 and not op.is_channels_first
    if (trace.axes[channels].of and (has_heads or heads > 1)) or (has_heads and trace.axes[1].of):
        return None
    gathered = [channels] if number < 2 else []
    if number == 2 and trace.axes[channels].of:
        return None
    if number:
        gathered += [k for k in range(1, rank) if k != channels and not (has_heads and k == 1)]
    axes = [TracedAxis()] * len(g.shape_of(op.result))
    axes[0] = trace.axes[0]
    return Trace(tuple(axes), _gathered(trace, gathered), None, trace.element)


# ---------------------------------------------------------------- moves


def _transposed(op: g.TransposeOp | g.TurnOp, number: int, trace: Trace) -> Trace | None:
    return _permuted(trace, op.perm)


def _permuted(trace: Trace, perm: Ints) -> Trace:
    ends = trace.ends
    if ends is not None and ends.axis is not None:
        ends = Ends(perm.index(ends.axis), ends.ways)
    return replace(trace, axes=tuple(trace.axes[k] for k in perm), ends=ends)


def _volume(op: g.VolumeOp, number: int, trace: Trace) -> Trace | None:
    return _permuted(trace, (1, 0, 2, 3))


def _sliced(op: g.SliceOp | g.PickOp, number: int, trace: Trace) -> Trace | None:
    """Where it takes a part, what lies along the axis is not known any more."""
    x, result = g.shape_of(op.x), g.shape_of(op.result)
    cut = {k for k, (size, new) in enumerate(zip(x, result, strict=True)) if size != new}
    plain = {k for k, step in enumerate(op.steps) if step == 1} - cut
    axes = tuple(axis if k in plain else TracedAxis() for k, axis in enumerate(trace.axes))
    ends = trace.ends
    if ends is not None and ends.axis in cut:
        ends = None
    return replace(trace, axes=axes, ends=ends)


def _reshaped(op: g.ReshapeOp, space: InputSpace, trace: Trace) -> Iterator[tuple[InputSpace, Trace]]:
    """Axes that are joined, or parted again; an input that is parted otherwise is one of another space."""
    shape, new = g.shape_of(op.x), g.shape_of(op.result)
    ones = {k for k, size in enumerate(space.shape) if size == 1}
    found = _reshaped_axes(trace, shape, new, space.shape)
    if found is not None:
        yield space, found
    elif trace.seen <= ones and trace.ends == Ends() and prod(shape) == prod(space.shape):
        for other, fresh in pure(space.input, op.result).items():
            yield other, replace(fresh, element=min(trace.element, fresh.element))


def _reshaped_axes(trace: Trace, shape: Ints, new: Ints, root: Ints) -> Trace | None:
    axes = [TracedAxis()] * len(new)
    ends = trace.ends if trace.ends is not None and trace.ends.axis is None else None
    for olds, news in blocks(shape, new):
        of = tuple(k for old in olds for k in trace.axes[old].of if root[k] > 1)
        if trace.ends is not None and trace.ends.axis in olds and len(olds) == len(news) == 1:
            ends = Ends(news[0], trace.ends.ways)
        if not of:
            continue
        exact = all(trace.axes[old].exact and trace.axes[old].of for old in olds)
        if len(news) == 1:
            axes[news[0]] = TracedAxis(of, exact)
        elif exact and tuple(root[k] for k in of) == tuple(new[k] for k in news):
            for k, place in zip(of, news, strict=True):
                axes[place] = TracedAxis((k,))
        else:
            return None
    return replace(trace, axes=tuple(axes), ends=ends)


def blocks(shape: Ints, new: Ints) -> list[tuple[list[int], list[int]]]:
    """The axes above 1 of two shapes of as many elements, in the smallest parts of equal size."""
    olds = [k for k, size in enumerate(shape) if size > 1]
    news = [k for k, size in enumerate(new) if size > 1]
    found = []
    while olds:
        left, right = [olds.pop(0)], [news.pop(0)]
        while (a := prod(shape[k] for k in left)) != (b := prod(new[k] for k in right)):
            (left if a < b else right).append((olds if a < b else news).pop(0))
        found.append((left, right))
    return found


Handler = Callable[..., Trace | None]
HANDLERS: dict[type[Operation], Handler] = {
    g.UnaryOp: _elementwise, g.BinaryOp: _elementwise, g.LrnOp: _elementwise, g.QuantizeOp: _elementwise,
    g.DequantizeOp: _elementwise, g.SoftmaxOp: _softmax, g.NormaliseOp: _normalise, g.ReduceOp: _reduce,
    g.PoolOp: _pool, g.ConvOp: _conv, g.MatmulOp: _matmul, g.AttentionOp: _attention, g.TransposeOp: _transposed,
    g.TurnOp: _transposed, g.VolumeOp: _volume, g.SliceOp: _sliced, g.PickOp: _sliced,
}  # fmt: skip
