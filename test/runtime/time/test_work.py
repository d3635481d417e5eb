"""Work of random instructions against counting element by element."""

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from stops import free_addresses

from frustum.dialects.isa import program as p
from frustum.dialects.target import read_target
from frustum.runtime.device.expand import expand
from frustum.runtime.report.counters import count
from frustum.runtime.time.work import contiguous_bytes, work

FILE = Path(__file__).parents[3] / "backend" / "targets" / "default.yaml"
DEFAULT = free_addresses(read_target(FILE.read_text(), str(FILE)))
A = p.Affine
CLUSTERS, CORES, PASSES = 2, 3, 3


@pytest.mark.parametrize("seed", range(30))
def test_a_contiguous_run_is_what_sorted_addresses_show(seed):
    """Dimensions in any order, each as dense as can be or with a gap after it."""
    rng = np.random.default_rng(seed)
    element = int(rng.choice([1, 2, 4]))
    extent = rng.integers(1, 5, 4)
    stride, step = np.zeros(4, np.int64), element
    for d in rng.permutation(4):
        stride[d] = step
        step = step * int(extent[d]) + int(rng.choice([0, 0, 2])) * element
    by_stride = np.lexsort((extent, stride))
    found = contiguous_bytes(extent[by_stride][:, None], stride[by_stride][:, None], np.array([element]))
    starts = sorted(
        sum(i * s for i, s in zip(index, stride.tolist(), strict=True))
        for index in product(*map(range, extent))
    )
    breaks = [b - a != element for a, b in pairwise(starts)] + [True]
    assert found.tolist() == [(breaks.index(True) + 1) * element]


def random_box(rng):
    def affine():
        return A(
            int(rng.integers(-3, 3)),
            (int(rng.integers(0, 3)),),
            int(rng.integers(0, 3)),
            int(rng.integers(0, 3)),
        )

    extent = tuple(rng.integers(1, 6, 4).tolist())
    bound = tuple(rng.integers(2, 9, 4).tolist())
    limit = tuple(affine() + 5 if rng.random() < 0.3 else None for _ in range(4))
    return p.Box(tuple(affine() for _ in range(4)), extent, bound, limit)


def lengths(spans, index, cluster, core):
    return [max(0, stop - start) for start, stop in (span.clip((index,), cluster, core) for span in spans)]


def executions():
    return product(range(PASSES), range(CLUSTERS), range(CORES))


@pytest.mark.parametrize("seed", range(10))
def test_copies_move_what_their_clipped_boxes_hold(seed):
    rng = np.random.default_rng(seed)
    box = random_box(rng)
    strides = (4000, 400, 40, 2)
    copy = p.Copy(engine="iodma", src_view=p.View("f16", A(1 << 20), strides, "dram"),
                  dst_view=p.View("f16", A(1 << 15), (1000, 100, 10, 2), "nram"), box=box)  # fmt: skip
    program = p.Program((p.Repeat(PASSES, (copy,)),), layers=("only",))
    expected = sum(2 * int(np.prod(lengths(box.spans, *at))) for at in executions())
    found = count(expand(program, CLUSTERS, CORES), DEFAULT)
    assert found.dram_read_bytes == expected == found.layer_dram_bytes[0]
    assert found.energy_pj["nram"] == expected


