"""What single actions of the machine take: cycles, line-buffer writes, energy.

The compiler's estimate and the emulator both ask here, so they can differ in overlap only.
All functions are pure, and exact on Python integers and on numpy arrays of them alike (numpy is not
imported): sizes and counts may be arrays, figures of the machine are plain numbers.  Every count is at
least 0; work of size 0 takes 0 cycles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any, Literal

from frustum.dialects.extents import Int, ceil_div
from frustum.dialects.functions import ELEMENTWISE
from frustum.dialects.target import Engine, MatrixUnit, Memory, Target, VectorUnit

Mode = Literal["split", "continuous", "channels_last"]


# --- transfers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransferCycles:
    """What a transfer, or one chunk of it, occupies; `latency` delays its completion and occupies nothing."""

    engine: Int
    source_port: Int
    destination_port: Int
    latency: int


def port_bytes(memory: Memory, run_bytes: Int, runs: Int) -> Int:
    """Bytes that a memory's port is busy with for `runs` contiguous runs: short ones count as the minimum."""
    return runs * larger(run_bytes, memory.minimum_run_bytes)


def chunks(size_bytes: Int, chunk_bytes: int) -> tuple[Int, Int]:
    """How many whole chunks a transfer is cut into, and the bytes of the one after them (0: there is none)."""
    return size_bytes // chunk_bytes, size_bytes % chunk_bytes


def chunk_port_cycles(memory: Memory, chunk_bytes: Int, run_bytes: Int) -> Int:
    """Cycles that a memory's port is busy with one chunk made of contiguous runs of `run_bytes`.

    A chunk cuts runs that are as long as the minimum without cost; of shorter ones, `ceil(chunk / run)`
    are touched.
    """
    is_short = run_bytes < memory.minimum_run_bytes
    runs = ceil_div(chunk_bytes, larger(run_bytes, 1))
    padded = chunk_bytes + is_short * (port_bytes(memory, run_bytes, runs) - chunk_bytes)
    return ceil_div(padded, memory.port_bytes_per_cycle)


def transfer_chunk_cycles(
    engine: Engine,
    source: Memory,
    destination: Memory,
    chunk_bytes: Int,
    source_run_bytes: Int,
    destination_run_bytes: Int,
    read_bytes: Int | None = None,
) -> TransferCycles:
    """What one chunk occupies: the engine as long as the slowest part needs, each port as long as it needs.

    Two memories of the same engine may be the same one.  For a multicast give any of the destinations: each
    port is as busy.  A chunk that is expanded on the way takes `read_bytes` at its source.
    """
    read = chunk_port_cycles(source, chunk_bytes if read_bytes is None else read_bytes, source_run_bytes)
    write = chunk_port_cycles(destination, chunk_bytes, destination_run_bytes)
    moved = ceil_div(chunk_bytes, engine.bytes_per_cycle)
    latency = max(source.latency_cycles, destination.latency_cycles)
    return TransferCycles(larger(moved, larger(read, write)), read, write, latency)


def transfer_cycles(
    target: Target,
    engine: Engine,
    source: Memory,
    destination: Memory,
    size_bytes: Int,
    source_run_bytes: Int,
    destination_run_bytes: Int,
) -> TransferCycles:
    """What a whole transfer occupies when nothing else is in its way: the sum over its chunks.

    It completes `engine + latency` cycles after its start.
    """
    chunk_bytes = target.transfers.chunk_bytes
    whole, rest_bytes = chunks(size_bytes, chunk_bytes)
    runs = source_run_bytes, destination_run_bytes
    one = transfer_chunk_cycles(engine, source, destination, chunk_bytes, *runs)
    rest = transfer_chunk_cycles(engine, source, destination, rest_bytes, *runs)
    return TransferCycles(
        whole * one.engine + rest.engine,
        whole * one.source_port + rest.source_port,
        whole * one.destination_port + rest.destination_port,
        one.latency,
    )


def link_engine(target: Target, link: Literal["host", "chip"]) -> Engine:
    """The link to the host, or between the DRAMs of two chips, as the engine that it is for a transfer."""
    rate = target.host_link_bytes_per_cycle if link == "host" else target.chip_link_bytes_per_cycle
    assert rate is not None, f"{target.name} has no link between chips"
    return Engine(rate)


