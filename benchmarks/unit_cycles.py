"""Prints how far the planner's model of cycles is from the emulator's count, unit by unit.

    python benchmarks/unit_cycles.py [MODEL ...] [--targets default edge] [--dtype f16] [--units]

Counted is what a unit takes by itself, as `units_alone.py` defines it: as if all other units took no time and
its weights were there before; predicted is what the planner says of that (`passes/plan/makespan.py: own_cycles`).
Off is the difference as a share of the counted cycles, or of a hundredth of the run where a unit takes less than that.
The last columns are the run as a whole, where units overlap: what they add to it by the model, and the count.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

from units_alone import cycles_alone

import frustum
from frustum.backend.file.executable import Executable
from frustum.passes import zoo
from frustum.runtime.machine import Machine
from frustum.runtime.report.terminal import table

CLOSE, FAR = 0.05, 0.12
SMALLEST_SHARE = 0.01


class UnitCycles(NamedTuple):
    name: str
    predicted: int
    counted: int
    off: float


class RunCycles(NamedTuple):
    units: list[UnitCycles]
    predicted: int
    counted: int


def cycles_of(executable: Executable) -> RunCycles:
    """Of a run, and of each of its units for which the planner says something."""
    timeline = Machine(executable).run({}, mode="timing").timeline
    least, found = SMALLEST_SHARE * timeline.total_cycles, []
    facts = executable.manifest["options"]["units"]
    counted = cycles_alone(timeline)
    for name, fact, own in zip(executable.program.units, facts, counted, strict=True):
        if "own_cycles" in fact:
            predicted = fact["own_cycles"]
            found.append(UnitCycles(name, predicted, own, (predicted - own) / max(own, least)))
    return RunCycles(found, sum(fact.get("predicted_cycles", 0) for fact in facts), timeline.total_cycles)


def summary(runs: Sequence[RunCycles]) -> tuple[str, ...]:
    """Cycles together, shares of units that are close, cycles of the run."""
    found = [each for run in runs for each in run.units]
    off = [abs(each.off) for each in found]
    predicted, counted = sum(each.predicted for each in found), sum(each.counted for each in found)
    close, not_far = (100 * sum(x <= most for x in off) / max(len(off), 1) for most in (CLOSE, FAR))
    whole = f"{100 * (predicted / counted - 1):+.1f} %" if counted else "-"
    together, run = sum(each.predicted for each in runs), sum(each.counted for each in runs)
    return (
        f"{predicted:,}", f"{counted:,}", whole, f"{close:.0f} %", f"{not_far:.0f} %",
        f"{100 * max(off, default=0.0):.0f} %", f"{together:,}", f"{run:,}",
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", default=[f"zoo:{name}" for name in zoo.ZOO])
    parser.add_argument("--targets", nargs="+", default=["default", "edge"])
    parser.add_argument("--dtype", default="f16")
    parser.add_argument("--units", action="store_true", help="show every unit")
    given = parser.parse_args()
    close = "within 5 %", "within 12 %", "worst unit"
    rows = [("model", "target", "predicted", "counted", "off", *close, "run predicted", "run")]
    for model in given.models:
        for target in given.targets:
            made = frustum.compile(model, target=target, dtype=given.dtype, compress_weights="none")
            found = [cycles_of(part) for part in made.executables]
            rows.append((model, target, *summary(found)))
            if given.units:
                for each in (each for run in found for each in run.units):
                    print(f"{each.name:8} {each.predicted:>11,} {each.counted:>11,} {100 * each.off:+8.1f} %")
    print(*table(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
