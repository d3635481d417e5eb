"""DRAM bytes of plans as trees beside the present planner's, and what the search takes.

    python benchmarks/trees.py MODEL|FOLDER|zoo:NAME ... [--targets edge] [--kib N] [--clusters N] [--present]
        [--json FILE]

Each model is planned in f16 on each target, with N KiB of SRAM for each cluster and on N clusters if that is said.
`--present` compiles it too, with compression off, and emulates its timing; `--json` keeps all figures, with the commit.
One line a case: MB of the tree, times compulsory, SRAM held, seconds of processor time; with `--present` the present
planner's MB, and the tree's as a part of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from frustum.backend import targets
from frustum.dialects.errors import Error
from frustum.dialects.target import Target
from frustum.runtime.failures import UsageError
from frustum.runtime.model.options import Request
from frustum.runtime.study.planned import planned
from frustum.runtime.tools.plan import networks_with

FRUSTUM = [sys.executable, "-m", "frustum.runtime.tools.cli"]


@dataclass(frozen=True)
class Case:
    """A model on a machine, planned."""

    name: str
    target: str
    tree_bytes: int
    compulsory_bytes: int
    sram_bytes: int
    seconds: float
    present_bytes: int | None = None

    def line(self) -> str:
        ratio = self.tree_bytes / max(self.compulsory_bytes, 1)
        found = f"{self.name:36s} {self.target:10s} {self.tree_bytes / 1e6:9.3f} MB"
        found += f" {ratio:7.3f} {self.sram_bytes:9,d} B {self.seconds:7.2f} s"
        if self.present_bytes:
            found += f"  present {self.present_bytes / 1e6:9.3f} MB {self.tree_bytes / self.present_bytes:6.3f}"
        return found


def models(given: list[str]) -> Iterator[str]:
    """Paths of models; of a folder all `.onnx` files."""
    for each in given:
        path = Path(each)
        yield from map(str, sorted(path.glob("*.onnx")) if path.is_dir() else [each])


def machine(name: str, kib: int | None, clusters: int | None) -> Target:
    """A target, with other sizes if they are said."""
    found = targets.load(name)
    if kib is not None:
        sram = replace(found.cluster.sram, capacity_bytes=kib * 1024)
        found = replace(found, chip=replace(found.chip, cluster=replace(found.cluster, sram=sram)))
    if clusters is not None:
        found = replace(found, chip=replace(found.chip, clusters=clusters))
    return found


def tree_of(model: str, name: str, target: Target) -> Case:
    """The search over trees; its time is that of the search and the count."""
    networks, _, _ = networks_with(Request(model=model, target=target, dtype="f16"))
    started = time.process_time()
    plans = [planned(network, target) for network in networks]
    seconds = time.process_time() - started
    moved, held = (f(getattr(p.counted, what) for p in plans) for f, what in ((sum, "dram_bytes"), (max, "sram_bytes")))
    return Case(Path(model).stem, name, moved, sum(n.compulsory_bytes for n in networks), held, seconds)


def present_bytes(model: str, target: str) -> int:
    """DRAM bytes of layers that the emulator counts for the present plan, without programs."""
    command = [*FRUSTUM, "run", model, "--target", target, "--dtype", "f16", "--mode", "timing", "--json"]
    done = subprocess.run([*command, "--compress-weights", "none"], capture_output=True, check=False, text=True)
    if done.returncode:
        raise UsageError(done.stderr.strip().splitlines()[-1][:120])
    dram = json.loads(done.stdout)["dram"]
    return int(dram["total_bytes"] - dram["other_bytes"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--targets", nargs="+", default=["edge"])
    parser.add_argument("--kib", type=int)
    parser.add_argument("--clusters", type=int)
    parser.add_argument("--present", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.present and (given.kib or given.clusters):
        parser.error("--present takes targets as they are: write a target file for other sizes")
    found: list[Case] = []
    for target in given.targets:
        for model in models(given.models):
            try:
                case = tree_of(model, target, machine(target, given.kib, given.clusters))
                if given.present:
                    case = replace(case, present_bytes=present_bytes(model, target))
            except Error as error:
                print(f"{Path(model).stem:36s} {target:10s} {error}", flush=True)
                continue
            print(case.line(), flush=True)
            found.append(case)
    if found:
        print(f"seconds: median {np.median([c.seconds for c in found]):.2f}, most {max(c.seconds for c in found):.2f}")
    parts = [case.tree_bytes / case.present_bytes for case in found if case.present_bytes]
    if parts:
        above = sum(part > 1.0 for part in parts)
        print(f"tree / present: median {np.median(parts):.3f}, most {max(parts):.3f}, above 1: {above} of {len(parts)}")
    if given.json:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        given.json.write_text(json.dumps({"commit": commit, "cases": [vars(case) for case in found]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
