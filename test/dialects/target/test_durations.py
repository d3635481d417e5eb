"""Durations of single actions against the words of the machine's specification and brute force."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frustum.backend import targets
from frustum.dialects.target import LineBuffer, Target, durations
from frustum.dialects.target.durations import Convolution, matrix_work, piece_writes, transfer_cycles

DEFAULT = targets.load("default")
EDGE = targets.load("edge")
LINE64 = targets.load("line64")


def unit_of(lines: int, channels: int = 16, block_bytes: int = 32):
    from dataclasses import replace

    return replace(EDGE.core.matrix, channels=channels, line_buffer=LineBuffer(lines, block_bytes))


# --- transfers ---------------------------------------------------------------------------------------------


def test_a_whole_chunk_occupies_the_engine_as_long_as_its_slowest_part():
    chunk = durations.transfer_chunk_cycles(
        DEFAULT.cluster.gdma, DEFAULT.chip.dram, DEFAULT.cluster.sram, 4096, 4096, 4096
    )
    assert chunk == durations.TransferCycles(ceil(4096 / 102), ceil(4096 / 102), 4096 // 256, 200)


def test_ports_are_free_again_sooner_than_a_slow_engine():
    iodma = durations.transfer_chunk_cycles(EDGE.core.iodma, EDGE.chip.dram, EDGE.core.nram, 4096, 4096, 4096)
    assert (iodma.engine, iodma.source_port, iodma.destination_port) == (1024, 512, 64)


@pytest.mark.parametrize(("memory", "minimum"), [("dram", 64), ("sram", 16), ("nram", 16), ("wram", 16)])
def test_short_runs_take_the_time_of_the_minimum(memory: str, minimum: int):
    found = DEFAULT.memory(memory)
    assert durations.port_bytes(found, 4, 10) == 10 * minimum
    assert durations.port_bytes(found, minimum, 10) == 10 * minimum
    assert durations.port_bytes(found, minimum + 1, 10) == 10 * (minimum + 1)


def test_short_runs_of_a_strided_read_slow_the_dram_port_only():
    cycles = transfer_cycles(
        DEFAULT, DEFAULT.cluster.gdma, DEFAULT.chip.dram, DEFAULT.cluster.sram, 4096, 32, 4096
    )
    assert cycles.source_port == cycles.engine == ceil(4096 // 32 * 64 / 102)
    assert cycles.destination_port == 4096 // 256


def test_a_transfer_is_the_sum_of_its_chunks_and_the_rest():
    gdma, dram, sram = DEFAULT.cluster.gdma, DEFAULT.chip.dram, DEFAULT.cluster.sram
    cycles = transfer_cycles(DEFAULT, gdma, dram, sram, 2 * 4096 + 100, 8292, 8292)
    assert cycles.engine == 2 * ceil(4096 / 102) + ceil(100 / 102)
    assert cycles.destination_port == 2 * 16 + 1
    assert transfer_cycles(DEFAULT, gdma, dram, sram, 0, 0, 0).engine == 0


@given(st.lists(st.tuples(st.integers(0, 99999), st.integers(1, 5000), st.integers(1, 5000)), min_size=1))
def test_transfers_of_arrays_are_transfers_of_their_elements(sizes):
    ends = EDGE, EDGE.core.iodma, EDGE.chip.dram, EDGE.core.wram
    together = transfer_cycles(*ends, *np.array(sizes, dtype=np.int64).T)
    alone = [transfer_cycles(*ends, *size) for size in sizes]
    assert together.engine.tolist() == [one.engine for one in alone]
    assert together.source_port.tolist() == [one.source_port for one in alone]
    assert together.destination_port.tolist() == [one.destination_port for one in alone]


def test_links_are_engines_of_their_own_bandwidth():
    manycore = targets.load("manycore")
    assert durations.link_engine(manycore, "chip").bytes_per_cycle == 8
    assert durations.link_engine(DEFAULT, "host").bytes_per_cycle == 16
    with pytest.raises(AssertionError, match="edge has no link between chips"):
        durations.link_engine(EDGE, "chip")


# --- the matrix unit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "macs"),
    [("default", 4096), ("edge", 256), ("units4", 256), ("line64", 2048), ("manycore", 256), ("df", 1024)],
)
def test_macs_per_cycle_by_type(name: str, macs: int):
    matrix = targets.load(name).core.matrix
    assert [matrix.macs_per_cycle(width) for width in (1, 2, 4)] == [macs, macs / 2, macs / 8]


def test_steps_of_a_3x3_convolution():
    work = matrix_work(DEFAULT.core.matrix, Convolution(56, 56, 64, 64, 1, kernel_h=3, kernel_w=3))
    assert work.passes == 56 * 56 // 64
    assert work.steps == work.passes * 64 * 9
    assert work.useful_macs == 56 * 56 * 64 * 64 * 9


@pytest.mark.parametrize(("element_bytes", "cycles"), [(1, 576), (2, 1152), (4, 4608)])
def test_a_step_lasts_1_cycle_for_int8_2_for_16_bits_8_for_f32(element_bytes: int, cycles: int):
    work = Convolution(1, 64, 64, 64, element_bytes, kernel_h=3, kernel_w=3)
    assert matrix_work(DEFAULT.core.matrix, work).busy_cycles == cycles


def test_worked_rows_of_9_elements_split_2_writes_continuous_1():
    unit = unit_of(lines=16, block_bytes=16)
    straddling = durations.straddling_windows(9, 9, 3, 1, 1)
    # One row (7 windows) and 7 elements of the next (5 windows), with 2 windows that straddle.
    row = Convolution(1, 7, 1, 1, 1, kernel_w=3)
    further = Convolution(1, 5, 1, 1, 1, kernel_w=3)
    assert straddling == 2
    assert matrix_work(unit, row).writes + matrix_work(unit, further).writes == 2
    assert piece_writes(unit, row, "continuous", 7 + straddling + 5) == 1


@pytest.mark.parametrize(("kernel_w", "straddling"), [(1, 0), (3, 2), (7, 6)])
def test_straddling_windows_are_k_minus_1_at_stride_1(kernel_w: int, straddling: int):
    assert durations.straddling_windows(20, 20, kernel_w, 1, 1) == straddling


def test_continuous_saves_writes_and_pays_with_discarded_windows():
    unit, work = LINE64.core.matrix, Convolution(7, 7, 512, 512, 1, kernel_h=3, kernel_w=3, straddling=2)
    split, continuous = matrix_work(unit, work), matrix_work(unit, work, "continuous")
    assert (split.windows, split.discarded) == (49, 0)
    assert (continuous.windows, continuous.discarded) == (61, 12)
    assert split.writes == 7 * 512 * 3 * 16
    assert continuous.writes == 3 * 512 * 3 * 16  # ceil(61 / 30)
    assert split.useful_macs == continuous.useful_macs
    assert durations.cheaper_mode(unit, work) == "continuous"
    assert durations.cheaper_mode(unit, Convolution(1, 64, 8, 8, 4)) == "split"


@pytest.mark.parametrize(
    ("kernel_w", "dilation", "stride", "element_bytes", "fills"),
    [
        (3, 1, 1, 1, (30,)),  # floor((32 - 3) / 1) + 1
        (3, 1, 2, 1, (15,)),
        (3, 2, 1, 4, (4,)),  # span 5 of 8 elements
        (11, 1, 4, 4, (1, 2)),  # 8 + 3 taps
        (3, 8, 1, 4, (8, 8, 8)),  # down to single taps
    ],
)
def test_column_pieces_of_a_32_byte_block(kernel_w, dilation, stride, element_bytes, fills):
    work = Convolution(1, 1, 1, 1, element_bytes, kernel_w=kernel_w, stride_w=stride, dilation_w=dilation)
    pieces = durations.column_pieces(EDGE.core.matrix, work)
    assert tuple(fill for count, fill in pieces for _ in range(count)) == fills
    several = durations.column_pieces(EDGE.core.matrix, replace(work, kernel_w=np.array([kernel_w])))
    assert [[np.max(number) for number in piece] for piece in several] == [list(piece) for piece in pieces]


def test_fully_connected_positions_are_the_batch():
    work = matrix_work(DEFAULT.core.matrix, Convolution(1, 4, 4096, 1000, 4))
    assert work.steps == 16 * 4096
    assert work.busy_cycles == 16 * 4096 * 8


def test_channels_last_block_serves_several_channels():
    unit = EDGE.core.matrix  # 16 lines, 32-byte blocks
    product = Convolution(16, 1, 64, 16, 1)
    assert matrix_work(unit, product, "channels_last").writes == 16 * 2  # 64 channels of a position: 2 blocks
    narrow = Convolution(1, 16, 4, 16, 1)
    assert matrix_work(unit, narrow, "channels_last").writes == 2  # 16 positions of 4 bytes
    group = Convolution(1, 16, 4, 16, 1, pitch_channels=256)
    assert matrix_work(unit, group, "channels_last").writes == 16  # a block per position
    strided = Convolution(1, 16, 32, 16, 1, stride_w=2)
    assert matrix_work(unit, strided, "channels_last").writes == 16  # what lies between is not read


def simulated_writes(unit, work: Convolution, mode: str) -> int:
    """Fill the lines window by window; a piece ends with the row or with the fill."""
    rows, columns = work.rows, work.columns
    if mode == "continuous":
        rows, columns = 1, work.rows * work.columns + (work.rows - 1) * work.straddling
    order = [row for row in range(rows) for _ in range(columns)]
    writes = 0
    for start in range(0, len(order), unit.lines):
        fill = order[start : start + unit.lines]
        for row in sorted(set(fill)):
            writes += piece_writes(unit, work, mode, fill.count(row))
    return writes * ceil(work.channels_out / unit.channels) * work.groups


WORKS = st.builds(
    Convolution,
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    channels_in=st.integers(1, 20),
    channels_out=st.integers(1, 40),
    element_bytes=st.sampled_from([1, 2, 4]),
    groups=st.integers(1, 3),
    kernel_h=st.integers(1, 3),
    kernel_w=st.integers(1, 11),
    stride_w=st.integers(1, 4),
    dilation_w=st.integers(1, 3),
    straddling=st.integers(0, 6),
)
MODES = st.sampled_from(["split", "continuous", "channels_last"])


@given(WORKS, MODES, st.integers(1, 70))
@settings(max_examples=300, deadline=None)
def test_writes_in_closed_form_are_those_of_filling_line_by_line(work, mode, lines):
    unit = unit_of(lines)
    assert matrix_work(unit, work, mode).writes == simulated_writes(unit, work, mode)


@given(
    st.lists(st.tuples(*[st.integers(0, 40)] * 4), min_size=1, max_size=8),
    MODES,
    st.sampled_from([1, 2, 4]),
)
@settings(deadline=None)
def test_matrix_work_of_arrays_is_that_of_their_elements(sizes, mode, element_bytes):
    def work(rows, columns, channels_in, channels_out):
        return matrix_work(
            EDGE.core.matrix,
            Convolution(rows, columns, channels_in, channels_out, element_bytes, kernel_w=3, straddling=2),
            mode,
        )

    together = work(*np.array(sizes, dtype=np.int64).T)
    alone = [work(*size) for size in sizes]
    for name in ("windows", "discarded", "passes", "steps", "writes", "busy_cycles", "useful_macs"):
        assert getattr(together, name).tolist() == [getattr(one, name) for one in alone], name


# --- the vector unit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "window", "passes"),
    [
        ("add", 1, 1),
        ("mul", 1, 1),
        ("relu", 1, 1),
        ("exp", 1, 4),
        ("log", 1, 4),
        ("sqrt", 1, 4),
        ("div", 1, 4),
        ("sigmoid", 1, 4),
        ("tanh", 1, 4),
        ("erf", 1, 4),
        ("pool", 9, 9),
        ("reduce", 1, 1),
        ("variance", 1, 2),
        ("softmax", 1, 11),
        ("lrn", 5, 13),
        ("normalise", 1, 8),
        ("resize_nearest", 1, 1),
        ("resize_linear", 1, 4),
        ("gelu", 1, 7),  # composite: the sum of its parts
    ],
)
def test_vector_passes(kind: str, window: int, passes: int):
    assert durations.vector_passes(DEFAULT.core.vector, kind, window) == passes


@pytest.mark.parametrize(("element_bytes", "cycles"), [(1, 2), (2, 2), (4, 4)])
def test_f32_goes_at_half_the_rate(element_bytes: int, cycles: int):
    assert durations.vector_cycles(DEFAULT.core.vector, 1, 100, element_bytes) == cycles


def test_passes_multiply_rounded_cycles():
    assert durations.vector_cycles(EDGE.core.vector, 4, np.array([0, 1, 16, 17]), 1).tolist() == [0, 4, 4, 8]


# --- energy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("element_bytes", "energy_pj"), [(1, 0.2), (2, 0.8), (4, 3.0)])
def test_energy_of_macs_by_type(element_bytes: int, energy_pj: float):
    assert durations.mac_energy_pj(DEFAULT.core.matrix, 1000, element_bytes) == pytest.approx(
        1000 * energy_pj
    )


def test_energy_of_bytes_by_level():
    def per_byte(target: Target) -> list[float]:
        return [
            durations.byte_energy_pj(target.memory(name), 10) for name in ("dram", "sram", "nram", "wram")
        ]

    assert per_byte(DEFAULT) == [1000.0, 60.0, 10.0, 10.0]
    assert per_byte(targets.load("df")) == [900.0, 16.0, 4.0, 4.0]
