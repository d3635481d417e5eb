"""One convolution of integers in NRAM, run the fast way and through the line buffer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from frustum.backend import targets
from frustum.dialects.isa import program as p
from frustum.dialects.isa.line_buffer_plan import plan, run_of
from frustum.dialects.target import LineBuffer
from frustum.runtime.device.expand import expand
from frustum.runtime.device.functional import ExecutionPlan
from frustum.runtime.device.line_buffer import LineBufferCounts, LineBuffers
from frustum.runtime.device.memory import DTYPES, Memories
from frustum.runtime.time.work import windows_of, work

A = p.Affine
MEMORY = 1 << 17
FEATURES, RESULT, ZEROS = 1 << 12, 1 << 16, 1 << 15


def target(lines=16, block_bytes=32, channels=16):
    """`edge` with another line buffer."""
    edge = targets.load("edge")
    matrix = replace(edge.core.matrix, channels=channels, line_buffer=LineBuffer(lines, block_bytes))
    core = replace(edge.core, matrix=matrix)
    return replace(edge, chip=replace(edge.chip, cluster=replace(edge.chip.cluster, core=core)))


@dataclass(frozen=True)
class Case:
    """Map, kernel and layout; `gap`: elements of memory after each row, `far` after each image, `spare` after the
    channels of each position of a map with its channels inside."""

    width: int
    height: int = 3
    channels: int = 2
    outputs: int = 3
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    images: int = 1
    groups: int = 1
    gap: int = 0
    far: int = 0
    channels_outside: bool = False
    channels_inside: bool = False
    spare: int = 0
    element: str = "f32"
    zero: int = 0

    @property
    def out(self):
        """Output rows and columns; 0 or less where there are none."""
        sizes = (self.height + self.pads[0] + self.pads[2], self.width + self.pads[1] + self.pads[3])
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        return tuple((size - span) // s + 1 for size, span, s in zip(sizes, spans, self.stride, strict=True))

    @property
    def strides(self):
        """Bytes from one element of the map to the next in n, c, h, w."""
        size = p.ELEMENT_BYTES[self.element]
        if self.channels_inside:  # n, h, w, c
            position = (self.channels * self.groups + self.spare) * size
            row = self.width * position + self.gap * size
            return self.height * row + self.far * size, size, row, position
        row = (self.width + self.gap) * size
        plane = self.height * row + self.far * size
        if self.channels_outside:  # c, n, h, w
            return plane, plane * self.images, row, size
        return plane * self.channels * self.groups, plane, row, size

    def conv(self, mode="continuous"):
        size = p.ELEMENT_BYTES[self.element]
        rows, columns = self.out
        top, left = self.pads[:2]
        strides = self.strides
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        needed = [(n - 1) * s + span for n, s, span in zip(self.out, self.stride, spans, strict=True)]
        taps = self.kernel[0] * self.kernel[1] * size
        per_group = self.channels
        outputs = self.outputs * self.groups
        plane = rows * columns * 4
        return p.Conv(
            in_view=p.View(
                self.element, A(FEATURES - top * strides[2] - left * strides[3]), strides, "nram"
            ),
            weight_view=p.View(
                self.element, A(), (per_group * taps, taps, self.kernel[1] * size, size), "wram"
            ),
            out_view=p.View("f32", A(RESULT), (outputs * plane, plane, columns * 4, 4), "nram"),
            box=p.Box((A(),) * 4, *((self.images, outputs, rows, columns),) * 2),
            channels=p.Span(A(), per_group, per_group),
            rows=p.Span(A(-top), needed[0], self.height),
            cols=p.Span(A(-left), needed[1], self.width),
            kernel=self.kernel,
            strides=self.stride,
            dilations=self.dilation,
            groups=self.groups,
            line_mode=mode,
            in_zero=self.zero,
            weight_zero_view=p.View("i8", A(ZEROS), (0, 1, 0, 0), "wram") if self.zero else None,
        )


def set_up_of(conv, matrix, **changes):
    """The line_buffer instruction that `conv` needs, with some fields changed."""
    run, _ = run_of(windows_of(conv), conv.line_mode, *(conv.box.extent[d] for d in (0, 2, 3)))
    block = matrix.line_buffer.block_bytes // p.ELEMENT_BYTES[conv.in_view.element]
    made = plan(run, conv.line_mode, matrix.lines, block, conv.kernel[1], conv.dilations[1])
    return p.LineBuffer(**{**vars_of(made), "source": "in", **changes})


def vars_of(made):
    return {name: getattr(made, name) for name in made.__dataclass_fields__}


def filled():
    """Memories in which no float is a number yet."""
    memories = Memories((1, 1, 1, 1), (16, 16, MEMORY, MEMORY))
    memories.poison()
    return memories


def put(memories, case, seed=0):
    """Random integers where the map and the weights lie; what lies between rows stays poison."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[case.element]
    shape = (case.images, case.channels * case.groups, case.height, case.width)
    features = memories.view(2, dtype, FEATURES, shape, case.strides)
    features[...] = rng.integers(-4, 5, shape)
    taps = case.outputs * case.groups * case.channels * case.kernel[0] * case.kernel[1]
    memories.view(3, dtype, 0, (taps,), (dtype.itemsize,))[...] = rng.integers(-4, 5, taps)
    memories.bytes[3][ZEROS : ZEROS + case.outputs * case.groups] = rng.integers(0, 5, case.outputs * case.groups)


def run(case, mode, machine, *, detailed, body=None):
    """Output `[n, co, h, w]`, what was counted on the way (detailed only), and the work in closed form."""
    conv = case.conv(mode)
    if body is None:
        body = (set_up_of(conv, machine.core.matrix), conv)
    expanded = expand(p.Program(body), 1, 1)
    memories = filled()
    put(memories, case)
    steps, counts = ExecutionPlan(expanded, memories.capacities), LineBufferCounts()
    if detailed:
        buffers = LineBuffers(machine.core.matrix, body)
        steps, counts = steps.with_effect(p.Conv, buffers.convolve), buffers.counts
    steps.run(memories)
    shape = conv.box.extent
    out = memories.view(2, np.dtype(np.float32), RESULT, shape, conv.out_view.strides).copy()
    return out, counts, work(expanded, expanded.core, machine)
