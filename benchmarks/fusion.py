"""Measures fusion against the literature and prints Markdown tables: DRAM bytes and cycles that the machine counted.

    python benchmarks/fusion.py [SECTION ...] [--policy optimal]

Sections: `sizes` (four networks, int8, one scratchpad of five sizes), `valid` (fsrcnn_valid on `df`), `cores` (four
clusters of one core), `zoo` (the classic networks, f16, on `default` and `edge`), `batch` (fully connected layers of
16 images), `roofline` (resnet50 on `default`), `points` (published design points, each one pipeline: POINTS).
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

import numpy as np
import onnx
from literature import NETWORKS

import frustum
from frustum.backend.targets import load
from frustum.dialects.target import Engine, Target
from frustum.runtime.model.build import build
from frustum.runtime.model.options import Request

MB = 1e6
MIB = 1 << 20
KIB = 1 << 10
TOLERANCE = 1.03  # asked: at most so many times the reference optimum
SIZES = (256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB)
REFERENCE_MB = {
    "vgg5": (6.27, 2.34, 1.51, 1.51, 1.51),
    "fsrcnn": (8.84, 8.83, 8.83, 8.83, 8.83),
    "resnet18": (13.38, 12.42, 12.03, 11.93, 11.83),
    "mobilenetv1": (6.52, 5.06, 4.56, 4.46, 4.41),
}
"""DRAM megabytes at int8 of a reference optimum with line buffers, for each of `SIZES`."""
VELA_MB = {
    "vgg5": (45.5, 35.7, 34.9, 31.0),
    "fsrcnn": (156.0, 143.1, 92.5, 31.9),
    "resnet18": (26.3, 20.7, 19.3, 19.3),
    "mobilenetv1": (11.9, 8.5, 9.5, 7.6),
}
"""Arm Vela 5.2.0 (ethos-u85-1024), its own estimate, for the first four of `SIZES`."""
FOUR_CORES = {"resnet18": (11.95, 1.55), "fsrcnn": (8.85, 3.0), "vgg5": (1.52, 1.6)}
"""Asked megabytes and millions of cycles on four cores."""
ZOO_EDGE_MB = {
    "squeezenet": (4.963, 2.799),
    "alexnet": (123.234, 122.360),
    "zfnet512": (180.037, 176.055),
    "resnet50": (101.466, 72.342),
    "vgg19": (395.300, 338.357),
    "inception_v1": (20.248, 16.177),
    "inception_v2": (30.285, 26.916),
    "shufflenet": (4.097, 3.354),
    "densenet121": (27.347, 19.532),
}
"""DRAM megabytes at f16 of the reference optimum with 512 KiB (asked of `edge`) and with 1 MiB."""
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
    images = [sample(model)] if dtype == "int8" and not isinstance(model, str) else []
    executable = frustum.compile(
        model, target, dtype, policy, batch=batch, calibration=images, compress_weights=compress
    )
    seconds = time.perf_counter() - started
    return Measured(frustum.run(executable, {}, mode="timing").report, seconds)


def sample(model: onnx.ModelProto) -> dict[str, Any]:
    """A random input of each of a model's inputs."""
    random = np.random.default_rng(0)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {name: random.random(shape, np.float32) for name, shape in shapes.items()}


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
    for name, references in REFERENCE_MB.items():
        for place, (size, reference) in enumerate(zip(SIZES, references, strict=True)):
            found = measure(NETWORKS[name](), scratchpad(size), "int8", policy)
            peer = VELA_MB[name][place] if place < len(VELA_MB[name]) else None
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
    for name, (half, whole) in ZOO_EDGE_MB.items():
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


HEAD = (
    "frustum-graph-quantise,frustum-graph-split-reductions,frustum-graph-canonicalize,"
    "frustum-graph-fold-quantisation,frustum-graph-fuse-residual,frustum-graph-convert-at-host,"
    "frustum-graph-find-shuffles,frustum-graph-layer-moves,frustum-graph-turn-weights,"
    "frustum-graph-own-outputs"
)
TAIL = (
    "frustum-graph-choose-layout,frustum-tile-lower-units,frustum-lower-tiles,frustum-lower-choose-line-buffer,"
    "frustum-join-sections,frustum-lower-make-address-tables,frustum-weights-ahead,frustum-fills-ahead,frustum-allocate,"
    "frustum-hoist-loads,frustum-schedule"
)


