# Tests: test/passes/lower/tree/test_lower_plan.py
"""Kernels of products: convolutions, matrix products, the products of attention; depthwise on the vector unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.graph.axes.reader import zero_of
from frustum.dialects.isa.program import Act, Affine, Box, View
from frustum.dialects.plan.carried import FACTOR, SUM
from frustum.dialects.plan.layer_cycles import MatrixProduct, products_of
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.fetch import Fetched
from frustum.passes.lower.tree.kernels.integers import product_numbers
from frustum.passes.lower.tree.kernels.kernel import (
    Kernel,
    Scratch,
    Want,
    Work,
    coordinate,
    joined_span,
    stride_of,
    view_of,
)
from frustum.passes.lower.tree.kernels.vectors import alike, axes_of, clipped_apart
from frustum.passes.lower.tree.kernels.windows import Window, is_padded, window_of, windows_of
from frustum.passes.lower.tree.spans import NotLowered

EXTRA = {"bias": "bias", "w_zero": "weight_zero", "multiplier": "multiplier", "residual": "residual"}
"""Operands of a product behind its factors, in their order, as the operation and as the instruction calls them."""


@dataclass(frozen=True)
class ProductKernel(Kernel):
    """A product on the matrix unit; `extra`: operands behind the factors, by name; `scale` of what is summed."""

    product: MatrixProduct | None = None
    extra: Mapping[str, int] | None = None
    rows: tuple[Axis, ...] = ()
    columns: tuple[Axis, ...] = ()
    images: tuple[Axis, ...] = ()
    windows: tuple[Window | None, ...] = (None, None)
    """Along rows, and along columns."""
    scale: float = 1.0
    on_vector: bool = False
    kept: frozenset[Axis] = frozenset()
    """Of sums of what an online reduction weighs, the axes of the factor of those of passes before."""
    divides: bool = False
    """Whether they are divided by the sum of the weights, behind the last pass."""
    in_passes: bool = True
    """Whether there are passes before."""
    is_power: bool = False
    """Whether powers of e come out."""

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """That factor, and that sum."""
        axes = tuple(axis for axis in self.out if axis in self.kept)
        planes = (*([FACTOR] * self.in_passes), *([SUM] * self.divides)) if self.kept else ()
        return tuple(Scratch(axes, "f32", plane=plane, is_read=True) for plane in planes)

    @property
    def goes_on(self) -> bool:
        """Sums are rescaled once in a pass."""
        return self.adds and not self.kept

    def rescale(self, code: Code, work: Work) -> None:
        """Adds that factor's product with what passes before have summed."""
        assert work.acc is not None
        self.weigh(code, work, work.scratch[0], work.acc, (work.begun, *work.when))

    def settle(self, code: Code, work: Work) -> None:
        """Adds the division by the sum of the weights."""
        if self.divides:
            axes = tuple(axis for axis in self.out if axis in self.kept)
            dims, total = clipped_apart(code, work, [(axis,) for axis in axes]), work.scratch[-1]
            box, view = Box.of(*(joined_span(code, own, work) for own in dims)), view_of(code, work, total, dims)
            made = isa.Unary(kind="reciprocal", in_view=view, out_view=view, box=box)
            code.emit(made, total.buffer, total.buffer)
            self.weigh(code, work, total, work.out, ())

    def weigh(self, code: Code, work: Work, factor: Fetched, out: Fetched, when: Iterable[Affine]) -> None:
        """Adds the product of sums with a factor of what stays, where all these numbers are 1 or more."""
        assert work.acc is not None
        dims = clipped_apart(code, work, alike(self.out, lambda axis: axis in self.kept))
        box = Box.of(*(joined_span(code, axes, work) for axes in dims))
        views = (view_of(code, work, held, dims) for held in (work.acc, factor, out))
        a, b, made = views
        weighed = isa.Binary(kind="mul", a_view=a, b_view=b, out_view=made, box=limited_by_all(box, when))
        code.emit(weighed, work.acc.buffer, factor.buffer, out.buffer)

    @cached_property
    def zero(self) -> float:
        """The element of padding, which adds nothing."""
        return zero_of(self.layer.source)

    @property
    def factors(self) -> MatrixProduct:
        assert self.product is not None
        return self.product

    def groups(self) -> Sequence[tuple[Axis, ...]]:
        """Images, groups with channels, rows and columns."""
        return [self.images, (*self.factors.groups, *self.factors.channels), self.rows, self.columns]

    def dense(self) -> Sequence[tuple[Axis, ...]]:
        return [window.made for window in self.windows if window is not None]

    @cached_property
    def act(self) -> Act | None:
        if self.is_power:
            return Act("exp")
        return Act("affine", self.scale) if self.scale != 1.0 else super().act

    def write(self, code: Code, work: Work) -> None:
        """Adds the product of a piece; on the way out what was asked for, in the last pass of its sums."""
        own = self.factors
        lines, weights = work.operands[own.lines], work.operands[own.weights]
        dims = self.groups()
        spans = [joined_span(code, axes, work) for axes in dims]
        out = view_of(code, work, work.out, dims)
        sums = joined_span(code, own.sums, work)
        of_sums = stride_of(lines, own.sums, code, work)
        of_groups = stride_of(lines, own.groups, code, work) if own.groups else 0
        count = joined_span(code, own.groups, work).extent
        if count > 1 and sums.extent > 1 and not self.on_vector and of_groups != of_sums * sums.extent:
            raise NotLowered(f"{self.layer.name}: groups that do not lie one behind the other")
        steps = [stride_of(lines, self.images, code, work), of_sums if sums.extent > 1 else of_groups]
        read, seen = [], []
        for axes, window in zip((self.rows, self.columns), self.windows, strict=True):
            if window is None:
                read.append(joined_span(code, axes, work))
                seen.append(stride_of(lines, axes, code, work))
            else:
                span, stride = window_of(
                    self.layer, own.lines, window.coordinate, lines.dims, lambda guard: guard.fill == self.zero
                )
                read.append(span)
                seen.append(stride)
        first = own.groups or own.channels
        taps = [self.tap_stride(weights, window) for window in self.windows]
        view = View(weights.element, Affine(weights.offset), (
            stride_of(weights, (*own.groups, *own.channels), code, work) if first else 0,
            stride_of(weights, own.sums, code, work), *taps,
        ))  # fmt: skip
        held = {name: work.operands[k] for name, k in (self.extra or {}).items() if k in work.operands}
        vectors = {
            f"{EXTRA[name]}_view": view_of(code, work, each, ((), dims[1], (), ()))
            for name, each in held.items() if name != "residual"
        }  # fmt: skip
        numbers: dict[str, Any] = {
            "in_view": View(lines.element, Affine(lines.offset), (*steps, *seen)), "weight_view": view, "out_view": out,
            "box": Box.of(*spans), "rows": read[0], "cols": read[1],
            "kernel": tuple(1 if w is None else w.tap.extent for w in self.windows),
            "strides": tuple(1 if w is None else w.stride for w in self.windows),
            "dilations": tuple(1 if w is None else w.dilation for w in self.windows),
            "act": self.act, **vectors,
        }  # fmt: skip
        residual = held.get("residual")
        if residual is not None:
            numbers["residual_view"] = view_of(code, work, residual, dims)
        numbers |= product_numbers(self.layer.source, numbers.get("residual_view"))
        ends = [held[name].buffer if name in held else None for name in EXTRA]
        if self.on_vector:
            code.emit(isa.Depthwise(**numbers), lines.buffer, weights.buffer, ends[0], work.out.buffer, *ends[1:])
            return
        acc = work.acc
        numbers |= {
            "acc_view": None if acc is None else view_of(code, work, acc, dims), "channels": sums, "groups": count,
            "accumulate": work.level, "continues": work.is_continued,
        }  # fmt: skip
        kept = None if acc is None else acc.buffer
        if work.left is None or not (ends or self.act):
            code.emit(isa.Conv(**numbers), lines.buffer, weights.buffer, ends[0], kept, work.out.buffer, *ends[1:])
            return
        box: Box = numbers["box"]
        if work.acc is not None and work.acc.element != work.out.element:
            for level, left in work.still:  # nothing goes out in a pass of a loop before its last one
                made = isa.Conv(**numbers | {"box": limited_box(box, left), "accumulate": level})
                code.emit(made, lines.buffer, weights.buffer, ends[0], kept, work.out.buffer, *ends[1:])
                box = limited_box(box, left * -1 + 1)
        else:
            left_out = {"bias_view", "multiplier_view", "act", "residual_view"}
            bare: dict[str, Any] = {name: None if name in left_out else value for name, value in numbers.items()}
            bare["box"], box = limited_box(box, work.left), limited_box(box, work.left * -1 + 1)
            code.emit(isa.Conv(**bare), lines.buffer, weights.buffer, None, kept, work.out.buffer, ends[1], None, None)
        numbers["box"] = box
        code.emit(isa.Conv(**numbers), lines.buffer, weights.buffer, ends[0], kept, work.out.buffer, *ends[1:])

    def write_powers(self, code: Code, work: Work, added: Fetched, out: Fetched) -> None:
        """Adds the product of a piece again: powers of e of it and of what is added."""
        assert self.may_repeat, "powers are of products alone"
        extra = {"residual": len(self.layer.operands)}
        operands = {**work.operands, extra["residual"]: added}
        replace(self, is_power=True, extra=extra).write(code, replace(work, operands=operands, out=out))

    @property
    def may_repeat(self) -> bool:
        """Whether it may be made again with something added: nothing but a scale is on its way out."""
        return not self.on_vector and not self.extra and (self.act is None or self.scale != 1.0)

    def scale_lines(self, code: Code, work: Work) -> None:
        """Multiplies the lines with the scale of what is summed, where they lie."""
        lines = work.operands[self.factors.lines]
        dims = clipped_apart(code, work, ([axis for axis, _ in dim.coordinate.refined().terms] for dim in lines.dims))
        box, view = Box.of(*(joined_span(code, axes, work) for axes in dims)), view_of(code, work, lines, dims)
        made = isa.Unary(kind="affine", in_view=view, out_view=view, alpha=self.scale, box=box)
        code.emit(made, lines.buffer, lines.buffer)

    def tap_stride(self, weights: Fetched, window: Window | None) -> int:
        if window is None:
            return 0
        return next((dim.stride for dim in weights.dims if dict(dim.coordinate.terms) == {window.tap: 1}), 0)


