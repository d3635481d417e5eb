"""Names of layers and units for reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, NameLoc, StringAttr, i64
from xdsl.ir import Operation

from frustum.dialects import tile as t


@dataclass
class Names:
    """Names for reports, by number: layers with their multiply-accumulates, units with what is said of them."""

    layers: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    macs: list[int] = field(default_factory=list)
    own_elements: list[int] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    tiles: list[int] = field(default_factory=list)
    kept_bytes: list[int] = field(default_factory=list)
    unit_of: list[int] = field(default_factory=list)

    def layer(self, op: Operation, kind: str, macs: int, own_elements: int = 0) -> int:
        name = op.location.desc.data if isinstance(op.location, NameLoc) else f"{kind}_{len(self.layers)}"
        self.layers.append(name)
        self.kinds.append(kind)
        self.macs.append(macs)
        self.own_elements.append(own_elements)
        self.unit_of.append(len(self.units) - 1)
        return len(self.layers) - 1

    def unit(self, unit: t.UnitOp, tiles: int) -> int:
        self.units.append(unit.unit_name.data)
        self.modes.append(unit.mode.data if unit.mode else "")
        self.stopped.append(unit.stopped_by.data if unit.stopped_by else "")
        self.tiles.append(tiles)
        self.kept_bytes.append(0)
        return len(self.units) - 1

    def attributes(self) -> dict[str, ArrayAttr[Any]]:
        def texts(values: Iterable[str]) -> ArrayAttr[Any]:
            return ArrayAttr([StringAttr(v) for v in values])

        def numbers(values: Iterable[int]) -> ArrayAttr[Any]:
            return ArrayAttr([IntegerAttr(v, i64) for v in values])

        return {
            "frustum.layers": texts(self.layers),
            "frustum.layer_kinds": texts(self.kinds),
            "frustum.useful_macs": numbers(self.macs),
            "frustum.layer_units": numbers(self.unit_of),
            "frustum.units": texts(self.units),
            "frustum.unit_modes": texts(self.modes),
            "frustum.unit_stopped_by": texts(self.stopped),
            "frustum.unit_tiles": numbers(self.tiles),
            "frustum.unit_kept_bytes": numbers(self.kept_bytes),
            **({"frustum.own_elements": numbers(self.own_elements)} if any(self.own_elements) else {}),
        }
