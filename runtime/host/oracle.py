"""The outputs that ours must agree with (`judge` says by whom), and how far ours are from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto
from xdsl.dialects.builtin import ModuleOp

from frustum.dialects import graph as g
from frustum.runtime.host.inputs import random_array
from frustum.runtime.host.judge import OracleError, Outputs, Source, judge_of, onnxruntime
from frustum.runtime.kernels import Array
from frustum.runtime.reference.graph import network_of
from frustum.runtime.reference.layers import numpy_type

TOLERANCES = {"f32": 1e-4, "f16": 2e-2, "bf16": 1e-1, "int8": 1e-1, "host": 1e-4}
"""Largest error that still agrees, relative to the largest magnitude of the oracle's output, by device type."""
UNLIKE = float("inf"), float("inf")
"""The errors of what cannot be compared."""
STEPS, SHARE = 2, 0.999
"""An output of 8- or 16-bit integers agrees where this share of its elements is at most so many steps off."""
SIGMOID_STEP = 2.0**-24
"""The oracle computes a sigmoid as 0.5 plus a quotient near -0.5: its small values come in steps of this size."""
SIGMOID_STEPS = 4
"""So many steps are its resolution: rounding of the sigmoid's operand, the quotient, the sum, on either side."""
VIEWS = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Concat", "Slice"})
"""Operators whose results are elements of their first operand."""

@dataclass(frozen=True)
class Agreement:
    """How far outputs are from the expected ones; the relative error is to an output's largest magnitude."""

    max_abs_error: float
    max_rel_error: float
    tolerance: float
    worst: str
    """Name of the output with the largest relative error."""
    good: bool
    outputs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Largest absolute and relative error of each."""
    nan_in_both: int = 0
    """How many of the `numbers` are NaN here and there, and so agree without a word about what they should be."""
    numbers: int = 0
    difference: str = ""
    """How many elements of the worst output differ, which is the first, ours and theirs; empty where all agree."""


def check_loads(model: Source) -> None:
    """OracleError where it is known that nobody judges the model."""
    with judge_of(model) as judge:
        judge.check()


@dataclass(frozen=True)
class Judged:
    """What a model's outputs should be, who says so, and, where that is not onnxruntime alone, why."""

    outputs: Outputs
    by: str
    why: str


def judged_outputs(
    model: Source, inputs: Mapping[str, Array], batch: int = 1, *, whole: Collection[str] = (),
    found: Mapping[str, Array] | None = None,
) -> Judged:  # fmt: skip
    """The model's outputs by name, as f32 where they are 16-bit floats.

    With `batch`, the model runs once for each equal part of its inputs' first axis, but for those that each run gets
    `whole`; the outputs are joined, but for those that are the same in all runs and have one run's shape in `found`.
    """
    with judge_of(model) as judge:
        parts = [judge.run(_part(inputs, index, batch, whole)) for index in range(batch)]
        by, why = judge.name, judge.why
    if batch == 1:
        return Judged(parts[0], by, why)
    joined = {name: _joined([part[name] for part in parts], (found or {}).get(name)) for name in parts[0]}
    return Judged(joined, by, why)


def oracle_outputs(
    model: Source, inputs: Mapping[str, Array], batch: int = 1, *, whole: Collection[str] = (),
    found: Mapping[str, Array] | None = None,
) -> Outputs:  # fmt: skip
    """The outputs of `judged_outputs`."""
    return judged_outputs(model, inputs, batch, whole=whole, found=found).outputs


def _joined(parts: list[Array], found: Array | None) -> Array:
    one, *others = parts
    is_common = np.ndim(one) == 0 or (found is not None and np.shape(found) == np.shape(one))
    if is_common and all(np.array_equal(one, other) for other in others):
        return one
    return np.concatenate(np.atleast_1d(*parts))


def oracle_name() -> str:
    """Name and version, for reports."""
    return f"onnxruntime {onnxruntime().__version__}"


def compare(
    outputs: Mapping[str, Array], expected: Mapping[str, Array], dtype: str, resolution: Mapping[str,
    float] | None = None,
) -> Agreement:  # fmt: skip
    """The largest errors over all expected outputs; `dtype` is the device's (a key of `TOLERANCES`).

    An output of small integers agrees by its steps (`STEPS`, `SHARE`), others by their relative error.
    Errors are relative to an output's largest magnitude, but at least to the magnitude at which the oracle's own
    `resolution` of that output (absolute, see `resolutions`) is the tolerance.
    """
    tolerance = TOLERANCES[dtype]
    floors = {name: (resolution or {}).get(name, 0.0) / tolerance for name in expected}
    if outputs.keys() != expected.keys():  # sequences of other lengths
        lacking = min(outputs.keys() ^ expected.keys())
        return Agreement(*UNLIKE, tolerance, lacking, False)
    errors = {name: _errors(outputs[name], expected[name], floors[name]) for name in expected}
    good = {name: _agrees(outputs[name], expected[name], errors[name][1], tolerance) for name in expected}
    worst = max(errors, key=lambda name: (not good[name], errors[name][1]))
    return Agreement(
        max_abs_error=max(error for error, _ in errors.values()),
        max_rel_error=errors[worst][1],
        tolerance=tolerance,
        worst=worst,
        good=all(good.values()),
        outputs=errors,
        nan_in_both=sum(_nan_in_both(outputs[name], expected[name]) for name in expected),
        numbers=sum(array.size for array in expected.values()),
        difference="" if good[worst] else difference_of(outputs[worst], expected[worst], tolerance, floors[worst]),
    )


