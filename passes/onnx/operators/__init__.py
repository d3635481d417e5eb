"""Converters of ONNX operators to the graph level, by operator; one file per kind."""

from frustum.passes.onnx.node import Converter
from frustum.passes.onnx.operators import (
    attention,
    choices,
    conversions,
    einsum,
    elementwise,
    integers,
    lookups,
    moves,
    products,
    recurrent,
    reductions,
    resizing,
    transformer,
    windows,
)

__all__ = ["CONVERTERS", "MICROSOFT"]

MICROSOFT: dict[str, Converter] = {
    **integers.MICROSOFT,
    **transformer.MICROSOFT,
    "QuantizeLinear": conversions.CONVERTERS["QuantizeLinear"],
    "DequantizeLinear": conversions.CONVERTERS["DequantizeLinear"],
}
"""Of the domain com.microsoft."""

KINDS = (
    products, integers, conversions, windows, reductions, elementwise, choices, moves, lookups, resizing, recurrent,
    einsum, attention,
)  # fmt: skip
CONVERTERS: dict[str, Converter] = {
    operator: converter for kind in KINDS for operator, converter in kind.CONVERTERS.items()
}
