"""What `run` and `compile` work on: MODEL as an executable, compiled now or before.

The compiler is loaded only where something is compiled: an executable needs nothing of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frustum.dialects.loops import TIMES
from frustum.runtime.failures import UsageError
from frustum.runtime.host.agreement import Model
from frustum.runtime.kernels import Array
from frustum.runtime.model.chain import Chain, Interface, chain_of, placed
from frustum.runtime.model.sources import Origin, kind_of, open_file, open_folder
from frustum.runtime.progress import Progress
from frustum.runtime.report.report import Seconds

if TYPE_CHECKING:
    from frustum.runtime.model.request import Request

OF_THE_COMPILER = ("target", "dtype", "calibrate", "shape", "batch", "policy", "pipeline", "dump_ir", "weights_seed",
                   "compress_weights", "weights", "host", "split", "refuse", "order", "borders")  # fmt: skip
"""Options that mean nothing for what is compiled already."""


@dataclass(frozen=True)
class Job:
    """A chain of executables and host pieces, where its model is, and how long it took to make."""

    chain: Chain
    origin: Origin | None
    original: Model | None
    seconds: Seconds
    log: tuple[str, ...] = ()
    """What was said about cutting and fusing networks again, if that was now."""

    def model_for_check(self, name: str) -> Model:
        """What the oracle runs; UsageError where nobody knows."""
        if self.original is not None:
            return self.original
        if self.origin is not None:
            return self.origin.load()
        raise UsageError(
            f"{name}: error: there is no model to check against: --check needs the .onnx file or zoo:NAME"
        )


def job_of(
    options: argparse.Namespace,
    given: Mapping[str, Array] | None,
    see: Callable[[Sequence[Interface] | None], None],
    progress: Progress,
) -> Job:
    """The chain of the options' MODEL; the shapes of `given` inputs are bound, `see` as in `build`."""
    kind = kind_of(options.model)
    if kind in ("folder", "executable"):
        return _open(options, kind)
    if kind == "stage":
        given = None
    if kind == "stage" and getattr(options, "check", False):
        raise UsageError(
            f"{options.model}: error: a stage has no model to check against: --check needs the .onnx file or zoo:NAME"
        )
    from frustum.runtime.model.build import build

    loops_before = TIMES.seconds
    built = build(request_of(options, given), progress, see)
    seconds = Seconds(
        built.import_seconds, built.compile_seconds, None, built.passes, built.calibrate_seconds,
        TIMES.seconds - loops_before,
    )  # fmt: skip
    return Job(built.chain, built.origin, built.original, seconds, built.chain.log)


def request_of(options: argparse.Namespace, given: Mapping[str, Array] | None = None) -> Request:
    """The options as a request; what --shape says goes before the shapes of `given` inputs."""
    shapes = {name: tuple(array.shape) for name, array in (given or {}).items()}
    for name, shape in options.shape or ():
        if shapes.get(name, shape) != shape and name not in (given or {}):
            raise UsageError(f"error: --shape gives '{name}' twice")
        shapes[name] = shape
    from frustum.runtime.model.request import Request

    return Request(
        options.model,
        options.target,
        options.dtype,
        shapes,
        options.batch,
        options.policy,
        options.pipeline,
        Path(options.dump_ir) if options.dump_ir else None,
        options.weights_seed,
        options.calibrate,
        [given] if given else (),
        getattr(options, "input_seed", None) or 0,
        options.host,
        compress_weights=options.compress_weights,
        weights=options.weights,
        split=options.split,
        refuse=options.refuse,
        placement=options.placement,
        order=options.order,
        borders=options.borders,
    )


def _open(options: argparse.Namespace, kind: str) -> Job:
    for name in OF_THE_COMPILER:
        if getattr(options, name) is not None:
            option = name.replace("_", "-")
            raise UsageError(f"{options.model}: error: is compiled already: --{option} has no effect on it")
    if kind == "executable":
        return Job(placed(chain_of(open_file(Path(options.model))), options.placement), None, None, Seconds())
    chain, origin = open_folder(Path(options.model))
    return Job(placed(chain, options.placement), origin, None, Seconds())
