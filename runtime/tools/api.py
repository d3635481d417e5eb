"""`frustum.compile` and `frustum.run`.

exe = frustum.compile("model.onnx", target="default")
result = frustum.run(exe, {"data": array})
result.outputs["prob"], result.report["cycles"]["total"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frustum.backend.file.executable import Executable
from frustum.runtime.failures import UsageError
from frustum.runtime.host.inputs import HostArray
from frustum.runtime.kernels import Array
from frustum.runtime.machine import Mode
from frustum.runtime.model.chain import Chain, chain_of
from frustum.runtime.model.execution import execute_chain, report_of_chain
from frustum.runtime.model.sources import open_file, open_folder
from frustum.runtime.tools.arguments import (
    BORDERS,
    COMPRESSIONS,
    DTYPES,
    HOLDINGS,
    HOSTS,
    METHODS,
    MODES,
    POLICIES,
    SPLITS,
)  # fmt: skip

if TYPE_CHECKING:
    from frustum.backend.pipeline import Borders
    from frustum.backend.split_compile import When
    from frustum.dialects.target import Target
    from frustum.passes.onnx.place_host import HostMode
    from frustum.runtime.model.calibration import Method
    from frustum.runtime.model.request import Model

__all__ = ["Result", "compile", "run"]


@dataclass(frozen=True)
class Result:
    """Outputs by name (none in mode timing), and the report of schema 1 as `--report` writes it."""

    outputs: dict[str, HostArray]
    report: dict[str, Any]


def compile(
    model: Model,
    target: str | Path | Target | None = None,
    dtype: str | None = None,
    policy: str | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    calibrate: Method | None = None,
    calibration: Sequence[Mapping[str, Array]] = (),
    compress_weights: str | None = None,
    weights: str | None = None,
    host: HostMode | None = None,
    constants: Mapping[str, Array] | None = None,
    split: When | None = None,
    refuse: str | None = None,
    placement: str | None = None,
    order: str | None = None,
    borders: Borders | None = None,
) -> Executable | Chain:
    """The executable of a model; a chain of executables and host pieces where it does not run as one.

    `model`: a path to .onnx, `zoo:NAME`, a dumped stage, an `onnx.ModelProto`, or an xDSL module, which is left as
    it is.  `target`: a shipped name, a YAML file or a `Target`.  `dtype`: `f32`, `f16`, `bf16`, `int8`; None is
    the model's.  `calibrate`: how `int8` finds the ranges of a floating-point model, `minmax` (the default) or
    `percentile`, from the inputs `calibration`, random ones where there are none.
    `policy`: `none`, `pyramid`, `template`, `greedy` or `optimal`; None is what the target's options say, or `optimal`.
    `compress_weights`: `auto` (the default: where it moves fewer bytes in no more cycles), `none`, `zero` or `huffman`;
    `weights`: `replicated` (the default) in all clusters, or `shared` between them (docs/weights.md).

    `host`: whether nodes may run on the host: `never`, `auto` (the default: those that the device lacks, and what is
    not worth moving), `only`.  `constants`: values of inputs that are really constants (weights, shapes, axes), which
    are inputs no more.

    `split`: `auto` (the default) cuts what does not fit, and networks at output branches where that takes neither
    more cycles nor more bytes; `outputs` at output branches; `never`.  `refuse`: fuse the pieces again, by
    `conditions` (with limits: `conditions{nodes=2..9,weight_bytes=..65536}`), `pairs`, `forward` or `bidirectional`.
    `placement`: the chip of each executable: `one` (the default: chip 0), `each` on the next, or as listed, as in
    `0,0,1`.

    `order` of tiles: `row-major`, `column-major`, `bands{bands=2,direction=top-down}`, `serpentine`, `z-order`,
    `quadrants`, `checkerboard`, `mirrored`, any with `{depth=breadth-first}`; None is what the planner finds cheapest.
    `borders` of tiles: `overlap`, `exchange` or `auto` (docs/traversal.md).
    """
    check_choice("dtype", dtype, DTYPES)
    check_choice("policy", policy, POLICIES)
    check_choice("calibrate", calibrate, METHODS)
    check_choice("host", host, HOSTS)
    check_choice("compress_weights", compress_weights, COMPRESSIONS)
    check_choice("weights", weights, HOLDINGS)
    check_choice("split", split, SPLITS)
    check_choice("borders", borders, BORDERS)
    from frustum.runtime.model.build import build  # running needs nothing of the compiler
    from frustum.runtime.model.request import Request

    request = Request(
        model, target, dtype, shapes or {}, batch, policy, calibrate=calibrate, calibration=calibration,
        compress_weights=compress_weights, weights=weights,
        host=host, constants=constants or {}, split=split, refuse=refuse, placement=placement,
        order=order, borders=borders,
    )  # fmt: skip
    chain = build(request).chain
    return chain.single or chain


def run(
    executable: Executable | Chain | str | Path,
    inputs: Mapping[str, HostArray],
    *,
    mode: Mode = "full",
    checked: bool = False,
    on_output: Callable[[str, HostArray], None] = lambda name, array: None,
) -> Result:
    """One run on the emulated machine; `executable` may be a file, or a folder that `frustum compile` wrote.

    `on_output` gets each output as soon as the piece that makes it has run.
    """
    check_choice("mode", mode, MODES)
    if isinstance(executable, str | Path):
        path = Path(executable)
        executable = open_folder(path)[0] if path.is_dir() else open_file(path)
    chain = chain_of(executable) if isinstance(executable, Executable) else executable
    ran = execute_chain(chain, inputs, mode, checked, hand=on_output)
    return Result(ran.outputs, report_of_chain(chain, ran).data)


def check_choice(name: str, value: str | None, allowed: Sequence[str]) -> None:
    """UsageError unless the value is absent or allowed: what the parser of the command line sees to there."""
    if value is not None and value not in allowed:
        raise UsageError(f"error: {name} {value!r} is none of {', '.join(allowed)}")