def limited_box(box: Box, passes: Affine) -> Box:
    """A box that is empty where this number is 0 or less, and whole where it is 1 or more."""
    number = next((k for k, limit in enumerate(box.limit) if limit is None), None)
    if number is None:
        raise NotLowered("sums in a box whose four dimensions have limits")
    limit = passes * max(1, box.bound[number], box.start[number].base + box.extent[number])
    return replace(box, limit=(*box.limit[:number], limit, *box.limit[number + 1 :]))


def limited_by_all(box: Box, passes: Iterable[Affine]) -> Box:
    """A box that is empty where any of these numbers is 0 or less, and whole where all are 1 or more."""
    for each in passes:
        box = limited_box(box, each)
    return box


def product_kernels(layer: Layer) -> Iterator[ProductKernel]:
    """The ways in which cores can make a product: either factor in the lines; channel by channel on the vector unit."""
    op, extra = layer.source, dict[str, int]()
    if isinstance(op, g.ConvOp | g.MatmulOp):
        names = [name for name in EXTRA if getattr(op, name) is not None]
        extra = {name: 2 + k for k, name in enumerate(names)}
    for product in products_of(layer):
        windows = list(windows_of(layer, product.lines))
        for images, rows, columns, own in _positions(product, windows) if len(windows) <= 2 else ():
            kernel = _kernel(layer, product, extra, (images, rows, columns), own)
            if kernel is None:
                continue
            yield kernel
            if product.is_by_channel and len(product.taps) > 0:
                yield replace(kernel, on_vector=True)


