"""The pass that chooses how each convolution writes the line buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from frustum.dialects.isa.instruction import emit, value_of
from frustum.dialects.isa.line_buffer_plan import Windows, plan, run_of
from frustum.dialects.isa.operations import ConvOp, LineBufferOp
from frustum.dialects.isa.program import ELEMENT_BYTES, Four, LineBuffer, RunMode
from frustum.dialects.target import MatrixUnit, Target
from frustum.dialects.target.durations import Mode, matrix_work
from frustum.passes.analysis.module import target_of
from frustum.passes.lower.executions import Executions, Ints, clipped_extents, enclosing_counts

MODES: tuple[RunMode, ...] = ("split", "continuous")
"""The first of equals is taken."""


@dataclass(frozen=True)
class ChooseLineBuffer(ModulePass):
    """Give every convolution the cheaper way to write the line buffer.

    Before: convolutions on symbolic buffers.  After: each has its `line_mode`, and before it, in the same stage,
    stands the `fisa.line_buffer` that sets the lines up, if it has one.  Everything else stays as it is, foreign
    operations too.

    1. `split` writes every row piece on its own; `continuous` carries the shift stride across row ends and computes
       the windows that straddle them in vain.  `auto` takes the mode for which the matrix unit is busy for fewer
       cycles over all executions of the instruction, each as large as clipping leaves it; split where equal.
    2. The mode is static; the numbers of the set-up are those of the largest execution, others derive their own.
    3. Rows whose elements are not neighbours in memory, or that overlap, cannot be written continuously: split.
    4. Where the channels of a position are neighbours and positions are not, a block brings channels of a position:
       `channels_last`, whatever the option, as neither other mode exists there.  It has no set-up: nothing shifts
       from line to line, no window is discarded.
    5. A convolution that never computes anything is left alone.

    Source: docs/techniques/line-buffer.md, "Where rows end".
    """

    name = "frustum-lower-choose-line-buffer"

    mode: Literal["auto", "split", "continuous"] = "auto"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for old in [each for each in op.walk() if isinstance(each, LineBufferOp)]:
            old.detach()
            old.erase()
        convolutions = [each for each in op.walk() if isinstance(each, ConvOp)]
        if convolutions:
            target = target_of(op)
            for convolution in convolutions:
                self.set_up(convolution, target)

    def set_up(self, conv: ConvOp, target: Target) -> None:
        """Choose the mode of one convolution and put its set-up before it."""
        sizes = sizes_of(conv, target)
        if not sizes.counts.size:
            return
        windows, unit = windows_of(conv), target.core.matrix
        conv.properties.pop("line_mode", None)
        if windows.is_channels_last:
            conv.properties["line_mode"] = StringAttr("channels_last")
            return
        mode = self.mode if self.mode != "auto" else cheaper_mode(unit, windows, sizes)
        mode = mode if windows.joins else "split"
        if mode != "split":
            conv.properties["line_mode"] = StringAttr(mode)
        block = conv.parent
        assert block is not None
        block.insert_op_before(line_buffer(conv, mode, windows, sizes, unit), conv)


@dataclass(frozen=True)
class Sizes:
    """Clipped sizes of a convolution's executions: `counts` is [5, sizes] (images, rows, columns, input and output
    channels of a group), `times` how often each occurs; `padding` the most on each side (top, left, bottom, right)."""

    counts: Ints
    times: Ints
    padding: Four


def sizes_of(conv: ConvOp, target: Target) -> Sizes:
    """The sizes that the executions of a convolution really have."""
    box, groups = conv.box.data.spans, conv.groups.value.data
    nest = enclosing_counts(conv), target.chip.clusters, target.cluster.cores
    extents, times = clipped_extents([*box, conv.channels.data], *nest)
    images, outputs, rows, columns, read = extents
    counts = np.stack([images, rows, columns, read, outputs // groups])
    active = (counts > 0).all(axis=0)
    if not active.any():
        return Sizes(counts[:, :0], times[:0], (0, 0, 0, 0))
    (top, bottom), (left, right) = (
        _padding(conv, axis, Executions([box[2 + axis], span], *nest))
        for axis, span in enumerate((conv.rows.data, conv.cols.data))
    )
    return Sizes(counts[:, active], times[active], (top, left, bottom, right))


def _padding(conv: ConvOp, axis: int, executions: Executions) -> tuple[int, int]:
    """The most rows (columns) before and after the map that windows cover."""
    span = (conv.rows.data, conv.cols.data)[axis]
    kernel, stride, dilation = (value_of(each)[axis] for each in (conv.kernel, conv.strides, conv.dilations))
    _, extent, cut = executions.clip(conv.box.data.spans[2 + axis])
    first = executions.at(span.start) + cut * stride
    stop = first + (extent - 1) * stride + (kernel - 1) * dilation + 1
    low, high = np.maximum(-first, 0)[extent > 0], np.maximum(stop - span.bound, 0)[extent > 0]
    return int(low.max()), int(high.max())


def windows_of(conv: ConvOp) -> Windows:
    view, cols = conv.in_view.data, conv.cols.data
    return Windows(
        kernel=value_of(conv.kernel),
        stride=value_of(conv.strides),
        dilation=value_of(conv.dilations),
        groups=conv.groups.value.data,
        element_bytes=ELEMENT_BYTES[view.element],
        steps=view.strides,
        row_elements=min(cols.extent, cols.bound),
    )


def cheaper_mode(unit: MatrixUnit, windows: Windows, sizes: Sizes) -> RunMode:
    """The mode in which all executions together keep the matrix unit busy for fewer cycles."""
    cycles = {mode: busy_cycles(unit, windows, sizes, mode) for mode in MODES}
    return min(MODES, key=lambda mode: cycles[mode])


def busy_cycles(unit: MatrixUnit, windows: Windows, sizes: Sizes, mode: Mode) -> int:
    each = matrix_work(unit, windows.convolution(*sizes.counts), mode).busy_cycles
    return int((each * sizes.times).sum())


def line_buffer(
    conv: ConvOp, mode: RunMode, windows: Windows, sizes: Sizes, unit: MatrixUnit
) -> Operation:
    """The set-up for the largest execution."""
    images, rows, columns = (int(largest) for largest in sizes.counts[:3].max(axis=1))
    run, _ = run_of(windows, mode, images, rows, columns)
    block = unit.line_buffer.block_bytes // windows.element_bytes
    made = plan(run, mode, unit.lines, block, windows.kernel[1], windows.dilation[1])
    set_up = LineBuffer(
        mode=mode,
        source="in",
        blocks=made.blocks,
        lines=made.lines,
        shift=made.shift,
        second_shift=made.second_shift,
        boundary=made.boundary,
        padding=sizes.padding,
        discard=made.discard,
    )
    return emit(set_up, **{name: value_of(conv.properties[name]) for name in ("stage", "layer", "unit")})