@pytest.mark.parametrize("seed", range(10))
def test_convolutions_multiply_what_their_clipped_boxes_hold(seed):
    """Passes, steps and multiplications of one core's instruction at a time; P and Q are 64, a step takes 2 cycles."""
    rng = np.random.default_rng(seed)
    box = random_box(rng)
    channels = p.Span(A(0, (int(rng.integers(0, 3)),)), 4, 7)
    free = p.Span(A(), 1 << 10, 1 << 10)
    conv = p.Conv(
        in_view=p.View("f16", A(1 << 16), (4096, 512, 64, 2), "nram"),
        weight_view=p.View("f16", A(1 << 14), (144, 24, 6, 2), "wram"),
        out_view=p.View("f16", A(1 << 17), (4096, 512, 64, 2), "nram"),
        box=box, channels=channels, rows=free, cols=free, kernel=(2, 3), strides=(1, 1), dilations=(1, 1),
    )  # fmt: skip
    expanded = expand(p.Program((p.Repeat(PASSES, (conv,)),)), CLUSTERS, CORES)
    found = work(expanded, expanded.core, DEFAULT)
    macs = steps = 0
    for at in executions():
        n, co, h, w = lengths(box.spans, *at)
        (ci,) = lengths([channels], *at)
        macs += n * co * h * w * ci * 6
        own = -(-n * h * w // 64) * -(-co // 64) * ci * 6
        steps += own
        index, cluster, core = at
        assert found.cycles[index, cluster * CORES + core] >= 2 * own
    assert (found.macs.sum(), found.steps.sum()) == (macs, steps)


@pytest.mark.parametrize("mode", ["split", "channels_last"])
@pytest.mark.parametrize("seed", range(12))
def test_clipped_groups_work_as_much_as_a_loop_over_what_is_left(seed, mode):
    """Extents, groups and channels are unequal; what clipping leaves are whole groups, often fewer than the
    instruction has.  P and Q are 64, a block 64 B, of f16 32 elements; a step takes 2 cycles."""
    rng = np.random.default_rng(seed)
    groups, per_group, ci, pitch = (int(rng.integers(*ends)) for ends in ((2, 9), (1, 4), (1, 6), (40, 90)))
    left = [int(rng.integers(0, groups + 1)) for _ in range(PASSES)]
    images, height, width = (int(each) for each in rng.choice([1, 2, 3, 5, 7, 11], 3, replace=False))
    rows = (0, 0, 0, 2) if mode == "channels_last" else (0, 0, 2 * pitch, 2)
    position = 2 * ci * groups if mode == "channels_last" else 2
    steps_in = (0, 2 if mode == "channels_last" else 8192, rows[2] or pitch * position, position)
    # pass i starts where left[i] groups are left before the bound
    start = [per_group * (groups - each) for each in left]
    bodies = []
    for first in start:
        box = p.Box((A(), A(first), A(), A()), (images, groups * per_group, height, width),
                    (images, groups * per_group, height, width))  # fmt: skip
        bodies.append(p.Conv(
            in_view=p.View("f16", A(), steps_in, "nram"), weight_view=p.View("f16", A(), (60, 12, 6, 2), "wram"),
            out_view=p.View("f16", A(), (4096, 512, 64, 2), "nram"), box=box, channels=p.Span(A(), ci, ci),
            rows=p.Span(A(), 2 + height, 64), cols=p.Span(A(), 2 + width, 64), kernel=(2, 3), strides=(1, 1),
            dilations=(1, 1), groups=groups, line_mode=mode,
        ))  # fmt: skip
    expanded = expand(p.Program(tuple(bodies)), 1, 1)
    found = work(expanded, expanded.core, DEFAULT)
    for row, present in enumerate(left):
        macs = steps = writes = 0
        for _ in range(present):
            fills = -(-images * height * width // 64)
            steps += fills * -(-per_group // 64) * ci * 6
            macs += images * height * width * per_group * ci * 6
            writes += -(-per_group // 64) * group_writes(images * height, width, ci, ci * groups, mode)
        assert (found.macs[row], found.steps[row], found.line_writes[row]) == (macs, steps, writes)
        assert found.cycles[row, 0] == max(writes, 2 * steps)
        assert found.read_bytes[0, row] == 2 * images * present * ci * (height + 1) * (width + 2)
        assert found.read_bytes[1, row] == 2 * present * per_group * ci * 6
        assert found.written_bytes[4, row] == 2 * images * present * per_group * height * width
    assert found.macs.any() or not any(left)


def group_writes(rows, columns, channels, stored, mode, lines=64, block=32, kernel=(2, 3)):
    """Writes of one group for one slice of output channels, fill by fill and piece by piece."""
    total, span = 0, kernel[1]
    windows = [row for row in range(rows) for _ in range(columns)]
    for at in range(0, len(windows), lines):
        fill = windows[at : at + lines]
        for row in set(fill):
            count = fill.count(row)
            if mode == "split":
                total += channels * kernel[0] * -(-count // (block - span + 1))
            else:
                run = -(-(count - 1 + span) * stored // block)
                each = (count - 1 + span) * -(-channels // block)
                total += kernel[0] * min(run, each)
    return total


def test_alike_instructions_are_worked_out_each_by_its_own_extents():
    """Two reductions that differ in accumulating only: the result of one is read again from its second pass on."""

    def reduce(accumulate):
        return p.Reduce(
            kind="sum", in_view=p.View("f32", A(), (0, 0, 0, 4), "nram"), axes=(3,), accumulate=accumulate,
            out_view=p.View("f32", A(64), (0, 0, 0, 0), "nram"), box=p.Box((A(),) * 4, (1, 1, 1, 9), (1, 1, 1, 9)),
        )  # fmt: skip

    program = p.Program((p.Repeat(3, (reduce(None), reduce(0))),))
    expanded = expand(program, 1, 1)
    found = work(expanded, expanded.core, DEFAULT)
    assert found.read_bytes[0].sum() == 6 * 36
    assert found.written_bytes[1].sum() == 6 * 4
    assert found.read_bytes[1].tolist() == [0, 0, 0, 4, 0, 4]
