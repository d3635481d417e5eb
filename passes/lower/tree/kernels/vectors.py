# Tests: test/passes/lower/tree/test_lower_plan.py
"""Kernels of the vector unit: elements, windows, reductions, softmax, norms, resizing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.access import Guard
from frustum.dialects.axes.axis import Axis, leaves
from frustum.dialects.axes.network import Layer, Operand
from frustum.dialects.extents import ceil_div
from frustum.dialects.functions import Reduction
from frustum.dialects.isa.program import ZERO, Affine, Box, Span, View
from frustum.dialects.target.durations import Steps, vector_steps
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.kernels.integers import scaled, scales_of, wide_scales
from frustum.passes.lower.tree.kernels.kernel import (
    Kernel,
    Want,
    Work,
    coordinate,
    joined_span,
    padded,
    placed_span,
    stride_of,
    view_of,
)
from frustum.passes.lower.tree.kernels.windows import Window, window_of
from frustum.passes.lower.tree.spans import NotLowered


def axes_of(operand: Operand) -> frozenset[Axis]:
    """Axes of a layer on which it depends what is read of an operand."""
    positions = [position for piece in operand.pieces for _, position in piece.by_leaf if position is not None]
    positions += [guard.position for piece in operand.pieces for guard in piece.guards]
    return frozenset(axis for each in positions for axis, _ in each.refined().terms)


def plain_want(layer: Layer, k: int, axes: Sequence[Axis]) -> Want:
    """Operand k with one dimension for each of these axes that moves it."""
    moved = axes_of(layer.operands[k])
    return Want(k, "nram", tuple(coordinate(axis) for axis in axes if axis in moved))


def alike(axes: Sequence[Axis], signature: Any) -> list[tuple[Axis, ...]]:
    """Neighbours that everything reads alike, together."""
    found = list[tuple[Axis, ...]]()
    for axis in axes:
        if found and signature(found[-1][-1]) == signature(axis):
            found[-1] = (*found[-1], axis)
        else:
            found.append((axis,))
    return found


def clipped_apart(code: Code, work: Work, groups: Iterable[Sequence[Axis]]) -> list[tuple[Axis, ...]]:
    """Groups as four dimensions; an axis that is clipped begins one."""
    live = list[tuple[Axis, ...]]()
    for group in groups:
        first = True
        for axis in group:
            span = code.plain(work.span(axis))
            is_clipped = not code.is_inside(span)
            if is_clipped or (first and span.extent > 1):
                live.append((axis,))
                first = False
            elif span.extent > 1:
                live[-1] = (*live[-1], axis)
    if len(live) > 4:
        names = ", ".join(axis.name for own in live for axis in own)
        raise NotLowered(f"pieces of {len(live)} dimensions along {names}")
    return padded(live)


@dataclass(frozen=True)
class ElementKernel(Kernel):
    """Kernels whose operands are read at positions of the layer's own axes; axes that all operands read alike are one
    dimension.  Of more than four dimensions pieces have one position along the first ones."""

    may_split: bool = True

    def groups(self) -> Sequence[tuple[Axis, ...]]:
        return self._groups

    @cached_property
    def _groups(self) -> list[tuple[Axis, ...]]:
        moved = [want.axes for want in self.wants]
        made = self.layer.result.axes
        return alike(self.axes, lambda axis: (axis in self.whole, axis in made, *(axis in each for each in moved)))

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.layer.axes

    def dims(self, code: Code, work: Work) -> list[tuple[Axis, ...]]:
        """Groups as four dimensions; an axis that is clipped begins one."""
        return clipped_apart(code, work, self._groups)

    def over(self, dims: Sequence[Sequence[Axis]], axes: frozenset[Axis]) -> tuple[int, ...]:
        """The dimensions that axes are in; where all of them have one position, one that is free."""
        found = tuple(number for number, own in enumerate(dims) if axes & {*own})
        free = [number for number, own in enumerate(dims) if not own]
        if not found and not free:
            raise NotLowered(f"{self.layer.name}: pieces of four dimensions, and none for what is combined")
        return found or (free[-1],)

    def box(self, code: Code, work: Work, dims: Sequence[Sequence[Axis]]) -> Box:
        """Positions of a piece along these dimensions."""
        return Box.of(*(joined_span(code, axes, work) for axes in dims))


@dataclass(frozen=True)
class UnaryKernel(ElementKernel):
    """A function of each element."""

    def write(self, code: Code, work: Work) -> None:
        """Adds the instruction of a piece."""
        op: Any = self.layer.source
        dims, held = self.dims(code, work), work.operands[0]
        act = op.act if isinstance(op, g.UnaryOp) else None
        views = view_of(code, work, held, dims), view_of(code, work, work.out, dims)
        made = isa.Unary(
            kind="identity" if act is None else str(act.kind),
            alpha=0.0 if act is None else float(act.alpha), beta=0.0 if act is None else float(act.beta),
            in_view=views[0], out_view=views[1], box=self.box(code, work, dims), scales=scaled(op, *views),
        )  # fmt: skip
        code.emit(made, held.buffer, work.out.buffer)


@dataclass(frozen=True)
class BinaryKernel(ElementKernel):
    """A function of two elements."""

    def write(self, code: Code, work: Work) -> None:
        """Adds the instruction of a piece."""
        op: Any = self.layer.source
        dims, (a, b) = self.dims(code, work), (work.operands[0], work.operands[1])
        views = [view_of(code, work, each, dims) for each in (a, b, work.out)]
        made = isa.Binary(
            kind=str(op.kind), a_view=views[0], b_view=views[1], out_view=views[2], act=self.act,
            box=self.box(code, work, dims), scales=scaled(op, *views),
        )  # fmt: skip
        code.emit(made, a.buffer, b.buffer, work.out.buffer)


@dataclass(frozen=True)
class SoftmaxKernel(ElementKernel):
    """All of an axis in a piece: maximum, powers, sums and division are one instruction."""

    @property
    def steps(self) -> Steps:
        return vector_steps("softmax", self)

    def write(self, code: Code, work: Work) -> None:
        """Adds the instructions of a piece."""
        self.mask(code, work)
        dims, held = self.dims(code, work), work.operands[0]
        box, view = self.box(code, work, dims), view_of(code, work, held, dims)
        (axis, *_) = self.over(dims, self.whole)
        out = view_of(code, work, work.out, dims)
        scales = scaled(self.layer.source, view, out)
        made = isa.Softmax(axis=axis, in_view=view, out_view=out, box=box, scales=scales)
        code.emit(made, held.buffer, work.out.buffer)

    def mask(self, code: Code, work: Work) -> None:
        """Adds a mask to the operand, and takes away what is hidden."""
        dims, held = self.dims(code, work), work.operands[0]
        if 1 in work.operands:
            box, view, mask = self.box(code, work, dims), view_of(code, work, held, dims), work.operands[1]
            added = isa.Binary(kind="add", a_view=view, b_view=view_of(code, work, mask, dims), out_view=view, box=box)
            code.emit(added, held.buffer, mask.buffer, held.buffer)
        self.hide(code, work, dims)

    def hide(self, code: Code, work: Work, dims: Sequence[tuple[Axis, ...]]) -> None:
        """Keys behind a row of queries are nothing."""
        ahead = getattr(self.layer.source, "causal_from", None)
        if ahead is None:
            return
        keys, *more = self.whole
        if more:
            raise NotLowered(f"{self.layer.name}: keys that are {1 + len(more)} axes")
        (domain,) = self.layer.domain
        rows = [axis for axis, factor in domain.refined().terms if factor > 0]
        others = [axis for axes in dims for axis in axes if axis is not keys and axis not in rows]
        turned = [tuple(others), (keys,), (), tuple(rows)]
        held = work.operands[0]
        view = view_of(code, work, held, turned)
        spans = [joined_span(code, axes, work) for axes in turned]
        if len(rows) != 1:
            raise NotLowered(f"{self.layer.name}: rows of queries that are {len(rows)} axes")
        spans[1], spans[3] = work.span(keys), work.span(rows[0])
        code.emit(isa.Hide(in_view=view, out_view=view, ahead=ahead, box=Box.of(*spans)), held.buffer, held.buffer)


@dataclass(frozen=True)
class NormaliseKernel(ElementKernel):
    """All that a mean is of in a piece."""

    @property
    def steps(self) -> Steps:
        return vector_steps("normalise", self)

    def write(self, code: Code, work: Work) -> None:
        """Adds the instruction of a piece."""
        op: Any = self.layer.source
        dims, held = self.dims(code, work), work.operands[0]
        extra = [work.operands.get(k) for k in (2, 3)]
        views = [None if each is None else view_of(code, work, each, dims) for each in extra]
        made = isa.Normalise(
            in_view=view_of(code, work, held, dims), scale_view=views[0], shift_view=views[1],
            out_view=view_of(code, work, work.out, dims), rms=op.rms, epsilon=op.epsilon, act=self.act,
            axes=self.over(dims, self.whole),
            box=self.box(code, work, dims),
        )  # fmt: skip
        code.emit(made, held.buffer, *(None if each is None else each.buffer for each in extra), work.out.buffer)


@dataclass(frozen=True)
class LrnKernel(Kernel):
    """All channels in a piece: squares of neighbours, sums and powers are one instruction."""

    @property
    def steps(self) -> Steps:
        return vector_steps("lrn", self.layer.source)

    def groups(self) -> Sequence[tuple[Axis, ...]]:
        images, channels, *behind = map(leaves, self.layer.result.dims)
        rows = tuple(axis for own in behind[:-1] for axis in own)
        return [images, channels, rows, behind[-1] if behind else ()]

    def write(self, code: Code, work: Work) -> None:
        """Adds the instruction of a piece."""
        op: Any = self.layer.source
        dims, held, count = self.groups(), work.operands[0], g.shape_of(op.x)[1]
        views = view_of(code, work, held, dims), view_of(code, work, work.out, dims)
        made = isa.Lrn(
            in_view=views[0], out_view=views[1], scales=scaled(op, *views),
            channels=Span(ZERO, count, count), size=op.size,
            alpha=op.alpha, beta=op.beta, bias=op.bias, box=Box.of(*(joined_span(code, axes, work) for axes in dims)),
        )  # fmt: skip
        code.emit(made, held.buffer, work.out.buffer)


@dataclass(frozen=True)
class NothingKernel(ElementKernel):
    """Statistics that their reader makes anew from all of what they are of."""

    is_nothing: bool = True

    def write(self, code: Code, work: Work) -> None:
        """Nothing."""


@dataclass(frozen=True)
class ReduceKernel(ElementKernel):
    """Pieces are pieces of the operand; parts of what is summed follow each other in one loop."""

    def write(self, code: Code, work: Work) -> None:
        """Adds the instruction of a piece."""
        op: Any = self.layer.source
        dims, held = self.dims(code, work), work.operands[0]
        summed = frozenset(self.layer.combine) - frozenset(self.layer.result.axes)
        count = math.prod(axis.extent for axis in summed)
        axes = self.over(dims, summed)
        box = self.box(code, work, dims)
        out = work.out if work.acc is None else work.acc
        is_share = op.kind == Reduction.MEAN and work.acc is None
        scales = scales_of(op) if work.acc is None else wide_scales(scales_of(op), is_read=False)
        made = isa.Reduce(
            kind="sum" if op.kind == Reduction.MEAN and not is_share else str(op.kind),
            in_view=view_of(code, work, held, dims), out_view=view_of(code, work, out, dims),
            axes=axes, box=box, scale=1 / count if is_share else 1.0, accumulate=work.level, scales=scales,
        )  # fmt: skip
        code.emit(made, held.buffer, out.buffer)


@dataclass(frozen=True)
class PooledEnds:
    """The ends of a pool's operand along a window's coordinate: the window begins `pad` positions before the first of
    `size`."""

    pad: int
    size: int

    def is_padding(self, guard: Guard) -> bool:
        """Whether what lies beyond a guard is the window's own padding, and not that of a view that is read."""
        own = guard.position.refined()
        return own.is_linear and own.offset == -self.pad and (guard.start, guard.stop) == (0, self.size)


