"""A drawing for each technique: `python examples/technique_drawings.py docs/pictures`.

What stands in them comes from the code that carries the technique out (the functions named in each docstring); a test
draws them again and compares.  The drawing of tiles through layers is that of `drawings.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from drawings import line, rectangle, svg, text
from onnx import TensorProto, helper, numpy_helper

import frustum
from frustum.dialects.isa.line_buffer_plan import RowRun, column_pieces, writes
from frustum.dialects.isa.tables.address_table import Geometry, base, nchw, rel
from frustum.dialects.target.durations import straddling_windows
from frustum.passes.analysis.series import Series, at_outputs, pieces_of
from frustum.passes.fuse.rules import RULES, RuleKind

# --- fully connected layers, batched -----------------------------------------------------------------------

INPUTS, OUTPUTS, BATCHES = 1024, 512, (1, 2, 4, 8)


def batched() -> str:
    """Bytes of weights that runs of a fully connected layer read, as the emulator counts them."""
    counted = [weight_bytes(batch) for batch in BATCHES]
    most = BATCHES[-1] * counted[0]
    parts = [
        text(24, 30, f"A fully connected layer of {INPUTS} x {OUTPUTS}, in f16 on edge", "head"),
        text(24, 48, "Bytes of weights from DRAM: image by image (outline), and as counted (blue).", "small"),
    ]
    for row, (batch, size) in enumerate(zip(BATCHES, counted, strict=True)):
        y = 70 + 44 * row
        parts += [
            text(24, y + 18, f"{batch} image{'s' * (batch > 1)}"),
            rectangle(110, y, 560 * batch * counted[0] / most, 26, "next"),
            rectangle(110, y, 560 * size / most, 26, "made"),
            text(120 + 560 * batch * counted[0] / most, y + 18, f"{size:,} of {batch * counted[0]:,} bytes", "small"),
        ]
    return svg(860, 70 + 44 * len(BATCHES) + 12, "Weights of a fully connected layer are read once for a batch", parts)


def weight_bytes(batch: int) -> int:
    """Counted, of a run of so many images."""
    weights = numpy_helper.from_array(np.ones((INPUTS, OUTPUTS), np.float32), "w")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, size])
        for name, size in (("x", INPUTS), ("y", OUTPUTS))
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")]
    graph = helper.make_graph(nodes, "fc", ends[:1], ends[1:], [weights])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = frustum.compile(model, "edge", "f16", compress_weights="none")
    counted: int = frustum.run(compiled, mode="timing").report["dram"]["weight_bytes"]
    return counted


# --- the rules of template fuse units ----------------------------------------------------------------------


def rules() -> str:
    """The table of rules (`passes/fuse/rules.py`): which kind each is, and what mends its failure."""
    parts = [
        text(24, 30, f"{len(RULES)} rules judge every step by which a unit grows", "head"),
        text(24, 48, "What mends a failure is on the right; where nothing is left to mend, the step ends.", "small"),
    ]
    y, longest = 70, 0
    for kind in RuleKind:
        own = [rule for rule in RULES.values() if rule.kind is kind]
        parts.append(text(24, y + 15, kind.value, "head"))
        for rule in own:
            remedies = ", then ".join(each.value for each in rule.remedies)
            longest = max(longest, len(remedies))
            parts += [
                rectangle(130, y, 30, 20, "made" if rule.needs_plan else "map"),
                text(145, y + 15, str(rule.number), "", "middle"),
                text(172, y + 15, rule.name),
                text(360, y + 15, remedies, "small"),
            ]
            y += 24
        y += 10
    parts.append(text(24, y + 10, "blue: asked of the planned unit map; the others before that", "small"))
    return svg(384 + 6 * longest, y + 26, "The rules of template fuse units by kind, with their remedies", parts)


# --- address tables ----------------------------------------------------------------------------------------

SIDE, KERNEL = 4, 3
CELL = 34
THREAD, PRODUCT = 3, 5


def address_tables() -> str:
    """A table (`dialects/isa/tables/address_table.py`): where every operand lies is a base and an offset."""
    out = SIDE - KERNEL + 1
    geometry = Geometry(1, out, out, 1, (KERNEL, KERNEL), (1, 1), (1, 1), nchw(1, SIDE, SIDE))
    bases, offsets = base(geometry), rel(geometry)
    found = bases[THREAD] + offsets[PRODUCT]
    under = {bases[THREAD] + each for each in offsets}
    parts = [
        text(24, 30, f"A map of {SIDE} x {SIDE} under a kernel of {KERNEL} x {KERNEL}", "head"),
        text(24, 48, f"Threads are the {len(bases)} output positions, products the {len(offsets)} taps.", "small"),
        *cells(24, 70, range(SIDE * SIDE), SIDE, found, under),
        text(220, 84, "base[t]"), *cells(290, 66, bases, len(bases), THREAD),
        text(220, 134, "rel[k]"), *cells(290, 116, offsets, len(offsets), PRODUCT),
        text(220, 184, f"operand k = {PRODUCT} of thread t = {THREAD} is element"
                       f" {bases[THREAD]} + {offsets[PRODUCT]} = {found}"),
        text(220, 204, "blue: the window of that thread; orange: that operand", "small"),
    ]  # fmt: skip
    return svg(640, 230, "An address table: every operand lies at a base plus an offset", parts)


def cells(
    left: float, top: float, numbers: Sequence[int], columns: int, mark: int, under: Collection[int] = ()
) -> Iterator[str]:
    """Numbers in boxes, row by row; that at `mark` in orange, those that are `under` something in blue."""
    for place, number in enumerate(numbers):
        x, y = left + place % columns * CELL, top + place // columns * CELL
        style = "both" if place == mark else "made" if number in under else "map"
        yield rectangle(x, y, CELL - 2, CELL - 2, style)
        yield text(x + CELL / 2 - 1, y + 21, str(number), "", "middle")


# --- the line buffer ---------------------------------------------------------------------------------------

ROW, TAPS, BLOCK = 6, 3, 16
STEP = 22


def line_buffer() -> str:
    """Two rows as one run, and apart (`dialects/isa/line_buffer_plan.py`): lines, blocks, what is dropped."""
    straddling = int(straddling_windows(ROW, ROW, TAPS, 1, 1))
    columns = ROW - TAPS + 1
    parts = [
        text(24, 30, f"Two rows of {ROW} elements, {TAPS} taps, blocks of {BLOCK} elements", "head"),
        text(24, 48, "Each line holds a window, shifted by one element against the line before.", "small"),
    ]
    y = 70.0
    (piece,) = column_pieces(BLOCK, TAPS, 1, 1)
    for mode, run, runs in (
        ("continuous", RowRun(2, columns, 1, ROW, straddling), 1),
        ("split", RowRun(1, columns, 1, ROW, 0), 2),
    ):
        blocks = [
            (number * ROW + first, number * ROW + end)
            for number in range(runs)
            for _, _, first, end in writes(run, 0, run.windows, TAPS, piece[2], 0)
        ]
        dropped = runs * run.windows - 2 * columns
        parts.append(text(24, y + 14, f"{mode}: writes {len(blocks)}, windows dropped {dropped}"))
        y += 26
        for element in range(2 * ROW):
            parts.append(rectangle(24 + element * STEP, y, STEP - 2, 16, "made" if element < ROW else "map"))
        for first, end in blocks:
            parts.append(line((24 + first * STEP, y + 21), (22 + end * STEP, y + 21), "block"))
        y += 30
        for number in range(runs):
            for window in range(run.windows):
                start = number * ROW + run.start(window)
                style = "both" if window % run.period >= columns else "map"
                parts.append(rectangle(24 + start * STEP, y, TAPS * STEP - 2, 8, style))
                y += 10
        y += 16
    parts.append(text(24, y + 4, "under the rows: what a write takes; orange: windows that mix two rows", "small"))
    return svg(560, int(y) + 22, "Line buffer: windows over row ends in one write, and rows apart", parts)


# --- splitting at output branches --------------------------------------------------------------------------

READS = ((), (0,), (1,), (2,), (3,), (1, 4), (5,))
LEAVE = (2, 4, 6)


def output_split() -> str:
    """Where a series is cut (`passes/analysis/series.py`): behind results that leave and are read on."""
    names = [f"layer {n}" for n in range(len(READS))]
    ones = [1] * len(READS)
    series = Series(names, READS, frozenset(LEAVE), ones, ones, ones)
    whole = (0, len(series))
    pieces = pieces_of(whole, at_outputs(series, whole))
    left, step, y = 40, 112, 110
    parts = [
        text(24, 30, f"{len(READS)} layers with {len(LEAVE)} outputs become {len(pieces)} executables", "head"),
        text(24, 48, "A cut lies behind a result that is an output (orange) and that a later layer reads.", "small"),
    ]
    for start, stop in pieces:
        parts.append(rectangle(left + start * step - 12, y - 26, (stop - start) * step - 12, 112, "next"))
    for number, reads in enumerate(READS):
        x = left + number * step
        for read in reads:
            if read == number - 1:
                parts.append(line((x - step + 84, y + 17), (x, y + 17), "edge"))
            else:
                a, b = left + read * step + 42, x + 42
                parts += [line((a, y), (a, y - 14), "edge"), line((a, y - 14), (b, y - 14), "edge")]
                parts.append(line((b, y - 14), (b, y), "edge"))
        parts.append(rectangle(x, y, 84, 34, "both" if number in LEAVE else "map"))
        parts.append(text(x + 42, y + 22, names[number], "", "middle"))
        if number in LEAVE:
            parts.append(line((x + 42, y + 34), (x + 42, y + 58), "edge"))
            parts.append(text(x + 42, y + 74, "output", "small", "middle"))
    title = "A network is cut behind results that are outputs and are read on"
    return svg(left + len(READS) * step + 8, 220, title, parts)


DRAWINGS = {
    "batched.svg": batched, "rules.svg": rules, "address-tables.svg": address_tables, "line-buffer.svg": line_buffer,
    "output-split.svg": output_split,
}  # fmt: skip

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (Path(sys.argv[1]) / name).write_text(draw())
