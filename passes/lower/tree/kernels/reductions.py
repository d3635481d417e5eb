# Tests: test/passes/lower/tree/test_reductions.py
"""Reductions in parts: pieces of what is reduced follow each other in a loop over pieces, in f32; what passes of loops
outside have reduced before is joined with what a pass makes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from frustum.dialects import isa
from frustum.dialects.functions import Reduction
from frustum.dialects.isa.program import Affine
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.fetch import Fetched
from frustum.passes.lower.tree.kernels.integers import has_integers, scales_of, wide_scales
from frustum.passes.lower.tree.kernels.kernel import Work, view_of
from frustum.passes.lower.tree.kernels.products import limited_by_all
from frustum.passes.lower.tree.kernels.vectors import ReduceKernel
from frustum.passes.lower.tree.spans import NotLowered

JOINED: dict[Reduction, str] = {
    Reduction.SUM: "add", Reduction.MEAN: "add", Reduction.MAX: "max", Reduction.MIN: "min"
}  # fmt: skip
"""How what parts of a whole give becomes that of the whole."""


@dataclass(frozen=True)
class PartedReduceKernel(ReduceKernel):
    """A reduction of which the whole's is that of its parts; means are sums of shares."""

    @property
    def adds(self) -> bool:
        """They are reduced one after the other."""
        return True

    def narrow(self, code: Code, work: Work) -> None:
        """The sums of all pieces in the type of the result; of means their share of the whole."""
        op: Any = self.layer.source
        assert work.acc is not None
        is_share = op.kind == Reduction.MEAN
        if work.acc is work.out and not is_share:
            return
        dims = self.kept(code, work)
        views = view_of(code, work, work.acc, dims), view_of(code, work, work.out, dims)
        share = 1 / math.prod(a.extent for a in self.layer.combine if a not in self.layer.result.axes)
        made = isa.Unary(
            kind="affine" if is_share else "identity", in_view=views[0], out_view=views[1],
            alpha=share if is_share else 0.0, scales=wide_scales(scales_of(op), is_read=True),
            box=limited_by_all(self.box(code, work, dims), work.when),
        )  # fmt: skip
        code.emit(made, work.acc.buffer, work.out.buffer)

    def join(self, code: Code, work: Work, before: Fetched, begun: Affine) -> None:
        """Adds what passes before have made, where `begun` is 1 or more."""
        op: Any = self.layer.source
        dims = self.kept(code, work)
        own, other = view_of(code, work, work.out, dims), view_of(code, work, before, dims)
        box = limited_by_all(self.box(code, work, dims), (begun, *work.when))
        found = scales_of(op)
        scales = None if found is None or not has_integers((work.out.element,)) else (found[-1],) * 3
        if scales is not None and JOINED[Reduction(op.kind)] == "add":
            raise NotLowered(f"{self.layer.name}: sums of integers that wait as {work.out.element}")
        made = isa.Binary(
            kind=JOINED[Reduction(op.kind)], a_view=own, b_view=other, out_view=own, box=box, scales=scales
        )
        code.emit(made, work.out.buffer, before.buffer, work.out.buffer)

    def kept(self, code: Code, work: Work) -> list[tuple[Any, ...]]:
        """The dimensions of a piece without axes that are reduced."""
        made = set(self.layer.result.axes)
        return [tuple(axis for axis in own if axis in made) for own in self.dims(code, work)]
