"""One layer as an executable built by hand: y = relu(a * x + x), rows of 64 numbers in tiles of 8 on every core."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from frustum.backend.file.executable import build_executable
from frustum.dialects.isa import program as p
from frustum.dialects.target import read_target, to_json

A = p.Affine
ROWS, COLUMNS, TILE = 30, 64, 2
"""Rows of the map; rows of a core's tile: 4 cores make 8 rows in a pass, so the last pass is cut."""
WEIGHT = np.linspace(-1, 1, COLUMNS, dtype=np.float32)
ROOT = Path(__file__).parents[2]


def target(name="edge"):
    file = ROOT / "backend" / "targets" / f"{name}.yaml"
    return read_target(file.read_text(), str(file))


def network(skewed=True, element="f32", without=None, ring=True):
    """The executable for `edge`; the weight `a` is a row of 64 numbers in f32.  `without`: leave out this wait."""
    size = {"f32": 4, "f16": 2, "bf16": 2}[element]
    stages = (0, 1, 2) if skewed else (0, 0, 0)
    row = COLUMNS * size
    place = A(0, (4 * TILE,), core=TILE)
    box = p.Box.of(*(p.Span(A(), 1, 1),) * 2, p.Span(place, TILE, ROWS), p.Span(A(), COLUMNS, COLUMNS))
    strides = (0, 0, row, size)
    weight_row = p.Box.of(*(p.Span(A(), 1, 1),) * 3, p.Span(A(), COLUMNS, COLUMNS))
    x, y, w = (p.View(element, place * row + start, strides, "dram") for start in (0, 8192, 0))
    w = p.View("f32", A(16384), (0, 0, 0, 4), "dram")
    weight = p.View("f32", A(8192), (0, 0, 0, 4), "nram")
    copies = p.Ring(2, TILE * row, 1) if ring else None
    tile = p.View(element, A(0), strides, "nram", copies)
    middle = p.View(element, A(2048), strides, "nram")
    result = p.View(element, A(4096), strides, "nram", copies)

    def own(name, slot, lag):
        return () if name == without else (p.Wait(slot, "own", A(lag, (1,))),)

    load = p.Copy(engine="iodma", src_view=x, dst_view=tile, box=box, signal=0, stage=stages[0],
                  waits=own("load", 1, -1))  # fmt: skip
    scale = p.Binary(kind="mul", a_view=tile, b_view=weight, out_view=middle, box=box, stage=stages[1],
                     waits=(*own("loaded", 0, 2), *own("gone", 3, -1)))  # fmt: skip
    add = p.Binary(kind="add", a_view=middle, b_view=tile, out_view=result, box=box, act=p.Act("relu"), signal=1,
                   stage=stages[1])  # fmt: skip
    # the result goes out through SRAM, by another engine than the loads
    staged = p.View(element, A(0, core=4096), strides, "sram", copies)
    out = p.Copy(engine="mvdma", src_view=result, dst_view=staged, box=box, signal=2, stage=stages[2],
                 waits=own("added", 1, 1))  # fmt: skip
    home = p.Copy(engine="iodma", src_view=result, dst_view=y, box=box, signal=3, stage=stages[2],
                  waits=own("home", 2, 1))  # fmt: skip
    first = p.Copy(engine="iodma", src_view=w, dst_view=weight, box=weight_row, signal=0)
    passes = -(-ROWS // (4 * TILE))
    external = (
        p.External("x", "input", 0, ROWS * row, (ROWS, COLUMNS), element, "float32"),
        p.External("y", "output", 8192, ROWS * row, (ROWS, COLUMNS), element, "float32"),
        p.External("w", "weight", 16384, 4 * COLUMNS, (COLUMNS,), "f32", "float32"),
    )
    body = (first, p.Repeat(passes, (load, scale, add, out, home)))
    text = json.dumps(to_json(target()), sort_keys=True)
    program = p.Program(body, external, "small", element, text, core_slots=4, layers=("load", "work"))
    return build_executable(program, [(16384, WEIGHT)])


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)}


def expected(arrays):
    return np.maximum(arrays["x"] * WEIGHT + arrays["x"], 0)
