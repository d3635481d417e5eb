# Tests: test/pipeline/test_dealing.py
"""Input channels dealt to the cores of a cluster: each makes the sums of its channels for the whole piece, and then
adds up a share of the piece from what all have made.

The sums meet in SRAM: every core stores its own, and loads its share of everybody's.  Bias, residual and activation are
done by the vector unit on the share, and what is stored is rounded once, as on the way out of the matrix unit.
Source: docs/techniques/machine.md, "Matrix unit" (accumulators can be kept, so that input channels can be split).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.ir import Operation

from frustum.dialects import isa
from frustum.dialects.extents import replaced
from frustum.dialects.isa.program import Act, Affine, Box
from frustum.dialects.tile import SubMap, shared_along
from frustum.passes.analysis.piece_nest import Piece
from frustum.passes.lower.unit.memory_map import Placed, Tags, allocate, copied, packed

IMAGES = 0
"""The dimension along which the sums of the cores lie one after the other: a piece has one image."""


def share_of(piece: Piece, submap: SubMap, cores: int) -> Piece:
    """The part of a piece for which a core adds up what all have made."""
    d = shared_along(submap.extent, cores)
    extent = submap.extent[d] // cores
    start = tuple(s + Affine(core=extent) if k == d else s for k, s in enumerate(piece.start))
    return replace(piece, start=start, extent=replaced(piece.extent, d, extent))


@dataclass(frozen=True)
class PartialSums:
    """Buffers on the way from the sums of one core to its share of the result: `own` sums of the whole piece, those of
    all cores in SRAM (`met`), everybody's of the share (`shared`)."""

    piece: Piece
    share: Piece
    own: Placed
    met: Placed
    shared: Placed
    copies: int
    cores: int
    tags: Tags

    @staticmethod
    def of(piece: Piece, share: Piece, own: Placed, cores: int, copies: int, tags: Tags) -> PartialSums:
        """`own`: the place of a core's sums, of f32."""
        size = own.extent[1] * own.extent[2] * own.extent[3] * 4
        met = Placed(
            own.element,
            with_images(piece.start, Affine()),
            replaced(own.extent, IMAGES, cores),
            replaced(own.bound, IMAGES, cores),
            replaced(own.strides, IMAGES, size),
        )
        shared = packed(met, with_images(share.start, Affine()), replaced(share.extent, IMAGES, cores))
        return PartialSums(piece, share, own, met, shared, copies, cores, tags)

    def meeting(self) -> list[Operation]:
        """Own sums go to SRAM, the share of everybody's comes back."""
        ops: list[Operation] = [allocate(self.met, "sram", self.copies)]
        core = Affine(core=1)
        stored = replace(self.own, start=with_images(self.piece.start, core))
        box = self.box_of(self.piece, core, 1)
        ops.append(copied("mvdma", stored, self.met, box, self.tags))
        ops.append(allocate(self.shared, "nram", self.copies))
        ops.append(copied("mvdma", self.met, self.shared, self.box_of(self.share, Affine(), self.cores), self.tags))
        return ops

    def box_of(self, piece: Piece, first: Affine, count: int) -> Box:
        """The box of a piece of the sums of some cores."""
        return Box(
            with_images(piece.start, first),
            replaced(piece.extent, IMAGES, count),
            replaced(piece.bound, IMAGES, self.cores),
            (None, *piece.limit[1:]),
        )

    def added(
        self, result: Placed, bias: Placed | None, residual: Placed | None, act: Act | None
    ) -> list[Operation]:
        """The share of the result, of everybody's sums."""
        terms = [term for term in (bias, residual) if term is not None]
        ops: list[Operation] = []
        steps = len(terms) + (act is not None and not terms)
        places = [packed(result, result.start, result.extent, "f32") for _ in range(steps)] + [result]
        ops += [allocate(place, "nram", self.copies) for place in places[:-1]]
        out = places[0].own_view
        total = isa.Reduce(
            kind="sum",
            axes=(IMAGES,),
            in_view=self.shared.own_view,
            out_view=replace(out, strides=replaced(out.strides, IMAGES, 0)),
            box=self.box_of(self.share, Affine(), self.cores),
        )
        ops.append(isa.emit(total, self.shared.buffer, places[0].buffer, **self.tags))
        for k, term in enumerate(terms):
            is_last = term is terms[-1]
            sums, made = places[k], places[k + 1]
            add = isa.Binary(
                kind="add",
                a_view=sums.own_view,
                b_view=term.own_view,
                out_view=made.own_view,
                box=self.share.box,
                act=act if is_last else None,
            )
            ops.append(isa.emit(add, sums.buffer, term.buffer, made.buffer, **self.tags))
        if act is not None and not terms:
            sums, made = places
            alone = isa.Unary(
                kind=act.kind, in_view=sums.own_view, out_view=made.own_view, box=self.share.box,
                alpha=act.alpha, beta=act.beta,
            )  # fmt: skip
            ops.append(isa.emit(alone, sums.buffer, made.buffer, **self.tags))
        return ops


def with_images(start: tuple[Affine, ...], first: Affine) -> tuple[Affine, ...]:
    """The start of a box whose first dimension counts cores."""
    return (first, *start[1:])
