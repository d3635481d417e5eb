"""Find attention that a network has as plain layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import VerifyException

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.module import keep_range
from frustum.passes.analysis.module import absorb_between, node_name
from frustum.passes.graph.canonicalize import remove_unused
from frustum.passes.graph.patterns.attention_masks import ScoreAxes, causal_from, mask_of
from frustum.passes.graph.patterns.attention_parts import (
    AttentionOperand,
    AttentionSource,
    Form,
    part_sources,
    parts_of,
)
from frustum.passes.graph.patterns.attention_scores import Scores, is_plain, scores_before
from frustum.passes.graph.patterns.digits import cancels
from frustum.passes.graph.patterns.hidden_rows import hides_rows
from frustum.passes.graph.patterns.strided import Digits, Strided, joined
from frustum.passes.weights import Array, WeightStore, numpy_of, store_of


@dataclass(frozen=True)
class FindAttention(ModulePass):
    """Write products with a softmax between them as one attention.

    1. The scores: q k^T, scaled before or after the product, perhaps capped (`c tanh(x / c)`), masks added.
    2. Their softmax over the keys, and its product with v, whichever of the two products has its operands or its
       result transposed.
    3. q, k and v are looked for behind moves (`strided`): heads as channels of one tensor, parts of a common product,
       heads apart, heads repeated for groups of queries; the result's moves to heads as channels go too.
    4. A constant mask that only hides later keys is `causal_from`.
    5. Where a mask may hide all keys of a row, what is no number in the layers becomes none behind the attention
       (`hidden_rows`).

    Before: operators as the file has them.  After: `fgraph.attention` where the scores have no other reader.
    Source: Vaswani et al., Attention is all you need, 2017, section 3.2.1.
    """

    name = "frustum-graph-find-attention"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        softmaxes = [o for o in op.walk() if isinstance(o, g.SoftmaxOp)]
        if not softmaxes:
            return
        store = store_of(op)
        if any([write(found, store) for each in softmaxes if (found := find(each, store)) is not None]):
            remove_unused(op)


@dataclass(frozen=True)
class Found:
    """A softmax between two products."""

    softmax: g.SoftmaxOp
    scores: Scores
    weighted: g.MatmulOp
    """The product of the weights, which the softmax gives, with v."""
    has_keys_last: bool
    """Of the scores."""
    has_weights_left: bool

    @property
    def product_shape(self) -> Extents:
        return g.shape_of(self.scores.product.result)

    @property
    def rows_and_keys(self) -> tuple[int, int]:
        rows, keys = self.product_shape[-2:]
        return (rows, keys) if self.has_keys_last else (keys, rows)

    @property
    def sizes(self) -> tuple[int, int]:
        """Elements of a head of queries and keys, of a head of values."""
        product = self.scores.product
        return (
            g.shape_of(product.a)[-2 if product.trans_a else -1],
            g.shape_of(self.weighted.result)[-1 if self.has_weights_left else -2],
        )

    def sources(
        self, store: WeightStore
    ) -> tuple[list[AttentionSource], list[AttentionSource], list[AttentionSource]]:
        """The tensors behind q, k and v."""
        first, second = self.scores.product, self.weighted
        batches = self.product_shape[:-2]
        left = part_sources(first.a, first.trans_a, batches, store, is_scaled=True)
        right = part_sources(first.b, not first.trans_b, batches, store, is_scaled=True)
        q, k = (left, right) if self.has_keys_last else (right, left)
        v, is_transposed = (
            (second.b, second.trans_b) if self.has_weights_left else (second.a, not second.trans_a)
        )
        own = g.shape_of(second.result)[:-2]
        return q, k, part_sources(v, is_transposed, own, store, is_scaled=False)


def find(softmax: g.SoftmaxOp, store: WeightStore) -> Found | None:
    """The attention around a softmax; None where it is something else."""
    scores = scores_before(softmax, store) if softmax.scales is None else None
    if scores is None or g.is_integer(softmax.x):
        return None
    shape, own = g.shape_of(softmax.x), g.shape_of(scores.product.result)
    axis = softmax.axis % len(shape)
    if axis == len(shape) - 1 and shape[-1] == own[-1]:
        has_keys_last = True
    elif axis == len(shape) - 2 and shape[-2:] == own[-2:]:
        has_keys_last = False
    else:
        return None
    *outer, row, column = Strided.whole(own).axes
    rows, keys = (row, column) if has_keys_last else (column, row)
    value, seen = softmax.result, Strided.whole(own).shaped(shape)
    while value.has_one_use() and seen is not None:
        (use,) = value.uses
        op = use.operation
        if isinstance(op, g.MatmulOp):
            is_left = use.index == 0
            *ahead, x, y = seen.axes
            first, last = (y, x) if (op.trans_a if is_left else op.trans_b) else (x, y)
            is_same = (first, last) == ((rows, keys) if is_left else (keys, rows))
            batches = joined_axes(ahead) == joined_axes(outer)
            count = math.prod(g.shape_of(op.result)[:-2]) == math.prod(own[:-2])
            fits = is_plain(op) and is_same and batches and count
            return Found(softmax, scores, op, has_keys_last, is_left) if fits else None
        if not isinstance(op, g.ReshapeOp | g.TransposeOp):
            return None
        value, seen = op.result, seen.after(op, store)
    return None


def joined_axes(axes: Sequence[Digits]) -> Digits:
    return joined(digit for axis in axes for digit in axis)


@dataclass
class Choice:
    """How an attention is written: heads of batches, its operands, its masks and where its result is taken."""

    batch: int
    heads: int
    parts: tuple[AttentionOperand, AttentionOperand, AttentionOperand]
    masks: list[tuple[SSAValue | Array, Extents]]
    end: SSAValue
    is_merged: bool
    hides_rows: bool
    """Whether masks may hide all keys of a row."""
    moves: int = field(default=0)


def choose(found: Found, store: WeightStore) -> Choice | None:
    """The way that leaves the fewest elements to be moved; None where there is none."""
    batches = found.product_shape[:-2]
    count = math.prod(batches)
    hint = math.prod(batches[:1])
    divisors = [n for n in range(1, count + 1) if count % n == 0]
    sources = found.sources(store)
    best: Choice | None = None
    for batch in (hint, *(n for n in divisors if n != hint)):
        choice = choice_of(found, batch, count // batch, sources, store)
        if choice is not None and (best is None or choice.moves < best.moves):
            best = choice
        if best is not None and best.moves == 0:
            break
    return best


def choice_of(
    found: Found, batch: int, heads: int, sources: tuple[list[AttentionSource], ...], store: WeightStore
) -> Choice | None:
    (rows, keys), (size, value_size) = found.rows_and_keys, found.sizes
    grid = ScoreAxes((batch, heads, rows, keys), found.product_shape, found.has_keys_last)
    masks = [mask_of(mask, shape, grid, store) for mask, shape in found.scores.masks]
    shapes = zip(sources, (rows, keys, keys), (size, size, value_size), strict=True)
    ways = [parts_of(own, batch, heads, *rest) for own, *rest in shapes]
    parts = best_parts(ways, heads)
    known = [mask for mask in masks if mask is not None]
    if parts is None or len(known) < len(masks) or takes_back([own for own, _ in known]):
        return None
    is_first = parts[0].form is Form.CHANNELS
    end, is_merged, left = end_of(found, batch, heads, is_channels_first=is_first)
    hides = hides_rows(known, grid.extents, store)
    moves = sum(part.source.moves for part in parts) + left
    return Choice(batch, heads, parts, known, end, is_merged, hides, moves)


def takes_back(masks: Sequence[SSAValue | Array]) -> bool:
    """Whether one constant mask takes back another: scores are rounded between them."""
    numbers = [mask for mask in masks if isinstance(mask, np.ndarray)]
    size, total = np.zeros(()), np.zeros(())
    for each in numbers:
        size, total = size + np.abs(each), total + each
    return len(numbers) > 1 and cancels(size, total)


def best_parts(
    ways: list[list[AttentionOperand]], heads: int
) -> tuple[AttentionOperand, AttentionOperand, AttentionOperand] | None:
    """Queries of all heads, keys and values of equally many; channels come first in all of them or in none."""
    best: tuple[AttentionOperand, AttentionOperand, AttentionOperand] | None = None
    for q, k, v in product(*ways):
        forms = {part.form is Form.CHANNELS for part in (q, k, v)}
        if q.heads != heads or k.heads != v.heads or len(forms) > 1:
            continue
        if best is None or moves_of((q, k, v)) < moves_of(best):
            best = q, k, v
    return best


def moves_of(parts: tuple[AttentionOperand, ...]) -> int:
    return sum(part.source.moves for part in parts)


def end_of(found: Found, batch: int, heads: int, *, is_channels_first: bool) -> tuple[SSAValue, bool, int]:
    """The value behind the last move that the attention makes, whether heads are channels there, and how many elements
    are moved after it."""
    (rows, _), (_, size) = found.rows_and_keys, found.sizes
    value = found.weighted.result
    *outer, first, second = Strided.whole((*g.shape_of(value)[:-2], rows, size)).axes
    last = (first, second) if found.has_weights_left else (second, first)
    seen: Strided | None = Strided((*outer, *last))
    strides = (heads * rows * size, rows * size, size, 1)
    axes = [((n, s),) for n, s in zip((batch, heads, rows, size), strides, strict=True)]
    order = (0, 1, 3, 2) if is_channels_first else (0, 2, 1, 3)
    merged, apart = joined_axes([axes[i] for i in order]), joined_axes(axes)
    best: tuple[SSAValue, bool] | None = None
    moves = 0
    while seen is not None:
        own = joined_axes(list(seen.axes))
        if own == merged or (own == apart and not is_channels_first):
            best, moves = (value, own == merged), 0
        if not value.has_one_use():
            break
        (use,) = value.uses
        if not isinstance(use.operation, g.ReshapeOp | g.TransposeOp):
            break
        value = use.operation.result
        seen = seen.after(use.operation, WeightStore())
        moves += math.prod(g.shape_of(value)) if isinstance(use.operation, g.TransposeOp) else 0
    return (found.weighted.result, False, moves) if best is None else (*best, moves)


def write(found: Found, store: WeightStore) -> bool:
    """Puts the attention in the place of its layers; False where they are left as they are."""
    choice = choose(found, store)
    if choice is None:
        return False
    _Writer(found, choice, store).run()
    return True


@dataclass
class _Writer:
    """An attention as it is written."""

    found: Found
    choice: Choice
    store: WeightStore
    made: list[Operation] = field(default_factory=list)

    def run(self) -> None:
        found, choice = self.found, self.choice
        (rows, keys), sizes = found.rows_and_keys, found.sizes
        q, k, v = choice.parts
        x = self.part(q, rows, sizes[0]), self.part(k, keys, sizes[0]), self.part(v, keys, sizes[1])
        is_first = q.form is Form.CHANNELS
        mask, causal = self.mask((choice.batch, choice.heads, rows, keys))
        try:
            whole = g.AttentionOp(
                *x, mask, heads=(choice.heads, k.heads), sizes=sizes, firsts=(q.first, k.first, v.first),
                scale=found.scores.scale * q.source.factor * k.source.factor, softcap=found.scores.softcap,
                causal_from=causal, is_merged=choice.is_merged and not is_first, is_channels_first=is_first,
            )  # fmt: skip
        except VerifyException:  # views of its operands that no attention has: the plain layers stay
            for op in reversed(self.made):
                op.drop_all_references()
            return
        keep_range(found.weighted, whole)
        result = self.add(whole)
        absorb_between(found.weighted, [each.source.value for each in choice.parts], whole.results)
        end = choice.end
        if is_first and not choice.is_merged:
            result = self.shaped(result, (choice.batch, choice.heads, sizes[1], rows))
            result = self.add(g.TransposeOp(result, (0, 1, 3, 2)))
        if choice.hides_rows and mask is not None:
            result = self.no_numbers(result, mask, is_first)
        is_apart = not choice.is_merged and not is_first
        if is_apart and end is found.weighted.result and not found.has_weights_left:
            result = self.add(g.TransposeOp(result, (0, 1, 3, 2)))
        result = self.shaped(result, g.shape_of(end))
        last = end.owner
        assert isinstance(last, Operation)
        Rewriter.insert_op(self.made, InsertPoint.before(last))
        end.replace_all_uses_with(result)

    def no_numbers(self, result: SSAValue, mask: SSAValue, is_first: bool) -> SSAValue:
        """The result, with no numbers in rows whose keys are all hidden."""
        highest = self.add(g.ReduceOp("max", mask, (3,), True))
        none = self.add(g.BinaryOp("sub", highest, highest))
        if not self.choice.is_merged:
            return self.add(g.BinaryOp("add", result, none))
        whole = g.shape_of(result)
        batch, heads, size = whole[0], self.choice.heads, self.found.sizes[1]
        none = self.add(g.TransposeOp(none, (0, 1, 3, 2) if is_first else (0, 2, 1, 3)))
        apart = (batch, heads, size, whole[2]) if is_first else (batch, whole[1], heads, size)
        return self.shaped(self.add(g.BinaryOp("add", self.shaped(result, apart), none)), whole)

    def add(self, made: Operation) -> SSAValue:
        made.location = self.found.softmax.location
        self.made.append(made)
        return made.results[0]

    def shaped(self, x: SSAValue, shape: Extents) -> SSAValue:
        return x if g.shape_of(x) == shape else self.add(g.ReshapeOp(x, shape))

    def part(self, part: AttentionOperand, rows: int, size: int) -> SSAValue:
        x = part.source.value
        if part.source.is_turned:
            rank = len(g.shape_of(x))
            x = self.add(g.TransposeOp(x, (*range(rank - 2), rank - 1, rank - 2)))
        return self.shaped(x, part.shape(self.choice.batch, rows, size))

    def mask(self, extents: Extents) -> tuple[SSAValue | None, int | None]:
        """The masks as one, and from which key on later ones are hidden."""
        numbers: Array | None = None
        total: SSAValue | None = None
        for own, shape in self.choice.masks:
            if isinstance(own, SSAValue):
                value = self.shaped(own, shape)
                total = value if total is None else self.add(g.BinaryOp("add", total, value))
            else:
                numbers = own if numbers is None else numbers + own
        if numbers is None or not np.any(numbers):
            return total, None
        causal = None if self.choice.hides_rows else causal_from(numbers, extents)
        if causal is not None:
            return total, causal
        element = g.tensor_of(self.found.softmax.x).element_type
        key = self.store.add(
            f"{node_name(self.found.softmax) or 'attention'}/mask", numbers.astype(numpy_of(element))
        )
        constant = self.add(g.WeightOp(key, g.tensor_type(element, numbers.shape)))
        return constant if total is None else self.add(g.BinaryOp("add", total, constant)), None
