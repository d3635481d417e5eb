"""Dialect `ftile`: units as loops over tiles that are loaded, computed and stored.

Operations: `unit` (the loops), `load` (DRAM to SRAM tile), `compute` (one layer on a tile, spread over the
cores by its map), `concat` (tiles that lie side by side in one), `store` (SRAM tile to DRAM), `send` (part of a
tile to another cluster), `move` (a copy through SRAM with loops of its own), `yield` (the tensors a unit has
written, and the tiles that stay in SRAM after it).

Every layer is seen as a nest of four dimensions d0..d3 (n, c, h, w of a feature map); `docs/ir-tile.md`.
"""

from xdsl.ir import Dialect

from frustum.dialects.tile.access import *  # noqa: F403
from frustum.dialects.tile.layers import *  # noqa: F403
from frustum.dialects.tile.operations import *  # noqa: F403
from frustum.dialects.tile.tile_type import *  # noqa: F403
from frustum.dialects.tile.unit import *  # noqa: F403

FTile: Dialect = Dialect(
    "ftile",
    [UnitOp, LoadOp, ComputeOp, ConcatOp, StoreOp, SendOp, MoveOp, YieldOp],  # noqa: F405
    [AccessAttr, ViewAttr, MapAttr, SweepsAttr, TileType],  # noqa: F405
)
