"""Converters of ONNX operators to the graph level, by operator; one file per kind."""

from frustum.passes.onnx.node import Converter
from frustum.passes.onnx.operators import (
    elementwise,
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

__all__ = ["CONVERTERS"]

CONVERTERS: dict[str, Converter] = {
    **products.CONVERTERS,
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
