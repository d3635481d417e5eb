# Tests: test/runtime/report/test_screen.py
"""What a network would move if nothing stayed on chip: the yardstick of fusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class LayerByLayer:
    """What moves if every map goes through DRAM: compulsory bytes, each map written once, and read once by each layer
    that reads it; and how many such maps there are.  Moves of elements are other names of their maps here."""

    bytes: int
    maps: int


Layers: TypeAlias = Sequence[Mapping[str, Any]]
"""Of a network: what each layer reads, by the number of the layer that makes it (below 0: an input)."""


def makers_of(
    layers: Layers, is_maker: Callable[[Mapping[str, Any]], bool]
) -> tuple[list[set[int]], list[set[int]]]:
    """Of each layer the makers of what it reads, and of what it gives: itself, or, where it is none, those of what it
    reads."""
    sources: list[set[int]] = []
    makers: list[set[int]] = []
    for number, layer in enumerate(layers):
        sources.append({each for read in layer["reads"] if read >= 0 for each in makers[read]})
        makers.append({number} if is_maker(layer) else sources[-1])
    return sources, makers


def layer_by_layer(compulsory: int, facts: Iterable[Mapping[str, Any]]) -> LayerByLayer:
    """Of networks with these facts (`passes/analysis/least_work.py`)."""
    moved, maps = compulsory, 0
    for network in facts:
        layers = network["layers"]
        given = {number for _, number in network["outputs"]}
        sources, makers = makers_of(layers, lambda layer: "bytes" in layer)
        readers = Counter(each for own, layer in zip(sources, layers, strict=True) if "bytes" in layer for each in own)
        outputs = {each for number in given if number >= 0 for each in makers[number]}
        for number, layer in enumerate(layers):
            if "bytes" in layer and readers[number]:
                maps += number not in outputs
                moved += layer["bytes"] * (readers[number] + (number not in outputs))
    return LayerByLayer(moved, maps)
