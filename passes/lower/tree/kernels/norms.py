# Tests: test/passes/lower/tree/test_norms.py
"""Norms and softmax with statistics that are kept: two f32 numbers of each position that stays, made in pieces of what
they are of, and joined over passes of loops; and what these make of every element."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from frustum.dialects import isa
from frustum.dialects.axes.axis import Axis
from frustum.dialects.isa.program import ELEMENT_BYTES, ZERO, Act, Affine, Box, Element, Scale, Scales
from frustum.dialects.plan.carried import RUNNING, SUM
from frustum.dialects.target.durations import Steps
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.fetch import Fetched
from frustum.passes.lower.tree.kernels.integers import has_integers, scales_of
from frustum.passes.lower.tree.kernels.kernel import Scratch, Work, view_of
from frustum.passes.lower.tree.kernels.products import limited_box, limited_by_all
from frustum.passes.lower.tree.kernels.vectors import ElementKernel, SoftmaxKernel
from frustum.passes.lower.tree.spans import NotLowered

LARGEST = 3.0e38
"""Maxima are no less than its negative, so that what is -inf has the power 0."""
SMALLEST = 1.0e-30
"""Sums of powers are no less, so that shares of nothing are 0."""
FINITE: dict[Element, float] = {"f16": 65504.0, "bf16": 2.0**128 - 2.0**120, "f32": LARGEST}
"""The greatest number of each type that stays one: maxima are no less than its negative."""
OF_ALL = 2
"""The first running numbers, which are read again: maximum and sum."""
Dims = list[tuple[Axis, ...]]


@dataclass(frozen=True)
class Vectors:
    """Instructions on buffers whose positions lie along the same dimensions."""

    code: Code
    work: Work
    dims: Dims
    box: Box
    source: object

    def unary(self, kind: str, x: Fetched, out: Fetched, alpha: float = 0.0, beta: float = 0.0) -> None:
        """Adds a function of each element."""
        made = isa.Unary(
            kind=kind, in_view=self.view(x), out_view=self.view(out), box=self.box, alpha=alpha, beta=beta,
            scales=self.scales(x, out),
        )  # fmt: skip
        self.code.emit(made, x.buffer, out.buffer)

    def binary(self, kind: str, a: Fetched, b: Fetched, out: Fetched, act: Act | None = None) -> None:
        """Adds a function of two elements."""
        views = self.view(a), self.view(b), self.view(out)
        made = isa.Binary(
            kind=kind, a_view=views[0], b_view=views[1], out_view=views[2], box=self.box, act=act,
            scales=self.scales(a, b, out),
        )  # fmt: skip
        self.code.emit(made, a.buffer, b.buffer, out.buffer)

    def view(self, held: Fetched) -> Any:
        return view_of(self.code, self.work, held, self.dims)

    def scales(self, *held: Fetched) -> Scales | None:
        """What integers among these stand for: they are the layer's operand or its result."""
        found = scales_of(self.source)
        if found is None or not has_integers(each.element for each in held):
            return None
        ends = (*((each, found[k]) for k, each in self.work.operands.items()), (self.work.out, found[-1]))
        known = {each.buffer: scale for each, scale in ends if has_integers((each.element,))}
        return tuple(known.get(each.buffer, Scale()) for each in held)

    def limited(self, passes: Affine) -> Vectors:
        """The same where this number is 1 or more."""
        return replace(self, box=limited_box(self.box, passes))


@dataclass(frozen=True)
class NormKernel(ElementKernel):
    """Kernels of norms and softmax; `kept`: the axes of their statistics."""

    kept: frozenset[Axis] = frozenset()

    def all(self, code: Code, work: Work) -> Vectors:
        """A piece."""
        dims = self.dims(code, work)
        return Vectors(code, work, dims, self.box(code, work, dims), self.layer.source)

    def of_kept(self, code: Code, work: Work) -> Vectors:
        """Numbers of the positions of a piece that stay."""
        dims = [tuple(axis for axis in own if axis in self.kept) for own in self.dims(code, work)]
        return Vectors(code, work, dims, limited_by_all(self.box(code, work, dims), work.when), self.layer.source)

    def scratches(self, count: int) -> tuple[Scratch, ...]:
        """An f32 buffer of a piece, and so many of what stays of it."""
        kept = tuple(axis for axis in self.layer.axes if axis in self.kept)
        return Scratch(self.layer.axes, "f32"), *([Scratch(kept, "f32")] * count)


