# Tests: test/runtime/study/published/test_cases.py
"""Published figures and ours: what `cases.yaml` says, and what a report has beside it.

| figure | of ours | its bound |
|---|---|---|
| `dram.bytes` | all bytes at the DRAM port but program and tables | `dram.bound_bytes` of the report |
| `dram.maps` | those of inputs, outputs and intermediates | inputs and outputs once |
| `kept.bytes` | the most that a unit keeps between its tiles | - |
| `macs.again` | products computed again, as a share of the network's | 0 |
| `cycles` | of the whole run | `cycles.bound` of the report |
| `seconds` | of CPU, to compile and to emulate (mode timing) | - |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.target import EXTENDS, Target, read_target, strict_yaml
from frustum.runtime.failures import UsageError

if TYPE_CHECKING:
    from onnx import ModelProto

FILE = Path(__file__).with_name("cases.yaml")
ZOO = "zoo:"
SCRATCHPAD = ("chip", "cluster", "sram", "capacity_bytes")
MB = 1e6


@dataclass(frozen=True)
class ComparedFigure:
    """A published figure, and ours where it was counted (else None): bytes, cycles, a share or seconds."""

    case: str
    figure: str
    theirs: float
    by: str
    source: str
    ours: float | None = None
    bound: float | None = None
    """What no plan can be below; None where nothing says."""
    bound_by: str | None = None

    @property
    def ratio(self) -> float | None:
        """Ours over theirs; None where there is none."""
        return None if self.ours is None or not self.theirs else self.ours / self.theirs


@dataclass(frozen=True)
class Case:
    """One network on one machine, and what is published of it: for each figure the number of each source."""

    name: str
    model: str | Mapping[str, Mapping[str, int]]
    target: str
    published: Mapping[str, Mapping[str, float]]
    options: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, str] | None = None
    """Options of the passes that fuse and partition, where the plan is published too."""
    sram: str | None = None
    """Its size in each cluster; None: the target's."""

    @property
    def pipeline(self) -> str | None:
        """As `frustum run --pipeline` takes it; None for the default one."""
        if self.plan is None:
            return None
        before, behind = passes_around_plan()
        fuse, partition = self.plan["fuse"], self.plan["partition"]
        forced = f"frustum-fuse-layers{{{fuse}}},frustum-tile-force-partition{{{partition}}}"
        return f"{before},{forced},{behind}"

    def machine(self, load: Callable[[str], Target]) -> Target:
        """The target that it runs on; `load` gives the shipped ones."""
        found = machine(self.target, load)
        if self.sram is None:
            return found
        inner: Any = self.sram
        for key in reversed(SCRATCHPAD):
            inner = {key: inner}
        return read_target(json.dumps({"name": found.name, EXTENDS: "", **inner}), str(FILE), base=lambda _: found)

    def network(self) -> str | ModelProto:
        """What is compiled: a name of the zoo, or the model made."""
        from frustum.runtime.study.published.attention import LAYERS
        from frustum.runtime.study.published.networks import NETWORKS

        if isinstance(self.model, str):
            return self.model if self.model.startswith(ZOO) else NETWORKS[self.model]()
        ((name, sizes),) = self.model.items()
        return LAYERS[name](**sizes)

    def figures(self) -> Iterator[ComparedFigure]:
        """All that is published of it, ours not yet counted."""
        for figure, found in self.published.items():
            for source, value in found.items():
                about = _data()["sources"][source]
                yield ComparedFigure(self.name, figure, value, about["short"], about["what"].strip())


@cache
def _data() -> dict[str, Any]:
    document = strict_yaml.read(FILE.read_text(encoding="utf-8"), str(FILE))
    assert not document.problems, document.report(document.problems)
    found: dict[str, Any] = document.data
    return found


def passes_around_plan() -> tuple[str, str]:
    """The passes before and behind the two that a plan gives options to, as texts of `--pipeline`."""
    before, behind = (_data()["passes"][key].strip() for key in ("before", "behind"))
    return before, behind


def machine(name: str, load: Callable[[str], Target]) -> Target:
    """A machine of the file, or else a shipped one."""
    described = _data()["machines"].get(name)
    if described is None:
        return load(name)
    return read_target(json.dumps({"name": name, **described}), str(FILE), base=load)


@cache
def cases() -> Mapping[str, Case]:
    """All cases by name, as the file has them."""
    return {name: Case(name, **said) for name, said in _data()["cases"].items()}


