"""Bytes, multiplications, energy and addresses of small programs, worked out by hand for the target `default`."""

from dataclasses import replace
from pathlib import Path

import pytest

from frustum.dialects.isa import program as p
from frustum.dialects.target import read_target
from frustum.runtime.device.expand import expand
from frustum.runtime.report.counters import count, roofline_cycles

FILE = Path(__file__).parents[3] / "backend" / "targets" / "default.yaml"
DEFAULT = read_target(FILE.read_text(), str(FILE))
A = p.Affine

EXTERNALS = (
    p.External("w", "weight", 0, 1008, (250,), "f32"),
    p.External("x", "input", 1008, 400, (1, 100), "f32"),
    p.External("y", "output", 1408, 400, (1, 100), "f32"),
    p.External("mid", "intermediate", 1808, 400, (100,), "f32"),
)


def view(memory, offset=0, strides=(0, 0, 0, 4), element="f32"):
    return p.View(element, A.of(offset), strides, memory)


def box(*extent, start=0, bound=None):
    extent = (1,) * (4 - len(extent)) + extent
    starts = (A(), A(), A(), A.of(start))
    return p.Box(starts, extent, (*extent[:3], extent[3] if bound is None else bound))


def move(source, destination, size=100, engine="gdma", **more):
    return p.Copy(engine=engine, src_view=source, dst_view=destination, box=box(size), **more)


def counted(*body, clusters=1, cores=1, pages=(), **more):
    more = {"layers": ("first", "second"), "useful_macs": (0, 0), "externals": EXTERNALS} | more
    return count(expand(p.Program(tuple(body), **more), clusters, cores), DEFAULT, pages)


def classes(*body, **more):
    return {name: size for name, size in counted(*body, **more).dram_bytes_by_class.items() if size}


@pytest.mark.parametrize(
    ("address", "class_"),
    [(0, "weight"), (400, "weight"), (1008, "input"), (1408, "intermediate"), (1808, "intermediate"),
     (5000, "intermediate")],
)  # fmt: skip
def test_a_read_counts_for_the_buffer_it_reads(address, class_):
    assert classes(move(view("dram", address), view("sram"))) == {class_: 400}


@pytest.mark.parametrize(
    ("address", "class_"),
    [(1408, "output"), (1008, "intermediate"), (1808, "intermediate"), (5000, "intermediate")],
)
def test_a_write_counts_for_the_buffer_it_writes(address, class_):
    assert classes(move(view("sram"), view("dram", address))) == {class_: 400}


def test_reads_and_writes_add_up_to_the_classes_and_the_layers():
    found = counted(
        p.Repeat(3, (move(view("dram", A(0, (40,))), view("sram")),)),
        replace(move(view("sram"), view("dram", 1408)), layer=1),
    )
    assert (found.dram_read_bytes, found.dram_write_bytes) == (1200, 400)
    assert found.layer_dram_bytes.tolist() == [1200, 400]


def test_a_multicast_counts_once_in_dram_and_in_every_sram():
    found = counted(move(view("dram"), view("sram"), multicast=True), clusters=4)
    assert found.dram_read_bytes == 400
    assert found.energy_pj == {
        "total": 400 * 100 + 4 * 400 * 6,
        "dram": 40000,
        "sram": 9600,
        "nram": 0,
        "wram": 0,
    }


def test_every_cluster_reads_for_itself_without_multicast():
    assert counted(move(view("dram"), view("sram")), clusters=4).dram_read_bytes == 1600


def test_fill_is_written_but_not_read():
    """5 before and 5 after 90 elements."""
    padded = p.Copy(
        engine="iodma",
        src_view=view("dram"),
        dst_view=view("nram"),
        box=box(100, start=-5, bound=90),
        fill=0.0,
    )
    found = counted(padded)
    assert found.dram_read_bytes == 360
    assert found.energy_pj["nram"] == 400


def test_code_is_fetched_once_for_all_clusters():
    assert classes(p.Fetch(page=1), clusters=2, pages=[100, 60]) == {"other": 160}
    assert classes(p.Fetch(page=0), clusters=2, pages=[100, 60, 1]) == {"other": 161}
    assert classes(p.Repeat(3, (p.Fetch(page=1),)), pages=[100, 60]) == {"other": 280}


