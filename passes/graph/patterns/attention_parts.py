# Tests: test/passes/graph/composites/test_find_attention.py
"""Queries, keys and values of an attention, looked for behind the moves that bring them to their product."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.passes.graph.patterns.attention_scores import factor_of
from frustum.passes.graph.patterns.strided import Digits, Strided, count, moved, regrouped
from frustum.passes.weights import WeightStore


class Form(Enum):
    """How a tensor has its heads."""

    ROWS = "[B, rows, channels]"
    HEADS = "[B, heads, rows, size]"
    CHANNELS = "[B, channels, rows]"


@dataclass(frozen=True)
class AttentionSource:
    """A tensor behind the moves of an operand of a product.

    `seen`: the operand's elements in it, with axes of the product's batches, rows, elements of a head.  `factor`: what
    they are multiplied by on the way.  `moves`: how many elements are moved to make the tensor out of those behind it.
    `is_turned`: the tensor is yet to be transposed in its last two axes.
    """

    value: SSAValue
    seen: Strided
    factor: float = 1.0
    moves: int = 0
    is_turned: bool = False


@dataclass(frozen=True)
class AttentionOperand:
    """An operand of an attention: heads (of keys: those of their own) in a tensor, from a channel on."""

    source: AttentionSource
    form: Form
    heads: int
    first: int

    def shape(self, batch: int, rows: int, size: int) -> tuple[int, ...]:
        """The shape that the attention has its tensor in."""
        channels = math.prod(g.shape_of(self.source.value)) // (batch * rows)
        return {
            Form.ROWS: (batch, rows, channels),
            Form.HEADS: (batch, self.heads, rows, size),
            Form.CHANNELS: (batch, channels, rows),
        }[self.form]


def part_sources(
    operand: SSAValue, is_transposed: bool, batches: Sequence[int], store: WeightStore, *, is_scaled: bool
) -> list[AttentionSource]:
    """The tensors behind an operand, farthest first.

    `is_transposed`: it has rows last; `batches`: those of the product; `is_scaled`: factors may be passed.
    """
    chain: list[Operation] = []
    values = [operand]
    while isinstance(values[-1].owner, Operation):
        op = values[-1].owner
        scaled = factor_of(op, store) if is_scaled else None
        before = moved(op, store) or (scaled[0] if scaled is not None else None)
        if before is None:
            break
        chain.append(op)
        values.append(before)
    found = []
    for start in range(len(chain), -1, -1):
        factor, seen = passed(values[start], chain[:start][::-1], store)
        if seen is None:
            continue
        left = [
            op for op in chain[start:] if moved(op, store) is not None and not isinstance(op, g.ReshapeOp)
        ]
        moves = sum(math.prod(g.shape_of(op.results[0])) for op in left)
        found.append(AttentionSource(values[start], of_rows(seen, is_transposed, batches), factor, moves))
    if is_transposed:
        shape = g.shape_of(operand)
        seen = Strided.whole((*shape[:-2], shape[-1], shape[-2]))
        moves = max(source.moves for source in found) + math.prod(shape)
        found.append(AttentionSource(operand, of_rows(seen, False, batches), 1.0, moves, is_turned=True))
    return found


def passed(source: SSAValue, chain: Sequence[Operation], store: WeightStore) -> tuple[float, Strided | None]:
    """The factors of a chain of moves and scales, and what it leaves of a tensor."""
    factor = 1.0
    seen: Strided | None = Strided.whole(g.shape_of(source))
    for op in chain:
        scaled = factor_of(op, store) if moved(op, store) is None else None
        if scaled is not None:
            factor *= scaled[1]
        elif seen is not None:
            seen = seen.after(op, store)
    return factor, seen


def of_rows(seen: Strided, is_transposed: bool, batches: Sequence[int]) -> Strided:
    """With rows before the elements of a head, and all batches of the product."""
    *outer, first, last = seen.axes
    axes = (last, first) if is_transposed else (first, last)
    turned = Strided((*outer, *axes), seen.offset)
    return turned.broadcast((*batches, count(axes[0]), count(axes[1])))


def parts_of(
    sources: Iterable[AttentionSource], batch: int, heads: int, rows: int, size: int
) -> list[AttentionOperand]:
    """All ways in which the sources are such heads, farthest first."""
    found = []
    for source in sources:
        *outer, row, element = source.seen.axes
        split = regrouped([digit for axis in outer for digit in axis], (batch, heads))
        total = math.prod(g.shape_of(source.value))
        if split is None or total % (batch * rows):
            continue
        own = own_heads(split[1], heads)
        if own is None:
            continue
        own_count, stride = own
        offset = source.seen.offset
        channels = total // (batch * rows)
        ways = (
            (Form.ROWS, rows * channels, size, channels, 1, 1),
            (Form.HEADS, own_count * rows * size, rows * size, size, 1, 0),
            (Form.CHANNELS, rows * channels, size * rows, 1, rows, rows),
        )
        for form, of_batch, of_head, of_row, of_element, of_channel in ways:
            extents = batch, own_count, rows, size
            strides = of_batch, of_head, of_row, of_element
            wanted = tuple(at_stride(*each) for each in zip(extents, strides, strict=True))
            if wanted != (split[0], at_stride(own_count, stride), row, element):
                continue
            first, rest = divmod(offset, of_channel) if of_channel else (0, offset)
            last = first + own_count * size
            if not rest and (last == channels if form is Form.HEADS else last <= channels):
                found.append(AttentionOperand(source, form, own_count, first))
    return found


def at_stride(extent: int, stride: int) -> Digits:
    return ((extent, stride),) if extent > 1 else ()


def own_heads(digits: Digits, heads: int) -> tuple[int, int] | None:
    """How many heads there are where each is repeated as often, and their stride; None for other positions."""
    if not digits or digits == ((heads, 0),):
        return 1, 0
    if len(digits) == 1 and digits[0][1] > 0:
        return digits[0]
    if len(digits) == 2 and digits[1][1] == 0 and digits[0][1] > 0:
        return digits[0]
    return None