def _kernel(
    layer: Layer,
    product: MatrixProduct,
    extra: dict[str, int],
    positions: tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Axis, ...]],
    own: tuple[Window | None, Window | None],
) -> ProductKernel | None:
    if any(window.made for window in windows_of(layer, product.weights)):
        return None
    if {w.tap for w in own if w is not None} != set(product.taps):
        return None
    of_vectors = [k for name, k in extra.items() if name != "residual"]
    if any(_moved(layer, k) - {*product.channels, *product.groups} for k in of_vectors):
        return None
    images, rows, columns = positions
    of_images = list(map(coordinate, images))
    of_rows, of_columns = (
        list(map(coordinate, axes)) if window is None else [window.coordinate]
        for axes, window in zip((rows, columns), own, strict=True)
    )
    channels, groups, sums = (list(map(coordinate, each)) for each in (product.channels, product.groups, product.sums))
    taps = [Position.of(w.tap) for w in own if w is not None]
    places = {axis: k for k, axis in enumerate(_tensor_order(layer, product.lines))}
    inner = max((places.get(axis, -1) for axis in columns), default=-1)
    is_last = bool(sums) and max(places.get(axis, -1) for axis in product.sums) > inner
    space = [*of_images, *of_rows, *of_columns]
    of_group = [*groups, *sums]
    lines = [*space, *of_group] if is_last else [*of_images, *of_group, *of_rows, *of_columns]
    made = (*product.groups, *product.channels)
    blocks = [(made, [*groups, *channels]), (product.sums, sums), (tuple(w.tap for w in own if w is not None), taps)]
    stored = {axis: k for k, axis in enumerate(_tensor_order(layer, product.weights))}
    blocks.sort(key=lambda block: max((stored.get(axis, -1) for axis in block[0]), default=-1))
    of_weights = [each for _, block in blocks for each in block]
    wants = [Want(product.lines, "nram", tuple(lines)), Want(product.weights, "wram", tuple(of_weights))]
    order = {axis: k for k, axis in enumerate(layer.result.axes)}
    ends = [max((order[axis] for axis in axes), default=-1) for axes in (product.channels or product.groups, columns)]
    out = (*images, *rows, *columns, *made) if ends[0] > ends[1] else (*images, *made, *rows, *columns)
    for name, k in extra.items():
        axes = out if name == "residual" else made
        moved = _moved(layer, k)
        dims = tuple(coordinate(axis) for axis in axes if axis in moved)
        wants.append(Want(k, "nram" if name == "residual" else "wram", dims))
    scale = layer.source.scale if isinstance(layer.source, g.AttentionOp) and layer.role == "scores" else 1.0
    if isinstance(layer.source, g.AttentionOp) and layer.source.softcap and layer.role == "scores":
        raise NotLowered(f"{layer.name}: scores with a cap")
    zero = zero_of(layer.source)
    takes_zeros = is_padded(
        layer, product.lines, [w.coordinate for w in own if w is not None], zero, lambda _, guard: guard.fill == zero
    )
    return ProductKernel(
        layer, tuple(wants), out, frozenset(product.taps), product=product, extra=extra, rows=rows, columns=columns,
        images=images, windows=own, scale=scale,
        padded=frozenset({product.lines} if takes_zeros else ()),
    )  # fmt: skip


