"""Instructions in time, by the rules for the machine; the numbers are worked out by hand for the target `default`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stops import free_addresses

from frustum.dialects.isa import program as p
from frustum.dialects.target import Target, read_target
from frustum.runtime.device.expand import expand
from frustum.runtime.time.engine import DeadlockError
from frustum.runtime.time.machine_map import EngineName
from frustum.runtime.time.timeline import simulate

TARGETS = Path(__file__).parents[3] / "backend" / "targets"
A = p.Affine
KIB = 1024


def target_named(name: str) -> Target:
    file = TARGETS / f"{name}.yaml"
    return read_target(file.read_text(), str(file))


DEFAULT = target_named("default")


def view(memory, offset=0, strides=(0, 0, 0, 1), element="i8"):
    return p.View(element, A.of(offset), strides, memory)


def box(*extent):
    extent = (1,) * (4 - len(extent)) + extent
    return p.Box((A(),) * 4, extent, extent)


def copy(engine, source, destination, size=4 * KIB, **more):
    return p.Copy(engine=engine, src_view=view(source), dst_view=view(destination), box=box(size), **more)


def timeline(*body, clusters=1, cores=1, target=DEFAULT, pages=(), **more):
    program = p.Program(tuple(body), layers=("first", "second"), **more)
    return simulate(expand(program, clusters, cores), target, pages)


def of_engine(line, kind, cluster=0, core=None):
    """Start, end and completion of each operation of an engine."""
    number = line.engines.index(EngineName(kind, cluster, core))
    mine = slice(*line.queues.offsets[number : number + 2])
    times = line.times
    return list(
        zip(
            times.start[mine].tolist(), times.end[mine].tolist(), times.completion[mine].tolist(), strict=True
        )
    )


def stalled(line, kind, cluster=0, core=None):
    return int(line.times.stalled[line.engines.index(EngineName(kind, cluster, core))])


def test_a_chunk_takes_what_its_slowest_part_takes_and_completes_a_latency_later():
    """4096 B at 102 B/cycle; the DRAM answers 200 cycles later."""
    assert of_engine(timeline(copy("gdma", "dram", "sram")), "gdma") == [(0, 41, 241)]


@pytest.mark.parametrize("elements", [1, 32, 64])
def test_computing_of_a_single_cycle_completes_a_latency_later_too(elements):
    """64 lanes; NRAM answers 4 cycles later."""
    ones = p.Unary(kind="relu", in_view=view("nram"), out_view=view("nram"), box=box(elements))
    line = timeline(ones)
    assert of_engine(line, "vector", core=0) == [(0, 1, 5)] and line.total_cycles == 5


def test_the_last_chunk_is_as_short_as_it_is():
    """Two chunks of ceil(4096 / 64) = 64 cycles and one of ceil(100 / 64) = 2."""
    line = timeline(copy("mvdma", "sram", "nram", 8292))
    assert of_engine(line, "mvdma", core=0) == [(0, 130, 150)]


def test_four_mvdmas_take_turns_at_the_sram_port_and_then_run_at_their_own_speed():
    """A chunk holds the port for ceil(4096 / 256) = 16 cycles and its engine for 64: four fit exactly."""
    line = timeline(copy("mvdma", "sram", "nram", 12 * KIB), cores=4)
    for core in range(4):
        assert of_engine(line, "mvdma", core=core) == [(0, 16 * core + 3 * 64, 16 * core + 3 * 64 + 20)]
        assert stalled(line, "mvdma", core=core) == 16 * core


def test_reads_and_writes_of_the_sram_do_not_share_a_port():
    line = timeline(copy("mvdma", "sram", "nram"), copy("gdma", "dram", "sram"), cores=1)
    assert of_engine(line, "mvdma", core=0) == [(0, 64, 84)]
    assert of_engine(line, "gdma") == [(0, 41, 241)]


def test_the_dram_has_one_port_for_both_directions():
    """The port's time of a chunk is 41 cycles; the GDMA has the lower number and so the first turn."""
    line = timeline(copy("gdma", "dram", "sram"), copy("iodma", "nram", "dram", 160))
    assert of_engine(line, "gdma") == [(0, 41, 241)]
    assert of_engine(line, "iodma", core=0) == [(0, 41 + 10, 41 + 10 + 200)]


