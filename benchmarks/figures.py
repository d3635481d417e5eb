"""Measures the figures that README and docs print, keeps them in `figures.json`, and writes them into the pages.

    python benchmarks/figures.py [SECTION ...] [--all] [--pages]

Without sections: those of README and docs (`make figures`); `--all`: those of benchmarks/README.md too
(`make figures-all`); `--pages`: measure nothing, write the pages from `figures.json`.  Each section says at which
commit and on which day it was measured.  A page shows a section between two lines, which stay as they are:

    <!-- figures NAME -->
    <!-- /figures -->
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import addresses
import agreement_table
import bounds
import defaults
import fusion
import measure
import numpy as np
import onnx

import frustum
from frustum.backend.targets import load
from frustum.dialects.weights.codec import compress
from frustum.passes.tile.orders import ORDERS
from frustum.passes.zoo import ZOO
from frustum.runtime.kernels import BFLOAT16
from frustum.runtime.model.build import build
from frustum.runtime.model.options import Request
from frustum.runtime.study.published.networks import Builder

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "figures.json"
DOCS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))
PAGES = ("README.md", *DOCS, "benchmarks/README.md")
PART = re.compile(r"(<!-- figures ([\w-]+) -->\n).*?(<!-- /figures -->)", re.DOTALL)
MAIN_JOB = ("run", "zoo:resnet50", "--check")
"""What README shows: `make run`."""
MIB = 1 << 20
Rows = Iterator[list[str]]
Figure = dict[str, Any]
"""`commit`, `date`, and either `text` (what a command printed) or `head` and `rows` (a table)."""


# --- sections ----------------------------------------------------------------------------------------------


def main_job() -> str:
    """The terminal's text of the main job."""
    script = "import sys; from frustum.runtime.tools.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, *MAIN_JOB, "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip("\n")


HALVES = fusion.HEAD.replace(
    "frustum-graph-fold-quantisation", "frustum-graph-fold-quantisation,frustum-graph-convert-type{to=f16}"
)
"""The passes before fusion, for f16."""
POLICIES = ("none", "pyramid", "template", "greedy", "optimal")


def policies() -> Rows:
    """DRAM bytes of every policy in multiples of the compulsory ones."""
    yield ["network", "target", *POLICIES]
    for name in ("squeezenet", "resnet50", "vgg19"):
        for target in ("default", "edge"):
            found = [fusion.measure(f"zoo:{name}", load(target), "f16", policy, compress="none") for policy in POLICIES]
            yield [name, target, *(f"{each.ratio:.3f}" for each in found)]


SEARCHES = ("all", "fixed", "exhaust", "shrinking", "small-to-large")


def searches() -> Rows:
    """Counted DRAM bytes and cycles of the units of policy `pyramid`, by how their unit maps are searched."""
    yield ["network, target", *SEARCHES]
    for name in ("squeezenet", "resnet50"):
        for target in ("default", "edge"):
            reports = [timed(name, target, "policy=pyramid", f"search={search}") for search in SEARCHES]
            yield [f"{name}, {target}", *(megabytes_and_cycles(report) for report in reports)]


def timed(name: str, target: str, fuse: str, partition: str) -> dict[str, Any]:
    """The report of a zoo network in f16, with options of the two passes that plan."""
    pipeline = f"{HALVES},frustum-fuse-layers{{{fuse}}},frustum-tile-partition{{{partition}}},{fusion.TAIL}"
    built = build(Request(f"zoo:{name}", load(target), pipeline=pipeline))
    return dict(frustum.run(built.chain, {}, mode="timing").report)


def megabytes_and_cycles(report: dict[str, Any]) -> str:
    dram = report["dram"]
    megabytes = (dram["total_bytes"] - dram["other_bytes"]) / fusion.MB
    return f"{megabytes:.2f} MB, {report['cycles']['total'] / fusion.MB:.2f} M"


