"""Prints how far the planner's model of cycles is from the emulator's count, unit by unit.

    python benchmarks/unit_cycles.py [MODEL ...] [--targets default edge] [--dtype f16] [--units]

Counted is what a unit adds to the run: its share of the critical path, which is shared out among the units without
rest (`runtime/report/waits.py`).  Predicted is what the planner says that it adds (`passes/plan/makespan.py`).
Off is the difference as a share of the counted cycles, or of a hundredth of the run where a unit takes less than that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

import frustum
from frustum.backend.file.executable import Executable
from frustum.passes import zoo
from frustum.runtime.machine import Machine
from frustum.runtime.report.terminal import table
from frustum.runtime.report.waits import merged, waits

CLOSE, FAR = 0.05, 0.12
SMALLEST_SHARE = 0.01


class UnitCycles(NamedTuple):
    name: str
    predicted: int
    counted: int
    off: float


def cycles_of(executable: Executable) -> list[UnitCycles]:
    """Of each unit for which the planner says something."""
    timeline = Machine(executable).run({}, mode="timing").timeline
    counted = {key[0]: cycles for key, cycles in merged(waits(timeline), "unit").items()}
    least, found = SMALLEST_SHARE * timeline.total_cycles, []
    facts = executable.manifest["options"]["units"]
    for number, (name, fact) in enumerate(zip(executable.program.units, facts, strict=True)):
        if "predicted_cycles" in fact:
            predicted, own = fact["predicted_cycles"], counted.get(number, 0)
            found.append(UnitCycles(name, predicted, own, (predicted - own) / max(own, least)))
    return found


def summary(found: Sequence[UnitCycles]) -> tuple[str, ...]:
    """Cycles together, and shares of units that are close."""
    off = [abs(each.off) for each in found]
    predicted, counted = sum(each.predicted for each in found), sum(each.counted for each in found)
    close, not_far = (100 * sum(x <= most for x in off) / max(len(off), 1) for most in (CLOSE, FAR))
    whole = f"{100 * (predicted / counted - 1):+.1f} %" if counted else "-"
    worst = max(off, default=0.0)
    return f"{predicted:,}", f"{counted:,}", whole, f"{close:.0f} %", f"{not_far:.0f} %", f"{100 * worst:.0f} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", default=[f"zoo:{name}" for name in zoo.ZOO])
    parser.add_argument("--targets", nargs="+", default=["default", "edge"])
    parser.add_argument("--dtype", default="f16")
    parser.add_argument("--units", action="store_true", help="show every unit")
    given = parser.parse_args()
    rows = [("model", "target", "predicted", "counted", "off", "within 5 %", "within 12 %", "worst unit")]
    for model in given.models:
        for target in given.targets:
            made = frustum.compile(model, target=target, dtype=given.dtype, compress_weights="none")
            parts = [made] if isinstance(made, Executable) else made.executables
            found = [each for part in parts for each in cycles_of(part)]
            rows.append((model, target, *summary(found)))
            if given.units:
                for each in found:
                    print(f"{each.name:8} {each.predicted:>11,} {each.counted:>11,} {100 * each.off:+8.1f} %")
    print(*table(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
