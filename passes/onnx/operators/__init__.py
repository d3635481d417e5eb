"""Converters of ONNX operators to the graph level, by operator; one file per kind."""

from __future__ import annotations

from collections.abc import Mapping

from frustum.dialects.plug_ins import all_of, warn
from frustum.passes.onnx.node import Converter
from frustum.passes.onnx.operators import (
    attention,
    choices,
    contributed,
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
    sampling,
    scatter,
    sequences,
    transformer,
    windows,
)

__all__ = ["CONVERTERS", "MICROSOFT", "plugged_converter"]

MICROSOFT: dict[str, Converter] = {
    **integers.MICROSOFT,
    **transformer.MICROSOFT,
    **contributed.MICROSOFT,
    "QuantizeLinear": conversions.CONVERTERS["QuantizeLinear"],
    "DequantizeLinear": conversions.CONVERTERS["DequantizeLinear"],
}
"""Of the domain com.microsoft."""

KINDS = (
    products, integers, conversions, windows, reductions, elementwise, choices, moves, lookups, resizing, recurrent,
    einsum, attention, contributed, scatter, sampling, sequences,
)  # fmt: skip
CONVERTERS: dict[str, Converter] = {
    operator: converter for kind in KINDS for operator, converter in kind.CONVERTERS.items()
}


def plugged_converter(domain: str, operator: str) -> Converter | None:
    """That of a plug-in, which gives a mapping from domain and operator to converters."""
    for name, table in all_of("operators").items():
        if not isinstance(table, Mapping):
            warn("operators", name, f"it is {type(table).__name__}, no mapping from (domain, operator) to converters")
        elif (domain, operator) in table:
            found: Converter = table[domain, operator]
            return found
    return None