def difference_of(found: Array, expected: Array, tolerance: float, floor: float = 0.0) -> str:
    """How many elements differ by more than the tolerance, or in being a number at all, and the first of them."""
    if found.shape != expected.shape:
        return f"ours is of shape {list(found.shape)}, theirs of {list(expected.shape)}"
    if expected.dtype.kind in "OUS":
        differ = np.asarray(found != expected)
    elif expected.dtype.kind in "iu" and expected.dtype.itemsize <= 2:
        differ = np.abs(found.astype(np.int64) - expected.astype(np.int64)) > STEPS
    else:
        differ = _beyond(found.astype(np.float64), expected.astype(np.float64), tolerance, floor)
    if not differ.any():
        return ""
    first = tuple(int(index) for index in np.argwhere(differ)[0])
    count = f"{int(differ.sum()):,} of {differ.size:,} elements differ"
    return f"{count}, the first at {list(first)}: ours {found[first]}, theirs {expected[first]}"


def _beyond(found: Array, expected: Array, tolerance: float, floor: float) -> Array:
    """Where one is NaN or infinite and the other is something else, or they are too far from each other."""
    magnitude = max(floor, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        return ~same & ~(np.abs(found - expected) <= tolerance * magnitude)


def _nan_in_both(found: Array, expected: Array) -> int:
    if expected.dtype.kind in "OUS" or found.shape != expected.shape:
        return 0
    return int((np.isnan(found.astype(np.float64)) & np.isnan(expected.astype(np.float64))).sum())


def _agrees(found: Array, expected: Array, relative_error: float, tolerance: float) -> bool:
    if expected.dtype.kind not in "iu" or expected.dtype.itemsize > 2:
        return relative_error <= tolerance
    steps = np.abs(found.astype(np.int64) - expected.astype(np.int64))
    return bool(np.mean(steps <= STEPS) >= SHARE) if steps.size else True


def resolutions(model: Source) -> dict[str, float]:
    """The oracle's absolute resolution of every output that is a sigmoid's result (through views), by name."""
    proto = model if isinstance(model, ModelProto) else onnx.load(model, load_external_data=False)
    producers = {output: node for node in proto.graph.node for output in node.output}
    found = {}
    for output in proto.graph.output:
        node = producers.get(output.name)
        while node is not None and node.op_type in VIEWS:
            node = producers.get(node.input[0])
        if node is not None and node.op_type == "Sigmoid":
            found[output.name] = SIGMOID_STEPS * SIGMOID_STEP
    return found


def random_inputs(module: ModuleOp, seed: int) -> dict[str, Array]:
    """Inputs for a network in its types."""
    network = network_of(module)
    arguments = zip(network.inputs, network.body.block.args, strict=True)
    return {
        name: random_array(seed, index, g.shape_of(value), numpy_type(g.tensor_of(value).element_type))
        for index, (name, value) in enumerate(arguments)
    }


def _errors(found: Array, expected: Array, floor: float) -> tuple[float, float]:
    """Largest absolute error, and that error relative to the largest magnitude expected (at least `floor`)."""
    if expected.dtype.kind in "OUS" or found.shape != expected.shape:  # which depends on the numbers
        return (0.0, 0.0) if np.array_equal(found, expected) else UNLIKE
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    differ = ~((found == expected) | (np.isnan(found) & np.isnan(expected)))
    if not differ.any():
        return 0.0, 0.0
    with np.errstate(invalid="ignore"):
        error = float(np.abs(found - expected)[differ].max())
    magnitude = max(floor, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
    if not np.isfinite(error):  # one of them is not a number, or infinite
        return UNLIKE
    return error, error / magnitude if magnitude else float("inf")


def _part(inputs: Mapping[str, Array], index: int, batch: int, whole: Collection[str] = ()) -> dict[str, Array]:
    """The `index`-th of `batch` equal parts of the inputs along their first axis; all of those in `whole`."""
    found = dict(inputs)
    for name, array in inputs.items():
        if name in whole or batch == 1:
            continue
        size, rest = divmod(len(array), batch) if np.ndim(array) else (0, 1)
        if rest:
            raise OracleError(f"input '{name}' of shape {array.shape} is not a batch of {batch}")
        found[name] = array[index * size : (index + 1) * size]
    return found


