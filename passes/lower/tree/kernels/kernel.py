# Tests: test/passes/lower/tree/test_lower_plan.py
"""What cores do with a piece of a layer: which operands they hold, how these lie, and the instructions.

A kernel is made for a layer once; it says how its axes become the dimensions of instructions.  `nest.py` writes loops
and copies around it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.graph import ActAttr
from frustum.dialects.isa.program import ZERO, Act, Affine, Element, Memory, Span, View
from frustum.dialects.target.durations import Steps
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.fetch import Fetched
from frustum.passes.lower.tree.spans import NotLowered, span_of


@dataclass(frozen=True)
class Want:
    """An operand, by number, in a core's memory: coordinates of its dimensions, outermost first."""

    operand: int
    memory: Memory
    dims: tuple[Position, ...]
    planes: int = 1
    """Numbers of an element."""

    @cached_property
    def axes(self) -> frozenset[Axis]:
        """Axes of the layer that move it."""
        return frozenset(axis for each in self.dims for axis, _ in each.refined().terms)


@dataclass(frozen=True)
class Work:
    """A piece on its buffers: positions of all axes, operands by number, the result, and sums so far.

    `level`: of the loop over whose passes sums go on, from `acc`; `is_continued`: they begin with what is there, and
    `left` is how many passes are still to come, so that the way out is that of the one for which it is 0.
    """

    spans: Mapping[Axis, Span]
    operands: Mapping[int, Fetched]
    out: Fetched
    acc: Fetched | None = None
    level: int | None = None
    is_continued: bool = False
    left: Affine | None = None
    still: tuple[tuple[int, Affine], ...] = ()
    """Of each loop over whose passes sums go on its level, and how many of its passes are still to come."""
    scratch: tuple[Fetched, ...] = ()
    when: tuple[Affine, ...] = ()
    """Numbers that are 1 or more in passes of loops outside in which anything is reduced."""
    begun: Affine = ZERO
    """A number that is 1 or more where passes before have reduced something."""
    powers: Callable[[Fetched, Fetched], None] | None = None
    """Adds the product before once more: powers of e of it and of what is added to it, in another buffer."""

    def span(self, axis: Axis) -> Span:
        return span_of(self.spans, axis)


@dataclass(frozen=True)
class Scratch:
    """A further buffer of a piece: of these axes, in this type (None: that of the first operand); `plane`: the running
    number that is in it, which comes from where sums wait (`is_read`) and goes back there (`is_written`)."""

    axes: tuple[Axis, ...]
    element: Element | None
    plane: int | None = None
    is_read: bool = False
    is_written: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether a pass goes on with the number that the one before has written."""
        return self.plane is not None and self.is_read and self.is_written


@dataclass(frozen=True)
class Kernel(ABC):
    """How cores make a layer.

    `whole`: axes of which a piece has all positions; `out`: the axes of the result as a piece of it lies in a core;
    `order`: of loops over pieces, outermost first; `is_nothing`: it leaves all work to its reader.
    """

    layer: Layer
    wants: tuple[Want, ...]
    out: tuple[Axis, ...]
    whole: frozenset[Axis] = frozenset()
    is_nothing: bool = False
    padded: frozenset[int] = frozenset()
    """Operands beyond whose ends instructions know what to take."""
    may_split: bool = False
    """Whether an axis that is clipped may begin a dimension of its own."""
    planes: int = 1
    """Numbers of an element of the result."""

    @abstractmethod
    def write(self, code: Code, work: Work) -> None:
        """Adds the instructions of a piece."""

    @abstractmethod
    def groups(self) -> Sequence[tuple[Axis, ...]]:
        """Axes that share a dimension of an instruction, outermost first."""

    def dense(self) -> Sequence[tuple[Axis, ...]]:
        """Those of which a piece has positions side by side of the dimension that they make up."""
        return ()

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """Further buffers of a piece."""
        return ()

    @property
    def adds(self) -> bool:
        """Whether pieces of what is summed may follow each other."""
        return bool(self.layer.macs)

    @property
    def goes_on(self) -> bool:
        """Whether slices of what is summed may follow each other in a pass."""
        return self.adds

    @property
    def is_online(self) -> bool:
        """Whether passes of loops outside may cut what it needs all of, one after the other."""
        return False

    def passes(self, size: int) -> int:
        """Of the vector unit over elements of so many bytes."""
        return max(1, self.layer.passes)

    @property
    def steps(self) -> Steps:
        """Of an instruction that makes all of it, what the vector unit does; nothing where `passes` say it."""
        return ()

    @property
    def kept_passes(self) -> Sequence[int]:
        """Passes of instructions over numbers of positions that stay."""
        return ()

    def narrow(self, code: Code, work: Work) -> None:
        """Adds what makes the result of wider sums, once these are whole."""
        raise NotLowered(f"{self.layer.name}: sums in pieces")

    def join(self, code: Code, work: Work, before: Fetched, begun: Affine) -> None:
        """Adds what passes of loops outside have made before, where `begun` is 1 or more, and all of `work.when`."""
        raise NotLowered(f"{self.layer.name}: sums over passes of a loop")

    def of_parts(self, parts: int, *, are_equal: bool) -> Kernel:
        """The same where so many clusters make a part each of what is reduced.  NotLowered where these cannot be
        joined."""
        return self

    def join_part(self, code: Code, work: Work, other: Fetched, number: int) -> None:
        """Adds what another cluster has made to what so many have: their parts are equal."""
        self.join(code, work, other, Affine(1))

    def settle(self, code: Code, work: Work) -> None:  # noqa: B027
        """Adds what makes the result of a pass, with running numbers, once all of its pieces are summed."""

    def rescale(self, code: Code, work: Work) -> None:
        """Adds what makes sums of passes before those of a new maximum."""
        raise NotLowered(f"{self.layer.name}: sums of what is weighed below a maximum that changes")

    @property
    def repeats(self) -> bool:
        """Whether it makes the product before once more."""
        return False

    @property
    def may_repeat(self) -> bool:
        """Whether it is a product that may be made once more, or lets one be."""
        return False

    @property
    def act(self) -> Act | None:
        return act_of(self.layer.source)


def act_of(op: object) -> Act | None:
    """The activation on an operation's way out."""
    act = getattr(op, "act", None)
    return Act(str(act.kind), float(act.alpha), float(act.beta)) if isinstance(act, ActAttr) else _plain_act(act)


