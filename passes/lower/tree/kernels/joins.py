# Tests: test/passes/lower/tree/test_lowered_clusters.py
"""What parts of a whole give, joined: a reduction of which each cluster has made its part."""

from __future__ import annotations

from dataclasses import dataclass, replace

from frustum.dialects import isa
from frustum.dialects.axes.access import Affine as Position
from frustum.dialects.axes.access import Piece
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer, Operand
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.isa.program import ZERO, Scale, Span
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.kernels.integers import has_integers
from frustum.passes.lower.tree.kernels.kernel import Kernel, Scratch, Want, Work, coordinate, view_of
from frustum.passes.lower.tree.kernels.vectors import ElementKernel


@dataclass(frozen=True)
class JoinKernel(ElementKernel):
    """What each of the other parts gave, joined to operand 0, in whose place the result lies."""

    parts: Kernel | None = None
    """What made the parts."""

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """That of what made the parts, as far as it is of what stays."""
        assert self.parts is not None
        made = {*self.layer.result.axes}
        return tuple(Scratch(tuple(a for a in each.axes if a in made), each.element) for each in self.parts.scratch)

    def write(self, code: Code, work: Work) -> None:
        """Adds the instructions of a piece."""
        assert self.parts is not None
        dims, own = self.dims(code, work), work.operands[0]
        for k in range(self.planes):
            views = view_of(code, work, own.plane(k), dims), view_of(code, work, work.out.plane(k), dims)
            made = isa.Unary(
                kind="identity", in_view=views[0], out_view=views[1], alpha=0.0, beta=0.0,
                box=self.box(code, work, dims), scales=(Scale(), Scale()) if has_integers((own.element,)) else None,
            )  # fmt: skip
            code.emit(made, own.buffer, work.out.buffer)
        gone = {axis: Span(ZERO, 1, 1) for axis in self.parts.layer.axes if axis not in self.layer.result.axes}
        for number in range(1, len(self.layer.operands)):
            self.parts.join_part(code, replace(work, spans={**work.spans, **gone}), work.operands[number], number)


def join_kernel(parts: Kernel, others: Axis) -> tuple[JoinKernel, Tensor]:
    """Joins what `others` other clusters have made to a result, from the tensor that is returned: the axis of clusters,
    and those of the result."""
    result = parts.layer.result
    sent = Tensor(f"{result.name}.others", ((others,), *result.dims), result.element_bits, Kind.INTERMEDIATE)
    sent.settle()
    index = tuple((axis, Position.of(axis)) for axis in result.axes)
    given = (Operand((Piece(sent, ((others, Position(offset=k)), *index)),)) for k in range(others.extent))
    operands = Operand((Piece(result, index),)), *given
    layer = Layer(parts.layer.name, "join", result, operands, {}, passes=1, source=parts.layer.source)
    layer.settle()
    dims = tuple(coordinate(axis) for axis in result.axes)
    wants = tuple(Want(k, "nram", dims, planes=parts.planes) for k in range(len(operands)))
    return JoinKernel(layer, wants, result.axes, planes=parts.planes, parts=parts), sent


__all__ = ["JoinKernel", "join_kernel"]
