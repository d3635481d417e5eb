"""Prints where the cycles of a model go: its critical path, by engine and cause, by unit, by layer.

    python benchmarks/critical_path.py MODEL [--target default] [--clusters N] [--dtype f16] [--batch N]
        [--policy P] [--pipeline TEXT] [--compress-weights none] [--units 12] [--top 20] [--unit NAME]

Of every piece of the path: how long its engine was busy (`work`, on a layer), waited for a `port`, or its result was
on the way (`latency`).  `why` says what the next piece needed of it: its `result`; its `turn` in the queue of the same
engine; `room` for one more transfer in flight; a `barrier`.  Every cycle of the run is in each table once.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import frustum
from frustum.backend.file.executable import Executable
from frustum.backend.targets import load
from frustum.dialects.target import Target
from frustum.runtime.machine import Machine
from frustum.runtime.report.terminal import share, table
from frustum.runtime.report.waits import Wait, merged, waits

GROUPS = ("DRAM", "matrix", "MVDMA", "CDMA", "bus", "IODMA", "vector", "code", "latency")
"""Columns of the summary: engines at work or waiting for ports (the GDMAs are the DRAM's), and all latencies."""
GROUP_OF = {"gdma": "DRAM", "fetch": "code", "matrix": "matrix", "bus": "bus", "vector": "vector"}


def group(wait: Wait) -> str:
    kind = wait.engine.rsplit(".", 1)[1]
    return "latency" if wait.for_ == "latency" else GROUP_OF.get(kind, kind.upper())


def by_group(found: Iterable[Wait]) -> dict[str, int]:
    """Cycles of the path by `GROUPS`."""
    totals = Counter(dict.fromkeys(GROUPS, 0))
    for each in found:
        totals[group(each)] += each.cycles
    return dict(totals)


def by_cause(found: Sequence[Wait], top: int) -> list[tuple[str, ...]]:
    """Rows: the costliest causes, engines of a kind together."""
    whole = sum(each.cycles for each in found)
    kinds = [each._replace(engine=each.engine.rsplit(".", 1)[1]) for each in found]
    rows = [("engine", "for", "on", "why", "cycles", "share")]
    plain = [each._replace(on="") if each.for_ == "work" else each for each in kinds]
    for key, cycles in list(merged(plain, "engine", "for_", "on", "why").items())[:top]:
        rows.append((*map(str, key), f"{cycles:,}", share(cycles, whole)))
    return rows


def by_name(found: Sequence[Wait], field: str, names: Sequence[str], top: int) -> list[tuple[str, ...]]:
    """Rows: the units or layers on which most of the path lies, by `GROUPS` in per cent of their own cycles."""
    parts: dict[int, list[Wait]] = defaultdict(list)
    for each in found:
        parts[getattr(each, field)].append(each)
    whole = sum(each.cycles for each in found)
    rows = [(field, "cycles", "share", *GROUPS)]
    order = sorted(parts, key=lambda number: -sum(each.cycles for each in parts[number]))
    for number in order[:top]:
        groups = by_group(parts[number])
        mine = sum(groups.values())
        name = names[number] if 0 <= number < len(names) else "-"
        rows.append((name, f"{mine:,}", share(mine, whole), *(f"{100 * groups[each] / mine:.0f}" for each in GROUPS)))
    return rows


def executables(options: argparse.Namespace) -> Sequence[Executable]:
    """The model, compiled as the options say."""
    names = "dtype", "batch", "policy", "pipeline", "compress_weights"
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    made = frustum.compile(options.model, target=machine(options), **given)
    return made.executables


def machine(options: argparse.Namespace) -> Target:
    target = load(options.target)
    clusters = options.clusters or target.chip.clusters
    return replace(target, chip=replace(target.chip, clusters=clusters))


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Where the cycles of a model go.")
    parser.add_argument("model", metavar="MODEL", help="a path to .onnx, or zoo:NAME")
    parser.add_argument("--target", default="default")
    parser.add_argument("--clusters", type=int, help="instead of the target's")
    parser.add_argument("--dtype", default="f16")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--policy")
    parser.add_argument("--pipeline")
    parser.add_argument("--compress-weights", default="none")
    parser.add_argument("--units", type=int, default=12, metavar="N", help="how many units and layers are shown")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="how many causes are shown")
    parser.add_argument("--unit", metavar="NAME", help="of this unit alone")
    options = parser.parse_args(args)
    for executable in executables(options):
        show(executable, options)
    return 0


def show(executable: Executable, options: argparse.Namespace) -> None:
    timeline = Machine(executable).run({}, mode="timing").timeline
    program = executable.program
    found = [each for each in waits(timeline) if options.unit in (None, *program.units[each.unit : each.unit + 1])]
    whole = sum(each.cycles for each in found)
    print(f"{options.model} on {options.target}: {timeline.total_cycles:,} cycles, {whole:,} of them here\n")
    groups = [(name, f"{cycles:,}", share(cycles, whole)) for name, cycles in by_group(found).items() if cycles]
    print(*table([("path", "cycles", "share"), *groups]), sep="\n", end="\n\n")
    print(*table(by_cause(found, options.top)), sep="\n", end="\n\n")
    for field, names in (("unit", program.units), ("layer", program.layers)):
        print(*table(by_name(found, field, names, options.units)), sep="\n", end="\n\n")


if __name__ == "__main__":
    sys.exit(main())