@dataclass(frozen=True)
class StatisticsKernel(NormKernel):
    """Two numbers of what is reduced, which stand in the result's two planes."""

    @property
    def adds(self) -> bool:
        """They are reduced one after the other."""
        return True

    def narrow(self, code: Code, work: Work) -> None:
        """Nothing: they are as wide as the result."""

    def reduce(self, code: Code, work: Work, kind: str, x: Fetched, out: Fetched) -> None:
        """Adds a piece to what the loop over pieces has reduced before."""
        own = self.all(code, work)
        axes = self.over(own.dims, frozenset(self.layer.combine) - self.kept)
        made = isa.Reduce(
            kind=kind, in_view=own.view(x), out_view=own.view(out), axes=axes, box=own.box, accumulate=work.level,
            scales=own.scales(x, out),
        )
        code.emit(made, x.buffer, out.buffer)


@dataclass(frozen=True)
class MomentsKernel(StatisticsKernel):
    """Mean, and variance, or mean square.  Sums are of what is beyond a shift, the largest element of the first piece,
    so that squares do not cancel; shift and shares of the sums so far wait beside the result.

    Source: Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983.
    """

    parts: int = 1
    """Clusters that make an equal part each of what is reduced."""

    def of_parts(self, parts: int, *, are_equal: bool) -> MomentsKernel:
        """Of such a part."""
        if not are_equal:
            raise NotLowered(f"{self.layer.name}: means of parts that are not equal")
        return replace(self, parts=parts)

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """What is beyond the shift; the shift, and shares of both sums so far; both sums of this pass."""
        kept = tuple(axis for axis in self.layer.axes if axis in self.kept)
        known = (Scratch(kept, "f32", plane=k, is_read=True, is_written=True) for k in range(len(RUNNING)))
        return Scratch(self.layer.axes, "f32"), *known, *([Scratch(kept, "f32")] * 2)

    @property
    def is_of_squares(self) -> bool:
        """The mean counts as 0, and so does the shift."""
        op: Any = self.layer.source
        return bool(op.rms)

    def write(self, code: Code, work: Work) -> None:
        """Adds the instructions of a piece."""
        x, (wide, shift, _, _, total, squares) = work.operands[0], work.scratch
        own, kept = self.all(code, work), self.of_kept(code, work)
        first = work.begun * -1 + 1 - (ZERO if work.level is None else Affine.index(work.level))
        axes = self.over(own.dims, frozenset(self.layer.combine) - self.kept)
        most = isa.Reduce(
            kind="max", in_view=own.view(x), out_view=own.view(shift), axes=axes, box=limited_box(own.box, first),
            scales=own.scales(x, shift),
        )  # fmt: skip
        code.emit(most, x.buffer, shift.buffer)
        if self.is_of_squares:
            kept.limited(first).unary("clip", shift, shift)
        own.binary("sub", x, shift, wide)
        self.reduce(code, work, "sum", wide, total)
        own.binary("mul", wide, wide, wide)
        self.reduce(code, work, "sum", wide, squares)

    def settle(self, code: Code, work: Work) -> None:
        """Adds the shares of passes before, and what they make of the shift."""
        (_, shift, mean, square, total, squares), out = work.scratch, work.out.both()
        share = math.prod(axis.extent for axis in self.kept) / math.prod(axis.extent for axis in self.layer.axes)
        kept = self.of_kept(code, work)
        for own, known in ((total, mean), (squares, square)):
            kept.unary("affine", own, own, share * self.parts)
            kept.limited(work.begun).binary("add", own, known, own)
            kept.unary("identity", own, known)
        kept.binary("add", shift, total, out[0])
        if not self.is_of_squares:
            kept.binary("mul", total, total, total)
            kept.binary("sub", squares, total, squares)
        kept.unary("clip", squares, out[1], 0.0, LARGEST)

    def join_part(self, code: Code, work: Work, other: Fetched, number: int) -> None:
        """Adds the mean and the variance, or the mean square, of another part to those of so many."""
        (_, apart, share, *_), (mean, variance) = work.scratch, work.out.both()
        another, spread = other.both()
        kept = self.of_kept(code, work)
        kept.binary("sub", another, mean, apart)
        kept.unary("affine", apart, share, 1 / (number + 1))
        kept.binary("add", mean, share, mean)
        kept.unary("affine", spread, share, 1 / (number + 1))
        kept.unary("affine", variance, variance, number / (number + 1))
        kept.binary("add", variance, share, variance)
        if not self.is_of_squares:
            kept.binary("mul", apart, apart, apart)
            kept.unary("affine", apart, apart, number / (number + 1) ** 2)
            kept.binary("add", variance, apart, variance)


