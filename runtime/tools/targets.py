# Tests: test/runtime/tools/test_cli.py
"""`frustum targets`: the shipped machines; or a file checked."""

from __future__ import annotations

import json
from collections.abc import Sequence

from frustum.backend import targets
from frustum.dialects.target import Target, digest, json_schema
from frustum.runtime.failures import GOOD
from frustum.runtime.model.options import TargetsOptions
from frustum.runtime.report.terminal import bytes_text, show, table


def main(options: TargetsOptions) -> int:
    if options.schema:
        show(json.dumps(json_schema(), indent=1) + "\n")
    elif options.name and targets.is_file(options.name):
        from frustum.passes.fuse.policy import problems_of  # imports numpy

        show("\n".join(about(options.name, targets.load(options.name, problems_of))) + "\n")
    elif options.name:
        show(targets.path(options.name).read_text(encoding="utf-8"))
    else:
        show("\n".join(listing()) + "\n")
    return GOOD


def about(file: str, target: Target) -> list[str]:
    """That a file is good, and its line of the list."""
    return [f"{file}: a target without errors, sha256 {digest(target)}", *_table([target])]


def listing() -> list[str]:
    """One line for each target, the default one first."""
    return [
        *_table([*(targets.load(name) for name in targets.names()), *targets.plugged().values()]),
        "",
        "frustum targets NAME prints one of them; memories are those of a cluster and of a core.",
    ]


def _table(found: Sequence[Target]) -> list[str]:
    figures = table([("target", "chips x clusters x cores", "SRAM", "NRAM", "WRAM"), *map(_row, found)])
    words = ["modelled on", *(target.modelled_on for target in found)]
    return [f"{line}   {text}" for line, text in zip(figures, words, strict=True)]


def _row(target: Target) -> tuple[str, ...]:
    sizes = (bytes_text(target.memory(name).capacity_bytes) for name in ("sram", "nram", "wram"))
    return target.name, f"{target.chips} x {target.chip.clusters} x {target.cluster.cores}", *sizes
