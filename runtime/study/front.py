# Tests: test/runtime/study/test_explore.py
"""The points that no other point beats, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frustum.runtime.study.point import Outcome, Point
from frustum.runtime.study.space import MULTIPLES_OF_KEYS, Value

Explored = tuple[Point, Outcome]
STATUSES = ("ran", "does not fit", "refused", "failed")
MOST_REASONS = 5
"""Why points did not run, in the text."""


def values_of(explored: Explored, objectives: Sequence[str]) -> tuple[float, ...] | None:
    """The objectives of a point: figures, or numbers of its target; None where it did not run or has not all."""
    point, result = explored
    if result.status != "ran":
        return None
    found = [result.figures.get(name, _of_target(point, name)) for name in objectives]
    numbers = tuple(value for value in found if value is not None)
    return numbers if len(numbers) == len(found) else None


def _of_target(point: Point, name: str) -> float | None:
    value: Any = point.target
    for word in name.split("."):
        value = value.get(word) if isinstance(value, dict) else None
    return value if isinstance(value, int | float) else None


def front(points: Sequence[Explored], objectives: Sequence[str]) -> list[Explored]:
    """Those that no other point of the same model beats: at most as much of every objective and less of one.  By the
    first objective; of equal ones all stay."""
    found: list[Explored] = []
    for model in dict.fromkeys(point.model for point, _ in points):
        mine = [(values_of(each, objectives), each) for each in points if each[0].model == model]
        of_model = sorted([(values, each) for values, each in mine if values], key=lambda pair: pair[0])
        kept: list[tuple[float, ...]] = []
        for values, each in of_model:  # what beats a point is before it
            if not any(_beats(other, values) for other in kept):
                kept.append(values)
                found.append(each)
    return found


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def front_text(points: Sequence[Explored], objectives: Sequence[str]) -> str:
    """The Pareto front as a table, and how many points did what."""
    best = front(points, objectives)
    several = len({point.model for point, _ in points}) > 1
    axes = other_axes(points, objectives)
    rows = [[*(["model"] if several else []), *objectives, *axes]]
    for each in best:
        values = values_of(each, objectives) or ()
        words = [value_text(name, each[0].words.get(name)) for name in axes]
        figures = [objective_text(each, name, value) for name, value in zip(objectives, values, strict=True)]
        rows.append([*([each[0].model] if several else []), *figures, *words])
    lines = [summary(points, best), *(["", *_columns(rows)] if best else []), *_others(points)]
    return "\n".join(lines) + "\n"


def other_axes(points: Sequence[Explored], objectives: Sequence[str]) -> list[str]:
    """The axes of the space that are not objectives as well: of these there is a column already."""
    return [name for name in (points[0][0].words if points else ()) if name not in objectives]


def objective_text(explored: Explored, name: str, value: float) -> str:
    """Of one that is an axis as the space has it, of others the number."""
    words = explored[0].words
    return value_text(name, words[name]) if name in words else number_text(value)


def summary(points: Sequence[Explored], best: Sequence[Explored]) -> str:
    """How many points there are of each kind."""
    counts = {status: sum(result.status == status for _, result in points) for status in STATUSES}
    words = [
        f"{count} {'do not fit' if status == 'does not fit' and count > 1 else status}"
        for status, count in counts.items()
        if count
    ]
    return f"{len(points)} points: {', '.join(words)}; {len(best)} on the Pareto front"


def _others(points: Sequence[Explored]) -> list[str]:
    """Why points did not run, each reason once."""
    reasons: dict[str, int] = {}
    for _, result in points:
        if result.status != "ran":
            reason = f"{result.status}: {result.message.splitlines()[0] if result.message else ''}"
            reasons[reason] = reasons.get(reason, 0) + 1
    ordered = sorted(reasons.items(), key=lambda pair: -pair[1])
    lines = [f"{count} x {reason}" for reason, count in ordered[:MOST_REASONS]]
    more = len(ordered) - MOST_REASONS
    if more > 0:
        lines.append(f"and {more} other reasons (column `message` of the store)")
    return ["", *lines] if lines else []


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{word:>{width}}" for word, width in zip(row, widths, strict=True)) for row in rows]


def number_text(value: float) -> str:
    """Whole numbers in groups of three digits, others short."""
    return f"{int(value):,}" if value == int(value) else f"{value:.4g}"


def value_text(name: str, value: Value) -> str:
    """As a space would have it: `512 KiB`."""
    for multiple, factor in MULTIPLES_OF_KEYS.get(name.rpartition("_")[2], ()):
        if isinstance(value, int) and value >= factor and value % factor == 0:
            return f"{value // factor} {multiple}"
    return "null" if value is None else str(value)
