# Tests: test/passes/tile/test_choose_runs.py
"""A run of layers in a core: the pieces of the maps between its layers, which are made in NRAM and read there.

The last layer's nest of pieces is the nest of the run.  What its piece needs of the map before it is a piece of that
map, by the same formula by which a layer that stands alone loads one; and so on back to the maps in SRAM.  Pieces of
neighbouring cores, and those that follow each other, overlap where windows do: their borders are made again.

Places count from the nominal beginning of a piece, as everywhere, and are clipped to the map: what lies outside is
the padding of the layer that reads them.  A piece of a map between ends where the last layer's end at the latest.

A layer stands in the body of the innermost loop that moves its piece.  Where it and its reader are on different units
of the core it is a pass ahead, with two copies of the piece, so that both units work.
Source: docs/techniques/tfu.md, "Running a unit".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.extents import replaced
from frustum.dialects.isa.program import Affine
from frustum.dialects.tile import Access, ComputeOp, ConvLayer, SubMap, Whole
from frustum.passes.analysis import piece_nest as nests
from frustum.passes.analysis.piece_nest import Piece
from frustum.passes.lower.unit.layer import computed
from frustum.passes.lower.unit.layer_nest import Before, LayerNest, Site, WeightSource, set_copies
from frustum.passes.lower.unit.layer_pieces import LayerPieces
from frustum.passes.lower.unit.memory_map import CHANNELS, Placed, StagedTags, allocate, packed


@dataclass(frozen=True)
class Inside:
    """What a run needs of the unit: the place of a tile in SRAM, or, of a tile in the core, its region; weights and
    vectors of a layer; where it is lowered; and who takes the buffers that stay from tile to tile."""

    place: Callable[[SSAValue], Placed]
    weights: Callable[[ComputeOp], tuple[WeightSource | None, dict[str, Placed]]]
    site: Callable[[ComputeOp], Site]
    keep: Callable[[Sequence[Operation]], None]


Units: TypeAlias = frozenset[str]
"""Units of a core that make a piece."""
VECTOR: Units = frozenset({"vector"})
MATRIX: Units = frozenset({"matrix"})


def units_of(low: LayerNest) -> Units:
    """Those that compute a layer: both where they share its channels."""
    if low.map.beside:
        return VECTOR | MATRIX
    return MATRIX if low.is_matrix else VECTOR


@dataclass(frozen=True)
class Made:
    """A piece in the core: its place and buffer, inside how many loops of the nest it is made, and of each layer that
    makes it (several of a concatenation) the stage in the body there, and the units of the core that make it."""

    placed: Placed
    alloc: isa.AllocOp
    depth: int
    makers: tuple[tuple[int, Units], ...]

    @property
    def first(self) -> int:
        """The stage of the earliest."""
        return min(stage for stage, _ in self.makers)


def pieces_of_run(
    op: ComputeOp, tiles: Sequence[Placed], out: Placed, inside: Inside
) -> tuple[dict[int, Placed], Before]:
    """The operands of the last layer of a run, by number, that the run makes, and how."""
    last, before = LayerNest(op, tiles, out, inside.site(op)), Before()
    wanted = [k for k, value in enumerate(op.tiles) if t.is_in_core(value)]
    is_whole = last.nest.position(nests.CHANNELS_IN) is None and not last.is_summed and not last.nest.part_of_group
    if wanted and (last.reduced or not is_whole):
        raise PassFailedException(f"{op.kind.data} at the end of a run takes all channels at once, found {op.map.data}")
    run = _Run(last, op.map.data, inside, before)
    made = {k: run.piece_of(op.tiles[k], last.access[k], last.piece) for k in wanted}
    run.read_by(made.values(), LAST, units_of(last))
    return {k: own.placed for k, own in made.items()}, before


LAST = -1
"""The depth of the last layer, which takes its stage from all that stands in its body."""


@dataclass(frozen=True)
class _Run:
    """The last layer of a run with its sub-map, what the run needs of the unit, and what it makes."""

    last: LayerNest
    map: SubMap
    inside: Inside
    before: Before

    def piece_of(self, value: SSAValue, access: Access, reader: Piece) -> Made:
        """The piece of a tile in the core that a layer's piece needs."""
        whole, access = self.inside.place(value), nests.of_whole_groups(access)
        piece = needed(access, reader, whole)
        if isinstance(value.owner, t.ConcatOp):
            return self.side_by_side(value.owner, whole, piece)
        assert isinstance(value.owner, ComputeOp)
        return self.layer(value.owner, whole, piece)

    def layer(self, op: ComputeOp, whole: Placed, piece: Piece, into: tuple[Placed, isa.AllocOp] | None = None) -> Made:
        """One layer's piece, perhaps `into` a larger one, and before it what the run makes for it."""
        depth, kind, accesses = self.depth_of(piece), op.layer, [a.data for a in op.access.data]
        nest = replace(self.last.nest, loops=self.last.nest.loops[:depth], piece=piece)
        channels = kind.channels if isinstance(kind, ConvLayer) else 0
        made = {k: self.piece_of(v, accesses[k], piece) for k, v in enumerate(op.tiles) if t.is_in_core(v)}
        tiles, site = [self.inside.place(value) for value in op.tiles], self.inside.site(op)
        low = LayerPieces(
            op, tiles, whole, *self.inside.weights(op), site,
            in_core={k: own.placed for k, own in made.items()},
            cut=(replace(op.map.data, extent=piece.extent, cores=self.map.cores, channels=channels,
                         outer=self.map.outer, weights="unit", compact=False), nest),
        )  # fmt: skip
        if low.kind.is_copied:
            return self.copied(low, depth)
        self.inside.keep(low.kept)
        stage = self.read_by(made.values(), depth, units_of(low))
        for load in low.loads:
            self.before.put(load.depth, stage - 1 if load.depth == depth else None, load.ops)
        if into is None:
            (alloc,) = low.results
            assert isinstance(alloc, isa.AllocOp)
            self.before.put(depth, None, [alloc])
        else:
            place, alloc = into
            low.result = low.made = replace(place, start=piece.start, extent=piece.extent, bound=whole.bound)
        self.before.put(depth, stage, computed(low, StagedTags(stage=0, **site.tags)))
        return Made(low.result, alloc, depth, ((stage, units_of(low)),))

    def copied(self, low: LayerPieces, depth: int) -> Made:
        """A piece that is loaded as its reader needs it: what only moves elements is no step of its own."""
        (load,) = low.loads
        alloc = load.ops[0]
        assert isinstance(alloc, isa.AllocOp) and load.depth == depth
        self.before.put(depth, 0, load.ops)
        return Made(low.result, alloc, depth, ((0, VECTOR),))

    def side_by_side(self, op: t.ConcatOp, whole: Placed, piece: Piece) -> Made:
        """Pieces of several maps in the places that they have in one."""
        if piece.start[CHANNELS] != Affine() or piece.extent[CHANNELS] != whole.bound[CHANNELS]:
            raise PassFailedException("a concatenation in the core is read with all of its channels")
        into, depth, first = packed(whole, piece.start, piece.extent), self.depth_of(piece), 0
        makers: list[tuple[int, Units]] = []
        alloc = allocate(into, "nram", 1)
        self.before.put(depth, None, [alloc])
        for value in op.tiles:
            own, maker = self.inside.place(value), value.owner
            assert isinstance(maker, ComputeOp), "parts of a concatenation in the core are layers' maps"
            held = replace(into, origin=replaced(into.start, CHANNELS, Affine(-first)))
            extent, bound = (replaced(x, CHANNELS, own.bound[CHANNELS]) for x in (piece.extent, piece.bound))
            made = self.layer(maker, own, replace(piece, extent=extent, bound=bound), (held, alloc))
            makers += made.makers
            first += own.bound[CHANNELS]
        return Made(into, alloc, depth, tuple(makers))

    def depth_of(self, piece: Piece) -> int:
        """How many loops of the nest move a piece."""
        ends = [limit for limit in piece.limit if limit is not None]
        return max(0, *(len(place.loops) - self.last.nest.first_level for place in (*piece.start, *ends)))

    def read_by(self, made: Collection[Made], depth: int, units: Units) -> int:
        """The stage of a layer that reads these pieces in the body at a depth, behind what is loaded there, with as
        many copies of them as it is passes behind; what is made outside of that body is read by the loop there."""
        found, here = 1, [own for own in made if own.depth == depth]
        for own in made:
            behind = max(1, *(stage + (len(units | own_units) > 1) for stage, own_units in own.makers))
            if own.depth == depth:
                found = max(found, behind)
            else:
                self.before.is_read_inside(own.depth, behind, own.alloc, own.first)
        for own in here:
            set_copies(own.alloc, found - own.first + 1 if depth else 1)
        return found


def needed(access: Access, reader: Piece, whole: Placed) -> Piece:
    """The piece of a map that a reader's piece needs; where the reader's ends early, so does this."""
    starts, extents = nests.needs(access, reader)
    limits: list[Affine | None] = []
    for axis, limit, bound, size in zip(access, reader.limit, reader.bound, whole.bound, strict=True):
        if isinstance(axis, Whole):
            limits.append(None)
            continue
        if axis.den != 1:
            raise PassFailedException(f"a piece in the core is read at its own positions, found {axis}")
        end = axis.start((Affine(bound) if limit is None else limit) + -1) + 1 + axis.reach
        limits.append(None if end.is_constant and end.base >= size else end)
    return Piece(starts, extents, whole.bound, tuple(limits))
