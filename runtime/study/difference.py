"""What changed between two reports: totals, units, and why their bytes and cycles moved.

Units are the same in both if they have the same layers.  Others belong together where they share layers: what was one
unit may be two, or its layers may have gone to neighbours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frustum.runtime.report.terminal import wrapped

Data = Mapping[str, Any]
TOTALS = {
    "bytes": "dram.total_bytes", "cycles": "cycles.total", "energy": "energy_pj.total", "sram": "peak_bytes.sram",
    "nram": "peak_bytes.nram", "wram": "peak_bytes.wram", "recomputed": "macs.recomputed",
}  # fmt: skip
"""What people say for keys of the report."""
UNCOUNTED = ("seconds", "hashes", "target_sha256")
"""What differs from run to run, or is said in words."""
CLASSES = ("weight", "input", "output", "intermediate", "other")
CONDITION = re.compile(r"\s*([\w.]+)\s*(>=|<=|>|<)\s*([+-]?)(\d+(?:\.\d+)?)\s*(%?)\s*")


class ConditionError(ValueError):
    """A text is no condition; the message says what one looks like."""


@dataclass(frozen=True)
class Figure:
    """One figure of both reports; None where a report does not have it."""

    name: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """after - before."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def percent(self) -> float | None:
        """The change in per cent of what was before."""
        return None if self.change is None or not self.before else 100 * self.change / self.before


@dataclass(frozen=True)
class Change:
    """Units with the same layers, before and after."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    layers: tuple[str, ...]
    bytes: Figure
    cycles: Figure
    causes: tuple[tuple[str, int], ...]
    """What its cycles on the critical path went to more (or less) than before, the largest first."""
    moved: tuple[tuple[str, int], ...]
    """Layers that move more (or fewer) bytes than before."""
    all_causes: tuple[tuple[str, int], ...] = ()
    """`causes`, but not only the largest."""

    @property
    def is_regrouped(self) -> bool:
        return len(self.before) != 1 or len(self.after) != 1


@dataclass(frozen=True)
class Difference:
    """Two reports compared."""

    alike: Mapping[str, bool | None]
    """Whether `model`, `target` and `pipeline` are the same; None where a report does not say."""
    totals: tuple[Figure, ...]
    classes: tuple[Figure, ...]
    """DRAM bytes by class."""
    changes: tuple[Change, ...]
    """Units that are not what they were, those first that changed most cycles (or bytes, where nothing is timed)."""
    same: int
    """Units that are what they were."""
    keys: tuple[str, ...] = ()
    """Keys of the report, dotted, at which the two have other values; wall times are left out."""
    names: tuple[str, str] = ("before", "after")
    """What the two are called."""

    def text(self, *, markdown: bool = False) -> str:
        """What the command prints."""
        return "\n".join(lines_of(self, markdown)) + "\n"


def difference(before: Data, after: Data, names: tuple[str, str] = ("before", "after")) -> Difference:
    """What changed from one report to the other."""
    totals = tuple(Figure(name, value_of(before, key), value_of(after, key)) for name, key in TOTALS.items())
    keys = ((name, f"dram.{name}_bytes") for name in CLASSES)
    classes = tuple(Figure(name, value_of(before, key), value_of(after, key)) for name, key in keys)
    changes = [_change(before, after, *units) for units in _groups(before, after)]
    moved = [each for each in changes if _is_moved(each)]
    moved.sort(key=lambda each: (-abs(each.cycles.change or 0), -abs(each.bytes.change or 0)))
    differing = tuple(_differing(before, after))
    return Difference(_alike(before, after), totals, classes, tuple(moved), len(changes) - len(moved), differing, names)


def _differing(before: Any, after: Any, key: str = "") -> Iterator[str]:
    """Of two values the dotted keys below which they differ; a list is one value."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            if key or name not in UNCOUNTED:
                yield from _differing(before.get(name), after.get(name), f"{key}.{name}" if key else name)
    elif before != after:
        yield key