@dataclass(frozen=True)
class PowersKernel(StatisticsKernel):
    """The maximum, and the sum of powers below it: with a larger maximum the sum of pieces before is less."""

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """Powers, and of each sum the factor of what was there before."""
        return self.scratches(1)

    def write(self, code: Code, work: Work) -> None:
        """Adds the instructions of a piece."""
        x, (powers, factor), (most, total) = work.operands[0], work.scratch, work.out.both()
        own, kept = self.all(code, work), self.of_kept(code, work)
        later = None if work.level is None else kept.limited(Affine.index(work.level))
        if later is not None:
            later.unary("identity", most, factor)
        self.reduce(code, work, "max", x, most)
        kept.unary("clip", most, most, -LARGEST, LARGEST)
        if later is not None:
            later.binary("sub", factor, most, factor)
            later.unary("exp", factor, factor)
            later.binary("mul", total, factor, total)
        own.binary("sub", x, most, powers)
        own.unary("exp", powers, powers)
        self.reduce(code, work, "sum", powers, total)

    def join(self, code: Code, work: Work, before: Fetched, begun: Affine) -> None:
        """Both sums below the larger maximum, where `begun` is 1 or more."""
        own, (_, factor), (most, total) = self.of_kept(code, work).limited(begun), work.scratch, work.out.both()
        known, earlier = before.both()
        own.binary("max", known, most, factor)
        for each, its in ((known, earlier), (most, total)):
            own.binary("sub", each, factor, each)
            own.unary("exp", each, each)
            own.binary("mul", its, each, its)
        own.unary("identity", factor, most)
        own.binary("add", total, earlier, total)


@dataclass(frozen=True)
class WeightsKernel(SoftmaxKernel, NormKernel):
    """Weights of all keys at a time; of a row that sees no key they are 0.

    `is_divided`: they are divided by their sum; if not, the reader's sums are.  `by_product`: the product before makes
    them, once the maximum is known; a way out takes nothing for powers, and a vector unit takes long.
    """

    is_divided: bool = True
    by_product: bool = False

    @property
    def repeats(self) -> bool:
        return self.by_product

    @property
    def may_repeat(self) -> bool:
        """Whether a product may make its powers: of floats, where no key is hidden."""
        op: Any = self.layer.source
        return scales_of(op) is None and getattr(op, "causal_from", None) is None

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """The maximum in the type of elements, and the sum."""
        kept, total = tuple(axis for axis in self.layer.axes if axis in self.kept), None if self.is_divided else SUM
        return Scratch(kept, None), Scratch(kept, "f32", plane=total, is_written=not self.is_divided)

    @property
    def kept_passes(self) -> tuple[int, ...]:
        """A division, as `write` has it."""
        return (1, 1, 4)[: 2 + self.is_divided]

    @property
    def steps(self) -> Steps:
        return ()  # several instructions

    def passes(self, size: int) -> int:
        """Maximum, powers, and their sum, which is of f32; so are weights that are divided."""
        powers = len(self.layer.operands) - 1 if self.by_product else 5
        return 1 + powers + ELEMENT_BYTES["f32"] // size * (1 + self.is_divided)

    def reduce(self, code: Code, work: Work, kind: str, of: Fetched, out: Fetched) -> None:
        """Adds a reduction along the keys."""
        own = self.all(code, work)
        axes = self.over(own.dims, self.whole)
        made = isa.Reduce(kind=kind, in_view=own.view(of), out_view=own.view(out), axes=axes, box=own.box)
        code.emit(made, of.buffer, out.buffer)

    def powers(self, code: Code, work: Work, most: Fetched) -> None:
        """Adds the powers below a maximum."""
        if not self.by_product:
            self.all(code, work).binary("sub", work.operands[0], most, work.out, Act("exp"))
            return
        assert work.powers is not None, "there is a product before"
        self.of_kept(code, work).unary("affine", most, most, -1.0)
        mask = work.operands.get(1)
        if mask is not None:
            self.all(code, work).binary("add", mask, most, work.out)
        work.powers(most if mask is None else work.out, work.out)

    def divide(self, code: Code, work: Work, total: Fetched) -> None:
        """Adds the division by the sum: one of every element takes as long as four products."""
        self.of_kept(code, work).unary("reciprocal", total, total)
        self.all(code, work).binary("mul", work.out, total, work.out)

    def write(self, code: Code, work: Work) -> None:
        """Adds the instructions of a piece."""
        self.mask(code, work)
        x, (most, total), out = work.operands[0], work.scratch, work.out
        kept, finite = self.of_kept(code, work), FINITE[x.element]
        self.reduce(code, work, "max", x, most)
        kept.unary("clip", most, most, -finite, finite)
        self.powers(code, work, most)
        self.reduce(code, work, "sum", out, total)
        kept.unary("clip", total, total, SMALLEST, LARGEST)
        if self.is_divided:
            self.divide(code, work, total)


