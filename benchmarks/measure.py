"""Measures whole runs of the classic networks and prints them as a Markdown table.

    python benchmarks/measure.py [NETWORK ...] [--runs 5] [--target default]

Figures are medians of `--runs` runs of `frustum run zoo:NETWORK --check`, each in a process of its own, but for
decode, emulate and onnxruntime: these run in turn in one process, warm; onnxruntime with its default settings on one
thread, as a user would run it, the emulator with at most two.  Decoding happens once for all runs of an executable, as
the session of onnxruntime is made once; the ratio is given without and with it.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from frustum.passes.zoo import ZOO, zoo_model

HEAD = (
    "network", "import s", "compile s", "decode s", "emulate s", "onnxruntime s", "emulate / onnxruntime",
    "with decoding", "whole run s", "peak MiB", "max rel. error", "DRAM ratio", "cycle ratio",
)  # fmt: skip
KIB_PER_MIB = 1024


@dataclass(frozen=True)
class Run:
    """One run: its report, the time from start to exit, its peak memory."""

    report: dict[str, dict[str, float]]
    wall_seconds: float
    peak_mib: float


def main(args: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(args)
    print(_machine())
    print(f"`{' '.join(['python', 'benchmarks/measure.py', *(args if args is not None else sys.argv[1:])])}`\n")
    print(_line(HEAD))
    print(_line(["---"] * len(HEAD)))
    for network in options.networks or ZOO:
        runs = [run(network, options.target) for _ in range(options.runs)]
        # Not in this process: a large parent would count as the peak of the commands it starts.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
            seconds = other.submit(side_by_side, network, options.target, options.runs).result()
        print(_line(row(network, runs, *seconds)), flush=True)
    return 0


def run(network: str, target: str) -> Run:
    """Compile, emulate and check the network once."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        start = time.perf_counter()
        options = ["--check", "--target", target, "--report", str(report)]
        command = [Path(sys.executable).parent / "frustum", "run", f"zoo:{network}", "--no-cache", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall_seconds = time.perf_counter() - start
        if status:
            raise SystemExit(f"frustum run zoo:{network} ended with {os.waitstatus_to_exitcode(status)}")
        return Run(json.loads(report.read_text()), wall_seconds, _mib(usage))


def side_by_side(network: str, target: str, runs: int) -> tuple[float, float, float]:
    """Seconds of decoding the executable, of one emulation (mode full) and of one inference of onnxruntime.

    All in one process in turn, after one of each to warm up; the executable is in memory, compiled before.
    """
    import numpy as np
    import onnxruntime

    import frustum
    from frustum.runtime.machine import Machine

    model = zoo_model(network)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    feeds = {i.name: random.random(i.shape, np.float32) for i in session.get_inputs()}
    executable = frustum.compile(model, target=target)
    pieces = executable.executables

    def decode() -> None:
        for piece in pieces:
            _ = Machine(replace(piece)).plan  # a copy of which nothing is known yet

    times = [
        (
            seconds_of(decode),
            seconds_of(lambda: frustum.run(executable, feeds)),
            seconds_of(lambda: session.run(None, feeds)),
        )
        for _ in range(runs + 1)
    ]
    decoded, emulated, native = zip(*times[1:], strict=True)
    return median(decoded), median(emulated), median(native)


def row(network: str, runs: Sequence[Run], decode: float, emulate: float, native: float) -> list[str]:
    """The cells of a network; `decode`, `emulate` and `native` are the seconds of `side_by_side`."""

    def middle(section: str, key: str) -> float:
        return median(run.report[section][key] for run in runs)

    return [
        network,
        f"{middle('seconds', 'import'):.2f}",
        f"{middle('seconds', 'compile'):.2f}",
        f"{decode:.3f}",
        f"{emulate:.3f}",
        f"{native:.4f}",
        f"{emulate / native:.1f}",
        f"{(decode + emulate) / native:.1f}",
        f"{median(run.wall_seconds for run in runs):.1f}",
        f"{median(run.peak_mib for run in runs):.0f}",
        f"{middle('check', 'max_rel_error'):.1e}",
        f"{middle('dram', 'ratio'):.2f}",
        f"{middle('cycles', 'ratio'):.2f}",
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure whole runs of the classic networks.")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", choices=[*ZOO, []], help=", ".join(ZOO))
    parser.add_argument("--runs", type=int, default=5, help="runs of each network; the median counts")
    parser.add_argument("--target", default="default")
    return parser


def _machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    today = datetime.now(UTC).date()
    return f"{today}, {model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _mib(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / KIB_PER_MIB


def seconds_of(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
