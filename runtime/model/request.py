"""What the user asks of the compiler, and what of it can be checked before a model is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from frustum.backend import targets
from frustum.backend.pipeline import Borders
from frustum.backend.refuse import parse_refusal
from frustum.backend.split_compile import Splitting, When
from frustum.dialects.target import Target
from frustum.passes.fuse.policy import problems_of
from frustum.passes.onnx.import_onnx import INT8
from frustum.passes.tile.orders import parse_order
from frustum.runtime.failures import UsageError
from frustum.runtime.kernels import Array
from frustum.runtime.model.calibration import Method
from frustum.runtime.pipeline_text import parse_passes
from frustum.runtime.universe import FRUSTUM

if TYPE_CHECKING:
    from onnx import ModelProto

    from frustum.passes.onnx.place_host import HostMode

Model: TypeAlias = Union[str, Path, "ModelProto", ModuleOp]


@dataclass(frozen=True)
class Request:
    """What is to be compiled, and how; None is what the model says, or else the default."""

    model: Model
    target: str | Path | Target | None = None
    dtype: str | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch: int | None = None
    policy: str | None = None
    pipeline: str | None = None
    dump_ir: Path | None = None
    weights_seed: int | None = None
    calibrate: Method | None = None
    """How `int8` finds the ranges of a floating-point model; minmax if it is not said."""
    calibration: Sequence[Mapping[str, Array]] = ()
    """The inputs it looks at; random ones, the first from `calibration_seed`, if none are given."""
    calibration_seed: int = 0
    host: HostMode | None = None
    """What may run on the host; auto if it is not said."""
    compress_weights: str | None = None
    """How weights are compressed; where it is better if that is not said."""
    weights: str | None = None
    """How weights that all clusters need are held; replicated if it is not said."""
    constants: Mapping[str, Array] = field(default_factory=dict)
    """Values of inputs that are really constants."""
    split: When | None = None
    """Where networks are cut; auto if it is not said."""
    refuse: str | None = None
    """How pieces are fused again; with `auto`, where it is no worse, if that is not said."""
    placement: str | None = None
    """The chip of each executable, as `chips_of` reads it; all on one if it is not said."""
    order: str | None = None
    """The order of tiles, as `parse_order` reads it; the planner's if it is not said."""
    borders: Borders | None = None
    """What happens at borders of tiles."""
    dtype_is_stored: bool = False
    """Whether `dtype` is what the target's options say: it gives way where a model has its types already."""


def given_target(name: str | Path | Target | None) -> Target | None:
    """The target asked for, read from its file; None where none is said."""
    return name if name is None or isinstance(name, Target) else targets.load(name, problems_of)


def target_file(request: Request) -> str | None:
    """The file of the machine, as it was named; None where it is a shipped one, or given as it is."""
    name = request.target
    return str(name) if isinstance(name, str | Path) and targets.is_file(str(name)) else None


def with_stored_dtype(request: Request, target: Target) -> Request:
    """The request with the element type of the target's options, where nobody says another one."""
    stored = target.options.dtype
    if request.dtype is not None or request.pipeline is not None or stored is None:
        return request
    return replace(request, dtype=stored, dtype_is_stored=True)


def passes_of(request: Request) -> Sequence[ModulePass] | None:
    """The passes of `--pipeline`; None for the default ones."""
    if request.pipeline is None:
        return None
    of_passes = (
        ("--dtype", None if request.dtype == INT8 else request.dtype), ("--policy", request.policy),
        ("--compress-weights", request.compress_weights), ("--weights", request.weights),
        ("--order", request.order), ("--borders", request.borders),
    )  # fmt: skip
    for option, value in of_passes:
        if value is not None:
            raise UsageError(
                f"error: {option} is of the default pipeline: write it as an option of a pass in --pipeline"
            )
    return parse_passes(FRUSTUM.all_passes, request.pipeline)


def check_order(request: Request) -> None:
    """UsageError unless `--order` is an order of tiles."""
    try:
        if request.order is not None:
            parse_order(request.order)
    except ValueError as error:
        raise UsageError(f"error: --order {error}") from error


def splitting_of(request: Request) -> Splitting:
    """Where networks are cut and how their pieces are fused again."""
    for option, value in (("--split", request.split), ("--refuse", request.refuse)):
        if value is not None and request.pipeline is not None:
            raise UsageError(f"error: {option} is of the default pipeline: --pipeline makes one executable")
    try:
        refusal = parse_refusal(request.refuse) if request.refuse is not None else None
    except ValueError as error:
        raise UsageError(f"error: --refuse {error}") from error
    return Splitting(request.split or "auto", refusal)
