"""`frustum targets`: the shipped machines."""

from __future__ import annotations

import argparse
import sys

from frustum.backend import targets
from frustum.dialects.target import Target
from frustum.runtime.failures import GOOD
from frustum.runtime.terminal import bytes_text, table


def main(options: argparse.Namespace) -> int:
    if options.name:
        sys.stdout.write(targets.path(options.name).read_text(encoding="utf-8"))
    else:
        sys.stdout.write("\n".join(listing()) + "\n")
    return GOOD


def listing() -> list[str]:
    """One line for each target, the default one first."""
    found = [targets.load(name) for name in targets.names()]
    figures = table([("target", "chips x clusters x cores", "SRAM", "NRAM", "WRAM"), *map(_row, found)])
    words = ["modelled on", *(target.modelled_on for target in found)]
    lines = [f"{line}   {text}" for line, text in zip(figures, words, strict=True)]
    return [
        *lines,
        "",
        "frustum targets NAME prints one of them; memories are those of a cluster and of a core.",
    ]


def _row(target: Target) -> tuple[str, ...]:
    sizes = (bytes_text(target.memory(name).capacity_bytes) for name in ("sram", "nram", "wram"))
    return target.name, f"{target.chips} x {target.chip.clusters} x {target.cluster.cores}", *sizes
