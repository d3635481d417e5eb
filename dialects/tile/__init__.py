"""Dialect `ftile`: units as loops over tiles that are loaded, computed and stored.

Operations: `unit` (the loops), `load` (DRAM to SRAM tile), `compute` (one layer on a tile, spread over the
cores by its map), `concat` (tiles that lie side by side in one), `store` (SRAM tile to DRAM), `send` (part of a
tile to another cluster), `move` (a copy through SRAM with loops of its own), `yield` (the tensors a unit has
written, and the tiles that stay in SRAM after it).

Every layer is seen as a nest of four dimensions d0..d3 (n, c, h, w of a feature map); `docs/ir-tile.md`.
"""

from xdsl.ir import Dialect

from frustum.dialects.tile.access import (
    SAME,
    Access,
    AccessAttr,
    AnyAxis,
    Axis,
    MapAttr,
    Outer,
    Residency,
    SubMap,
    TensorView,
    ViewAttr,
    Whole,
)
from frustum.dialects.tile.layers import (
    BinaryLayer,
    ConcatLayer,
    ConvLayer,
    LayerKind,
    LrnLayer,
    Operations,
    PickLayer,
    PoolLayer,
    ReduceLayer,
    ResizeLayer,
    Scaling,
    ShuffleLayer,
    SoftmaxLayer,
    UnaryLayer,
)
from frustum.dialects.tile.operations import ComputeOp, ConcatOp, LoadOp, MoveOp, SendOp, StoreOp
from frustum.dialects.tile.tile_type import Raster, Tile, TileType, is_ring, tile_of
from frustum.dialects.tile.unit import (
    IMAGE_LOOPS,
    ROLLING_LOOPS,
    TILE_LOOPS,
    Sweep,
    SweepsAttr,
    UnitOp,
    YieldOp,
)

__all__ = [
    "IMAGE_LOOPS",
    "ROLLING_LOOPS",
    "SAME",
    "TILE_LOOPS",
    "Access",
    "AccessAttr",
    "AnyAxis",
    "Axis",
    "BinaryLayer",
    "ComputeOp",
    "ConcatLayer",
    "ConcatOp",
    "ConvLayer",
    "FTile",
    "LayerKind",
    "LoadOp",
    "LrnLayer",
    "MapAttr",
    "MoveOp",
    "Operations",
    "Outer",
    "PickLayer",
    "PoolLayer",
    "Raster",
    "ReduceLayer",
    "Residency",
    "ResizeLayer",
    "Scaling",
    "SendOp",
    "ShuffleLayer",
    "SoftmaxLayer",
    "StoreOp",
    "SubMap",
    "Sweep",
    "SweepsAttr",
    "TensorView",
    "Tile",
    "TileType",
    "UnaryLayer",
    "UnitOp",
    "ViewAttr",
    "Whole",
    "YieldOp",
    "is_ring",
    "tile_of",
]

FTile = Dialect(
    "ftile",
    [UnitOp, LoadOp, ComputeOp, ConcatOp, StoreOp, SendOp, MoveOp, YieldOp],
    [AccessAttr, ViewAttr, MapAttr, SweepsAttr, TileType],
)