def compressed() -> Rows:
    """The default against weights as they are."""
    yield ["network", "target", "DRAM MB raw", "compressed", "share", "cycles raw", "compressed"]
    for name in ("squeezenet", "resnet50", "shufflenet"):
        for target in ("default", "edge"):
            machine = load(target)
            raw, small = (
                fusion.measure(f"zoo:{name}", machine, "f16", None, compress=way).report for way in ("none", "auto")
            )
            bytes_ = [each["dram"]["total_bytes"] for each in (raw, small)]
            cycles = [each["cycles"]["total"] for each in (raw, small)]
            yield [
                name, target, *(f"{each / fusion.MB:.2f}" for each in bytes_), f"{bytes_[1] / bytes_[0]:.3f}",
                *(f"{each:,}" for each in cycles),
            ]  # fmt: skip


def orders() -> Rows:
    """Thousands of cycles of a small group on 64 tiles in every order, on 1, 2, 4 cores of one cluster and 4 x 4."""
    cores = {"1": (1, 1), "2": (1, 2), "4": (1, 4), "16": (4, 4)}
    yield ["order", *cores]
    for order in (None, *ORDERS):
        cycles = []
        for clusters, each in cores.values():
            target = load("default")
            cluster = replace(target.chip.cluster, cores=each)
            target = replace(target, chip=replace(target.chip, clusters=clusters, cluster=cluster))
            assign = f"frustum-tile-assign-order{{order={order}}}," if order else ""
            tail = fusion.TAIL.replace("frustum-lower-tiles", f"{assign}frustum-lower-tiles")
            cut = "frustum-fuse-layers{cuts=\"\"},frustum-tile-force-partition{tile=1,0,2,2 borders=overlap clusters=2}"
            request = Request(windows(), target, pipeline=f"{HALVES},{cut},{tail}")
            cycles.append(frustum.run(build(request).chain, {}, mode="timing").report["cycles"]["total"])
        yield [order or "none", *(f"{each / 1e3:.1f}" for each in cycles)]


def windows() -> onnx.ModelProto:
    """Windows of several sizes, a stride and a residual, on a map of 16 x 16."""
    net = Builder("windows", 3, 32, 32)
    a = net.conv("input", 4, 3, 2)
    b = net.conv(net.pool(a, 3, 1, 1), 4, 5, relu=False)
    return net.model(net.conv(net.relu(net.add(b, a)), 4, 3, relu=False))


PIECE_ELEMENTS, ZEROS = 1 << 15, 0.9


def codecs() -> Rows:
    """Sizes of compressed pieces of 32,768 random weights, relative to raw."""
    yield ["weights", "zero", "huffman", "auto"]
    random = np.random.default_rng(0)
    normal = random.standard_normal(PIECE_ELEMENTS)
    sparse = np.where(random.random(PIECE_ELEMENTS) < ZEROS, 0, normal)
    for what, values in (("normal", normal), ("90 % zeros", sparse)):
        int8 = np.round(values * 127 / np.abs(values).max()).astype(np.int8)
        kinds = {"int8": int8, "f16": values.astype(np.float16), "bf16": values.astype(BFLOAT16)}
        for name, array in kinds.items():
            raw = array.view(np.uint8)
            found = [compress(raw, array.itemsize, codec).size / raw.size for codec in ("zero", "huffman", "auto")]
            yield [f"{name}, {what}", *(f"{each:.2f}" for each in found)]


def whole_runs() -> Rows:
    """Seconds of whole runs, one process each."""
    yield list(measure.HEAD)
    for name in ("resnet50", "squeezenet"):
        runs = [measure.run(name, "default") for _ in range(3)]
        yield measure.row(name, runs, *measure.side_by_side(name, "default", 5))


AGREEMENT = (
    "zoo:squeezenet", "zoo:shufflenet", "zoo:alexnet", "zoo:resnet50", "zoo:inception_v1", "zoo:squeezenet:f16",
    "zoo:squeezenet:bf16", "zoo:resnet50:f16", "zoo:squeezenet:f32x4",
)  # fmt: skip
DEFAULTS = ("zoo:squeezenet", "zoo:shufflenet", "zoo:alexnet", "zoo:resnet50", "zoo:inception_v1", defaults.CHAIN)


def agreement() -> Rows:
    """How far outputs are from onnxruntime's."""
    yield list(agreement_table.HEAD)
    jobs = [agreement_table.job_of(text) for text in AGREEMENT]
    for target in ("default", "edge"):
        for job in jobs:
            yield agreement_table.row(job, target, *agreement_table.run(job, target, 0))


