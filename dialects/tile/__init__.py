"""Dialect `ftile`: units as loops over tiles that are loaded, computed and stored.

Operations: `unit` (the loops), `load` (DRAM to SRAM tile), `compute` (one layer on a tile, spread over the
cores by its map), `concat` (tiles that lie side by side in one), `store` (SRAM tile to DRAM), `send` (part of a
tile to another cluster), `move` (a copy through SRAM with loops of its own), `yield` (the tensors a unit has
written, and the tiles that stay in SRAM after it).

Every layer is seen as a nest of four dimensions d0..d3 (n, c, h, w of a feature map); `docs/ir-tile.md`.
"""

from xdsl.ir import Dialect

from frustum.dialects.tile.access import SAME, Access, AccessAttr, AnyAxis, Axis, TensorView, ViewAttr, Whole
from frustum.dialects.tile.operations import ComputeOp, ConcatOp, LoadOp, MoveOp, SendOp, StoreOp
from frustum.dialects.tile.parameters import Plain, to_attributes, to_plain
from frustum.dialects.tile.sub_map import MapAttr, Outer, Residency, SubMap
from frustum.dialects.tile.sweeps import SweepsAttr
from frustum.dialects.tile.tile_type import Raster, Tile, TileType, is_ring
from frustum.dialects.tile.unit import IMAGE_LOOPS, ROLLING_LOOPS, TILE_LOOPS, UnitOp, YieldOp

__all__ = [
    "IMAGE_LOOPS",
    "ROLLING_LOOPS",
    "SAME",
    "TILE_LOOPS",
    "Access",
    "AccessAttr",
    "AnyAxis",
    "Axis",
    "ComputeOp",
    "ConcatOp",
    "FTile",
    "LoadOp",
    "MapAttr",
    "MoveOp",
    "Outer",
    "Plain",
    "Raster",
    "Residency",
    "SendOp",
    "StoreOp",
    "SubMap",
    "TensorView",
    "Tile",
    "TileType",
    "UnitOp",
    "ViewAttr",
    "Whole",
    "YieldOp",
    "is_ring",
    "to_attributes",
    "to_plain",
]

FTile = Dialect(
    "ftile",
    [UnitOp, LoadOp, ComputeOp, ConcatOp, StoreOp, SendOp, MoveOp, YieldOp],
    [AccessAttr, ViewAttr, MapAttr, SweepsAttr, TileType],
)
