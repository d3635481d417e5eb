"""Measures fusion against the literature and prints Markdown tables: DRAM bytes and cycles that the machine counted.

    python benchmarks/fusion.py [SECTION ...] [--policy optimal]

Sections: `sizes` (four networks, int8, one scratchpad of five sizes), `valid` (fsrcnn_valid on `df`), `cores` (four
clusters of one core), `zoo` (the classic networks, f16, on `default` and `edge`), `batch` (fully connected layers of
16 images), `roofline` (resnet50 on `default`), `points` (published design points, whose plan is published too: POINTS).
Bytes leave out program and tables (`other`), which have a column of their own.  "asked" is 1.03 times the reference
optimum of one scratchpad, or the figure of the case.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx

import frustum
from frustum.backend.targets import load
from frustum.dialects.target import Engine, Target
from frustum.passes.zoo import ZOO
from frustum.runtime.study.published.cases import beside, cases, passes_around_plan, published
from frustum.runtime.study.published.networks import NETWORKS
from frustum.runtime.tools.compare import count, random_input

MB = 1e6
MIB = 1 << 20
KIB = 1 << 10
TOLERANCE = 1.03  # asked: at most so many times the reference optimum
SIZES = {"256k": 256 * KIB, "512k": 512 * KIB, "1m": MIB, "2m": 2 * MIB, "4m": 4 * MIB}
"""By their names in published cases."""
SCRATCHPADS = ("vgg5", "fsrcnn", "resnet18", "mobilenetv1")
BYTES = "dram.bytes"
FOUR_CORES = {"resnet18": (11.95, 1.55), "fsrcnn": (8.85, 3.0), "vgg5": (1.52, 1.6)}
"""Asked megabytes and millions of cycles on four cores."""
ZOO_RATIO = 1.02


@dataclass(frozen=True)
class Measured:
    """What one timing run counted."""

    report: dict[str, Any]
    compile_seconds: float

    @property
    def megabytes(self) -> float:
        return float(self.report["dram"]["total_bytes"] - self.report["dram"]["other_bytes"]) / MB

    @property
    def other_kib(self) -> float:
        return float(self.report["dram"]["other_bytes"]) / KIB

    @property
    def ratio(self) -> float:
        return float(self.report["dram"]["ratio"])

    @property
    def megacycles(self) -> float:
        return float(self.report["cycles"]["total"]) / MB


def measure(
    model: str | onnx.ModelProto,
    target: Target,
    dtype: str,
    policy: str | None,
    batch: int | None = None,
    compress: str = "none",
) -> Measured:
    """Compile and time a network (int8: its ranges from one random input, for bytes and cycles depend on none).

    Weights are as they are unless `compress` says otherwise: the figures asked are of raw bytes.
    """
    started = time.perf_counter()
    images = [random_input(model)] if dtype == "int8" and not isinstance(model, str) else []
    executable = frustum.compile(
        model, target, dtype, policy, batch=batch, calibration=images, compress_weights=compress
    )
    seconds = time.perf_counter() - started
    return Measured(frustum.run(executable, {}, mode="timing").report, seconds)


def scratchpad(size_bytes: int) -> Target:
    """`df` with one SRAM of this size."""
    target = load("df")
    cluster = target.chip.cluster
    sram = replace(cluster.sram, capacity_bytes=size_bytes)
    return replace(target, chip=replace(target.chip, cluster=replace(cluster, sram=sram)))


def four_cores() -> Target:
    """`df` as four clusters of one core, 2 MiB of SRAM each, that pass data on at 4 bytes per cycle."""
    target = scratchpad(2 * MIB)
    cluster = replace(target.chip.cluster, cdma=Engine(bytes_per_cycle=4))
    return replace(target, chip=replace(target.chip, clusters=4, cluster=cluster))


def sizes(policy: str | None) -> Iterator[list[str]]:
    yield [
        "network",
        "SRAM KiB",
        "MB",
        "asked",
        "reference",
        "Vela",
        "ratio",
        "Mcycles",
        "other KiB",
        "compile s",
    ]
    for name in SCRATCHPADS:
        for place, size in SIZES.items():
            found = measure(NETWORKS[name](), scratchpad(size), "int8", policy)
            reference, peer = (megabytes(f"{name}-{place}", source) for source in ("optimum", "vela"))
            assert reference is not None, name
            yield [
                name, str(size // KIB), f"{found.megabytes:.3f}", met(found.megabytes, TOLERANCE * reference),
                f"{reference:.2f}", "-" if peer is None else f"{peer:.1f}", f"{found.ratio:.3f}",
                f"{found.megacycles:.3f}", f"{found.other_kib:.0f}", f"{found.compile_seconds:.1f}",
            ]  # fmt: skip


def valid(policy: str | None) -> Iterator[list[str]]:
    yield ["network", "MB", "asked", "ratio", "Mcycles", "asked", "compile s"]
    found = measure(NETWORKS["fsrcnn_valid"](), load("df"), "int8", policy)
    yield [
        "fsrcnn_valid", f"{found.megabytes:.3f}", met(found.ratio, 1.0), f"{found.ratio:.4f}",
        f"{found.megacycles:.3f}", met(found.megacycles, 12.2), f"{found.compile_seconds:.1f}",
    ]  # fmt: skip


def cores(policy: str | None) -> Iterator[list[str]]:
    yield ["network", "MB", "asked", "Mcycles", "asked", "cycles / roofline", "compile s"]
    for name, (megabytes, megacycles) in FOUR_CORES.items():
        found = measure(NETWORKS[name](), four_cores(), "int8", policy)
        yield [
            name, f"{found.megabytes:.3f}", met(found.megabytes, megabytes), f"{found.megacycles:.3f}",
            met(found.megacycles, megacycles), f"{found.report['cycles']['ratio']:.3f}",
            f"{found.compile_seconds:.1f}",
        ]  # fmt: skip


def zoo(policy: str | None) -> Iterator[list[str]]:
    yield [
        "network", "default ratio", "asked", "cycles / roofline", "other %", "edge MB", "asked", "of 1 MiB",
        "cycles / roofline", "other %", "compile s",
    ]  # fmt: skip
    for name in ZOO:
        half, whole = (megabytes(f"{name}-edge", source) for source in ("optimum", "optimum-1m"))
        assert half and whole, name
        large = measure(f"zoo:{name}", load("default"), "f16", policy)
        small = measure(f"zoo:{name}", load("edge"), "f16", policy)
        yield [
            name, f"{large.ratio:.4f}", met(large.ratio, ZOO_RATIO), cycle_ratio(large), other(large),
            f"{small.megabytes:.3f}", met(small.megabytes, half), f"{small.megabytes / whole:.3f}",
            cycle_ratio(small), other(small), f"{large.compile_seconds:.1f}, {small.compile_seconds:.1f}",
        ]  # fmt: skip


def batch(policy: str | None) -> Iterator[list[str]]:
    yield ["network", "batch", "weight MB", "once", "ratio", "cycles / roofline"]
    for name in ("alexnet", "vgg19"):
        one = measure(f"zoo:{name}", load("default"), "f16", policy)
        many = measure(f"zoo:{name}", load("default"), "f16", policy, 16)
        weights = [m.report["dram"]["weight_bytes"] / MB for m in (many, one)]
        yield [name, "16", f"{weights[0]:.3f}", met(*weights), f"{many.ratio:.4f}", cycle_ratio(many)]


def roofline(policy: str | None) -> Iterator[list[str]]:
    yield ["network", "batch", "cycles / roofline", "asked", "DRAM ratio"]
    for images in (1, 16):
        found = measure("zoo:resnet50", load("default"), "f16", policy, images)
        ratio = found.report["cycles"]["ratio"]
        yield ["resnet50", str(images), f"{ratio:.3f}", met(ratio, 1.25), f"{found.ratio:.4f}"]


HEAD, TAIL = passes_around_plan()
POINTS = (
    "vgg5-alone", "vgg5-groups", "vgg5-fused", "vgg5-bands", "vgg5-bands-rows", "fsrcnn_valid-overlap"
)  # fmt: skip
"""The published cases whose plan is published too."""


def points(policy: str | None) -> Iterator[list[str]]:
    yield ["point", "figure", "ours", "published", "SRAM used", "Mcycles", "CPU s"]
    for name in POINTS:
        yield from point_rows(name)


def point_rows(name: str) -> list[list[str]]:
    """What one design point measures, and what was published, which none may be above (cycles: another machine's)."""
    case = cases()[name]
    counted = count(case)
    report = counted.report
    more = f"{report['peak_bytes']['sram']:,}", f"{report['cycles']['total'] / MB:.2f}", f"{counted.seconds:.1f}"
    rows = [each for each in beside(case, counted) if each.figure != "cycles"]
    verdicts = [" MISSED" if each.ours is None or each.ours > each.theirs else "" for each in rows]
    return [
        [name, each.figure, f"{each.ours:,}", f"{each.theirs:,}{verdict}", *more]
        for each, verdict in zip(rows, verdicts, strict=True)
    ]


def megabytes(case: str, source: str) -> float | None:
    """What that source publishes of a case; None where it has none."""
    found = published(case, BYTES, source)
    return None if found is None else found / MB


def cycle_ratio(found: Measured) -> str:
    return f"{found.report['cycles']['ratio']:.3f}"


def other(found: Measured) -> str:
    """Program and tables, in percent of the compulsory bytes; asked is the larger of 2 % and 256 KiB."""
    dram = found.report["dram"]
    share = dram["other_bytes"] / dram["compulsory_bytes"]
    return f"{100 * share:.2f}" + ("" if share <= 0.02 or dram["other_bytes"] <= 256 * KIB else " MISSED")


def met(measured: float, asked: float) -> str:
    """The figure asked, and whether it is reached (to the accuracy to which it is given)."""
    return f"{asked:.3f}" + ("" if measured <= asked + 5e-4 else " MISSED")


SECTIONS: dict[str, Callable[[str | None], Iterator[list[str]]]] = {
    "sizes": sizes,
    "valid": valid,
    "cores": cores,
    "zoo": zoo,
    "batch": batch,
    "roofline": roofline,
    "points": points,
}


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure fusion against the literature.")
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", choices=[*SECTIONS, []], help=", ".join(SECTIONS)
    )
    parser.add_argument("--policy", help="as of `frustum run`")
    options = parser.parse_args(args)
    for name in options.sections or SECTIONS:
        print(f"\n### {name}\n")
        print_table(SECTIONS[name](options.policy))
    return 0


def print_table(rows: Iterator[list[str]]) -> None:
    """Markdown of a table, its head first, each row as soon as it is measured."""
    head = next(rows)
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for cells in rows:
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