def line_buffer() -> Rows:
    """Busy cycles of the matrix units of ResNet-50, f16, by how line buffers are written."""
    yield ["target", "split", "continuous", "auto", "saving over split"]
    for target in ("line64", "default"):
        busy = []
        for mode in ("split", "continuous", "auto"):
            tail = fusion.TAIL.replace("choose-line-buffer", f"choose-line-buffer{{mode={mode}}}")
            pipeline = f"{HALVES},frustum-fuse-layers,frustum-tile-partition,{tail}"
            built = build(Request("zoo:resnet50", load(target), pipeline=pipeline))
            engines = frustum.run(built.chain, {}, mode="timing").report["engines"]
            busy.append(sum(each["busy"] for name, each in engines.items() if "matrix" in name))
        yield [target, *(f"{each:,}" for each in busy), f"{100 * (1 - busy[2] / busy[0]):.1f} %"]


@dataclass(frozen=True)
class Section:
    """What measures it; `heavy`: with `--all` only."""

    measure: Callable[[], str | Rows]
    heavy: bool = False


def _of_fusion(name: str) -> Section:
    return Section(lambda: fusion.SECTIONS[name](None), heavy=True)


SECTIONS: dict[str, Section] = {
    "main-job": Section(main_job),
    "compressed": Section(compressed),
    "codecs": Section(codecs),
    "orders": Section(orders),
    "searches": Section(searches),
    "policies": Section(policies),
    "whole-runs": Section(whole_runs, heavy=True),
    "agreement": Section(agreement, heavy=True),
    "line-buffer": Section(line_buffer, heavy=True),
    "bounds": Section(lambda: bounds.rows(tuple(ZOO), tuple(bounds.CASES)), heavy=True),
    "addresses": Section(lambda: addresses.rows(addresses.NETWORKS, addresses.TARGETS, "f16"), heavy=True),
    "defaults": Section(lambda: defaults.rows(DEFAULTS, ("default", "edge"), "f16", 1), heavy=True),
    **{name: _of_fusion(name) for name in fusion.SECTIONS},
}


# --- kept figures ------------------------------------------------------------------------------------------


def figure_of(section: Section) -> Figure:
    """A section measured now."""
    stamp = {"commit": commit(), "date": str(datetime.now(UTC).date())}
    found = section.measure()
    if isinstance(found, str):
        return {**stamp, "text": found}
    head, *rows = found
    return {**stamp, "head": head, "rows": rows}


def commit() -> str:
    """The commit that is checked out; with `+` where product code differs from it."""
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "dialects", "passes", "backend", "runtime")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def kept() -> dict[str, Figure]:
    found: dict[str, Figure] = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    return found


def keep(figures: dict[str, Figure]) -> None:
    KEPT.write_text(json.dumps(figures, indent=1) + "\n")


# --- pages -------------------------------------------------------------------------------------------------


def written(page: str, figures: dict[str, Figure]) -> str:
    """The text of a page with its sections as they are in `figures`; one that was never measured says so."""
    return PART.sub(lambda part: f"{part[1]}{rendered(figures.get(part[2]), part[2])}{part[3]}", page)


def rendered(figure: Figure | None, name: str) -> str:
    """Markdown of a section."""
    if figure is None:
        return f"Not measured yet: `python benchmarks/figures.py {name}`.\n"
    stamp = f"Measured on {figure['date']} at commit {figure['commit']}.\n"
    if "text" in figure:
        return f"```\n{figure['text']}\n```\n{stamp}"
    lines = [figure["head"], ["---"] * len(figure["head"]), *figure["rows"]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + f"\n{stamp}"


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the figures that the pages print.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", choices=[*SECTIONS, []], help=", ".join(SECTIONS))
    parser.add_argument("--all", action="store_true", help="those of benchmarks/README.md too")
    parser.add_argument("--pages", action="store_true", help="only write the pages from figures.json")
    options = parser.parse_args(args)
    names = options.sections or [name for name, section in SECTIONS.items() if options.all or not section.heavy]
    for name in [] if options.pages else names:
        started = time.perf_counter()
        figures = {**kept(), name: figure_of(SECTIONS[name])}
        keep(figures)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    figures = kept()
    for page in PAGES:
        path = ROOT / page
        path.write_text(written(path.read_text(), figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