def _plain_act(act: object) -> Act | None:
    if act is None:
        return None
    return Act(str(act.kind), float(act.alpha), float(act.beta))  # type: ignore[attr-defined]


def coordinate(axis: Axis) -> Position:
    return Position.of(axis)


def joined_span(code: Code, axes: Sequence[Axis], work: Work) -> Span:
    """Axes whose positions lie one behind the other in buffers, as one dimension.  NotLowered where two are clipped."""
    found: Span | None = None
    for axis in reversed(axes):
        span = code.plain(work.span(axis))
        if span.extent == 1 and code.is_inside(span):
            continue
        if found is None:
            found = span
        elif code.is_inside(found):
            limit = None if span.limit is None else span.limit * found.extent
            extent = found.extent
            found = Span(span.start * extent, span.extent * extent, span.bound * extent, limit)
        else:
            raise NotLowered(f"axes {', '.join(a.name for a in axes)} in one dimension, of which two are clipped")
    return found or Span(ZERO, 1, 1)


def placed_span(code: Code, axes: Sequence[Axis], work: Work) -> Span:
    """Where a piece is in the dimension that axes make up.  NotLowered where its positions are not side by side."""
    found, weight = Span(ZERO, 1, 1), 1
    for axis in reversed(axes):
        span = code.plain(work.span(axis))
        limit = None if span.limit is None else span.limit * weight
        if found.extent == weight and code.is_inside(found):
            found = Span(span.start * weight, span.extent * weight, span.bound * weight, limit)
        elif span.extent == 1 and code.is_inside(span):
            end = found.bound if found.limit is None else found.limit
            limit = None if code.is_inside(found) else span.start * weight + end
            found = Span(found.start + span.start * weight, found.extent, axis.extent * weight, limit)
        else:
            raise NotLowered(f"positions along {', '.join(a.name for a in axes)} that are not side by side")
        weight *= axis.extent
    return found


def stride_of(held: Fetched, axes: Sequence[Axis], code: Code, work: Work) -> int:
    """Bytes from one position to the next of axes that are one dimension; 0 where the buffer has none of them."""
    steps = {axis: dim.stride for dim in held.dims for axis, factor in dim.coordinate.refined().terms if factor == 1}
    live = [axis for axis in axes if not (work.span(axis).extent == 1 and code.is_inside(work.span(axis)))]
    strides = [steps.get(axis, 0) for axis in live]
    extents = [work.span(axis).extent for axis in live]
    for outer, inner, extent in zip(strides, strides[1:], extents[1:], strict=False):
        if outer != inner * extent:
            raise NotLowered(f"axes {', '.join(a.name for a in live)} do not lie one behind the other in a core")
    return strides[-1] if strides else 0


def view_of(code: Code, work: Work, held: Fetched, dims: Sequence[Sequence[Axis]]) -> View:
    """A buffer with these axes as the four dimensions; of dimensions it has not the stride is 0."""
    return View(held.element, Affine(held.offset), tuple(stride_of(held, axes, code, work) for axes in dims))


def padded(groups: Iterable[Sequence[Axis]]) -> list[tuple[Axis, ...]]:
    """Four dimensions, those that are missing in front."""
    found = [tuple(each) for each in groups]
    return [()] * (4 - len(found)) + found
