"""What a network of axes is but for the names in it, as a text that every run writes alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.tensor import Tensor

Named = Layer | Tensor | Axis
LETTERS: dict[type[Named], str] = {Layer: "l", Tensor: "t", Axis: "a"}
"""What numbered names begin with."""
NAMES = frozenset({"name", "is_named", "source"})
"""Fields that say what something is called, or was made from."""


@dataclass(frozen=True)
class Structure:
    """`text`: all that a network says but for names; layers, tensors and axes have numbers there, in order of their
    first mention. `layers`, `tensors`, `axes`: for each name of those that plans may name the number."""

    text: str
    layers: dict[str, str]
    tensors: dict[str, str]
    axes: dict[str, str]


def structure_of(network: AxisNetwork) -> Structure | None:
    """None where several layers, several tensors or several axes have one name, which then tells nothing."""
    writer = _Text()
    text = f"{writer.said(network.layers)}\n{writer.said(network.tensors)}"
    axes = {axis for layer in network.layers for axis in layer.axes}
    axes |= {axis for tensor in network.tensors for axis in tensor.axes}
    kinds: tuple[Iterable[Named], ...] = network.layers, network.tensors, axes
    numbers: list[dict[str, str]] = []
    for kind in kinds:
        found = [(each.name, writer.known[each]) for each in kind]
        numbers.append(dict(found))
        if len(numbers[-1]) < len(found):
            return None
    return Structure(text, *numbers)


class _Text:
    """`known`: what was mentioned, each with its number; a second mention says that alone."""

    def __init__(self) -> None:
        self.known: dict[Named, str] = {}
        self.counts = Counter[type[Named]]()
        self.fields: dict[type[Any], list[str]] = {}

    def said(self, value: object) -> str:
        """Whatever fields a class gets count, unless they are names."""
        match value:
            case Layer() | Tensor() | Axis():
                number = self.known.get(value)
                if number is not None:
                    return number
                kind = type(value)
                number = self.known[value] = f"{LETTERS[kind]}{self.counts[kind]}"
                self.counts[kind] += 1
                return f"{number}={self.all_of(value)}"
            case tuple() | list():
                return f"[{','.join(map(self.said, value))}]"
            case dict():
                return f"{{{','.join(f'{self.said(key)}:{self.said(each)}' for key, each in value.items())}}}"
        return self.all_of(value) if is_dataclass(value) else repr(value)

    def all_of(self, value: Any) -> str:
        kind = type(value)
        if kind not in self.fields:
            own = (each.name for each in fields(value))
            self.fields[kind] = [name for name in own if name not in NAMES and not name.startswith("_")]
        return f"{kind.__name__}({','.join(self.said(getattr(value, name)) for name in self.fields[kind])})"
