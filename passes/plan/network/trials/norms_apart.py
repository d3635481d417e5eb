"""Normalisations of planes that go through DRAM, as what is known of each channel, and what that makes of elements.

Where a map does not fit SRAM, its norm reads it, writes all it makes, and what follows reads that again.  But once the
mean and the factor of each channel are known, elements can be normalised where they are read: in one unit with what
follows, tile by tile.  The map is then read twice, and what the norm makes is never whole.

Source: `plane_norms.py`, as `head_chunks.py` has it before attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import AnyFloat, ModuleOp
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.passes.analysis.module import node_name
from frustum.passes.plan.network.candidates import UnitChoice
from frustum.passes.plan.network.hidden_chunks import InChunks, PartWriter, made_in_dram
from frustum.passes.plan.network.layer_order import LayerOrder
from frustum.passes.plan.network.trials.plane_norms import PlaneNorm, is_of_planes
from frustum.passes.weights import numpy_of, store_of


def norms_apart(
    order: LayerOrder, units: Sequence[UnitChoice], module: ModuleOp, sram_bytes: int, *, is_by_rows: bool
) -> list[InChunks]:
    """Take every norm of planes apart whose map other units read from DRAM, or that what they read is made of element
    by element in its unit; what was done."""
    del sram_bytes  # what a norm knows of channels fits anywhere
    out = made_in_dram(order, units)
    norms = [node.op for node in order.nodes if isinstance(node.op, g.NormaliseOp) and is_of_planes(node.op)]
    wanted = [op for op in norms if out & {op, *readers_of(op)}]
    return [put(op, PartWriter(op, store_of(module)), is_by_rows=is_by_rows) for op in wanted]


def readers_of(op: g.NormaliseOp) -> list[Operation]:
    """What changes each element of the result."""
    return [use.operation for use in op.result.uses if isinstance(use.operation, g.UnaryOp | g.BinaryOp)]


def put(norm: g.NormaliseOp, writer: PartWriter, *, is_by_rows: bool) -> InChunks:
    """The layers of one norm in its place."""
    apart = known_of_channels(norm, writer, is_by_rows=is_by_rows)
    return writer.instead_of(apart.shaped(apart.normalised(), g.shape_of(norm.result)), (norm,))


def known_of_channels(norm: g.NormaliseOp, writer: PartWriter, *, is_by_rows: bool = False) -> PlaneNorm:
    """What a norm knows of each channel, put before what is written; elements are normalised as often as asked."""

    def constant(word: str, array: NDArray[np.float64], element: AnyFloat) -> SSAValue:
        key = writer.store.add(f"{node_name(norm) or norm.name}/{word}", array.astype(numpy_of(element)))
        return writer.insert(g.WeightOp(key, g.tensor_type(element, array.shape)), norm)

    apart = PlaneNorm(norm, lambda op: writer.insert(op, norm), constant, is_by_rows)
    apart.find()
    return apart
