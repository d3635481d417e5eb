# Tests: test/runtime/study/test_explore.py
"""A space of designs: axes over target keys and compiler options, read from YAML.

    extends: edge                      # the machine whose keys the axes change; default: `default`
    target:
      chip.cluster.sram.capacity_bytes: [128 KiB .. 1 MiB, x2]
      chip.cluster.cores: [1, 2, 4]
      chip.dram.port_bytes_per_cycle, chip.cluster.gdma.bytes_per_cycle: [8 .. 32, by 8]
    options:
      policy: [pyramid, optimal]
      dtype: f16

An axis is one value or a list of values and ranges.  A range `LOW .. HIGH` has both its ends, and its step behind it:
`xN` multiplies, `by N` adds.  Keys with commas between them move together.
"""

from __future__ import annotations

import itertools
import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.target import EXTENDS, Target, TargetError, strict_yaml, to_json
from frustum.dialects.target.declared import MULTIPLES, Declared, FieldProblem, Path, read_value, walk
from frustum.runtime.failures import UsageError
from frustum.runtime.model.options import CommandOption, Keywords, options_of

TO, TIMES, BY = " .. ", "x", "by "
"""Between the ends of a range, and before the two kinds of its step."""
MOST_VALUES = 10_000
"""Of one axis."""
STRATEGIES = ("grid", "random", "optimise")
FIGURES = (
    "cycles.total", "cycles.ratio", "seconds", "dram.total_bytes", "dram.read_bytes", "dram.write_bytes", "dram.ratio",
    "energy_pj.total", "macs.recomputed", "peak_bytes.sram", "peak_bytes.nram", "peak_bytes.wram",
)  # fmt: skip
"""Of a point; as reports have them, but for `seconds`, which are the cycles at the target's clock."""
DEFAULT_OBJECTIVES = ("cycles.total", "dram.total_bytes")
UNSWEPT = frozenset(
    {"model", "target", "calibration", "shapes", "dims", "bind", "constants", "cache", "weights_seed"}
)
"""Options that are no axes: what is explored is how one model runs, with the weights that it has."""
MULTIPLES_OF_KEYS = {
    end: tuple(reversed(MULTIPLES[unit].items())) for end, unit in (("bytes", "B"), ("hz", "Hz"))
}
"""By the last word of a target key, the multiples in which its values are shown, the largest first."""
KEYS = ("extends", "target", "options", "objectives", "strategy", "points", "seed")
Value = int | float | str | None
CheckOption = Callable[[str, str], str | None]
"""What is wrong with the text of an option, as far as only the compiler knows."""


@dataclass(frozen=True)
class SweptAxis:
    """Keys of a target, or one option, and the values that they take."""

    kind: str
    """`target` or `options`."""
    keys: tuple[str, ...]
    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        return ", ".join(self.keys)


@dataclass(frozen=True)
class Design:
    """What one point of a space says: keys of the target, and options."""

    target: Mapping[str, Value]
    options: Mapping[str, Value]
    words: Mapping[str, Value]
    """The value of each axis, by its name."""


