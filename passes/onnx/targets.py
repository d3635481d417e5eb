"""The shapes that nodes give to the elements of a tensor: Reshape, Flatten, Squeeze, Unsqueeze."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from frustum.passes.onnx.refusals import Refused

__all__ = ["TARGETS", "reshape_target"]

Ints: TypeAlias = tuple[int, ...]


def reshape_target(shape: Sequence[int], target: Sequence[int], allow_zero: bool) -> tuple[int, ...]:
    """A Reshape's target with its zeros and its -1 filled in."""
    filled = [
        shape[axis] if extent == 0 and not allow_zero and axis < len(shape) else extent
        for axis, extent in enumerate(target)
    ]
    if filled.count(-1) == 1:
        known = int(np.prod([extent for extent in filled if extent != -1], dtype=np.int64))
        total = int(np.prod(shape, dtype=np.int64))
        if known == 0 or total % known:
            raise Refused(f"{tuple(shape)} does not reshape to {tuple(target)}")
        filled[filled.index(-1)] = total // known
    return tuple(filled)


def _reshape_target(shape: Ints, target: list[int] | None, attributes: Mapping[str, Any]) -> Ints:
    if target is None:
        raise Refused("the target shape is missing")
    return reshape_target(shape, target, bool(attributes.get("allowzero", 0)))


def _flatten_target(shape: Ints, _: list[int] | None, attributes: Mapping[str, Any]) -> Ints:
    axis = attributes.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def _squeeze_target(shape: Ints, axes: list[int] | None, _: Mapping[str, Any]) -> Ints:
    gone = [a % len(shape) for a in axes] if axes is not None else [a for a, e in enumerate(shape) if e == 1]
    return tuple(extent for axis, extent in enumerate(shape) if axis not in gone)


def _unsqueeze_target(shape: Ints, axes: list[int] | None, _: Mapping[str, Any]) -> Ints:
    rank = len(shape) + len(axes or ())
    new = [axis % rank for axis in axes or ()]
    extents = iter(shape)
    return tuple(1 if axis in new else next(extents) for axis in range(rank))


TARGETS: dict[str, Callable[[Ints, list[int] | None, Mapping[str, Any]], Ints]] = {
    "Reshape": _reshape_target, "Flatten": _flatten_target, "Squeeze": _squeeze_target, "Unsqueeze": _unsqueeze_target,
}  # fmt: skip
"""By operator: of an operand's shape, the numbers of its second operand, and its attributes."""
