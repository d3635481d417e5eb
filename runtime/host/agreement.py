# Tests: test/passes/onnx/test_place_host.py
"""Whether the outputs of a run agree with what they should be, for `--check`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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


NOTHING = "nothing ran on the device: nothing was checked"
"""In place of who said what the outputs should be."""


def agreement(
    model: Model, inputs: Mapping[str, Array], outputs: Mapping[str, Array], dtype: str,
    of_device: Collection[str] | None = None,
) -> tuple[Check, Agreement]:  # fmt: skip
    """How far outputs computed in `dtype` are from the oracle's; the oracle runs once for each of a changed batch.

    Outputs that the model wants in 16 bits were rounded to them, and a Cast to 16 bits rounds on the way, where two
    numbers that agree in f32 may differ by a step: the coarsest type on the way sets the tolerance.
    `of_device`: the outputs that the device has a part in; the host's alone are compared with nothing.
    """
    from frustum.runtime.host.oracle import TOLERANCES, Agreement, compare, judged_outputs, resolutions

    left_out = sorted(name for name in outputs if of_device is not None and name not in of_device)
    outputs = flattened({name: value for name, value in outputs.items() if name not in left_out})
    if not outputs:
        nothing = Check(None, None, NOTHING, not_compared=left_out)
        return nothing, Agreement(0.0, 0.0, TOLERANCES[dtype], "", True)
    types = {dtype, *(NARROW[a.dtype.name] for a in outputs.values() if a.dtype.name in NARROW), *_rounded_to(model)}
    dtype = max(types, key=lambda name: TOLERANCES[name])
    batch, whole = changed_batch(model, inputs)
    judged = judged_outputs(model, inputs, batch, whole=whole, found=outputs)
    expected = flattened({name: value for name, value in judged.outputs.items() if name not in left_out})
    expected = with_our_unused_rows(model, inputs, outputs, expected)
    found = compare(outputs, expected, dtype, resolutions(model))
    each = {name: {"max_abs_error": abs_, "max_rel_error": rel} for name, (abs_, rel) in found.outputs.items()}
    errors = found.max_abs_error, found.max_rel_error
    check = Check(*errors, judged.by, each, found.nan_in_both, found.numbers, judged.why, left_out)
    return check, found


def _rounded_to(model: Model) -> set[str]:
    import onnx

    from frustum.runtime.host.widening import rounded_to

    return rounded_to(onnx.load(model, load_external_data=False) if isinstance(model, Path) else model)


CACHES = {"GroupQueryAttention": (5, (1, 2))}
"""Operators whose results are caches of more rows than are used: the operand that says how many are (less one), and
which results these are, [B, heads, rows, size] each.  The rest means nothing."""


def with_our_unused_rows(
    model: Model, inputs: Mapping[str, Array], found: Mapping[str, Array], expected: Mapping[str, Array]
) -> dict[str, Array]:
    """What is expected, where rows of caches are not used as we have them: onnxruntime zeroes these."""
    import onnx

    proto = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
    known = dict(inputs) | {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer
        if not onnx.external_data_helper.uses_external_data(tensor) and len(tensor.dims) <= 1
    }  # fmt: skip
    made = dict(expected)
    for node in proto.graph.node:
        operand, results = CACHES.get(node.op_type, (0, ()))
        for name in [node.output[place] for place in results if place < len(node.output)]:
            lengths = known.get(node.input[operand])
            if name not in made or lengths is None or made[name].shape != found[name].shape:
                continue
            rows = np.arange(made[name].shape[2])[:, np.newaxis]
            unused = rows > np.reshape(lengths, (-1, 1, 1, 1))
            made[name] = np.where(unused, found[name].astype(made[name].dtype), made[name])
    return made


def together(found: Sequence[tuple[Check, Agreement]]) -> tuple[Check, Agreement]:
    """Of a stream of inputs the greatest errors, and how the worst input agrees."""
    checks = [check for check, _ in found]
    worst = max(found, key=lambda each: (not each[1].good, each[0].max_rel_error or 0.0))
    names = checks[0].outputs
    check = replace(
        worst[0],
        max_abs_error=max((each.max_abs_error for each in checks if each.max_abs_error is not None), default=None),
        max_rel_error=max((each.max_rel_error for each in checks if each.max_rel_error is not None), default=None),
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
