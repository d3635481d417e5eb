"""An order of traversal as it is typed: `z-order`, `bands{bands=2,direction=top-down}`, ...."""

from __future__ import annotations

import re
from dataclasses import dataclass

from frustum.passes.tile.orders import DIRECTIONS, ORDERS

DEPTHS = ("depth-first", "breadth-first")
_FORM = re.compile(r"(?P<name>[a-z-]+)(?:\{(?P<options>[^{}]*)\})?")


@dataclass(frozen=True)
class OrderWords:
    """Order, tiles across a band, direction of bands, and whether a portion goes up through all layers at a time."""

    order: str
    bands: int = 1
    direction: str = "left-right"
    depth: str = "depth-first"


def parse_order(text: str) -> OrderWords:
    """Raises ValueError that says what is wrong and what is allowed."""
    match = _FORM.fullmatch(text.strip())
    if match is None or match["name"] not in ORDERS:
        raise ValueError(f"'{text}': expected one of {', '.join(ORDERS)}, perhaps with {{option=value,...}}")
    values: dict[str, str] = {}
    for part in (match["options"] or "").split(","):
        key, equals, value = part.strip().partition("=")
        if not part.strip():
            continue
        if not equals or key not in ("bands", "direction", "depth") or key in values:
            raise ValueError(f"'{text}': expected options bands=N, direction=..., depth=..., found '{part}'")
        if key in ("bands", "direction") and match["name"] != "bands":
            raise ValueError(f"'{text}': {key} is an option of order bands, not of {match['name']}")
        values[key] = value
    return OrderWords(
        match["name"],
        positive(text, values.get("bands", "1")),
        one_of(text, "direction", values.get("direction", DIRECTIONS[0]), DIRECTIONS),
        one_of(text, "depth", values.get("depth", DEPTHS[0]), DEPTHS),
    )


def positive(text: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value) >= 1):
        raise ValueError(f"'{text}': bands is how many tiles deep a band is, at least 1, found '{value}'")
    return int(value)


def one_of(text: str, key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"'{text}': {key} is one of {', '.join(allowed)}, found '{value}'")
    return value


__all__ = ["DEPTHS", "OrderWords", "parse_order"]
