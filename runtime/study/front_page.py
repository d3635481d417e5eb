# Tests: test/runtime/study/test_explore.py
"""The explored points as one self-contained HTML page: a picture of two objectives, and a table of all points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from frustum.runtime.study.front import (
    Explored,
    front,
    objective_text,
    other_axes,
    summary,
    value_text,
    values_of,
)

WIDTH, HEIGHT, MARGIN = 720, 420, 100
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --dim: #57606a; --line: #d0d7de; --best: #0550ae; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --dim: #9198a1; --line: #3d444d; --best: #79c0ff; } }
body { margin: 0 auto; max-width: 70rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--dim); font-size: 13px; }
@media (max-width: 40rem) { svg text { font-size: 21px; } }
.axis { stroke: var(--line); } .point { fill: var(--dim); fill-opacity: .55; } .best { fill: var(--best); }
.step { fill: none; stroke: var(--best); stroke-width: 1.5; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.why { text-align: left; white-space: normal; min-width: 20rem; } tr.best td { color: var(--best); font-weight: 600; }
"""


def page(points: Sequence[Explored], objectives: Sequence[str], title: str) -> str:
    """The text of the page."""
    parts = [f"<h1>{escape(title)}</h1>"]
    for model in dict.fromkeys(point.model for point, _ in points):
        of_model = [each for each in points if each[0].model == model]
        best = front(of_model, objectives)
        parts.append(
            f"<h2>{escape(model)}</h2><p>{escape(summary(of_model, best))}; "
            f"small is good of {escape(', '.join(objectives))}</p>"
        )
        if len(objectives) > 1:
            parts.append(_picture(of_model, best, objectives[:2]))
        parts.append(_table(of_model, best, objectives))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


# --- picture -----------------------------------------------------------------------------------------------


def _picture(points: Sequence[Explored], best: Sequence[Explored], objectives: Sequence[str]) -> str:
    """The first two objectives of all points that ran, on logarithmic axes where they are above 0."""
    placed = [(values, each) for each in points if (values := values_of(each, objectives)) is not None]
    if not placed:
        return ""
    across = _Scale([values[0] for values, _ in placed], MARGIN, WIDTH - 16)
    up = _Scale([values[1] for values, _ in placed], HEIGHT - MARGIN, 16)
    chosen = {id(each) for each in best}
    marks, steps = [], []
    for values, each in sorted(placed, key=lambda pair: pair[0]):
        x, y = across.place(values[0]), up.place(values[1])
        is_best = id(each) in chosen
        axes = other_axes(points, objectives)
        said = ", ".join(f"{name} {value_text(name, each[0].words.get(name))}" for name in axes)
        pairs = zip(objectives, values, strict=True)
        figures = ", ".join(f"{name} {objective_text(each, name, value)}" for name, value in pairs)
        kind, radius = ("best", 5) if is_best else ("point", 3.5)
        place = f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
        marks.append(f"{place}<title>{escape(f'{figures}: {said}')}</title></circle>")
        if is_best:
            steps.append((x, y))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in steps)
    label = f"{objectives[1]} over {objectives[0]} of {len(placed)} points, {len(best)} of them on the Pareto front"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'{across.ticks(False)}{up.ticks(True)}<polyline class="step" points="{line}"/>{"".join(marks)}'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(objectives[0])}</text>'
        f'<text x="20" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 20 {HEIGHT / 2})">'
        f"{escape(objectives[1])}</text></svg>"
    )


class _Scale:
    """Numbers to places between two pixels."""

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        self.low, self.high, self.start, self.stop = min(values), max(values), start, stop
        self.is_log = self.low > 0

    def place(self, value: float) -> float:
        low, high, here = (self._on(each) for each in (self.low, self.high, value))
        return self.start + (self.stop - self.start) * ((here - low) / (high - low) if high > low else 0.5)

    def ticks(self, is_upright: bool) -> str:
        """Lines and numbers at both ends and in the middle."""
        middle = math.sqrt(self.low * self.high) if self.is_log else (self.low + self.high) / 2
        found = []
        for value in dict.fromkeys((self.low, middle, self.high)):
            here = self.place(value)
            if is_upright:
                line = f'x1="{MARGIN}" x2="{WIDTH - 16}" y1="{here:.1f}" y2="{here:.1f}"'
                text = f'x="{MARGIN - 6}" y="{here + 4:.1f}" text-anchor="end"'
            else:
                line = f'x1="{here:.1f}" x2="{here:.1f}" y1="16" y2="{HEIGHT - MARGIN}"'
                anchor = "end" if here > WIDTH - MARGIN else "middle"  # what is at the edge stays in the picture
                text = f'x="{here:.1f}" y="{HEIGHT - MARGIN + 24}" text-anchor="{anchor}"'
            found.append(f'<line class="axis" {line}/><text {text}>{_short(value)}</text>')
        return "".join(found)

    def _on(self, value: float) -> float:
        return math.log(value) if self.is_log else value


def _short(value: float) -> str:
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g}"


# --- table -------------------------------------------------------------------------------------------------


def _table(points: Sequence[Explored], best: Sequence[Explored], objectives: Sequence[str]) -> str:
    """The front first, then what else ran, then what did not and why."""
    chosen = {id(each) for each in best}
    rest = [each for each in points if id(each) not in chosen]
    ran = [each for each in rest if each[1].status == "ran"]
    names = other_axes(points, objectives)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in (*objectives, *names, "why not"))
    rows = [_row(each, objectives, names, id(each) in chosen)
            for each in (*best, *ran, *(each for each in rest if each[1].status != "ran"))]  # fmt: skip
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="all points"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(each: Explored, objectives: Sequence[str], names: Sequence[str], is_best: bool) -> str:
    point, result = each
    values = values_of(each, objectives) or (None,) * len(objectives)
    pairs = zip(objectives, values, strict=True)
    cells = ["-" if value is None else objective_text(each, name, value) for name, value in pairs]
    cells += [value_text(name, point.words.get(name)) for name in names]
    why = "" if result.status == "ran" else f"{result.status}: {result.message}"
    shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr{" class=best" if is_best else ""}>{shown}<td class="why">{escape(why)}</td></tr>'
