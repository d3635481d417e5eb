"""A layer's own numbers, which the instructions take over: activations, scales, zero points."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Operation

from frustum.dialects import graph as g
from frustum.dialects.tile import Plain


def act_params(op: Operation) -> dict[str, Plain]:
    act = op.properties.get("act")
    if not isinstance(act, g.ActAttr):
        return {}
    return {"act": str(act.kind), "act_params": (float(act.alpha), float(act.beta))}


def scales_params(op: Operation) -> dict[str, Plain]:
    """What integers stand for, of each operand and the result: scale and zero point by turns."""
    scales = op.properties.get("scales")
    return scales_of(*scales.data) if isinstance(scales, ArrayAttr) else {}


def scales_of(*scales: g.ScaleAttr) -> dict[str, Plain]:
    return {"scales": tuple(float(number) for each in scales for number in (each.scale, each.zero))}


def product_params(op: g.ConvOp | g.MatmulOp) -> dict[str, Plain]:
    """How a product leaves the matrix unit; `vectors` names what follows the weights where it is not a bias alone."""
    params: dict[str, Plain] = {**act_params(op), **scales_params(op)}
    if op.zeros is not None:
        params["in_zero"], params["out_zero"] = op.zeros
    named = ("bias", op.bias), ("weight_zero", op.w_zero), ("multiplier", op.multiplier)
    vectors = " ".join(name for name, value in named if value is not None)
    return {**params, "vectors": vectors} if vectors not in ("", "bias") else params
