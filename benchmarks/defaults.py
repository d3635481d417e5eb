"""What the defaults cost and give: `--split auto` and `--compress-weights auto` against neither.

    python benchmarks/defaults.py [MODEL...] [--target default] [--dtype f16]

MODEL is a path or `zoo:NAME`; without any it is the whole zoo and the chain 1-2-4-6-8.  For each one line: cycles and
DRAM bytes of the network uncut, cut where it is better (both with weights as they are), and with all defaults; and the
time of the processor that compiling took, the least of some rounds, as a multiple of the first.  Ends with 1 where a
default is worse than what it replaces, or where compiling takes more than `MOST_TIME` times as long.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import frustum
from frustum.passes.zoo import ZOO

MOST_TIME = 1.5
PLAIN: dict[str, Any] = {"split": "never", "compress_weights": "none"}
CUT: dict[str, Any] = {"compress_weights": "none"}
CHAIN = "chain"
MODELS = (*(f"zoo:{name}" for name in ZOO), CHAIN)
LAYERS, HANDED = (1, 2, 4, 6, 8), (2, 4, 6, 8)
"""Of the chain: its convolutions, and those whose result is an output too."""


@dataclass(frozen=True)
class Measured:
    """One compilation, run in mode timing."""

    cycles: int
    dram_bytes: int
    peaks: dict[str, int]
    seconds: float
    """Of the processor, for importing and compiling."""
    pieces: int

    def is_within(self, other: Measured) -> bool:
        peaks = all(size <= other.peaks[memory] for memory, size in self.peaks.items())
        return self.cycles <= other.cycles and self.dram_bytes <= other.dram_bytes and peaks


def chain(size: int = 64, channels: int = 16) -> ModelProto:
    """Convolutions in a row, of which all but the first hand their results out."""
    rng, before = np.random.default_rng(0), "x"
    nodes, weights = [], []
    for number in LAYERS:
        weight = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32) / 12
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(helper.make_node("Conv", [before, f"w{number}"], [f"v{number}"], pads=[1] * 4, name=f"n{number}"))
        before = f"v{number}"
    shape = [1, channels, size, size]
    outputs = [helper.make_tensor_value_info(f"v{number}", TensorProto.FLOAT, shape) for number in HANDED]
    graph = helper.make_graph(
        nodes, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], outputs, weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measured(model: str | ModelProto, target: str, dtype: str, **options: Any) -> Measured:
    gc.collect()
    started = time.process_time()
    compiled = frustum.compile(model, target, dtype, **options)
    seconds = time.process_time() - started
    report = frustum.run(compiled, {}, mode="timing").report
    cycles, dram_bytes = report["cycles"]["total"], report["dram"]["total_bytes"]
    return Measured(cycles, dram_bytes, report["peak_bytes"], seconds, len(report["subgraphs"]))


def rows(names: Sequence[str], targets: Sequence[str], dtype: str, rounds: int) -> Iterator[list[str]]:
    """A table: cycles and DRAM bytes of the three ways, and how long the last two take to compile; WORSE and SLOW where
    a default is worse than what it replaces."""
    yield [
        "network", "target", "cycles", "DRAM bytes", "`auto`: pieces", "cycles", "DRAM bytes", "all defaults: cycles",
        "DRAM bytes", "share", "time of `auto`", "time of all",
    ]  # fmt: skip
    measured(chain(8), targets[0], dtype)  # what is loaded once belongs to no model
    for name in names:
        model = chain() if name == CHAIN else name
        for target in targets:
            found = [[measured(model, target, dtype, **options) for options in (PLAIN, CUT, {})] for _ in range(rounds)]
            plain, cut, all_ = (min(each, key=lambda one: one.seconds) for each in zip(*found, strict=True))
            is_worse = all_.cycles > plain.cycles or all_.dram_bytes > plain.dram_bytes
            times = [each.seconds / plain.seconds for each in (cut, all_)]
            yield [
                name, target, f"{plain.cycles:,}", f"{plain.dram_bytes:,}",
                f"{cut.pieces}{' WORSE' * (not cut.is_within(plain))}", f"{cut.cycles:,}", f"{cut.dram_bytes:,}",
                f"{all_.cycles:,}", f"{all_.dram_bytes:,}",
                f"{all_.dram_bytes / plain.dram_bytes:.3f}{' WORSE' * is_worse}",
                *(f"{time:.2f}{' SLOW' * (time > MOST_TIME)}" for time in times),
            ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--target", action="append", help="shipped targets (default: default, edge)")
    parser.add_argument("--dtype", default="f16")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    is_good = True
    for cells in rows(options.models, options.target or ("default", "edge"), options.dtype, options.rounds):
        print(f"| {' | '.join(cells)} |", flush=True)
        is_good &= not any("WORSE" in cell or "SLOW" in cell for cell in cells)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
