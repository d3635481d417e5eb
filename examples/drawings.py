"""The drawings of the pages, from the compiler's own numbers: `python examples/drawings.py docs/pictures`.

Every position, extent and count in them is what `passes/` and `dialects/` say of a small example; nothing is placed by
hand but the panels.  A test draws them again and compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from frustum.backend import targets
from frustum.backend.pipeline import Choices, Run
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute
from frustum.dialects.unit import Partition, UnitOp
from frustum.passes.analysis.module import layer_name
from frustum.passes.analysis.project import project
from frustum.passes.analysis.regions import Projection
from frustum.passes.analysis.unit_layers import UnitLayers, unit_layers
from frustum.passes.onnx.import_onnx import import_onnx

STYLE = """
svg { font: 13px system-ui, sans-serif; color-scheme: light dark; }
.page { fill: #ffffff; } text { fill: #1f2328; } .small { font-size: 11px; } .head { font-weight: 600; }
.map { fill: #eef1f4; stroke: #8c959f; } .made { fill: #2f81f7; stroke: #1158c7; fill-opacity: .75; }
.both { fill: #f0883e; stroke: #bc4c00; fill-opacity: .9; } 
.next { fill: none; stroke: #57606a; stroke-dasharray: 4 3; }
.edge { fill: none; stroke: #2f81f7; stroke-opacity: .55; } .block { stroke: #57606a; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117; } text { fill: #e6edf3; } .map { fill: #21262d; stroke: #6e7681; }
.next { stroke: #b1bac4; } }
"""
Point = tuple[float, float]
Rows = range
"""Rows or columns of a map."""


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A whole drawing; the title is what a screen reader says."""
    body = "\n".join(parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    page = f'<rect class="page" width="{width}" height="{height}" rx="8"/>'
    return f"{head}\n<title>{title}</title>\n<style>{STYLE}</style>\n{page}\n{body}\n</svg>\n"


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    safe = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{safe}</text>'


def rectangle(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{style}"/>'


def polygon(points: Sequence[Point], style: str) -> str:
    return f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" class="{style}"/>'


def line(a: Point, b: Point, style: str) -> str:
    return f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" class="{style}"/>'


# --- an example: a chain of windows ------------------------------------------------------------------------

CHANNELS, HEIGHT, WIDTH = 8, 48, 64


def chain() -> onnx.ModelProto:
    """x -> 3 x 3 -> 3 x 3 -> pool 2 x 2 -> 3 x 3 -> y."""
    weights = [
        helper.make_tensor(f"w{i}", TensorProto.FLOAT, [CHANNELS, CHANNELS, 3, 3], [0.01] * (CHANNELS**2 * 9))
        for i in range(3)
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "conv1", pads=[1] * 4),
        helper.make_node("Conv", ["a", "w1"], ["b"], "conv2", pads=[1] * 4),
        helper.make_node("MaxPool", ["b"], ["c"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["c", "w2"], ["y"], "conv3", pads=[1] * 4),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, CHANNELS, HEIGHT // part, WIDTH // part])
        for name, part in (("x", 1), ("y", 2))
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def fused(model: onnx.ModelProto) -> UnitLayers:
    """The one unit that the compiler makes of a model on `edge`."""
    module = import_onnx(model)
    module.attributes[TARGET] = to_attribute(targets.load("edge"))
    Run().advance(module, ("typed", "fused"), Choices(policy="greedy"))
    (unit,) = (op for op in module.walk() if isinstance(op, UnitOp))
    return unit_layers(unit)


def positions(found: Projection, number: int, dimension: int, step: int, size: int) -> Rows:
    """What tile `step` makes or loads of a map along a dimension, clipped to the map as the machine clips it."""
    region = found.region_of(number)
    start, extent = region.start[dimension], region.extent[dimension]
    first = start.base + step * (start.loops[dimension] if len(start.loops) > dimension else 0)
    return range(max(0, first), max(0, min(size, first + extent)))


def common(a: Rows, b: Rows) -> Rows:
    return range(max(a.start, b.start), min(a.stop, b.stop))


# --- the frustum -------------------------------------------------------------------------------------------

COLUMN, ROW, LEAN, GAP = 3.4, 1.7, 1.2, 112.0
"""Points per column; points down and to the left per row; from one map to the next."""


class Panel:
    """The maps of a unit one under the other, the output on top, each seen from above and in front."""

    def __init__(self, unit: UnitLayers, left: float, top: float):
        self.unit, self.left, self.top = unit, left, top
        self.maps = [len(unit.layers) - 1 - i for i in range(len(unit.layers))] + [len(unit.layers)]

    def at(self, place: int, row: float, column: float) -> Point:
        """Where a position of the map in a place (0: the output) is drawn; maps are centred above each other."""
        height, width = self.unit.dims_of(self.maps[place])[2:]
        x = self.left + (WIDTH / 2 - width / 2 + column) * COLUMN + (HEIGHT / 2 + height / 2 - row) * LEAN
        return x, self.top + place * GAP + (HEIGHT / 2 - height / 2 + row) * ROW

    def box(self, place: int, rows: Rows, columns: Rows, style: str) -> str:
        if not rows or not columns:
            return ""
        (top, bottom), (left, right) = (rows.start, rows.stop), (columns.start, columns.stop)
        corners = (top, left), (top, right), (bottom, right), (bottom, left)
        return polygon([self.at(place, r, c) for r, c in corners], style)

    def frame(self, place: int, words: str) -> Iterator[str]:
        height, width = self.unit.dims_of(self.maps[place])[2:]
        yield self.box(place, range(height), range(width), "map")
        y = self.top + place * GAP + HEIGHT / 2 * ROW
        yield text(self.left - 8, y, words, "small", "end")

    def sides(self, place: int, upper: tuple[Rows, Rows], lower: tuple[Rows, Rows]) -> Iterator[str]:
        """The edges of the frustum from one map to the one under it."""
        for row, column in ((0, 0), (0, 1), (1, 1), (1, 0)):
            a, b = ((upper[0].start, upper[0].stop)[row], (upper[1].start, upper[1].stop)[column]), (
                (lower[0].start, lower[0].stop)[row], (lower[1].start, lower[1].stop)[column])
            yield line(self.at(place, *a), self.at(place + 1, *b), "edge")


def names(unit: UnitLayers) -> list[str]:
    made = [layer_name(op) or op.name for op in unit.ops]
    return [f"out: {made[-1]}", *reversed(made[:-1]), "input"]


def boxes(found: Projection, unit: UnitLayers, number: int, step: tuple[int, int]) -> tuple[Rows, Rows]:
    height, width = unit.dims_of(number)[2:]
    return positions(found, number, 2, step[0], height), positions(found, number, 3, step[1], width)


def overlapping(unit: UnitLayers, left: float, tile: tuple[int, int], step: tuple[int, int]) -> Iterator[str]:
    """One tile through all layers, and what the next tile makes again of each map."""
    found = project(unit, Partition((1, CHANNELS, *tile), 0, 2), 1)
    panel = Panel(unit, left, 80)
    for place, (number, words) in enumerate(zip(panel.maps, names(unit), strict=True)):
        own, beside = boxes(found, unit, number, step), boxes(found, unit, number, (step[0], step[1] + 1))
        yield from panel.frame(place, words)
        yield panel.box(place, *own, "made")
        yield panel.box(place, common(own[0], beside[0]), common(own[1], beside[1]), "both")
        yield panel.box(place, *beside, "next")
        x, y = panel.at(place, own[0].stop, own[1].start)
        yield text(x, y + 13, f"{len(own[0])} x {len(own[1])}", "small")
        if place + 1 < len(panel.maps):
            yield from panel.sides(place, own, boxes(found, unit, panel.maps[place + 1], step))


def rolling(unit: UnitLayers, left: float, rows: int, step: int) -> Iterator[str]:
    """One step of rows through all layers, and the rows of each map that are kept for it from the steps before."""
    found = project(unit, Partition((1, CHANNELS, rows, WIDTH // 2), 1, 2, "exchange"), 1)
    panel = Panel(unit, left, 80)
    for place, (number, words) in enumerate(zip(panel.maps, names(unit), strict=True)):
        made, columns = boxes(found, unit, number, (step, 0))
        kept = range(made.stop - max(found.rings[number], len(made)), made.start)
        yield from panel.frame(place, words)
        yield panel.box(place, kept, columns, "both")
        yield panel.box(place, made, columns, "made")
        x, y = panel.at(place, made.stop, 0)
        yield text(x, y + 13, f"{len(made)} new, {len(kept)} kept", "small")


def frustum() -> str:
    """What fusing means: one tile through the layers, borders computed again or rows kept."""
    unit = fused(chain())
    tile, rows = (8, 10), 4
    parts = [
        text(24, 30, "Tiles that overlap", "head"),
        text(24, 48, "A tile of the output (top) needs ever larger pieces of the maps under it;", "small"),
        text(24, 62, "the next tile (dashed) makes or loads the orange part again.", "small"),
        text(500, 30, "Rows that are kept", "head"),
        text(500, 48, "A step makes new rows of every map (blue); rows that windows still", "small"),
        text(500, 62, "reach back to are kept in rings (orange). Nothing is made twice.", "small"),
        *overlapping(unit, 110, tile, (1, 1)), *rolling(unit, 570, rows, 3),
    ]  # fmt: skip
    title = "A tile of a fused unit through its layers: with overlapping borders, and with kept rows"
    return svg(920, 640, title, parts)


DRAWINGS = {"frustum.svg": frustum}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (Path(sys.argv[1]) / name).write_text(draw())