def value_of(data: Data, key: str) -> float | None:
    """The number at a dotted key; None where there is none."""
    found: Any = data
    for word in key.split("."):
        found = found.get(word) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _alike(before: Data, after: Data) -> dict[str, bool | None]:
    hashes = [each.get("hashes") or {} for each in (before, after)]
    known = {name: [each.get(name) for each in hashes] for name in ("model", "target", "pipeline")}
    return {name: None if None in values else values[0] == values[1] for name, values in known.items()}


def _groups(before: Data, after: Data) -> list[tuple[list[Data], list[Data]]]:
    """Units of both that share layers, directly or through others; in the order of the second report."""
    sides: tuple[dict[str, Data], dict[str, Data]] = ({}, {})
    for side, data in zip(sides, (before, after), strict=True):
        side.update({layer: unit for unit in data["units"] for layer in unit["layers"]})
    found, seen = [], set[str]()
    for layer in (*sides[1], *sides[0]):
        if layer in seen:
            continue
        own: tuple[dict[str, Data], dict[str, Data]] = ({}, {})
        waiting = [layer]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for side, kept in zip(sides, own, strict=True):
                if name in side:
                    kept[side[name]["name"]] = side[name]
                    waiting += side[name]["layers"]
        found.append((list(own[0].values()), list(own[1].values())))
    return found


def _change(before: Data, after: Data, old: Sequence[Data], new: Sequence[Data]) -> Change:
    layers = list(dict.fromkeys(layer for unit in (*new, *old) for layer in unit["layers"]))
    bytes_of = [{each["name"]: each["dram_bytes"] for each in data["layers"]} for data in (before, after)]
    moved = {layer: bytes_of[1].get(layer, 0) - bytes_of[0].get(layer, 0) for layer in layers}
    sums = [sum(each.get(layer, 0) for layer in layers) for each in bytes_of]
    spent = [_causes(units) for units in (old, new)]
    cycles = [None if each is None else sum(each.values()) for each in spent]
    causes = Counter[str]()
    if spent[0] is not None and spent[1] is not None:
        causes.update(spent[1])
        causes.subtract(spent[0])
    return Change(
        tuple(unit["name"] for unit in old),
        tuple(unit["name"] for unit in new),
        tuple(layers),
        Figure("bytes", *sums),
        Figure("cycles", *cycles),
        _largest(causes),
        _largest(moved),
        _largest(causes, len(causes)),
    )


def _causes(units: Sequence[Data]) -> Counter[str] | None:
    """Cycles of the critical path by what the engine did; engines of all clusters and cores together."""
    found = Counter[str]()
    for unit in units:
        if unit.get("waits") is None:
            return None
        for wait in unit["waits"]:
            engine = wait["engine"].rpartition(".")[2]
            said = {"work": f"{engine} works on {wait['on']}", "port": f"{engine} waits for the port of {wait['on']}"}
            found[said.get(wait["for"], f"{engine}: {wait['for']} of {wait['on']}")] += wait["cycles"]
    return found


def _largest(changes: Mapping[str, int], most: int = 3) -> tuple[tuple[str, int], ...]:
    ordered = sorted((pair for pair in changes.items() if pair[1]), key=lambda pair: (-abs(pair[1]), pair[0]))
    return tuple(ordered[:most])


def _is_moved(change: Change) -> bool:
    return change.is_regrouped or bool(change.bytes.change) or bool(change.cycles.change)


# --- conditions --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """`cycles>+2%`: a figure has grown by more than two per cent; without a sign, what it is in the second report."""

    text: str
    key: str
    sign: str
    limit: float
    relative: bool
    is_change: bool

    def holds(self, before: Data, after: Data) -> bool:
        """Whether it is met; ConditionError where a report does not have the figure."""
        figure = Figure(self.key, value_of(before, self.key), value_of(after, self.key))
        value = figure.after
        if self.is_change:
            value = figure.percent if self.relative else figure.change
            if self.relative and figure.before == 0 and figure.after is not None:
                value = 0.0 if figure.after == 0 else float("inf")
        if value is None:
            raise ConditionError(f"'{self.text}': no report or only one of them has a number at '{self.key}'")
        tests = {">": value > self.limit, "<": value < self.limit, ">=": value >= self.limit, "<=": value <= self.limit}
        return tests[self.sign]