def pooled_ends(layer: Layer, windows: Sequence[Window]) -> list[PooledEnds]:
    """Of each window."""
    op: Any = layer.source
    first = 0 if op.is_of_slices else 2
    return [PooledEnds(op.pads[k], g.shape_of(op.x)[first + k]) for k in pooled_dims(layer, windows)]


def pooled_dims(layer: Layer, windows: Sequence[Window]) -> list[int]:
    """Which of the numbers of a pool are of each window: taps are in their order."""
    op: Any = layer.source
    dims = dict(zip(layer.combine, (k for k, extent in enumerate(op.kernel) if extent > 1), strict=True))
    return [dims[window.tap] for window in windows]


@dataclass(frozen=True)
class PoolKernel(Kernel):
    """Windows along one or two of the layer's dimensions."""

    windows: tuple[Window, ...] = ()

    def groups(self) -> Sequence[tuple[Axis, ...]]:
        return self.four

    @cached_property
    def four(self) -> list[tuple[Axis, ...]]:
        """Axes of the four dimensions: windows are in the last two."""
        moved = [window.made for window in self.windows]
        flat = [axis for own in moved for axis in own]
        first = self.out.index(flat[0]) if flat else len(self.out)
        before = tuple(axis for axis in self.out[:first])
        behind = tuple(axis for axis in self.out[first:] if axis not in flat)
        if len(moved) == 2 and behind:
            raise NotLowered(f"{self.layer.name}: windows that are not along the last dimensions")
        rows, columns = (moved[0], moved[1]) if len(moved) == 2 else (moved[0] if moved else (), behind)
        return [(), before, rows, columns]

    def write(self, code: Code, work: Work) -> None:
        """Adds the instruction of a piece."""
        op: Any = self.layer.source
        held = work.operands[0]
        box = Box.of(*(joined_span(code, axes, work) for axes in self.four))
        spans, strides, numbers, pads, ends = [], [], [], self.pads(), pooled_ends(self.layer, self.windows)
        for number, axes in enumerate(self.four[2:]):
            if number < len(self.windows):
                window = self.windows[number]
                span, stride = window_of(self.layer, 0, window.coordinate, held.dims, ends[number].is_padding)
                numbers.append((window.tap.extent, window.dilation, window.stride, *pads[number]))
            else:
                span, stride = joined_span(code, axes, work), 0
                numbers.append((1, 1, 1, 0, 0))
            strides.append(stride)
            spans.append(span)
        view = view_of(code, work, held, self.four)
        own = [*view.strides[:2], *(mine or other for mine, other in zip(strides, view.strides[2:], strict=True))]
        out = view_of(code, work, work.out, self.four)
        made = isa.Pool(
            kind=str(op.kind), in_view=View(held.element, Affine(held.offset), tuple(own)), rows=spans[0],
            cols=spans[1], box=box,
            out_view=out, scales=scaled(op, view, out, chooses=True),
            kernel=tuple(each[0] for each in numbers), dilations=tuple(each[1] for each in numbers),
            strides=tuple(each[2] for each in numbers), include_pad=bool(op.count_include_pad),
            pad_low=tuple(each[3] for each in numbers), pad_high=tuple(each[4] for each in numbers),
            act=self.act,
        )  # fmt: skip
        code.emit(made, held.buffer, work.out.buffer)

    def pads(self) -> list[tuple[int, int]]:
        """Positions that count before and behind the operand, along each window's coordinate."""
        op: Any = self.layer.source
        rank, found = len(op.kernel), list[tuple[int, int]]()
        at = (0,) if op.is_of_slices else (2, 3)
        for k, window in zip(pooled_dims(self.layer, self.windows), self.windows, strict=True):
            step, extent = op.dilations[k] // window.dilation, g.shape_of(op.x)[at[k]]
            low, high = op.pads[k], max(0, op.pads[k + rank])
            end = ceil_div(extent + low, step)
            found.append((max(0, ceil_div(low, step)), ceil_div(extent + low + high, step) - end))
        return found


