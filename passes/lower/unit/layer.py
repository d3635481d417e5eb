"""One layer on one tile: pieces loaded into the cores, computed, stored back to SRAM, as a nest of loops.

Stages of a loop body: streamed weights arrive in SRAM (0), pieces arrive in NRAM and WRAM (1), the rest (2); stages
that a body does not need are left out, so that loads run ahead of computing by one pass.
"""

from __future__ import annotations

from xdsl.ir import Block, Operation, Region

from frustum.dialects import isa
from frustum.dialects.isa.program import Scale
from frustum.passes.lower.unit.instructions import compute
from frustum.passes.lower.unit.layer_pieces import LayerPieces
from frustum.passes.lower.unit.memory_map import StagedTags, copied
from frustum.passes.lower.unit.piece_stores import Leaving, Part, part_of_pieces
from frustum.passes.lower.unit.prefetch import set_stage
from frustum.passes.lower.unit.raster import parts_of


class LayerLowering:
    """Builds the nest of one `ftile.compute`; `leaving`: what is stored or sent of its result piece by piece."""

    def __init__(self, pieces: LayerPieces):
        self.pieces = pieces
        self.leaving: list[tuple[Leaving, Part]] = []

    def takes(self, leaving: Leaving) -> bool:
        """Whether what is stored or sent of the result can go piece by piece, as part of this layer, and then does."""
        own = self.pieces
        if own.reduced or not own.out_depth:
            return False
        part = part_of_pieces(leaving, own.piece, own.out, own.site.cores)
        if part is not None:
            self.leaving.append((leaving, part))
        return part is not None

    def emit(self, block: Block) -> None:
        """Append the whole layer to a block."""
        self.body(block, 0, self.pieces.site.stage)

    def body(self, block: Block, depth: int, stage: int) -> None:
        """The body at this depth: streams, loads, then the inner loop or the computation, then the store."""
        own, step = self.pieces, 1 if depth else 0
        for loads in (own.streams, own.loads):
            here = [op for load in loads if load.depth == depth for op in load.ops]
            set_stage(here, stage)
            block.add_ops(here)
            stage += step * bool(here)
        if depth == own.out_depth:
            block.add_ops(own.results)
        if depth < len(own.nest.loops):
            inner = Block()
            self.body(inner, depth + 1, 0)
            block.add_op(isa.RepeatOp(own.nest.loops[depth][1], Region(inner), stage=stage))
        elif not own.is_copied:
            block.add_op(compute(own, StagedTags(stage=stage, **own.site.tags)))
        if depth == own.out_depth:
            stored = self.stored()
            set_stage(stored, stage)
            block.add_ops(stored)
            block.add_ops([leaving.copy(part, stage) for leaving, part in self.leaving])

    def stored(self) -> list[Operation]:
        """The result of a piece to SRAM; partial sums of a reduction are narrowed first."""
        own = self.pieces
        parts = parts_of(own.out, own.result_box)
        narrowed = [self.narrowed()] if own.reduced and own.acc is not None else []
        return [*narrowed, *(copied("mvdma", own.result, place, box, own.site.tags) for place, box in parts)]

    def narrowed(self) -> Operation:
        own = self.pieces
        assert own.acc is not None
        scales = None if own.kind.scales is None else (Scale(), own.kind.scales[-1])
        acc, out = own.acc.own_view, own.result.own_view
        narrow = isa.Unary(kind="identity", in_view=acc, out_view=out, box=own.result_box, scales=scales)
        return isa.emit(narrow, own.acc.buffer, own.result.buffer, **own.site.tags)
