"""The yardstick of plans: DRAM bytes, cycles, code bytes, compile time and executables of many networks on many
machines, kept as JSON and compared with those of another commit or policy.

    python benchmarks/plans.py zoo generated DIR FILE.onnx ... [--targets edge two_by_two FILE.yaml] --json NOW
    python benchmarks/plans.py --json NOW --against BEFORE

MODEL is `zoo` (the nine classic networks), `generated` (40 seeded random networks), `zoo:NAME`, `generated:SEED`, a
model, or a folder of `.onnx` files, whose open dimensions are bound as by `agreement_table.py`.  Targets are the
shipped ones, `two_by_two` (two linked clusters of two cores, 256 KiB each), and target files; without `--targets` all
but files.

Each case is compiled in a process of its own, in f16 (models of integers in their own types), unsplit and with
uncompressed weights, or with the defaults of both (`--defaults`); the machine runs in mode timing.  `--json` keeps each
case as soon as it is measured, with the commit of the code.  A case that the file has of the same commit and options is
not measured again.  A case that fails or exceeds `--limit` is kept with its error.  `--against` ends with 1 where DRAM
bytes, cycles or code bytes are worse, or where a case fails that did not.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from agreement_table import bound_shapes
from defaults import PLAIN, chain
from onnx import ModelProto
from sums import folder_sum

import frustum
from frustum.backend import targets
from frustum.backend.file.executable import write_executable
from frustum.dialects.diagnostic import one_line
from frustum.dialects.target import Target
from frustum.passes.zoo import ZOO
from frustum.runtime.failures import UsageError

ROOT = Path(__file__).resolve().parents[1]
CODE = ("dialects", "passes", "backend", "runtime")
KIB = 1 << 10
ZOO_SET, GENERATED, TWO_BY_TWO = "zoo", "generated", "two_by_two"
NAMED = (f"{ZOO_SET}:", f"{GENERATED}:")
"""How models begin that are no files."""
SEEDS = range(40)
GENERATED_SIZE = 16
"""The extents of the tests' random networks are multiplied by this: as they are, each fits into 512 KiB."""
MOST = {"dram_bytes": 1.01, "cycles": 1.03, "code_bytes": 1.03, "compile_seconds": 1.5}
"""The ratio to the figure before above which a figure is worse.  Processor time varies on a shared machine."""
LEAST = {"compile_seconds": 1.0}
"""Smaller figures are compared as if they were this: their differences are noise."""
LIMIT_SECONDS = 300.0

Kept: TypeAlias = dict[str, dict[str, Any]]
"""Figures, or the failure, of each case by its key."""


@dataclass(frozen=True)
class Case:
    """A model on a machine, and how it is compiled."""

    model: str
    target: str
    policy: str | None = None
    defaults: bool = False

    @property
    def key(self) -> str:
        """Names of model and machine, without the place of their files."""
        path = Path(self.model)
        is_file = not self.model.startswith(NAMED)
        name = f"{path.resolve().parent.name}/{path.stem}" if is_file else self.model
        return f"{name} {Path(self.target).stem}"

    def is_in(self, kept: Kept, commit: str) -> bool:
        """Whether it was measured before, at this commit and with these options."""
        wanted = {"commit": commit, "policy": self.policy, "defaults": self.defaults}
        return wanted.items() <= kept.get(self.key, {}).items()


# --- what is measured --------------------------------------------------------------------------------------


def models(given: Sequence[str]) -> Iterator[str]:
    """Single models of sets, folders and models."""
    for each in given:
        if each == ZOO_SET:
            yield from (f"{ZOO_SET}:{name}" for name in ZOO)
        elif each == GENERATED:
            yield from (f"{GENERATED}:{seed}" for seed in SEEDS)
        elif Path(each).is_dir():
            yield from map(str, sorted(Path(each).glob("*.onnx")))
        else:
            yield each


def two_by_two() -> Target:
    """`edge` as two clusters of two cores, 256 KiB each, linked as those of `default`."""
    edge, links = targets.load("edge"), targets.load("default").cluster.cdma
    sram = replace(edge.cluster.sram, capacity_bytes=256 * KIB)
    cluster = replace(edge.cluster, cores=2, sram=sram, cdma=links)
    return replace(edge, name=TWO_BY_TWO, chip=replace(edge.chip, clusters=2, cluster=cluster))


def machine(name: str) -> Target:
    return two_by_two() if name == TWO_BY_TWO else targets.load(name)


def generated(seed: int) -> ModelProto:
    """A random network of one of the tests' families, in turn."""
    folder = str(ROOT / "test" / "support")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    runs = importlib.import_module("family_runs")
    families = sorted(runs.FAMILIES)
    model: ModelProto = runs.random_case(families[seed % len(families)], seed, GENERATED_SIZE).model
    return model