@dataclass(frozen=True)
class ResizeKernel(Kernel):
    """Rows and columns are of an operand of which each piece has those that it needs."""

    four: tuple[tuple[Axis, ...], ...] = ()
    read: tuple[Position | None, ...] = ()
    """Of rows and columns what is read of the operand; None: at their own positions, or at one."""

    def groups(self) -> Sequence[tuple[Axis, ...]]:
        return self.four

    def dense(self) -> Sequence[tuple[Axis, ...]]:
        return [axes for axes, position in zip(self.four[2:], self.read, strict=True) if position is not None]

    def write(self, code: Code, work: Work) -> None:
        """Adds the instruction of a piece."""
        op: Any = self.layer.source
        held, shape = work.operands[0], g.shape_of(op.x)
        strides = [stride_of(held, axes, code, work) for axes in self.four[:2]]
        spans, boxes = list[Span](), [joined_span(code, axes, work) for axes in self.four]
        for number, position in enumerate(self.read):
            if position is not None:
                boxes[2 + number] = placed_span(code, self.four[2 + number], work)
            dim = next((d for d in held.dims if position is not None and d.coordinate == position), None)
            axes = [axis for d in held.dims for axis, _ in d.coordinate.terms]
            strides.append(stride_of(held, self.four[2 + number], code, work) if dim is None else dim.stride)
            if dim is not None:
                spans.append(Span(dim.span.start, dim.span.extent, shape[2 + number]))
            elif {*axes} & {*self.four[2 + number]}:
                spans.append(boxes[2 + number])
            else:
                spans.append(Span(ZERO, 1, 1))
        down, across = self.read
        scale = (1.0 if down is None else op.scale[0], 1.0 if across is None else op.scale[1])
        offset = (0.0 if down is None else op.offset[0], 0.0 if across is None else op.offset[1])
        out = view_of(code, work, work.out, self.four)
        view = View(held.element, Affine(held.offset), tuple(strides))
        made = isa.Resize(
            scales=scaled(op, view, out, chooses=True),
            mode=str(op.mode), rounding=str(op.rounding), scale=scale, offset=offset, in_view=view, out_view=out,
            rows=spans[0], cols=spans[1], box=Box.of(*boxes),
        )  # fmt: skip
        code.emit(made, held.buffer, work.out.buffer)
