"""Runs networks with `frustum run --check` and prints how far they are from onnxruntime, and what they cost, as a
Markdown table.

    python benchmarks/agreement_table.py [NETWORK ...] [--folder DIR] [--targets default edge] [--seed 0]

NETWORK is what `frustum run` takes, then as far as wanted `:TYPE` and `xBATCH`, as in `zoo:resnet50:f16` and
`zoo:alexnet:f32x4`; without any all of the zoo in f32, ResNet-50, SqueezeNet and DenseNet in f16 and bf16, and two
networks in batches of 4.  `--folder`: every .onnx in it as well, in the types that its file says; dimensions that are
open in the file are bound to the first input of NAME.io.npz beside it (`in:INPUT`), or else to 1.  Inputs are random
ones of `--seed`.  Each run is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from frustum.passes.zoo import ZOO
from frustum.runtime.host.oracle import TOLERANCES

HEAD = (
    "model", "target", "dtype", "max rel. error", "of allowed", "exit", "DRAM ratio", "cycles", "cycle ratio",
    "pieces", "on the host", "seconds",
)  # fmt: skip
LIMIT_SECONDS = 900
NARROW = tuple(
    f"zoo:{name}:{dtype}" for name in ("resnet50", "squeezenet", "densenet121") for dtype in ("f16", "bf16")
)
BATCHES = "zoo:resnet50:f32x4", "zoo:alexnet:f32x4"
NETWORK = re.compile(r"(?P<model>.*?)(:(?P<dtype>f32|f16|bf16|int8|model)(x(?P<batch>\d+))?)?")


@dataclass(frozen=True)
class Job:
    """A network, and the options with which it runs."""

    name: str
    model: str
    options: tuple[str, ...] = ()


def main(args: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(args)
    networks = options.networks or ([] if options.only_folder else [f"zoo:{name}" for name in ZOO])
    jobs = [job_of(text) for text in networks]
    jobs += list(jobs_in(options.folder)) if options.folder else []
    jobs += [job_of(text) for text in (*NARROW, *BATCHES) if not options.networks and not options.only_folder]
    print(_line(HEAD))
    print(_line(["---"] * len(HEAD)), flush=True)
    worst = 0
    for target in options.targets:
        for job in jobs:
            code, report, seconds = run(job, target, options.seed)
            print(_line(row(job, target, code, report, seconds)), flush=True)
            worst = max(worst, code)
    return worst


def job_of(text: str) -> Job:
    """`zoo:alexnet:f32x4`"""
    match = NETWORK.fullmatch(text)
    assert match is not None
    options = [
        word for option in ("dtype", "batch") if match[option] for word in (f"--{option}", match[option])
    ]
    batch = f" batch {match['batch']}" if match["batch"] else ""
    return Job(match["model"] + batch, match["model"], tuple(options))


def jobs_in(folder: Path) -> Iterator[Job]:
    """The models of a folder by name, their open dimensions bound."""
    for path in sorted(folder.glob("*.onnx")):
        options: list[str] = []
        for name, shape in bound_shapes(path).items():
            options += ["--shape", f"{name}={'x'.join(map(str, shape))}"]
        yield Job(path.stem, str(path), tuple(options))


def bound_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's inputs with open dimensions: those of NAME.io.npz beside it, or else 1 for each."""
    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    known, found = _known_shapes(path.with_suffix(".io.npz")), {}
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in constants and not all(dim.dim_value > 0 for dim in dims):
            found[value.name] = known.get(value.name) or tuple(dim.dim_value or 1 for dim in dims)
    return found


def run(job: Job, target: str, seed: int) -> tuple[int, dict[str, Any], float]:
    """Exit code, report (empty where there is none) and wall seconds of `frustum run --check`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        words = [
            "run",
            job.model,
            "--target",
            target,
            "--input-seed",
            str(seed),
            "--check",
            "--no-cache",
            "--report",
            str(report),
        ]
        script = "import sys; from frustum.runtime.tools.cli import main; sys.exit(main())"
        started = time.perf_counter()
        try:
            code = subprocess.run(
                [sys.executable, "-c", script, *words, *job.options],
                stdout=subprocess.DEVNULL,
                timeout=LIMIT_SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
        seconds = time.perf_counter() - started
        return code, json.loads(report.read_text()) if report.is_file() else {}, seconds


def row(job: Job, target: str, code: int, report: Mapping[str, Any], seconds: float) -> list[str]:
    """Its line of the table; a dash for what a run without report does not tell."""
    if not report:
        return [job.name, target, "-", "-", "-", str(code), *["-"] * (len(HEAD) - 7), f"{seconds:.0f}"]
    dtype, error = report["dtype"], report["check"]["max_rel_error"]
    ratio, cycles = report["dram"]["ratio"], report["cycles"]
    return [
        job.name,
        target,
        dtype,
        f"{error:.1e}",
        f"{100 * error / TOLERANCES[dtype]:.1f} %",
        str(code),
        "-" if ratio is None else f"{ratio:.3f}",
        "-" if cycles is None else f"{cycles['total']:,}",
        "-" if cycles is None or cycles["ratio"] is None else f"{cycles['ratio']:.2f}",
        str(len(report["subgraphs"])),
        str(sum(layer["where"] == "host" for layer in report["layers"])),
        f"{seconds:.0f}",
    ]


def _known_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    if not path.is_file():
        return {}
    with np.load(path) as arrays:
        return {name[3:]: arrays[name].shape for name in arrays.files if name.startswith("in:")}


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--folder", type=Path, help="the .onnx files in it as well")
    parser.add_argument("--only-folder", action="store_true", help="nothing but the files of --folder")
    parser.add_argument("--targets", nargs="*", default=["default", "edge"])
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
