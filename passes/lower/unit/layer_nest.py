# Tests: test/pipeline/test_stops_agree.py
"""One layer on one tile as a nest of loops over pieces: where it is lowered, what comes into its bodies from where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import BlockArgument, Operation, SSAValue

from frustum.dialects import isa
from frustum.dialects.extents import Extents
from frustum.dialects.isa.program import (
    ACCUMULATORS,
    Affine,
    Box,
    CopyEngine,
    Element,
    Limits,
    Memory,
    Span,
    Starts,
)
from frustum.dialects.tile import INPUTS, Access, ComputeOp, ConvLayer, LayerKind, SendOp, SubMap, TensorView
from frustum.passes.analysis import piece_nest as nests
from frustum.passes.analysis.layer import SAME4
from frustum.passes.analysis.piece_nest import CHANNELS_IN, LoopName, Nest, Piece
from frustum.passes.lower.unit.memory_map import (
    Placed,
    Tags,
    allocate,
    copied,
    sampled,
)
from frustum.passes.lower.unit.partial_sums import share_of


@dataclass(frozen=True)
class Site:
    """Where a layer is lowered: nesting level of its first loop, cores of a cluster, stage, tags for reports; whether
    its weights stay in WRAM while the unit runs; where all pieces of them are there before its first tile, once known.
    """

    level: int
    cores: int
    stage: int
    tags: Tags
    keeps_weights: bool = False
    in_core: SSAValue | None = None
    chunk_bytes: int = 0
    """Of weights that all cores get at a time before a unit begins."""
    run_bytes: int = 1
    """Runs in DRAM are not cut shorter: they would take as long."""


@dataclass(frozen=True)
class WeightSource:
    """Weights in DRAM, and `held` in SRAM, if they are not streamed; dimensions are (co, ci, kh, kw), or
    (co, ci, 1, d0) where every entry of d0 has its own."""

    tensor: Placed
    held: Placed | None
    is_batched: bool


@dataclass(frozen=True)
class MapSource:
    """A map in DRAM of which a layer takes some channels at a time: its buffer, how it lies, whether all clusters want
    the same of it."""

    buffer: SSAValue
    view: TensorView
    is_shared: bool


@dataclass(frozen=True)
class PieceLoad:
    """A buffer for the body at `depth` of the nest, and the copies that fill it."""

    depth: int
    placed: Placed
    ops: Sequence[Operation]


@dataclass
class Before:
    """What a run makes before its last layer.

    `steps`: by depth the operations of that body in their order, each with its stage there (None: one pass before what
    is inside the body, or the last layer); `stages`: by depth the least stage of that; `read`: buffers that it reads,
    and the stage in which each is first written.
    """

    steps: dict[int, list[tuple[int | None, Operation]]] = field(default_factory=dict)
    stages: dict[int, int] = field(default_factory=dict)
    read: dict[int, list[tuple[isa.AllocOp, int]]] = field(default_factory=dict)

    def put(self, depth: int, stage: int | None, ops: Iterable[Operation]) -> None:
        """Operations of the body at a depth; what goes one pass before what is inside makes that later."""
        self.steps.setdefault(depth, []).extend((stage, op) for op in ops)
        if stage is None and any(not isinstance(op, isa.AllocOp) for op in ops):
            self.stages[depth] = max(self.stages.get(depth, 0), 1)

    def is_read_inside(self, depth: int, stage: int, alloc: isa.AllocOp, written: int) -> None:
        """A buffer of the body at a depth, first written in a stage, is read inside, in this stage or later."""
        self.stages[depth] = max(self.stages.get(depth, 0), stage)
        self.read.setdefault(depth, []).append((alloc, written))


def set_copies(alloc: isa.AllocOp, count: int) -> None:
    alloc.properties["depth"] = IntegerAttr(count, i64)


class LayerNest:
    """One `ftile.compute` on its tiles, as a nest of loops over pieces; of a layer of a run that is not its last, `cut`
    says what it makes inside the loops of the last."""

    def __init__(
        self, op: ComputeOp, tiles: Sequence[Placed], out: Placed, site: Site, cut: tuple[SubMap, Nest] | None = None
    ):
        self.op = op
        self.tiles: list[Placed] = list(tiles)
        self.out = out
        self.site = site
        self.kind: LayerKind = op.layer
        self.map: SubMap = op.map.data if cut is None else cut[0]
        self.access: list[Access] = [a.data for a in op.access.data]
        self.reduced: tuple[int, ...] = self.kind.reduced
        if self.reduced:  # its pieces are pieces of the input
            self.access = [SAME4]
        if self.map.compact and isinstance(self.kind, ConvLayer):
            self.tiles[0] = sampled(self.tiles[0], out, self.kind.strides)
            self.access[0] = (*self.access[0][:2], *SAME4[2:])
            self.kind = replace(self.kind, strides=(1, 1))
        self.conv: ConvLayer | None = self.kind if isinstance(self.kind, ConvLayer) else None
        self.is_matrix: bool = self.conv is not None and not self.map.on_vector
        self.nest: Nest = cut[1] if cut else nests.build(self.map, *self.space, self.kind, site.cores, site.level)
        self.piece: Piece = self.nest.piece
        self.share: Piece = self.piece
        self.is_summed: bool = self.map.cores == INPUTS and site.cores > 1
        if self.is_summed:
            self.share = share_of(self.piece, self.map, site.cores)
        summed: list[LoopName] = [CHANNELS_IN, *self.reduced]
        self.is_accumulated: bool = any(self.nest.position(name) is not None for name in summed)
        self.out_depth: int = self.nest.depth([name for name, _ in self.nest.loops if name not in summed])

    @property
    def space(self) -> tuple[Starts, Extents, Extents]:
        """What is cut into pieces: the region of the result; of a reduction, all that goes into it."""
        out, bound = self.out, self.tiles[0].bound
        if not self.reduced:
            return out.start, out.extent, out.bound
        start = tuple(Affine() if d in self.reduced else x for d, x in enumerate(out.start))
        extent = tuple(bound[d] if d in self.reduced else x for d, x in enumerate(out.extent))
        return start, extent, bound

    @cached_property
    def result_box(self) -> Box:
        """The piece of the result that is stored.  Of a reduction: along every reduced dimension all of the region, of
        which the map has one element, if any (a reader's window may begin before the map; some clusters have no part
        of it)."""
        out, p = self.out, self.share
        spans = [
            Span(out.start[d], out.extent[d], out.bound[d]) if d in self.reduced else replace(span, bound=out.bound[d])
            for d, span in enumerate(p.box.spans)
        ]
        return Box.of(*spans)

    def span(self, d: int) -> Span:
        """What the piece needs of operand 0 along dimension d."""
        start, extent = nests.needs(self.access[0], self.piece)
        return Span(start[d], extent[d], self.tiles[0].bound[d])

    def limits_of(self, k: int) -> Limits:
        """Pieces that overshoot the region must not read beyond operand k's tile, nor, of a map that earlier units have
        left, beyond what this pass needs: its box is a hull, of which a cluster may not have all.  Nor where that is
        not what the tile's own pass makes: positions beside it come from other clusters, behind it from earlier steps.
        """
        tile = self.tiles[k]
        starts, extents = tile.start, tile.extent
        if isinstance(self.op.tiles[k], BlockArgument) or has_more(self.op.tiles[k], tile):
            starts, extents = nests.needs(self.access[k], nests.Piece(*self.space, (None,) * len(starts)))
        return tuple(
            start + extent if not (start.is_constant and start.base + extent >= bound) else None
            for start, extent, bound in zip(starts, extents, tile.bound, strict=True)
        )

    # ---------------------------------------------------------------- what the instruction says

    @property
    def wide(self) -> Element:
        """The type of partial sums."""
        return ACCUMULATORS[self.tiles[0].element] if self.conv else "f32"


def has_more(value: SSAValue, tile: Placed) -> bool:
    """Whether a tile ends with positions that its own pass has not made: others send them, or steps go backward."""
    is_sent = any(isinstance(use.operation, SendOp) for use in value.uses)
    return is_sent or any(min(start.loops, default=0) < 0 for start in tile.start)


def replaced_all(values: Extents, dims: Iterable[int], value: int) -> Extents:
    """The values with another one for some dimensions."""
    return tuple(value if d in dims else own for d, own in enumerate(values))


def copies(depth: int) -> int:
    """Buffers of what is allocated inside so many loops: the next pass fills one while this pass reads the other."""
    return 2 if depth else 1


def filled(
    low: LayerNest,
    depth: int,
    memory: Memory,
    placed: Placed,
    engine: CopyEngine,
    sources: Iterable[tuple[Placed, Box]],
    further: int = 0,
) -> PieceLoad:
    """A buffer for a box, and the copies of its parts from where they lie; `further`: passes later than the first that
    still read it."""
    alloc = allocate(placed, memory, copies(depth) + further)
    return PieceLoad(depth, placed, [alloc, *(copied(engine, own, placed, box, low.site.tags) for own, box in sources)])


def spread(low: LayerNest, *starts: Affine) -> CopyEngine:
    """One broadcast where all cores want the same box, else every core for itself."""
    return "bus" if low.site.cores > 1 and not any(start.core for start in starts) else "mvdma"
