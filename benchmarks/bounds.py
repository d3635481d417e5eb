"""Cycles of the classic networks over the bound that no program can be below, as the machine counts them.

    python benchmarks/bounds.py [NETWORK ...] [--case default|edge|batch16|one-cluster ...] [--dtype f16]

Cases: `default` and `edge` with one image; `batch16`: 16 images on `default`; `one-cluster`: `default` with one
cluster of four cores.  Policy `optimal`, weights as they are.  "asked" is what the work is to reach.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import frustum
from frustum.backend.targets import load
from frustum.dialects.target import Target
from frustum.passes.zoo import ZOO

HEAD = (
    "network", "case", "cycles", "/ roofline", "bound", "by", "cycles / bound", "asked", "DRAM MB", "asked", "ratio",
    "read in NRAM",
)  # fmt: skip
ONE_CLUSTER = "one-cluster"
IMAGES = 16
BATCH = f"batch{IMAGES}"
CASES = {"default": ZOO, "edge": ZOO, BATCH: ("resnet50", "vgg19", "alexnet"), ONE_CLUSTER: ("resnet50",)}
ASKED = {
    "default": {
        "alexnet": 1.03, "zfnet512": 1.03, "resnet50": 1.10, "vgg19": 1.09, "inception_v1": 1.35, "inception_v2": 1.25,
        "squeezenet": 1.6, "shufflenet": 2.0, "densenet121": 1.9,
    },
    "edge": {
        "resnet50": 1.3, "inception_v1": 1.4, "inception_v2": 1.4, "densenet121": 1.8, "shufflenet": 1.8,
        "squeezenet": 1.25, "vgg19": 1.06, "alexnet": 1.06, "zfnet512": 1.06,
    },
    BATCH: {"resnet50": 1.3, "vgg19": 1.15, "alexnet": 1.1},
    ONE_CLUSTER: {"resnet50": 1.5},
}  # fmt: skip
EDGE_MB = {"resnet50": 66.0, "vgg19": 330.0, "inception_v1": 15.4, "inception_v2": 24.7, "densenet121": 21.0}
"""Asked DRAM megabytes on `edge`."""
MB = 1e6


def machine(case: str) -> Target:
    target = load("edge" if case == "edge" else "default")
    return replace(target, chip=replace(target.chip, clusters=1)) if case == ONE_CLUSTER else target


def row(network: str, case: str, dtype: str) -> list[str]:
    """Compiled and timed anew."""
    batch = IMAGES if case == BATCH else None
    made = frustum.compile(f"zoo:{network}", machine(case), dtype, batch=batch, compress_weights="none")
    report = frustum.run(made, {}, mode="timing").report
    cycles, dram, share = report["cycles"], report["dram"], report["nram_operand_share"]
    quotient, asked = cycles["total"] / cycles["bound"], ASKED[case].get(network)
    megabytes, most = (dram["total_bytes"] - dram["other_bytes"]) / MB, EDGE_MB.get(network) if case == "edge" else None
    return [
        network, case, f"{cycles['total']:,}", f"{cycles['ratio']:.3f}", f"{cycles['bound']:,}", cycles["bound_by"],
        f"{quotient:.3f}", _asked(quotient, asked), f"{megabytes:.2f}", _asked(megabytes, most), f"{dram['ratio']:.3f}",
        "-" if share is None else f"{share:.2f}",
    ]  # fmt: skip


def _asked(found: float, most: float | None) -> str:
    if most is None:
        return "-"
    return f"{most:g}" if found <= most else f"{most:g} MISSED"


def rows(networks: Sequence[str], cases: Sequence[str], dtype: str = "f16") -> Iterator[list[str]]:
    yield list(HEAD)
    for case in cases:
        for network in CASES[case]:
            if network in networks:
                yield row(network, case, dtype)


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Cycles over the bound.")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", choices=[*ZOO, []])
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--dtype", default="f16")
    options = parser.parse_args(args)
    for number, cells in enumerate(rows(options.networks or tuple(ZOO), options.case or tuple(CASES), options.dtype)):
        print(f"| {' | '.join(cells)} |", flush=True)
        if not number:
            print(f"|{'---|' * len(HEAD)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