def _positions(
    product: MatrixProduct, windows: Sequence[Window]
) -> Iterator[tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Axis, ...], tuple[Window | None, Window | None]]]:
    """Axes of images, rows and columns, and the windows along the last two.  Without windows all positions may be
    columns; where they are clipped along two axes they are rows and columns."""
    moved = [axis for window in windows for axis in window.made]
    rest = tuple(axis for axis in product.positions if axis not in moved)
    if len(windows) == 2:
        yield rest, windows[0].made, windows[1].made, (windows[0], windows[1])
    elif not windows:
        yield (), (), rest, (None, None)
        if len(rest) > 1:
            yield rest[:-2], rest[-2:-1], rest[-1:], (None, None)
    else:
        (window,) = windows
        last = max((product.positions.index(axis) for axis in window.made), default=-1)
        behind = tuple(axis for axis in product.positions[last + 1 :])
        before = tuple(axis for axis in rest if axis not in behind)
        if behind:
            yield before, window.made, behind, (window, None)
        else:
            yield before, (), window.made, (None, window)


def _moved(layer: Layer, k: int) -> frozenset[Axis]:
    return axes_of(layer.operands[k])


def _tensor_order(layer: Layer, k: int) -> list[Axis]:
    """Axes of the layer in the order in which an operand's tensor has them."""
    found = list[Axis]()
    for _, position in layer.operands[k].pieces[0].by_leaf:
        found += [axis for axis, _ in position.refined().terms] if position is not None else []
    return found
