"""Measures whether a larger machine is ever slower, and prints a Markdown table: one network, one resource that grows.

    python benchmarks/ladder.py [NETWORK ...] [--along sram cores]

int8 networks (resnet18, mobilenetv1, vgg5, fsrcnn) run on `df`, the others (of the zoo, f16) on `edge`, with 13 sizes
of SRAM from 128 KiB to 8 MiB, or with 1, 2, 4 and 16 cores.  Asked: a step never takes 1 % more cycles than the
least of the steps before.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fusion import KIB, Measured, measure

from frustum.backend.targets import load
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.runtime.study.published.networks import NETWORKS

STEPS_KIB = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
CORES = (1, 2, 4, 16)
ON_EDGE = ("squeezenet", "resnet50", "inception_v1")
MOST_SLOWER = 1.01


def with_sram(name: str, size_bytes: int) -> Target:
    """A shipped target with so much SRAM in each cluster."""
    target = load(name)
    cluster = target.chip.cluster
    sram = replace(cluster.sram, capacity_bytes=size_bytes)
    return replace(target, chip=replace(target.chip, cluster=replace(cluster, sram=sram)))


def with_cores(name: str, cores: int) -> Target:
    """A shipped target with so many cores in each cluster."""
    target = load(name)
    return replace(target, chip=replace(target.chip, cluster=replace(target.chip.cluster, cores=cores)))


def targets(network: str, along: str) -> Iterator[tuple[str, Target]]:
    name = "df" if network in NETWORKS else "edge"
    if along == "sram":
        yield from ((f"{size} KiB", with_sram(name, size * KIB)) for size in STEPS_KIB)
    else:
        yield from ((f"{cores} cores", with_cores(name, cores)) for cores in CORES)


def climb(network: str, along: str) -> Iterator[list[str]]:
    """One row for each size of the machine."""
    least: float | None = None
    for step, target in targets(network, along):
        try:
            found = of_network(network, target)
        except DoesNotFit as refused:
            yield [network, step, "-", "-", "-", str(refused)]
            continue
        cycles = found.report["cycles"]["total"]
        rise = 1.0 if least is None else cycles / least
        least = cycles if least is None else min(cycles, least)
        verdict = "" if rise <= MOST_SLOWER else "MISSED"
        yield [network, step, f"{found.megabytes:.3f}", f"{cycles:,}", f"{100 * (rise - 1):+.1f}", verdict]


def of_network(network: str, target: Target) -> Measured:
    if network in NETWORKS:
        return measure(NETWORKS[network](), target, "int8", None)
    return measure(f"zoo:{network}", target, "f16", None)


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure whether a larger machine is ever slower.")
    parser.add_argument("networks", nargs="*", default=[*NETWORKS, *ON_EDGE])
    parser.add_argument("--along", nargs="*", choices=("sram", "cores"), default=("sram",))
    given = parser.parse_args(args)
    missed = False
    print("| network | machine | MB | cycles | % above the least so far | |\n|---|---|---|---|---|---|")
    for network in given.networks:
        for along in given.along:
            for row in climb(network, along):
                missed |= row[-1] == "MISSED"
                print("| " + " | ".join(row) + " |", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
