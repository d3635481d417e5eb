# Tests: test/passes/lower/tree/test_chains.py
"""What a layer reads in a core where another one has made it: the buffer of a result, seen as an operand."""

from __future__ import annotations

from dataclasses import replace

from frustum.dialects.axes.access import Piece
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.isa.program import Affine
from frustum.passes.lower.tree.fetch import FetchDim, Fetched
from frustum.passes.lower.tree.kernels.kernel import Kernel, Want
from frustum.passes.lower.tree.kernels.windows import factor_of
from frustum.passes.lower.tree.spans import FAR, NotLowered, Spans, through


def tensors_of(layer: Layer, want: Want) -> set[Tensor]:
    """The tensors that an operand of a layer is made of."""
    return {piece.tensor for piece in layer.operands[want.operand].pieces}


def wants_of(kernel: Kernel, tensor: Tensor) -> list[Want]:
    """Those operands of a kernel that are of a tensor."""
    return [want for want in kernel.wants if tensor in tensors_of(kernel.layer, want)]


def reads_in_core(kernel: Kernel, tensor: Tensor) -> bool:
    """Whether a kernel takes a tensor as it lies where it was made: each position of an operand is one of the tensor's,
    and instructions themselves know what lies beyond its ends."""
    for want in wants_of(kernel, tensor):
        pieces = kernel.layer.operands[want.operand].pieces
        is_filled = any(guard.fill is not None for guard in pieces[0].guards) and want.operand not in kernel.padded
        if want.memory != "nram" or want.planes > 1 or len(pieces) > 1 or is_filled or matched(want, pieces[0]) is None:
            return False
    return True


def matched(want: Want, piece: Piece) -> list[Axis] | None:
    """Of each dimension of an operand the tensor's axis; None where some are read otherwise than position for position,
    from a first one on."""
    found = list[Axis]()
    left = {axis: position for axis, position in piece.by_leaf}
    for coordinate in want.dims:
        linear = ((a, p) for a, p in left.items() if p is not None and p.is_linear)
        axis = next((a for a, p in linear if factor_of(p, coordinate) == 1), None)
        if axis is None:
            return None
        found.append(axis)
        del left[axis]
    is_still = all(p is not None and p.refined().is_linear and not p.refined().terms for p in left.values())
    return found if is_still else None


def as_operand(want: Want, piece: Piece, made: Fetched, spans: Spans) -> Fetched:
    """The buffer of a result as an operand of a layer with these spans."""
    axes = matched(want, piece)
    assert axes is not None
    of_axis = {dim.coordinate.terms[0][0]: dim for dim in made.dims}
    offset, dims, positions = made.offset, list[FetchDim](), dict(piece.by_leaf)
    for coordinate, axis in zip(want.dims, axes, strict=True):
        position, dim = positions[axis], of_axis[axis]
        assert position is not None
        span = through(coordinate, FAR, spans)  # of a window also what lies beyond the ends
        apart = span.start - (dim.span.start - position.refined().offset)
        if not apart.is_constant:
            raise NotLowered("a piece in a core that moves unlike what is read of it")
        offset += apart.base * dim.stride
        dims.append(FetchDim(coordinate, span, dim.stride))
    for axis, position in positions.items():
        if axis not in axes:
            assert position is not None
            apart = Affine(position.refined().offset) - of_axis[axis].span.start
            if not apart.is_constant:
                raise NotLowered("one position of what moves in a core")
            offset += apart.base * of_axis[axis].stride
    return replace(made, dims=tuple(dims), offset=offset)