def measured(case: Case) -> dict[str, Any]:
    """The figures of a case; the time is the processor's, for importing and compiling."""
    options: dict[str, Any] = {**({} if case.defaults else PLAIN), "policy": case.policy}
    model: str | ModelProto = case.model
    if case.model.startswith(f"{GENERATED}:"):
        model = generated(int(case.model.partition(":")[2]))
    elif Path(case.model).suffix == ".onnx":
        options["shapes"] = bound_shapes(Path(case.model))
    target = machine(case.target)
    try:
        compiled, seconds = compiled_in(model, target, "f16", options)
    except UsageError:  # a model of integers; for any other reason the second attempt fails too
        compiled, seconds = compiled_in(model, target, "model", options)
    report = frustum.run(compiled, {}, mode="timing").report
    dram, cycles = report["dram"], report["cycles"]
    if cycles is None or not compiled.executables:
        raise UsageError("error: nothing of it runs on the device")
    return {
        "dtype": report["dtype"],
        "dram_bytes": dram["total_bytes"] - dram["other_bytes"],
        "cycles": cycles["total"],
        "code_bytes": sum(len(each.code.bytes) for each in compiled.executables),
        "compile_seconds": round(seconds, 3),
        "other_bytes": dram["other_bytes"],
        "compulsory_bytes": dram["compulsory_bytes"],
        "bound_cycles": cycles["bound"],
        "sha256": executable_sum(compiled),
        "model": report["hashes"]["model"],
        "machine": report["hashes"]["target"],
    }


def compiled_in(
    model: str | ModelProto, target: Target, dtype: Any, options: Mapping[str, Any]
) -> tuple[frustum.Compiled, float]:
    started = time.process_time()
    compiled = frustum.compile(model, target, dtype, **options)
    return compiled, time.process_time() - started


def executable_sum(compiled: frustum.Compiled) -> str:
    """One SHA-256 of the files of all executables."""
    with tempfile.TemporaryDirectory() as folder:
        for number, each in enumerate(compiled.executables):
            write_executable(each, Path(folder, str(number)))
        return folder_sum(Path(folder))


def measure_one(case: Case) -> int:
    """In a process of its own: print the figures as JSON, or say the error in the last line."""
    with suppress(frustum.Error):  # what is loaded once belongs to no case
        warm = frustum.compile(chain(8), "edge", "f16", case.policy, **PLAIN)
        frustum.run(warm, {}, mode="timing")
    try:
        print(json.dumps(measured(case)))
    except frustum.Error as error:
        print(f"{type(error).__name__}: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


def figures_of(case: Case, limit_seconds: float, environment: Mapping[str, str]) -> dict[str, Any]:
    """The figures of a case, or its failure; both with the commit and the options."""
    found: dict[str, Any] = {"commit": code_commit(), "policy": case.policy, "defaults": case.defaults}
    command = [sys.executable, __file__, "--one", json.dumps(asdict(case))]
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, text=True, timeout=limit_seconds, env=environment
        )
    except subprocess.TimeoutExpired:
        return {**found, "failure": f"more than {limit_seconds:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"]
        return {**found, "failure": lines[-1][:400]}
    return {**found, **json.loads(done.stdout.splitlines()[-1])}


def code_commit() -> str:
    """The last commit that changed the code which is measured; what has changed since adds `+` and a checksum."""
    root = Path(frustum.__path__[0])

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words, "--", *CODE], cwd=root, capture_output=True, check=True).stdout

    new = git("ls-files", "--others", "--exclude-standard").decode().splitlines()
    changes = [git("diff", "HEAD"), *((root / path).read_bytes() for path in new)]
    commit = git("log", "-1", "--format=%H").decode().strip()
    return commit if not any(changes) else f"{commit}+{hashlib.sha256(b''.join(changes)).hexdigest()[:8]}"