# --- the matrix unit ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convolution:
    """What the matrix unit is asked to do; a matrix product has a 1 x 1 kernel and its rows as `columns`.

    `rows` are all row pieces, those of a batch together; `columns` the output positions of each.
    """

    rows: Int
    columns: Int
    channels_in: Int  # per group
    channels_out: Int  # per group
    element_bytes: int
    groups: Int = 1
    kernel_h: int = 1
    kernel_w: int = 1
    stride_w: int = 1
    dilation_w: int = 1
    straddling: Int = 0  # windows between two rows that are computed and discarded; `continuous` only
    runs: Int = 1  # parts of the rows, as long as each other, between which nothing straddles; `continuous` only
    pitch_channels: Int | None = None  # channels stored per position; `channels_last` only

    @property
    def span(self) -> int:
        """Elements that the kernel row of one window covers."""
        return (self.kernel_w - 1) * self.dilation_w + 1


@dataclass(frozen=True)
class MatrixWork:
    """What one matrix instruction does; `busy_cycles` is `max(writes, steps x cycles per step)`: it may take longer to
    find the addresses (`address_cycles`)."""

    windows: Int  # output positions computed, discarded ones included
    discarded: Int
    passes: Int
    steps: Int
    writes: Int
    busy_cycles: Int
    useful_macs: Int


def matrix_work(unit: MatrixUnit, work: Convolution, mode: Mode = "split") -> MatrixWork:
    """Passes, steps and writes of an instruction, exactly.

    With `P` lines, `Q` channels, windows `= rows x columns` (plus the straddling ones between rows in
    `continuous` mode):

    - `passes = ceil(windows / P) x ceil(channels_out / Q) x groups`
    - `steps = passes x channels_in x kernel_h x kernel_w`
    - `writes = ceil(channels_out / Q) x groups x (writes of each fill of the lines, summed over the fills)`

    A fill takes the next P windows, so it may hold pieces of several rows and the last fill may be smaller.
    Each row piece of a fill is written on its own; in `continuous` mode each piece of a run of rows is.  A piece
    of n windows takes `piece_writes`.
    """
    rows, columns = work.rows, work.columns
    discarded = 0 * rows
    if mode == "continuous":
        discarded = (rows - work.runs) * work.straddling * (rows * columns > 0)
        runs = larger(work.runs, 1)
        rows, columns = runs, (rows * columns + discarded) // runs
    windows = rows * columns
    slices = ceil_div(work.channels_out, unit.channels) * work.groups
    passes = ceil_div(windows, unit.lines) * slices
    steps = passes * work.channels_in * work.kernel_h * work.kernel_w
    writes = slices * _sum_over_pieces(unit, work, mode, rows, columns)
    busy = larger(writes, steps * unit.cycles_per_step.of(work.element_bytes))
    taps = work.channels_in * work.kernel_h * work.kernel_w
    useful = (windows - discarded) * work.channels_out * work.groups * taps
    return MatrixWork(windows, discarded, passes, steps, writes, busy, useful)


ENTRIES_PER_CYCLE = 4
"""Of an address table, read from the address cache."""


def address_cycles(
    unit: MatrixUnit,
    box: tuple[Int, Int, Int, Int],
    taps: int,
    groups: Int = 1,
    part: tuple[Int, Int, Int, Int] | None = None,
    *,
    has_groups: bool = False,
) -> Int:
    """Cycles in which the matrix unit finds where its operands are, once per execution however many passes it makes.

    `box`: images, rows and columns of the output as clipping leaves it (no windows that are discarded), input channels
    of a group; `part`: the same of the table that the instruction names, None where it names none; `has_groups`: the
    table has the bases of every group.  With the part clipped to the box, `T = images x rows x columns` threads and
    `K = channels x taps` products:

    - without a table `groups x (T + K) x address_cycles`, T and K of the box;
    - with one, `p x ceil((t + k) / 4) + (p - 1) x address_cycles`, t and k of the part, which is walked over
      `p = groups x ceil(box / part)` pieces; those at the ends count whole.  With p = 1 that is a full table;
    - with a full one of every group `groups x ceil((T + K) / 4)`: nothing is walked.

    The unit is busy for the greatest of this, its writes, and its steps.
    Source: docs/techniques/address-tables.md, "What addresses cost".
    """
    images, rows, columns, channels = box
    exists = images * rows * columns * channels * groups > 0
    if part is None:
        return exists * groups * (images * rows * columns + channels * taps) * unit.address_cycles
    pieces = exists * groups
    for extent, its in zip(box, part, strict=True):
        pieces = pieces * ceil_div(extent, its)
    images, rows, columns, channels = (smaller(extent, its) for extent, its in zip(box, part, strict=True))
    walked = larger(pieces - 1, 0) * (not has_groups)
    return pieces * _entry_cycles(images * rows * columns, channels * taps) + walked * unit.address_cycles


