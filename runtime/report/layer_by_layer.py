# Tests: test/runtime/report/test_screen.py
"""What a network would move if nothing stayed on chip: the yardstick of fusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LayerByLayer:
    """What moves if every map goes through DRAM: compulsory bytes, each map written once, and read once by each layer
    that reads it; and how many such maps there are.  Moves of elements are other names of their maps here."""

    bytes: int
    maps: int


def layer_by_layer(compulsory: int, facts: Iterable[Mapping[str, Any]]) -> LayerByLayer:
    """Of networks with these facts (`passes/analysis/least_work.py`)."""
    moved, maps = compulsory, 0
    for network in facts:
        layers = network["layers"]
        given = {number for _, number in network["outputs"]}
        makers: list[set[int]] = []
        readers = [0] * len(layers)
        for number, layer in enumerate(layers):
            sources = {each for read in layer["reads"] if read >= 0 for each in makers[read]}
            if "bytes" in layer:
                for each in sources:
                    readers[each] += 1
            makers.append({number} if "bytes" in layer else sources)
        outputs = {each for number in given if number >= 0 for each in makers[number]}
        for number, layer in enumerate(layers):
            if "bytes" in layer and readers[number]:
                maps += number not in outputs
                moved += layer["bytes"] * (readers[number] + (number not in outputs))
    return LayerByLayer(moved, maps)