def conv(accumulate=None, **more):
    """8 of 10 output columns and 4 channels from 6 input channels, kernel 1 x 3."""
    span = lambda n: p.Span(A(), n, n)  # noqa: E731
    acc = None if accumulate is None else view("nram", 1024, (0, 32, 0, 4))
    return p.Conv(
        in_view=view("nram", 0, (0, 40, 40, 4)), weight_view=view("wram", 0, (72, 12, 12, 4)),
        bias_view=view("wram", 288, (0, 4, 0, 0)), acc_view=acc,
        out_view=view("nram", 2048, (0, 32, 0, 4)), box=p.Box((A(),) * 4, (1, 4, 1, 8), (1, 4, 1, 8)),
        channels=span(6), rows=span(1), cols=span(10), kernel=(1, 3), strides=(1, 1), dilations=(1, 1),
        accumulate=accumulate, **more,
    )  # fmt: skip


def test_computing_reads_every_operand_byte_and_writes_every_result_byte_once():
    found = counted(conv(), useful_macs=(500, 0))
    assert found.layer_macs.tolist() == [8 * 4 * 6 * 3, 0]
    assert (found.useful_macs, found.recomputed_macs) == (500, 76)
    assert found.energy_pj["nram"] == (6 * 10 + 4 * 8) * 4
    assert found.energy_pj["wram"] == (4 * 6 * 3 + 4) * 4
    assert found.energy_pj["mac_f32"] == pytest.approx(576 * 3.0)
    assert found.energy_pj["total"] == sum(pj for name, pj in found.energy_pj.items() if name != "total")


def test_accumulators_are_read_but_at_the_first_pass_and_written_but_at_the_last():
    """Three passes: accumulators written, read and written, read; bias and output at the last only."""
    found = counted(p.Repeat(3, (conv(accumulate=0),)))
    assert found.energy_pj["nram"] == 4 * (3 * 60 + 4 * 32 + 32)
    assert found.energy_pj["wram"] == 4 * (3 * 72 + 4)


def test_the_line_buffer_counts_writes_and_steps():
    """A block of 16 f32 elements fills up to 14 lines of kernel width 3: one write for 6 channels of one row."""
    found = counted(conv())
    assert (found.line_writes, found.compute_steps, found.discarded_windows) == (6, 18, 0)
    assert found.line_writes_split == 6


def test_a_broadcast_operand_is_read_once():
    operand, scalar = view("nram"), view("nram", 4096, (0, 0, 0, 0))
    found = counted(p.Binary(kind="mul", a_view=operand, b_view=scalar, out_view=operand, box=box(10)))
    assert found.energy_pj["nram"] == 40 + 4 + 40


def test_peak_bytes_are_the_highest_addresses_written():
    found = counted(
        p.Repeat(3, (move(view("dram"), view("sram", A(100, (1000,)))),)),
        move(view("sram"), view("wram", A(64, core=512)), 20, "mvdma"),
        conv(),
        cores=2,
    )
    assert found.peak_bytes == {"sram": 2100 + 400, "nram": 2048 + 3 * 32 + 8 * 4, "wram": 64 + 512 + 80}


@pytest.mark.parametrize(("before_end", "peak"), [(0, 100 + 3 * 16), (1, 100 + 4 * 16), (2, 100 + 4 * 16)])
def test_a_ring_is_written_up_to_its_end_and_no_further(before_end, peak):
    """Three rows of 16 B in a ring of four: from its start on, or with one or two of them before its end."""
    ring = p.View("f32", A(100), (0, 0, 16, 4), "sram", wrap=p.Wrap(2, 4, A((4 - before_end) % 4)))
    rows = p.Box((A(),) * 4, (1, 1, 3, 4), (1, 1, 3, 4))
    found = counted(p.Copy(engine="gdma", src_view=view("dram", strides=(0, 0, 16, 4)), dst_view=ring, box=rows))
    assert found.peak_bytes["sram"] == peak


def test_the_roofline_is_the_worse_of_multipliers_and_dram():
    """16 cores of 4096 / 8 MACs per cycle in f32; 102 B per cycle.  Products of other types have their own rate."""
    macs = 8192 * 7
    assert roofline_cycles(DEFAULT, {4: macs}, "f32", 102 * 5) == 7
    assert roofline_cycles(DEFAULT, {0: macs}, "f32", 102 * 9) == 9
    assert roofline_cycles(DEFAULT, {0: macs}, "int8", 0) == pytest.approx(7 / 8)
    assert roofline_cycles(DEFAULT, {1: macs, 4: macs}, "f32", 0) == pytest.approx(7 + 7 / 8)