def named(names: Sequence[str]) -> list[Case]:
    """The cases of these names, each once; UsageError for names that nothing has."""
    known = cases()
    wrong = [name for name in dict.fromkeys(names) if name not in known]
    if wrong:
        words, near = ", ".join(map(repr, wrong)), did_you_mean(wrong[0], list(known))
        listed = f"frustum compare lists the {len(known)} that there are"
        raise UsageError(f"error: no published case {words} ({listed}){near}")
    return [known[name] for name in dict.fromkeys(names)]


def published(case: str, figure: str, source: str) -> float | None:
    """One published number; None where that source has none."""
    return cases()[case].published[figure].get(source)


# --- ours --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """What a run in mode timing counted."""

    report: Mapping[str, Any]
    ends_bytes: int
    """Of the network's inputs and outputs in DRAM."""
    seconds: float
    """Of CPU, compiling and emulating."""


def beside(case: Case, counted: Counted) -> list[ComparedFigure]:
    """All figures of a case with ours and the bound."""
    rows = []
    for each in case.figures():
        ours, bound, by = FIGURES[each.figure](counted)
        rows.append(ComparedFigure(each.case, each.figure, each.theirs, each.by, each.source, ours, bound, by))
    return rows


Found = tuple[float, float | None, str | None]
"""Ours, the bound, and what gives it."""


def _dram_bytes(counted: Counted) -> Found:
    dram = counted.report["dram"]
    return dram["total_bytes"] - dram["other_bytes"], dram["bound_bytes"], dram["bound_by"]


def _dram_maps(counted: Counted) -> Found:
    dram = counted.report["dram"]
    ours = dram["input_bytes"] + dram["output_bytes"] + dram["intermediate_bytes"]
    return ours, counted.ends_bytes, "inputs and outputs"


def _kept_bytes(counted: Counted) -> Found:
    return max((unit["kept_bytes"] for unit in counted.report["units"]), default=0), None, None


def _macs_again(counted: Counted) -> Found:
    macs = counted.report["macs"]
    return macs["recomputed"] / macs["useful"], 0.0, "nothing again"


def _cycles(counted: Counted) -> Found:
    cycles = counted.report["cycles"]
    return cycles["total"], cycles["bound"], cycles["bound_by"]


def _seconds(counted: Counted) -> Found:
    return counted.seconds, None, None


FIGURES: dict[str, Callable[[Counted], Found]] = {
    "dram.bytes": _dram_bytes,
    "dram.maps": _dram_maps,
    "kept.bytes": _kept_bytes,
    "macs.again": _macs_again,
    "cycles": _cycles,
    "seconds": _seconds,
}


# --- as text -----------------------------------------------------------------------------------------------

HEAD = ("case", "figure", "ours", "theirs", "ours / theirs", "bound", "by")


def figure_text(figure: str, value: float | None, largest: float = 0.0) -> str:
    """`25.855 MB`, `1,624,154`, `5.0 %`, `3.1 s`; exact bytes where neither it nor the `largest` beside it has 1 MB."""
    if value is None:
        return "-"
    if figure == "seconds":
        return f"{value:.1f} s"
    if figure == "macs.again":
        return f"{100 * value:.1f} %"
    if figure == "cycles":
        return f"{value:,.0f}"
    return f"{value / MB:,.3f} MB" if max(value, largest) >= MB else f"{value:,.0f} B"


def cells(each: ComparedFigure) -> tuple[str, ...]:
    """A row of the table, in one unit."""
    found = each.ours, each.theirs, each.bound
    largest = max((value for value in found if value is not None), default=0.0)
    ours, theirs, bound = (figure_text(each.figure, value, largest) for value in found)
    ratio = "-" if each.ratio is None else f"{each.ratio:.3f}"
    return each.case, each.figure, ours, theirs, ratio, bound, each.by


PUBLISHED_HEAD = ("case", "figure", "published", "by")


def published_cells(each: ComparedFigure) -> tuple[str, ...]:
    """A row of what others publish alone."""
    return each.case, each.figure, figure_text(each.figure, each.theirs), each.by


def source_lines(rows: Sequence[ComparedFigure]) -> list[str]:
    """Who publishes what is in the rows."""
    return [f"{by}: {what}" for by, what in dict.fromkeys((each.by, each.source) for each in rows)]
