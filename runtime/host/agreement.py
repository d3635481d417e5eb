# Tests: test/passes/onnx/test_place_host.py
"""Whether the outputs of a run agree with onnxruntime's, for `--check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np

from frustum.runtime.kernels import Array
from frustum.runtime.model.chain import flattened
from frustum.runtime.report.report import Check

if TYPE_CHECKING:
    from onnx import ModelProto

    from frustum.runtime.host.oracle import Agreement

NARROW = {"float16": "f16", "bfloat16": "bf16"}
"""Types of outputs that lose digits, as the device calls them."""

Model: TypeAlias = Union[Path, "ModelProto"]


def agreement(
    model: Model, inputs: Mapping[str, Array], outputs: Mapping[str, Array], dtype: str
) -> tuple[Check, Agreement]:
    """How far outputs computed in `dtype` are from the oracle's; the oracle runs once for each of a changed batch.

    Outputs that the model wants in 16 bits were rounded to them, whatever they were computed in: the coarsest type
    on the way sets the tolerance.
    """
    from frustum.runtime.host.oracle import TOLERANCES, compare, oracle_name, oracle_outputs, resolutions

    outputs = flattened(outputs)
    types = {dtype, *(NARROW[a.dtype.name] for a in outputs.values() if a.dtype.name in NARROW)}
    dtype = max(types, key=lambda name: TOLERANCES[name])
    batch, whole = changed_batch(model, inputs)
    expected = flattened(oracle_outputs(model, inputs, batch, whole=whole, found=outputs))
    found = compare(outputs, expected, dtype, resolutions(model))
    each = {name: {"max_abs_error": abs_, "max_rel_error": rel} for name, (abs_, rel) in found.outputs.items()}
    check = Check(
        found.max_abs_error, found.max_rel_error, oracle_name(), each, found.nan_in_both, found.numbers
    )
    return check, found


def together(found: Sequence[tuple[Check, Agreement]]) -> tuple[Check, Agreement]:
    """Of a stream of inputs the greatest errors, and how the worst input agrees."""
    checks = [check for check, _ in found]
    worst = max(found, key=lambda each: (not each[1].good, each[0].max_rel_error))
    names = checks[0].outputs
    check = replace(
        worst[0],
        max_abs_error=max(each.max_abs_error for each in checks),
        max_rel_error=max(each.max_rel_error for each in checks),
        outputs={
            name: {key: max(each.outputs[name][key] for each in checks) for key in names[name]} for name in names
        },
        nan_in_both=sum(each.nan_in_both for each in checks),
        numbers=sum(each.numbers for each in checks),
    )
    return check, worst[1]


def changed_batch(model: Model, inputs: Mapping[str, Array]) -> tuple[int, set[str]]:
    """The batch that inputs have where the model itself says 1, else 1; and the inputs that are no batch: scalars,
    and those whose first extent the model fixes."""
    import onnx

    proto = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
    batch, whole = 1, set()
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        given = inputs.get(value.name)
        if given is None or not isinstance(given, np.ndarray):
            continue
        if dims and dims[0].dim_value == 1 and len(given) != 1:
            batch = len(given)
        elif not given.shape or (dims and dims[0].HasField("dim_value") and dims[0].dim_value == len(given)):
            whole.add(value.name)
    return batch, whole