@dataclass(frozen=True)
class Point:
    """A published design point: network, SRAM, element type, the two passes that make it, and the figures published:
    elements or bytes of feature maps across DRAM, bytes kept at most, multiply-accumulates of the network computed
    again at most (a share)."""

    what: str
    network: str
    sram_bytes: int
    dtype: str | None
    fuse: str
    partition: str
    input_bytes: int | None = None
    map_bytes: int | None = None
    kept_bytes: int | None = None
    again: float | None = None

    @property
    def pipeline(self) -> str:
        """As `frustum run --pipeline` takes it."""
        fuse, partition = f"frustum-fuse-layers{{{self.fuse}}}", f"frustum-tile-force-partition{{{self.partition}}}"
        return ",".join((HEAD, fuse, partition, TAIL))


ALONE = "cuts=\"maxpool_4,conv_5,maxpool_9\""
BETWEEN_BANDS = 3 * 224 * 20 * 4
"""Bytes of vgg5's input that both of two bands read: 3 maps of 224 rows, 10 columns on either side, f32."""
POINTS = (
    Point("A: each layer alone", "vgg5", 512 * KIB, None, "policy=none", "tile=1,0,1,0 borders=exchange",
          map_bytes=90_517_504, again=0.0),
    Point("B: c11 c12 p1, c21, c22 p2, c31", "vgg5", 512 * KIB, None, ALONE, "tile=1,0,1,0 borders=exchange depth=1",
          map_bytes=26_292_224, again=0.0),
    Point("C: all fused", "vgg5", 512 * KIB, None, 'cuts=""', "tile=1,0,2,4 borders=raster",
          map_bytes=3_813_376, kept_bytes=362_496, again=0.0),
    Point("two bands of columns", "vgg5", 512 * KIB, None, 'cuts=""',
          "tile=1,0,4,4 borders=raster clusters=0 bands=28 again=conv_0",
          map_bytes=3_813_376 + BETWEEN_BANDS, kept_bytes=185_856, again=0.05),
    Point("two bands of columns, whole rows", "vgg5", MIB, None, 'cuts=""', "tile=1,0,1,28 borders=exchange depth=1",
          map_bytes=3_813_376 + BETWEEN_BANDS, kept_bytes=185_856, again=0.05),
    Point("60 wide x 72 high, overlap", "fsrcnn_valid", 2 * MIB, "int8", 'cuts=""', "tile=1,0,72,60 borders=overlap",
          input_bytes=771_968),
)  # fmt: skip


def points(policy: str | None) -> Iterator[list[str]]:
    yield [
        "network", "point", "SRAM KiB", "input bytes", "published", "map bytes", "published", "kept bytes", "at most",
        "MACs again %", "at most", "SRAM used", "Mcycles", "compile s",
    ]  # fmt: skip
    for point in POINTS:
        yield point_row(point)


def point_row(point: Point) -> list[str]:
    """What one design point measures, beside what was published."""
    request = Request(NETWORKS[point.network](), scratchpad(point.sram_bytes), point.dtype, pipeline=point.pipeline)
    built = build(request)
    report = frustum.run(built.chain, {}, mode="timing").report
    dram, work = report["dram"], report["macs"]
    maps = dram["input_bytes"] + dram["output_bytes"] + dram.get("intermediate_bytes", 0)
    kept = max(unit["kept_bytes"] for unit in report["units"])
    again = work["recomputed"] / work["useful"]
    return [
        point.network, point.what, str(point.sram_bytes // KIB), f"{dram['input_bytes']:,}",
        equal(dram["input_bytes"], point.input_bytes), f"{maps:,}", equal(maps, point.map_bytes), f"{kept:,}",
        at_most(kept, point.kept_bytes), f"{100 * again:.2f}", at_most(again, point.again),
        f"{report['peak_bytes']['sram']:,}", f"{report['cycles']['total'] / MB:.2f}",
        f"{built.seconds.compile:.2f}",
    ]  # fmt: skip


def equal(found: int, published: int | None) -> str:
    """The figure published, and whether it is met to the byte."""
    return "-" if published is None else f"{published:,}" + ("" if found == published else " MISSED")


def at_most(found: float, published: float | None) -> str:
    return "-" if published is None else f"{published:,}" + ("" if found <= published else " MISSED")


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
