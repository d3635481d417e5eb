"""Random instructions for the tests of the machine: tiles of maps that cores, clusters and loops share out."""

from __future__ import annotations

import numpy as np
from plain_machine import new_memories, run

from frustum.dialects.isa import program as p
from frustum.runtime.device.expand import expand
from frustum.runtime.device.functional import ExecutionPlan
from frustum.runtime.device.memory import DTYPES, Memories

SIZES = {"dram": 1 << 18, "sram": 1 << 16, "nram": 1 << 16, "wram": 1 << 14}


class Layout:
    """Hands out buffers, one after another in each memory."""

    def __init__(self):
        self.top = dict.fromkeys(SIZES, 0)

    def view(self, memory, shape, element="f32", moves=(), copies=1, level=0, **affine):
        """A dense view of a new buffer of this shape (0: broadcast axis); `moves` are loop coefficients in bytes."""
        size = DTYPES[element].itemsize
        strides, step = [], size
        for extent in reversed(shape):
            strides.insert(0, step if extent else 0)
            step *= extent or 1
        room = step + sum(abs(c) * 4 for c in (*moves, *affine.values()))
        room = -(-room // 16) * 16
        base, self.top[memory] = self.top[memory], self.top[memory] + room * copies
        assert self.top[memory] <= SIZES[memory]
        ring = p.Ring(copies, room, level) if copies > 1 else None
        return p.View(element, p.Affine(base, tuple(moves), **affine), tuple(strides), memory, ring)


def span(start, extent, bound, limit=None):
    return p.Span(p.Affine.of(start), extent, bound, None if limit is None else p.Affine.of(limit))


def windows_of(box_start, bound, kernel, stride, dilation, pad, extent):
    """The input span of a window over outputs from `box_start` on."""
    size = (extent - 1) * stride + (kernel - 1) * dilation + 1
    return p.Span(box_start * stride - pad, size, bound)


def outputs(size, kernel, stride, dilation, pads):
    return (size + sum(pads) - dilation * (kernel - 1) - 1) // stride + 1


def load(memories, clusters, cores):
    """Our memories with the same bytes as the plain machine's."""
    counts = [len(units) for units in memories.values()]
    ours = Memories(counts, [SIZES[name] for name in memories])
    for flat, units in zip(ours.bytes, memories.values(), strict=True):
        flat[:] = np.concatenate(units)
    return ours


def agree(program, clusters, cores, seed=0, exact=True, fill=None, must_write=True):
    """Run on both machines from the same bytes; all bytes (or f32 numbers) must agree, and some must change if the
    program `must_write`.  Gives our memories."""
    memories = new_memories(clusters, cores, SIZES, np.random.default_rng(seed))
    if fill is not None:
        for units in memories.values():
            for unit in units:
                unit.view(np.float32)[:] = fill(unit.size // 4)
    ours = load(memories, clusters, cores)
    before = [flat.copy() for flat in ours.bytes]
    with np.errstate(all="ignore"):
        run(program, memories, clusters, cores)
    ExecutionPlan(expand(program, clusters, cores), ours.capacities).run(ours)
    for name, flat, units in zip(memories, ours.bytes, memories.values(), strict=True):
        expected = np.concatenate(units)
        if exact:
            np.testing.assert_array_equal(flat, expected, name)
        else:
            np.testing.assert_allclose(flat.view("f4"), expected.view("f4"), rtol=2e-5, atol=1e-5, err_msg=name)
    changed = any((old != new).any() for old, new in zip(before, ours.bytes, strict=True))
    assert changed or not must_write, "nothing was written"
    return ours