@dataclass(frozen=True)
class Space:
    """Axes, the machine that they change, and how points are chosen: figures or target keys in `objectives` are to be
    small."""

    axes: tuple[SweptAxis, ...]
    base: Target
    objectives: tuple[str, ...] = DEFAULT_OBJECTIVES
    strategy: str = "grid"
    points: int | None = None
    """At most so many of each model; None: all."""
    seed: int = 0

    @property
    def size(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

    def design(self, choice: Sequence[int]) -> Design:
        """The point with this value of each axis, by number."""
        found: dict[str, dict[str, Value]] = {"target": {}, "options": {}}
        for axis, number in zip(self.axes, choice, strict=True):
            found[axis.kind] |= dict.fromkeys(axis.keys, axis.values[number])
        words = {axis.name: axis.values[number] for axis, number in zip(self.axes, choice, strict=True)}
        return Design(found["target"], found["options"], words)

    def choices(self) -> Iterator[tuple[int, ...]]:
        """All points, the last axis first."""
        return itertools.product(*(range(len(axis.values)) for axis in self.axes))


def read_space(text: str, file: str, base: Callable[[str], Target], check_option: CheckOption) -> Space:
    """The space of a YAML text; UsageError names every problem with its line and column.  `base` gives the target of a
    name, `check_option` what is wrong with an option's text."""
    document = strict_yaml.read(text, file)
    reader = _SpaceReader(document.data, list(document.problems), base, check_option)
    space = None if document.problems else reader.read()
    if space is None or reader.problems or document.second_keys:
        raise UsageError(document.report(reader.problems))
    return space


def changed(base: Target, keys: Mapping[str, Value]) -> dict[str, Any]:
    """A target as nested dictionaries, with these of its keys changed."""
    data = to_json(base)
    for key, value in keys.items():
        *sections, last = key.split(".")
        inner = data
        for section in sections:
            inner = inner[section]
        inner[last] = value
    return data


@dataclass
class _SpaceReader:
    """Collects what is wrong while it reads."""

    data: Any
    problems: list[FieldProblem]
    base: Callable[[str], Target]
    check_option: CheckOption

    def read(self) -> Space | None:
        if not isinstance(self.data, dict):
            self._wrong((), f"a space is a section with keys: {', '.join(KEYS)}")
            return None
        for key in self.data:
            if key not in KEYS:
                near = did_you_mean(key, list(KEYS)) or f"; known: {', '.join(KEYS)}"
                self._wrong((key,), f"a space has no key {key!r}{near}", True)
        target = self._base()
        axes = [*self._axes("target", target), *self._axes("options", target)]
        if not axes and not self.problems:
            self._wrong((), "a space has axes: keys below `target` or `options`")
        space = Space(
            tuple(axes), target, self._objectives(), self._word("strategy", STRATEGIES, "grid"),
            self._number("points", 1), self._number("seed", 0) or 0,
        )  # fmt: skip
        if space.strategy != "grid" and space.points is None:
            self._wrong(("strategy",), f"strategy {space.strategy} needs `points`, how many to try")
        return space

    def _wrong(self, path: Path, message: str, on_key: bool = False) -> None:
        self.problems.append(FieldProblem(path, message, on_key))

    def _base(self) -> Target:
        name = self.data.get(EXTENDS, "default")
        try:
            return self.base(str(name))
        except TargetError as error:
            self._wrong((EXTENDS,), f"{EXTENDS}: {str(error).removeprefix('error: ')}")
            return self.base("default")

    def _word(self, key: str, allowed: Sequence[str], default: str) -> str:
        found = self.data.get(key, default)
        if found not in allowed:
            near = did_you_mean(str(found), list(allowed))
            self._wrong((key,), f"{key}: found {found!r}, allowed {', '.join(allowed)}{near}")
            return default
        return str(found)

    def _number(self, key: str, least: int) -> int | None:
        found = self.data.get(key)
        if found is not None and (isinstance(found, bool) or not isinstance(found, int) or found < least):
            self._wrong((key,), f"{key}: found {found!r}, allowed a whole number of at least {least}")
            return None
        return found

    def _objectives(self) -> tuple[str, ...]:
        found = self.data.get("objectives", list(DEFAULT_OBJECTIVES))
        listed = found if isinstance(found, list) else [found]
        numbers = {".".join(path) for path, each in walk(Target) if each.kind in (int, float)}
        for number, each in enumerate(listed):
            if each not in FIGURES and each not in numbers:
                path = ("objectives", str(number)) if isinstance(found, list) else ("objectives",)
                near = did_you_mean(str(each), [*FIGURES, *numbers])
                known = f"a target key, or one of {', '.join(FIGURES)}"
                self._wrong(path, f"objectives: found {each!r}, allowed {known}{near}")
        if not listed:
            self._wrong(("objectives",), "objectives: none is named", True)
        return tuple(map(str, listed))

    # --- axes ------------------------------------------------------------------------------------------------

    def _axes(self, kind: str, base: Target) -> Iterator[SweptAxis]:
        section = self.data.get(kind, {})
        if not isinstance(section, dict):
            self._wrong((kind,), f"{kind}: a section with an axis for each key")
            return
        seen: set[str] = set()
        for name, data in section.items():
            keys = tuple(key.strip() for key in name.split(","))
            path, before = (kind, name), len(self.problems)
            for key in keys:
                if key in seen:
                    self._wrong(path, f"{key}: there is another axis over it", True)
                seen.add(key)
            reads = [
                self._target_key(key, path, base) if kind == "target" else self._option(key, path)
                for key in keys
            ]
            if len(self.problems) == before:
                values = self._values(data, path, [read for read in reads if read])
                if len(self.problems) == before:
                    yield SweptAxis(kind, keys, values)

    def _target_key(self, key: str, path: Path, base: Target) -> Callable[[Any], Value] | None:
        fields = {".".join(where): each for where, each in walk(Target) if where != ("name",)}
        leaves = [name for name, each in fields.items() if not each.is_section]
        if key not in leaves:
            what = "is a section: name a key of it" if key in fields else "is no key of targets"
            self._wrong(path, f"{key!r} {what}{_meant(key, leaves)}", True)
            return None
        inner: Any = to_json(base)
        for number, section in enumerate(key.split(".")[:-1]):
            inner = inner[section]
            if inner is None:
                absent = ".".join(key.split(".")[: number + 1])
                self._wrong(
                    path, f"{key}: target {base.name} has no {absent}, so nothing can be changed in it", True
                )
                return None
        return lambda data: _of_target(fields[key], data)

    def _option(self, key: str, path: Path) -> Callable[[Any], Value] | None:
        known = {each.name: said for each, said in options_of(Keywords) if each.name not in UNSWEPT}
        if key not in known:
            near = did_you_mean(key, list(known)) or f"; known: {', '.join(known)}"
            self._wrong(path, f"{key!r} is no option that can be an axis{near}", True)
            return None
        return lambda data: self._of_option(key, known[key], data)

    def _of_option(self, key: str, said: CommandOption, data: Any) -> Value:
        """ValueError with what is allowed."""
        text = str(data).lower() if isinstance(data, bool) else str(data)
        if said.choices and text not in said.choices:
            near = did_you_mean(text, list(said.choices))
            raise ValueError(f"found {data!r}, allowed {', '.join(said.choices)}{near}")
        if said.read is not None:
            try:
                found: Value = said.read(text)  # type: ignore[assignment]
            except ArgumentTypeError as error:
                raise ValueError(str(error)) from error
            return found
        if wrong := self.check_option(key, text):
            raise ValueError(wrong)
        return text

    def _values(self, data: Any, path: Path, reads: Sequence[Callable[[Any], Value]]) -> tuple[Value, ...]:
        """The values of an axis, each once; where several keys move together, all of them allow each."""
        found: list[Value] = []
        items = data if isinstance(data, list) else [data]
        number = 0
        while number < len(items):
            here = (*path, str(number)) if isinstance(data, list) else path
            item, step = items[number], items[number + 1] if number + 1 < len(items) else None
            try:
                if isinstance(item, str) and TO in item:
                    found += _range(item, step, reads[0])
                    number += 1
                else:
                    found.append(reads[0](item))
                for value in found:
                    for read in reads[1:]:
                        read(value)
            except ValueError as error:
                self._wrong(here, f"{path[1]}: {error}")
            number += 1
        if not items:
            self._wrong(path, f"{path[1]}: an axis has at least one value")
        return tuple(dict.fromkeys(found))


def _of_target(field: Declared, data: Any) -> Value:
    """ValueError with what is allowed."""
    value, problems = read_value(field, data)
    if problems:
        raise ValueError(problems[0].message.partition(": ")[2])
    found: Value = value
    return found


def _range(text: str, step: object, read: Callable[[Any], Value]) -> list[Value]:
    """The values of `LOW .. HIGH` with its step; ValueError says what is wrong."""
    ends = [_scalar(each) for each in text.split(TO)]
    if len(ends) != 2:
        raise ValueError(f"found {text!r}, allowed LOW{TO}HIGH")
    words = f"the range {text} needs its step behind it: [{text}, {TIMES}2] multiplies, [{text}, {BY}8] adds"
    if not isinstance(step, str) or not step.startswith((TIMES, BY)):
        raise ValueError(words)
    low, high = (read(each) for each in ends)
    if not isinstance(low, int | float) or not isinstance(high, int | float) or low > high:
        raise ValueError(f"found {text!r}, allowed two numbers, the smaller one first")
    multiplies = step.startswith(TIMES)
    text_of_step = _scalar(step.removeprefix(TIMES if multiplies else BY).strip())
    by = read(text_of_step) if isinstance(text_of_step, str) else text_of_step
    if not isinstance(by, int | float) or by <= (1 if multiplies else 0) or (multiplies and low <= 0):
        raise ValueError(
            f"found step {step!r}, allowed {TIMES} with a number above 1, or {BY} with one above 0"
        )
    found: list[Value] = []
    value: float = low
    while value <= high:
        if len(found) == MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES} values in {text}")
        found.append(read(int(value) if isinstance(low, int) and value == int(value) else value))
        value = value * by if multiplies else value + by
    if found[-1] != high:
        raise ValueError(f"steps {step} from {text.split(TO)[0]} do not meet {text.split(TO)[1]}")
    return found


def _scalar(text: str) -> int | float | str:
    """A number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()


def _meant(key: str, leaves: Sequence[str]) -> str:
    """The key with these last words, or the nearest one."""
    tail = [name for name in leaves if name.endswith(f".{key}")]
    if tail:
        return f"; did you mean {' or '.join(map(repr, tail[:3]))}?"
    return did_you_mean(key, list(leaves)) or "; docs/targets.md lists them"