def all_figures(
    cases: Sequence[Case], jobs: int, limit_seconds: float, bytecode: str
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Every case with its figures, as soon as they are there; no case begins after an interrupt.

    `bytecode`: the folder in which all processes share Python's bytecode.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with ThreadPoolExecutor(jobs) as pool:
        asked = {pool.submit(figures_of, case, limit_seconds, environment): case for case in cases}
        try:
            for future in as_completed(asked):
                yield asked[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def read(path: Path | None) -> Kept:
    found: Kept = json.loads(path.read_text()) if path is not None and path.is_file() else {}
    return found


def keep(path: Path, key: str, figures: dict[str, Any]) -> None:
    """Add a case to the file, which is replaced as a whole."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps({**read(path), key: figures}, indent=1) + "\n")
    part.replace(path)


def line(key: str, figures: Mapping[str, Any]) -> str:
    if "failure" in figures:
        return f"{key:48s} {figures['failure']}"
    return (
        f"{key:48s} {figures['dram_bytes'] / 1e6:9.3f} MB {figures['cycles']:12,d} cycles "
        f"{figures['code_bytes']:9,d} B of code {figures['compile_seconds']:7.2f} s"
    )


# --- comparison --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """The cases that two files have in common, by their keys."""

    ratios: dict[str, dict[str, float]]
    """By figure and key: now / before."""
    fail_now: list[str]
    failed_before: list[str]
    """They fail no more."""
    fail_still: list[str]
    differ: list[str]
    """Another model or type has the name."""
    other_machines: list[str]
    """Compared all the same: the checksum of a machine changes with every key that machines get."""
    same: int
    """Cases with the same executable."""

    @property
    def worse(self) -> dict[str, list[str]]:
        """Keys of each figure, the worst first."""
        return {
            figure: sorted((key for key in found if found[key] > MOST[figure]), key=lambda key: -found[key])
            for figure, found in self.ratios.items()
        }

    @property
    def is_worse(self) -> bool:
        return bool(self.fail_now) or any(keys for figure, keys in self.worse.items() if figure not in LEAST)


def compared(now: Kept, before: Kept) -> Compared:
    found, same = Compared({figure: {} for figure in MOST}, [], [], [], [], [], 0), 0
    for key in sorted(now.keys() & before.keys()):
        ours, theirs = now[key], before[key]
        if "failure" in ours or "failure" in theirs:
            fails, failed = "failure" in ours, "failure" in theirs
            (found.fail_still if fails and failed else found.fail_now if fails else found.failed_before).append(key)
        elif any(ours[each] != theirs[each] for each in ("model", "dtype")):
            found.differ.append(key)
        else:
            found.other_machines.extend([key] if ours["machine"] != theirs["machine"] else [])
            same += ours["sha256"] == theirs["sha256"]
            for figure, ratios in found.ratios.items():
                least = LEAST.get(figure, 1)
                ratios[key] = max(ours[figure], least) / max(theirs[figure], least)
    return replace(found, same=same)


def tables(found: Compared, now: Kept, before: Kept) -> Iterator[str]:
    """What got worse, then the ratios as a whole, as Markdown."""
    yield from ("| case | figure | before | now | ratio |", "|---|---|---|---|---|")
    for key in found.fail_now:
        yield f"| {key} | failure | - | {now[key]['failure']} | - |"
    for figure, keys in found.worse.items():
        for key in keys:
            old, new, ratio = before[key][figure], now[key][figure], found.ratios[figure][key]
            yield f"| {key} | {figure} | {old:,} | {new:,} | {ratio:.3f} |"
    yield "\n| figure | cases | median of ratios | least | most | better | worse |"
    yield "|---|---|---|---|---|---|---|"
    for figure, ratios in found.ratios.items():
        values = list(ratios.values())
        if values:
            better = sum(value < 1 / MOST[figure] for value in values)
            yield (
                f"| {figure} | {len(values)} | {median(values):.4f} | {min(values):.3f} | {max(values):.3f} | "
                f"{better} | {len(found.worse[figure])} |"
            )
    yield f"\n{found.same} executables are the same."
    for words, listed in (
        ("fail no more", found.failed_before), ("fail as before", found.fail_still),
        ("are of another model or type: not compared", found.differ),
        ("are of a machine with another checksum", found.other_machines),
    ):  # fmt: skip
        if listed:
            yield f"{len(listed)} {words}: {', '.join(listed)}"
    for name, kept in (("now", now), ("before", before)):
        ways = {(each["commit"][:8], each["policy"] or "default", each["defaults"]) for each in kept.values()}
        for commit, policy, defaults in sorted(ways):
            yield f"{name}: commit {commit}, policy {policy}{', all defaults' if defaults else ''}"


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{ZOO_SET}, {GENERATED}, a folder, or one model")
    parser.add_argument("--targets", nargs="+", default=[*targets.names(), TWO_BY_TWO], metavar="NAME|FILE.yaml")
    parser.add_argument("--policy", help="of the compiler, in place of its default")
    parser.add_argument("--defaults", action="store_true", help="cut and compress as the compiler does by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures, and take what it has already")
    parser.add_argument("--against", type=Path, metavar="FILE", help="print what is worse than in this file")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time (default 1)")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS", help="of one case (300)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(args)
    if given.one:
        return measure_one(Case(**json.loads(given.one)))
    if not given.models and not (given.json and given.against):
        parser.error("say what to measure, or both --json and --against to compare two files")
    if given.against and not given.against.is_file():
        parser.error(f"--against: no file {given.against}")
    chosen = list(models(given.models))
    if absent := [each for each in chosen if not each.startswith(NAMED) and not Path(each).is_file()]:
        parser.error(f"neither a set, a folder nor a model: {', '.join(absent)}")
    cases = [Case(m, t, given.policy, given.defaults) for t in given.targets for m in chosen]
    now, commit = read(given.json), code_commit()
    left = [case for case in cases if not case.is_in(now, commit)]
    print(f"{len(left)} cases to measure, {len(cases) - len(left)} kept", file=sys.stderr)
    with tempfile.TemporaryDirectory() as bytecode:
        for case, figures in all_figures(left, given.jobs, given.limit, bytecode):
            now[case.key] = figures
            if given.json:
                keep(given.json, case.key, figures)
            print(line(case.key, figures), flush=True)
    if not given.against:
        return 0
    if cases:
        now = {case.key: now[case.key] for case in cases}
    before = read(given.against)
    found = compared(now, before)
    print("\n".join(tables(found, now, {key: before[key] for key in now.keys() & before.keys()})))
    return int(found.is_worse)


if __name__ == "__main__":
    sys.exit(main())
