"""A random ONNX file on a random machine, in checked mode, against onnxruntime."""

from __future__ import annotations

import numpy as np
from random_machine import machine_of_seed
from random_onnx import Drawn, random_onnx

import frustum
from frustum.backend.file.executable import Executable
from frustum.dialects.target.fit import DoesNotFit
from frustum.runtime.host.agreement import agreement
from frustum.runtime.host.oracle import oracle_outputs
from frustum.runtime.model.chain import chain_of

POLICIES = ("optimal", "optimal", "greedy", "template", "none", "pyramid")


def difference_of(seed: int) -> str:
    """What is wrong with the run of a seed; nothing where all is well."""
    drawn = random_onnx(seed)
    try:
        compiled = frustum.compile(drawn.model, machine_of_seed(seed), policy=POLICIES[seed % len(POLICIES)])
    except DoesNotFit:
        return ""
    found = frustum.run(compiled, drawn.inputs, checked=True).outputs
    return compared(drawn, found, compiled.chain)


def compared(drawn: Drawn, found: dict[str, np.ndarray], compiled: object) -> str:
    chain = chain_of(compiled) if isinstance(compiled, Executable) else compiled
    dtype = chain.dtype if chain.dtype != "int8" else "f32"  # scales are powers of two: as exact as f32
    _, checked = agreement(drawn.model, drawn.inputs, found, dtype)
    if not checked.good:
        return (
            f"output '{checked.worst}' is {checked.max_rel_error:.3g} off, {checked.tolerance:g} is allowed"
        )
    expected = oracle_outputs(drawn.model, drawn.inputs) if drawn.element == "f32" else {}
    for name, array in expected.items():
        if found[name].dtype != array.dtype or found[name].shape != array.shape:
            return (
                f"output '{name}' is {found[name].dtype}{found[name].shape}, not {array.dtype}{array.shape}"
            )
        if array.dtype.kind in "iub" and not np.array_equal(found[name], array):
            return f"the integers of output '{name}' differ"
    return ""


def images_of(seed: int, count: int) -> str:
    """What is wrong with a batch in place of a static 1: it is refused by name, or gives what each image alone does."""
    from frustum.passes.errors import Unsupported

    drawn = random_onnx(seed, images=True, blocks=5)
    rng = np.random.default_rng(seed)
    more = {
        name: np.concatenate(
            [array, *(np.round(rng.standard_normal((count - 1, *array.shape)) * 16) / 16)]
        ).astype(array.dtype)
        for name, array in drawn.inputs.items()
    }
    try:
        together = frustum.compile(drawn.model, "edge", batch=count, policy="none")
    except Unsupported as error:
        return "" if "batch" in str(error) else f"refused without a word of batch: {error}"
    alone = frustum.compile(drawn.model, "edge", policy="none")
    found = frustum.run(together, more, mode="functional").outputs
    each = [
        frustum.run(
            alone, {name: array[n : n + 1] for name, array in more.items()}, mode="functional"
        ).outputs
        for n in range(count)
    ]
    for name, array in found.items():
        parts = [one[name] for one in each]
        common = array.shape == parts[0].shape and all(np.array_equal(parts[0], part) for part in parts)
        wanted = parts[0] if common or not parts[0].ndim else np.concatenate(parts)
        if array.shape != wanted.shape:
            return f"output '{name}' is {array.shape}, of {count} images alone {wanted.shape}"
        error = np.abs(array.astype(np.float64) - wanted.astype(np.float64)).max(initial=0)
        largest = np.abs(wanted.astype(np.float64)).max(initial=0)
        if error > 1e-4 * max(largest, 1e-6) * (100 if drawn.element == "f16" else 1):
            return f"output '{name}' is {error:.3g} off what each image alone gives ({largest:.3g})"
    return ""
