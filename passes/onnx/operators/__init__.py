"""Converters of ONNX operators to the graph level, by operator; one file per kind."""

from frustum.passes.onnx.node import Converter
from frustum.passes.onnx.operators import (
    conversions,
    elementwise,
    integers,
    moves,
    normalization,
    padding,
    products,
    reductions,
    resizing,
    shapes,
    transposed,
    windows,
)

__all__ = ["CONVERTERS", "MICROSOFT"]

MICROSOFT: dict[str, Converter] = {
    **integers.MICROSOFT,
    "QuantizeLinear": conversions.CONVERTERS["QuantizeLinear"],
    "DequantizeLinear": conversions.CONVERTERS["DequantizeLinear"],
}
"""Of the domain com.microsoft."""

CONVERTERS: dict[str, Converter] = {
    **products.CONVERTERS,
    **integers.CONVERTERS,
    **conversions.CONVERTERS,
    **transposed.CONVERTERS,
    **windows.CONVERTERS,
    **normalization.CONVERTERS,
    **reductions.CONVERTERS,
    **elementwise.CONVERTERS,
    **shapes.CONVERTERS,
    **moves.CONVERTERS,
    **padding.CONVERTERS,
    **resizing.CONVERTERS,
}
