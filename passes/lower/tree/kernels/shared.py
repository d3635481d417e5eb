# Tests: test/passes/lower/tree/test_shared_kernels.py
"""Products channel by channel that both units of a core make together: some groups on the matrix unit, those behind
them on the vector unit, at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from frustum.dialects.axes.axis import Axis
from frustum.dialects.isa.program import Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.fetch import Fetched
from frustum.passes.lower.tree.kernels.kernel import Work
from frustum.passes.lower.tree.kernels.products import ProductKernel

SHARES = (1, 1), (1, 2), (1, 4)
"""Groups on the matrix unit to those on the vector unit, for one that is as fast, twice or four times as fast.
2026-11-29."""


@dataclass(frozen=True)
class SharedKernel(ProductKernel):
    """Groups along an axis in two parts, one for each unit.

    `shares`: how many there are on the matrix unit, to how many on the vector unit.
    """

    axis: Axis | None = None
    shares: tuple[int, int] = (1, 1)

    def parts(self, extent: Any) -> tuple[Any, Any]:
        """Of so many groups those of each unit, rounded."""
        total = sum(self.shares)
        first = (2 * extent * self.shares[0] + total) // (2 * total)
        return first, extent - first

    @cached_property
    def units(self) -> tuple[ProductKernel, ProductKernel]:
        """What each unit makes of its groups."""
        plain = ProductKernel(**_product_of(self))
        return plain, replace(plain, on_vector=True)

    def extents(self, extents: Mapping[Axis, Any]) -> Iterator[tuple[ProductKernel, dict[Axis, Any]]]:
        """Each unit with its part of a piece."""
        assert self.axis is not None
        for kernel, part in zip(self.units, self.parts(extents[self.axis]), strict=True):
            yield kernel, {**extents, self.axis: part}

    def write(self, code: Code, work: Work) -> None:
        """Adds the products of both units."""
        assert self.axis is not None
        span, before = work.span(self.axis), 0
        for kernel, extent in zip(self.units, self.parts(span.extent), strict=True):
            own = Span(span.start + before, extent, span.bound, span.limit)
            if extent:
                kernel.write(code, _part(work, self.axis, own, before))
            before += extent


def _product_of(kernel: ProductKernel) -> dict[str, Any]:
    """What a kernel says of its product, without its shares."""
    return {each.name: getattr(kernel, each.name) for each in fields(ProductKernel)}


def _part(work: Work, axis: Axis, span: Span, before: int) -> Work:
    """A piece without what is before some positions of an axis."""

    def moved(held: Fetched) -> Fetched:
        steps = (dict(dim.coordinate.refined().terms).get(axis, 0) * dim.stride for dim in held.dims)
        return replace(held, offset=held.offset + before * sum(steps))

    operands = {k: moved(held) for k, held in work.operands.items()}
    return replace(work, spans={**work.spans, axis: span}, operands=operands, out=moved(work.out))


def shared_kernels(kernel: ProductKernel) -> Iterator[SharedKernel]:
    """The ways in which both units make what either may make alone."""
    several = [axis for axis in kernel.factors.groups if axis.extent > 1]
    if len(several) == 1:
        yield from (SharedKernel(**_product_of(kernel), axis=several[0], shares=shares) for shares in SHARES)