def test_short_runs_hold_the_dram_port_as_if_they_were_64_bytes():
    """64 runs of 4 bytes: 64 * 64 B at 102 B/cycle are 41 cycles, though 256 B are moved."""
    source = view("dram", strides=(0, 0, 100, 1))
    strided = p.Copy(
        engine="gdma", src_view=source, dst_view=view("sram", strides=(0, 0, 4, 1)), box=box(64, 4)
    )
    line = timeline(strided)
    assert of_engine(line, "gdma") == [(0, 41, 241)]
    assert line.tables[1][1].size_bytes.tolist() == [[256]]


def test_short_runs_on_chip_count_as_16_bytes():
    """16 runs of 1 byte read from NRAM: 256 B at 256 B/cycle are 1 cycle; 16 written runs of 1 byte the same."""
    apart = view("nram", strides=(0, 0, 0, 64))
    strided = p.Copy(engine="mvdma", src_view=apart, dst_view=view("sram"), box=box(1600))
    assert of_engine(timeline(strided), "mvdma", core=0) == [(0, 1600 * 16 // 256, 120)]


def test_a_multicast_holds_the_dram_port_once_and_every_sram_port():
    line = timeline(copy("gdma", "dram", "sram", multicast=True, signal=0), hold("gdma", 1), clusters=4)
    assert of_engine(line, "gdma") == [(0, 41, 241), (241, 241, 241)]
    for cluster in (1, 2, 3):
        assert of_engine(line, "gdma", cluster) == [(261, 261, 261)], "signals reach other clusters later"
    ports = line.times.port_busy[: 1 + 2 * 4].tolist()
    assert ports == [41, 0, 16, 0, 16, 0, 16, 0, 16]


def hold(engine, value, slot=0, scope="own"):
    return p.Hold(engine=engine, waits=(p.Wait(slot, scope, A.of(value)),))


def test_a_broadcast_reads_once_and_writes_to_every_core():
    line = timeline(copy("bus", "sram", "wram"), cores=4)
    assert of_engine(line, "bus") == [(0, 64, 84)]
    wram_write = [3 + 4 * core + 3 for core in range(4)]
    assert line.times.port_busy[wram_write].tolist() == [16] * 4
    assert line.times.port_busy[1] == 16


def test_cdma_writes_to_the_sram_of_its_peer():
    push = copy("cdma", "sram", "sram", peer=A(1, cluster=-1))
    line = timeline(push, clusters=2)
    assert of_engine(line, "cdma", 0) == of_engine(line, "cdma", 1) == [(0, 64, 84)]
    assert line.times.port_busy[1:5].tolist() == [16] * 4


def test_a_dma_engine_has_four_transfers_in_flight():
    """Each of 2 cycles with a latency of 200: the fifth starts when the first has completed."""
    line = timeline(p.Repeat(6, (copy("gdma", "dram", "sram", 200),)))
    starts = [start for start, _, _ in of_engine(line, "gdma")]
    assert starts == [0, 2, 4, 6, 202, 204]


def conv(positions=64, channels=3, outputs=64, kernel=(1, 1), **more):
    element = more.pop("element", "i8")
    extent = 1, outputs, 1, positions
    span = lambda n: p.Span(A(), n, n)  # noqa: E731
    return p.Conv(
        in_view=view("nram", 0, (0, 64, 64, 1), element), weight_view=view("wram", 0, (9, 9, 3, 1), element),
        out_view=view("nram", 8192, (0, 64, 64, 1), element), box=p.Box((A(),) * 4, extent, extent),
        channels=span(channels), rows=p.Span(A(), kernel[0], kernel[0]),
        cols=span(positions + kernel[1] - 1), kernel=kernel, strides=(1, 1), dilations=(1, 1), **more,
    )  # fmt: skip


def test_the_matrix_unit_overlaps_writes_and_steps_and_completes_after_the_latency_of_nram():
    """64 positions x 64 channels of 16-bit elements: 3 steps of 2 cycles; 2 writes of 32 elements for each of 3."""
    line = timeline(conv(element="f16"), target=free_addresses(DEFAULT))
    assert of_engine(line, "matrix", core=0) == [(0, 6, 10)]
    work = line.tables[0][1]
    assert (work.steps.item(), work.line_writes.item(), work.macs.item()) == (3, 6, 64 * 64 * 3)


def test_the_matrix_unit_computes_addresses_where_no_table_has_them():
    """(64 positions + 3 products) x 4 cycles, which is more than its steps and writes."""
    line = timeline(conv(element="f16"))
    assert of_engine(line, "matrix", core=0) == [(0, 268, 272)]
    assert line.tables[0][1].address_cycles.item() == line.tables[0][1].address_cycles_without_tables.item() == 268


def test_the_vector_unit_adds_the_passes_of_its_parts():
    """1000 f32 elements at 32 per cycle, twice for add and relu; completion later by the latency of NRAM."""
    operand = view("nram", element="f32")
    add = p.Binary(
        kind="add", a_view=operand, b_view=operand, out_view=operand, box=box(1000), act=p.Act("relu")
    )
    assert of_engine(timeline(add), "vector", core=0) == [(0, 64, 68)]


def test_an_instruction_with_an_empty_box_takes_no_time_but_waits_and_signals():
    nothing = p.Copy(
        engine="gdma", src_view=view("dram"), dst_view=view("sram"),
        box=p.Box((A(),) * 4, (1, 1, 1, 0), (1, 1, 1, 9)), signal=0,
    )  # fmt: skip
    line = timeline(nothing, hold("mvdma", 1, scope="cluster"))
    assert line.total_cycles == 0


def test_waits_see_signals_at_completion():
    load = copy("gdma", "dram", "sram", signal=0)
    move = copy("mvdma", "sram", "nram", waits=(p.Wait(0, "cluster", A(1)),), signal=0)
    line = timeline(load, move, hold("gdma", 1, scope="cores"), cores=2)
    assert of_engine(line, "mvdma", core=0) == [(241, 305, 325)]
    assert of_engine(line, "mvdma", core=1) == [(241, 321, 341)]
    assert of_engine(line, "gdma")[1] == (341, 341, 341)
    assert stalled(line, "mvdma", core=1) == 241 + 16
    assert stalled(line, "gdma") == 300


def test_clusters_see_each_others_counters_later():
    """Cluster 0 finishes nothing earlier than its own cores; those of cluster 1 show 20 cycles later."""
    move = copy("mvdma", "sram", "nram", signal=0)
    line = timeline(move, hold("gdma", 1, scope="all_cores"), clusters=2)
    assert of_engine(line, "gdma", 0) == of_engine(line, "gdma", 1) == [(104, 104, 104)]


def test_a_barrier_drains_every_engine_and_resets_the_counters():
    line = timeline(
        copy("gdma", "dram", "sram", signal=0), p.Barrier(), copy("gdma", "dram", "sram", signal=0),
        hold("mvdma", 1, scope="cluster"),
    )  # fmt: skip
    assert of_engine(line, "gdma") == [(0, 41, 241), (41, 241, 241), (241, 282, 482)]
    assert of_engine(line, "mvdma", core=0)[1] == (482, 482, 482)
    assert line.times.idle[line.engines.index(EngineName("mvdma", 0, 0))] == 241
    last = [line.times.completion[line.queues.row == row].max() for row in range(4)]
    assert last == [482, 241, 241, 482], "of the wait, then of the rows of the cluster table"


def test_the_first_page_is_fetched_before_anything_starts():
    line = timeline(copy("gdma", "dram", "sram"), pages=[5000])
    assert of_engine(line, "fetch") == [(0, 41 + 9, 250)]
    assert of_engine(line, "gdma")[1] == (250, 291, 491)


@pytest.mark.parametrize(("size", "cycles"), [(4096 + 10, 82 + 1), (10, 2), (60, 2), (4096 + 60, 82 + 2)])
def test_the_last_piece_of_a_long_fetch_is_part_of_a_long_run(size, cycles):
    """At 50 B/cycle 64 B take 2 cycles; what is left of a run longer than that takes its own bytes' time."""
    slow = replace(DEFAULT.chip.dram, port_bytes_per_cycle=50)
    target = replace(DEFAULT, chip=replace(DEFAULT.chip, dram=slow))
    assert of_engine(timeline(pages=[size], target=target), "fetch") == [(0, cycles, cycles + 200)]


def test_code_that_no_instruction_fetches_is_there_from_the_start():
    line = timeline(p.Barrier(), p.Fetch(page=1), p.Barrier(), pages=[50, 102, 70])
    assert of_engine(line, "fetch")[0] == (0, 2, 202)
    assert of_engine(line, "fetch")[2] == (202, 203, 403)
    assert line.engine_bytes.sum() == 222


def test_a_page_is_fetched_by_cluster_0_for_all():
    line = timeline(p.Fetch(page=0, signal=0), hold("gdma", 1), clusters=2, pages=[102])
    assert of_engine(line, "fetch", 0) == [(0, 1, 201)]
    assert of_engine(line, "fetch", 1) == []
    assert of_engine(line, "gdma", 1) == [(221, 221, 221)]


def test_every_cluster_waits_on_its_fetch_engine():
    line = timeline(
        p.Fetch(page=0, signal=0),
        hold("fetch", 1),
        hold("fetch", 1, scope="all_clusters"),
        clusters=2,
        pages=[102],
    )
    assert [start for start, _, _ in of_engine(line, "fetch", 0)] == [0, 201, 241]
    assert [start for start, _, _ in of_engine(line, "fetch", 1)] == [221, 221]


def test_layers_share_the_total():
    line = timeline(copy("gdma", "dram", "sram", signal=0), replace(hold("mvdma", 1, scope="cluster"), layer=1),
                    copy("mvdma", "sram", "nram", layer=1))  # fmt: skip
    assert line.layer_cycles.tolist() == [241, 84]
    assert line.total_cycles == 241 + 84


def test_a_deadlock_names_who_waits_for_what():
    with pytest.raises(DeadlockError) as caught:
        timeline(hold("mvdma", 2, slot=3), hold("vector", 1, slot=1, scope="cluster"), p.Barrier())
    text = str(caught.value)
    assert "cluster0.core0.mvdma: instruction 0 (wait of first)" in text
    assert "waits for core slot 3 of cluster 0, core 0 to reach 2; it is 0" in text
    assert "waits for cluster slot 1 of cluster 0 to reach 1; it is 0" in text
    assert "cluster0.gdma: instruction 2 (barrier of first) at [] waits for the other engines" in text


def test_a_deadlock_of_many_names_some():
    with pytest.raises(
        DeadlockError, match=r"(?s)core slot 0 of cluster 0, core 3 .*\n  and 36 engines more$"
    ):
        timeline(hold("mvdma", 1), hold("matrix", 1), hold("vector", 1), clusters=4, cores=4)


def test_ports_are_not_shared_by_the_chips():
    many = target_named("manycore")
    line = timeline(copy("gdma", "dram", "sram"), clusters=32, target=many)
    ends = np.array([of_engine(line, "gdma", cluster)[0][1] for cluster in range(32)])
    assert ends.tolist() == 2 * [164 * (k + 1) for k in range(16)]
