"""Measures what address tables cost and save, and prints a Markdown table: cycles and bytes that the machine counted.

    python benchmarks/addresses.py [NETWORK ...] [--target NAME ...] [--dtype f16]

Each network is compiled three times for each target: as it is; with addresses that cost nothing to compute
(`address_cycles: 0`); and with an address cache in which no table fits, so that every address is computed.  Nothing
is run but time.  Asked: at least 90 % of the executed matrix instructions name a table; cycles at most 1 % above those
of free addresses; no network faster without tables; and `other` (program and tables) at most the larger of 2 % of the
compulsory bytes and 256 KiB.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusion import print_table

import frustum
from frustum.backend.targets import load
from frustum.dialects.isa.program import Conv
from frustum.dialects.target import Target
from frustum.runtime.machine import Machine

NETWORKS = (
    "squeezenet", "shufflenet", "resnet50", "alexnet", "densenet121", "inception_v1", "inception_v2", "vgg19",
    "zfnet512",
)  # fmt: skip
TARGETS = ("default", "edge")
TABLES_SHARE, SLOWER, OTHER_SHARE, OTHER_BYTES = 0.9, 1.01, 0.02, 256 << 10


@dataclass(frozen=True)
class Measured:
    """What one timing run counted."""

    report: dict[str, Any]
    named: int
    executed: int

    @property
    def cycles(self) -> int:
        return int(self.report["cycles"]["total"])

    @property
    def busy(self) -> int:
        """Cycles of all matrix units."""
        return sum(int(e["busy"]) for name, e in self.report["engines"].items() if name.endswith(".matrix"))

    @property
    def other(self) -> int:
        return int(self.report["dram"]["other_bytes"])

    @property
    def most_other(self) -> int:
        return max(int(OTHER_SHARE * self.report["dram"]["compulsory_bytes"]), OTHER_BYTES)


def measure(network: str, target: Target, dtype: str) -> Measured:
    compiled = frustum.compile(f"zoo:{network}", target, dtype)
    report = frustum.run(compiled, {}, mode="timing").report
    counts = [matrix_instructions(Machine(executable)) for executable in compiled.executables]
    return Measured(report, sum(named for named, _ in counts), sum(executed for _, executed in counts))


def matrix_instructions(machine: Machine) -> tuple[int, int]:
    """Executions on cores of convolutions that name a table, and of all."""
    rows = machine.expanded.core
    executions = rows.active.sum(axis=1)
    named = executed = 0
    for number, instruction in enumerate(machine.expanded.instructions):
        if isinstance(instruction, Conv):
            times = int(executions[rows.of(number)].sum())
            executed += times
            named += times * (instruction.table is not None)
    return named, executed


def free(target: Target) -> Target:
    """The target on which addresses cost nothing to compute."""
    core = target.core
    return with_core(target, replace(core, matrix=replace(core.matrix, address_cycles=0)))


def without_tables(target: Target) -> Target:
    """The target whose address cache is the smallest that there is."""
    return with_core(target, replace(target.core, address_cache_bytes=16))


def with_core(target: Target, core: Any) -> Target:
    return replace(target, chip=replace(target.chip, cluster=replace(target.cluster, core=core)))


def rows(networks: Sequence[str], names: Sequence[str], dtype: str) -> Iterator[list[str]]:
    yield [
        "network", "target", "with table", "cycles", "free addresses", "ratio", "without tables", "ratio",
        "matrix busy", "without", "more", "address", "without", "other KiB", "at most", "tables", "loads",
    ]  # fmt: skip
    for network in networks:
        for name in names:
            target = load(name)
            found, least, most = (measure(network, t, dtype) for t in (target, free(target), without_tables(target)))
            share, above, cycles = found.named / found.executed, found.cycles / least.cycles, found.report["cycles"]
            cache = found.report["address_cache"]
            yield [
                network, name, f"{100 * share:.1f} %{missed(share < TABLES_SHARE)}", f"{found.cycles:,}",
                f"{least.cycles:,}", f"{above:.4f}{missed(above > SLOWER)}", f"{most.cycles:,}",
                f"{most.cycles / found.cycles:.3f}{missed(most.cycles < found.cycles)}", f"{found.busy:,}",
                f"{most.busy:,}", f"{100 * (most.busy / found.busy - 1):.1f} %", f"{cycles['address']:,}",
                f"{cycles['address_without_tables']:,}",
                f"{found.other / 1024:.1f}{missed(found.other > found.most_other)}",
                f"{found.most_other / 1024:.0f}", str(cache["tables"]), str(cache["loads"]),
            ]  # fmt: skip


def missed(is_missed: bool) -> str:
    return " MISSED" if is_missed else ""


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure address tables.")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of the zoo: {', '.join(NETWORKS)}")
    parser.add_argument("--target", action="append", help="shipped targets (default: default, edge)")
    parser.add_argument("--dtype", default="f16")
    options = parser.parse_args(args)
    print_table(rows(options.networks or NETWORKS, options.target or TARGETS, options.dtype))
    return 0


if __name__ == "__main__":
    sys.exit(main())
