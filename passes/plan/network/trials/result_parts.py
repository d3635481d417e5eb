"""A convolution's result in two parts, of which one stays in SRAM beside what the convolution reads.

Where what a convolution reads and what it makes do not fit SRAM beside each other, the result goes through DRAM.  But
most of its channels may fit, and when the operand is gone there is room for all: the other channels alone are written,
and read again when the parts are put together.  What the convolution adds is added then, row by row.

Source: partial residency, as for keys and values in `passes/plan/attention/streamed_attention.py`, of a map between
two layers.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import SSAValue

from frustum.dialects import graph as g
from frustum.dialects.module import JOINT
from frustum.passes.analysis.module import value_bytes
from frustum.passes.plan import model
from frustum.passes.plan.network.hidden_chunks import InChunks, PartWriter, may_go_in_parts
from frustum.passes.weights import store_of

CHANNELS = 1
"""The axis of channels of a map [N, C, H, W]."""


def result_in_parts(op: g.ConvOp, module: ModuleOp, sram_bytes: int) -> InChunks | None:
    """Let the result of a convolution of floats be made in two parts where in so many bytes of SRAM most of it fits
    beside what it reads; what was done, None where nothing was."""
    first = channels_beside(op, sram_bytes) if may_go_in_parts(op) else None
    if first is None:
        return None
    writer = PartWriter(op, store_of(module))
    channels = g.shape_of(op.result)[CHANNELS]
    parts = [part(op, writer, *ends) for ends in ((0, first), (first, channels))]
    whole = writer.insert(g.ConcatOp(parts, CHANNELS), op, "/parts")
    if op.residual is None:
        together: g.BinaryOp | g.UnaryOp = g.UnaryOp(op.act or g.ActAttr.of("identity"), whole)
    else:
        together = g.BinaryOp("add", whole, op.residual, op.act)
    return writer.instead_of(writer.insert(together, op), [op])


def channels_beside(op: g.ConvOp, sram_bytes: int) -> int | None:
    """The channels that stay: eighths of the result, as many as fit beside what is read, and beside the whole result;
    None where all do, or fewer than half."""
    result = value_bytes(op.result)
    channels = g.shape_of(op.result)[CHANNELS]
    left = int(model.RESULT_BESIDE * sram_bytes) - max(value_bytes(op.x), result)
    eighths = left // max(result // 8, 1)
    return channels * eighths // 8 if 4 <= eighths < 8 and channels % 8 == 0 else None


def part(op: g.ConvOp, writer: PartWriter, first: int, stop: int) -> SSAValue:
    """Channels [first, stop) of what a convolution makes, without what it adds."""
    weights = writer.constant([op.w], 0, [(first, stop)])
    bias = None if op.bias is None else writer.constant([op.bias], 0, [(first, stop)])
    made = g.ConvOp(op.x, weights, bias, op.strides, op.pads, op.dilations)
    result = writer.insert(made, op, f"/{first}")
    made.attributes[JOINT] = UnitAttr()
    return result