def _entry_cycles(windows: Int, products: Int) -> Int:
    """Cycles in which the entries of one table are read."""
    return ceil_div(windows + products, ENTRIES_PER_CYCLE)


def table_cycles(work: Convolution) -> Int:
    """`address_cycles` with a full table of every group: the fewest there are.  More than the steps where a piece has
    few products for each window."""
    return work.groups * _entry_cycles(work.rows * work.columns, work.channels_in * work.kernel_h * work.kernel_w)


def straddling_windows(
    row_elements: Int, row_distance: Int, kernel_w: int, stride_w: int, dilation_w: int
) -> Int:
    """Windows to discard at a row end: `max(0, ceil((D - Wo*S) / S))`.

    `row_elements` is the row's length W with its padding, `row_distance` D from the start of the input of one
    output row to the next, `Wo = (W - span) // S + 1`.
    """
    valid = (row_elements - ((kernel_w - 1) * dilation_w + 1)) // stride_w + 1
    return larger(ceil_div(row_distance - valid * stride_w, stride_w), 0)


def column_pieces(unit: MatrixUnit, work: Convolution) -> tuple[tuple[Int, Int], tuple[Int, Int]]:
    """Column pieces of a kernel row, and lines that one write fills for each: of whole pieces, and of the rest.

    A block of E elements fills `(E - span) // S + 1` lines.  A kernel row whose span exceeds E is cut into
    the fewest column pieces, each but the last with as many taps as fit.
    """
    block = unit.line_buffer.block_bytes // work.element_bytes
    most_taps = (block - 1) // work.dilation_w + 1
    whole, rest = work.kernel_w // most_taps, work.kernel_w % most_taps
    fills = ((block - (taps - 1) * work.dilation_w - 1) // work.stride_w + 1 for taps in (most_taps, rest))
    return (whole, next(fills)), ((rest > 0) * 1, next(fills))


def piece_writes(unit: MatrixUnit, work: Convolution, mode: Mode, windows: Int) -> Int:
    """Writes that bring a piece of n windows of one row into the lines, for all channels and kernel rows.

    - `split`, `continuous` (a block is a run of positions of one channel):
      `channels_in x kernel_h x sum of ceil(n / windows per write) over the column pieces`
    - `channels_last` (a block is a run of channels, then of positions): the distinct blocks of the
      `(n - 1) x S + span` positions, or `n x kernel_w` where windows leave some out; whole positions
      as one run, or, where only some of the stored channels are read, each position as a run if that is less.
    """
    if mode != "channels_last":
        per_channel = sum(count * ceil_div(windows, fill) for count, fill in column_pieces(unit, work))
        return per_channel * work.channels_in * work.kernel_h
    block = unit.line_buffer.block_bytes // work.element_bytes
    pitch = work.channels_in if work.pitch_channels is None else work.pitch_channels
    covered = ((windows - 1) * work.stride_w + work.span) * (windows > 0)
    as_one_run = ceil_div(covered * pitch, block)
    as_positions = smaller(covered, windows * work.kernel_w) * ceil_div(work.channels_in, block)
    return smaller(as_one_run, as_positions) * work.kernel_h


def _sum_over_pieces(unit: MatrixUnit, work: Convolution, mode: Mode, rows: Int, columns: Int) -> Int:
    """Writes of all row pieces when `rows x columns` windows fill the lines in order, P at a time.

    Row r starts in line `r*columns mod P`, which repeats after at most P rows; so only so many are looked at,
    each as often as it occurs.  A row is: what completes the fill that the row before began, then whole
    fills, then what begins the next.
    """
    lines = unit.lines
    of_whole_fill = piece_writes(unit, work, mode, lines)
    period = lines // gcd(lines, columns) if isinstance(columns, int) else lines
    total = 0 * (rows * columns)
    for row in range(min(period, _greatest(rows))):
        alike = larger(0, (rows - row + period - 1) // period)
        first = smaller(-(row * columns) % lines, columns)
        whole, last = (columns - first) // lines, (columns - first) % lines
        ends = piece_writes(unit, work, mode, first) + piece_writes(unit, work, mode, last)
        total = total + alike * (whole * of_whole_fill + ends)
    return total


def cheaper_mode(unit: MatrixUnit, work: Convolution) -> Mode:
    """Split or continuous, whichever is busy for fewer cycles (split where equal: nothing is discarded)."""
    split = matrix_work(unit, work, "split").busy_cycles
    return "continuous" if matrix_work(unit, work, "continuous").busy_cycles < split else "split"


# --- the vector unit ---------------------------------------------------------------------------------------

Steps = tuple[tuple[str, int], ...]
"""What the vector unit does one after the other: names and windows of `vector_passes`, whose passes add up."""
CONVERSION = ("identity", 1)
"""Between integers and the numbers that these stand for."""


def vector_steps(name: str, numbers: Any, conversions: int = 0) -> Steps:
    """The steps of a layer or an instruction called so, which have their numbers under the same names.

    An activation on the way out is a step; so is each conversion, and what only converts computes nothing else.
    """
    match name:
        case "pool":
            own = "pool", prod(numbers.kernel)
        case "lrn":
            own = "lrn", numbers.size
        case "resize":
            own = f"resize_{numbers.mode}", 1
        case "unary" | "binary":
            own = str(numbers.kind), 1
        case "reduce" if numbers.kind == "variance":
            own = "variance", 1
        case _:
            own = name, 1
    act = getattr(numbers, "act", None)
    done = (CONVERSION,) * conversions if conversions and own == CONVERSION else (*(CONVERSION,) * conversions, own)
    return done if act is None else (*done, (act.kind, 1))


def depthwise_steps(kernel: tuple[int, ...], *, terms: int, conversions: int, act: str | None) -> Steps:
    """The steps of a depthwise convolution: its taps; one for each of so many terms (bias, residual) and conversions
    (to the integers that the result has, and of a residual of integers those between); the activation.

    Source: docs/techniques/machine.md, "Vector unit".
    """
    own: Steps = (("depthwise", prod(kernel)), *(("add", 1),) * terms, *(CONVERSION,) * conversions)
    return own if act is None else (*own, (act, 1))


def vector_passes(unit: VectorUnit, kind: str, window: int = 1) -> int:
    """Passes over its elements that an operation needs.

    `kind` is an element-wise kind, or `pool`, `depthwise` (elements: outputs; `window`: elements of its kernel),
    `reduce`, `variance` (elements: inputs), `softmax`, `lrn` (`window`: its size), `normalise` (layer, instance),
    `resize_nearest` or `resize_linear` (elements: outputs).
    """
    passes = unit.passes
    simple, hard, reduction = passes.elementary, passes.transcendental, passes.reduction
    match kind:
        case "pool":
            return window * passes.pool_per_kernel_element
        case "depthwise" | "hide":  # multiply and add; compare and select
            return window * simple
        case "reduce":
            return reduction
        case "variance":  # sums of elements and of their squares, as in a normalisation
            return 2 * reduction
        case "softmax":  # maximum, subtract, exponential, sum, divide
            return reduction + simple + hard + reduction + hard
        case "lrn":  # sum of squares, power, divide
            return window * passes.lrn_per_window_element + hard + hard
        case "normalise":  # mean and variance, root, scale and shift twice
            return 2 * reduction + hard + 2 * simple
        case "resize_nearest":
            return passes.resize_nearest
        case "resize_linear":
            return passes.resize_linear
    function = ELEMENTWISE[kind]
    return function.elementary * simple + function.transcendental * hard


def vector_cycles(unit: VectorUnit, passes: Int, elements: Int, element_bytes: int) -> Int:
    """Busy cycles: `ceil(elements / rate) x passes`."""
    return ceil_div(elements * unit.cycles_per_element.of(element_bytes), unit.lanes) * passes


# --- energy ------------------------------------------------------------------------------------------------


def mac_energy_pj(unit: MatrixUnit, macs: Int, element_bytes: int) -> Int:
    """Energy of multiply-accumulates on elements of 1, 2 or 4 bytes; their operands' bytes come on top."""
    return macs * unit.energy_pj_per_mac.of(element_bytes)


def byte_energy_pj(memory: Memory, size_bytes: Int) -> Int:
    """Energy of bytes that cross a memory's port, or that a compute unit reads or writes there."""
    return size_bytes * memory.energy_pj_per_byte


# --- arithmetic that holds for integers and arrays ---------------------------------------------------------


def larger(a: Int, b: Int) -> Int:
    return a + (b - a) * (b > a)


def smaller(a: Int, b: Int) -> Int:
    return a + (b - a) * (b < a)


def _greatest(a: Int) -> int:
    return a if isinstance(a, int) else int(a.max(initial=0))
