"""Sums along dimensions: reductions and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frustum.dialects import graph as g
from frustum.dialects.extents import Extents
from frustum.dialects.tile import SAME, Plain, TensorView, Whole
from frustum.passes.analysis.layer.nest import (
    RANK,
    SAME4,
    Layer,
    MapOperand,
    access_of,
    dense,
    four,
    refused,
)
from frustum.passes.analysis.layer.parameters import scales_params


def around(shape: Sequence[int], axis: int) -> tuple[Extents, int]:
    """The shape as four dimensions with `axis` one of them, and its place."""
    if len(shape) <= RANK:
        return four(shape, 1), axis + RANK - len(shape)
    return (1, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])), 2


def softmax(op: g.SoftmaxOp) -> Layer:
    dims, axis = around(g.shape_of(op.x), op.axis)
    view = TensorView(0, four(dense(dims), 0))
    access = list(SAME4)
    access[axis] = Whole(dims[axis])
    params = {"axis": axis, **scales_params(op)}
    maps = (MapOperand(0, dims, view, access_of(access)),)
    return Layer("softmax", dims, view, maps, params, axes_all=(axis,))


def reduce(op: g.ReduceOp) -> Layer:
    shape = g.shape_of(op.x)
    reduced = [i in op.axes for i in range(len(shape))]
    is_plane = reduced == [False, False, True, True]  # a global pool reads maps as other layers make them
    groups: list[tuple[int, bool]] = []  # extent, is reduced: neighbours of a kind are one dimension
    for extent, flag in zip(shape, reduced, strict=True):
        if not is_plane and groups and groups[-1][1] == flag:
            groups[-1] = (groups[-1][0] * extent, flag)
        else:
            groups.append((extent, flag))
    if len(groups) > RANK:
        raise refused(op, f"axes {op.axes} of shape {shape} do not make four dimensions")
    dims = four([e for e, _ in groups], 1)
    flags = [False] * (RANK - len(groups)) + [f for _, f in groups]
    out_dims = four([1 if f else e for e, f in zip(dims, flags, strict=True)], 1)
    strides = tuple(0 if f else s for f, s in zip(flags, dense(out_dims), strict=True))
    access = access_of([Whole(e) if f else SAME for e, f in zip(dims, flags, strict=True)])
    count = math.prod(e for e, f in zip(dims, flags, strict=True) if f)
    params: dict[str, Plain] = {
        "kind": str(op.kind),
        "axes": tuple(i for i, f in enumerate(flags) if f),
        "scale": 1.0 / count if str(op.kind) == "mean" else 1.0,
        **scales_params(op),
    }
    return Layer(
        "reduce",
        out_dims,
        TensorView(0, four(strides, 0)),
        (MapOperand(0, dims, TensorView(0, four(dense(dims), 0)), access),),
        params,
    )