@dataclass(frozen=True)
class OnlineSoftmaxKernel(WeightsKernel):
    """Weights of the keys so far.  Maximum, sum, and the factor of the weights of passes before wait with the context.
    """

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """The maximum in the type of elements, that of all passes, the new sum; the running numbers."""
        kept = tuple(axis for axis in self.layer.axes if axis in self.kept)
        known = (Scratch(kept, "f32", plane=k, is_read=k < OF_ALL, is_written=True) for k in range(len(RUNNING)))
        return Scratch(kept, None), *([Scratch(kept, "f32")] * 2), *known

    @property
    def is_online(self) -> bool:
        """Yes."""
        return True

    @property
    def kept_passes(self) -> tuple[int, ...]:
        """Two powers and two divisions, as `write` has them."""
        return 1, 1, 1, 1, 4, 1, 1, 4, 1, 1, 4

    def write(self, code: Code, work: Work) -> None:
        """Adds the instructions of a piece."""
        self.mask(code, work)
        x, (narrow, top, sums, most, total, factor), out = work.operands[0], work.scratch, work.out
        kept = self.of_kept(code, work)
        later = kept.limited(work.begun)
        self.reduce(code, work, "max", x, narrow)
        kept.unary("clip", narrow, top, -FINITE[x.element], FINITE[x.element])
        later.binary("max", top, most, top)
        kept.unary("identity", top, narrow)
        self.powers(code, work, narrow)
        self.reduce(code, work, "sum", out, sums)
        kept.unary("clip", sums, sums, SMALLEST, LARGEST)
        later.binary("sub", most, top, factor)
        later.unary("exp", factor, factor)
        kept.unary("identity", top, most)
        later.binary("mul", factor, total, total if not self.is_divided else factor)
        if not self.is_divided:
            later.binary("add", total, sums, sums)
            kept.unary("identity", sums, total)
            return
        later.binary("add", sums, factor, sums)
        later.binary("div", factor, sums, factor)
        kept.unary("identity", sums, total)
        self.divide(code, work, sums)


@dataclass(frozen=True)
class NormalisedKernel(NormKernel):
    """Every element less the mean, divided by the deviation, with a scale and a shift."""

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """Elements on the way, and deviations."""
        return self.scratches(1)

    def write(self, code: Code, work: Work) -> None:
        """Adds the instructions of a piece."""
        op: Any = self.layer.source
        x, (wide, factor), (mean, variance) = work.operands[0], work.scratch, work.operands[1].both()
        kept, own = self.of_kept(code, work), self.all(code, work)
        kept.unary("affine", variance, factor, 1.0, op.epsilon)
        kept.unary("sqrt", factor, factor)
        kept.unary("reciprocal", factor, factor)
        steps = [] if op.rms else [("sub", mean)]
        steps.append(("mul", factor))
        extra = [work.operands[k] for k in (2, 3) if k in work.operands]
        steps += zip(("mul", "add"), extra, strict=False)
        for k, (kind, other) in enumerate(steps):
            is_last = k == len(steps) - 1
            own.binary(kind, wide if k else x, other, work.out if is_last else wide, self.act if is_last else None)


@dataclass(frozen=True)
class SharesKernel(NormKernel):
    """Powers below the maximum, divided by their sum."""

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """Powers, and what they are multiplied with."""
        return self.scratches(1)

    def write(self, code: Code, work: Work) -> None:
        """Adds the instructions of a piece."""
        x, (powers, factor), (most, total) = work.operands[0], work.scratch, work.operands[1].both()
        own = self.all(code, work)
        self.of_kept(code, work).unary("reciprocal", total, factor)
        own.binary("sub", x, most, powers)
        own.unary("exp", powers, powers)
        own.binary("mul", powers, factor, work.out)


__all__ = ["MomentsKernel", "NormalisedKernel", "OnlineSoftmaxKernel", "PowersKernel", "SharesKernel", "WeightsKernel"]