def parse_condition(text: str) -> Condition:
    """A condition from its text; ConditionError where it is none."""
    found = CONDITION.fullmatch(text)
    if found is None:
        raise ConditionError(
            f"'{text}' is no condition such as cycles>+2%, bytes>+1000 or dram.ratio>1.1: a figure"
            f" ({', '.join(TOTALS)}, or a key of the report), one of > < >= <=, a number; with a sign it is a change,"
            " with % in per cent"
        )
    name, sign, plus, number, percent = found.groups()
    if percent and not plus:
        raise ConditionError(f"'{text}': a change in per cent has a sign, as in {name}{sign}+{number}%")
    limit = float(number) * (-1 if plus == "-" else 1)
    return Condition(text, TOTALS.get(name, name), sign, limit, bool(percent), bool(plus))


# --- text --------------------------------------------------------------------------------------------------


def lines_of(found: Difference, markdown: bool, most: int = 12) -> list[str]:
    """The difference as text, or as Markdown; at most so many units."""
    names = found.names
    lines = [f"{'## ' if markdown else ''}{names[0]} -> {names[1]}", ""]
    for name, same in found.alike.items():
        if same is None:
            lines.append(f"not known whether both have the same {name}: a report has no checksum of it")
        elif not same:
            lines.append("they are compiled with other options" if name == "pipeline" else f"their {name}s differ")
    if len(lines) > 2:
        lines.append("")
    shown = [each for each in (*found.totals, *found.classes) if each.before or each.after]
    rows = [("figure", names[0], names[1], "change", "%"), *map(_row, shown)]
    lines += [*_table(rows, markdown), ""]
    if found.keys:
        lines += [*wrapped(f"keys of the report that differ: {', '.join(_together(found.keys))}"), ""]
    if not found.changes:
        return [*lines, f"all {found.same} units are what they were"]
    lines.append(f"{len(found.changes)} of {len(found.changes) + found.same} groups of units changed")
    for change in found.changes[:most]:
        lines += _change_lines(change, markdown)
    if len(found.changes) > most:
        lines.append(f"and {len(found.changes) - most} more")
    return lines


def _row(figure: Figure) -> tuple[str, ...]:
    numbers = ("-" if each is None else f"{each:,.0f}" for each in (figure.before, figure.after))
    change = "-" if figure.change is None else f"{figure.change:+,.0f}"
    return figure.name, *numbers, change, "-" if figure.percent is None else f"{figure.percent:+.2f}"


def _change_lines(change: Change, markdown: bool) -> list[str]:
    start, inner = ("- ", "  - ") if markdown else ("  ", "      ")
    before, after = "+".join(change.before) or "nothing", "+".join(change.after) or "nothing"
    name = before if before == after else f"{before} -> {after}"
    layers = ", ".join(change.layers[:4]) + (f" and {len(change.layers) - 4} more" if len(change.layers) > 4 else "")
    figures = [f"{each.change:+,.0f} {each.name}" for each in (change.bytes, change.cycles) if each.change]
    lines = [f"{start}{name} ({layers}): {', '.join(figures) or 'as many bytes and cycles'}"]
    lines += [f"{inner}{cycles:+,} cycles: {cause}" for cause, cycles in change.causes]
    lines += [f"{inner}{size:+,} DRAM bytes: {layer}" for layer, size in change.moved]
    return lines


MOST_KEYS = 6
"""Of one part of a report, which are named one by one."""


def _together(keys: Sequence[str]) -> list[str]:
    """Keys by name, and how many of a part of the report where these are many."""
    parts = Counter(key.partition(".")[0] for key in keys)
    names = (key if parts[part := key.partition(".")[0]] <= MOST_KEYS else f"{parts[part]} of {part}" for key in keys)
    return list(dict.fromkeys(names))


def _table(rows: Sequence[tuple[str, ...]], markdown: bool) -> list[str]:
    if markdown:
        head, *body = (f"| {' | '.join(row)} |" for row in rows)
        return [head, "|---|" + "---:|" * (len(rows[0]) - 1), *body]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  " + "   ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
