# Tests: test/pipeline/test_stops_agree.py
"""The loops over the tiles of one unit, as they are opened and closed."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, Region
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.isa.program import Affine
from frustum.dialects.tile import Sweep
from frustum.passes.analysis.roll import COLUMNS, ROWS


class TileLoops:
    """`loops` over tiles (the dimension, if it is one's own, and passes), the first `shared` of them around all sweeps;
    `levels`: tile indices as affines of these; `bodies`: of the loops, the program's own first."""

    def __init__(self, unit: t.UnitOp, clusters: int):
        self.unit = unit
        self.clusters = clusters
        self.deepest_copies: int = unit.depth.value.data
        counts, swept = unit.tile_counts, (ROWS, COLUMNS) if unit.sweeps else ()
        self.loops: list[tuple[int | None, int]] = [
            (d, counts[d]) for d in unit.loop_order if counts[d] > 1 and d not in swept
        ]
        self.shared: int = len(self.loops)
        self.levels: dict[int, Affine] = {
            d: Affine.index(level) for level, (d, _) in enumerate(self.loops) if d is not None
        }
        self.bodies: list[Block] = [Block() for _ in range(len(self.loops) + 1)]

    def __len__(self) -> int:
        return len(self.loops)

    @property
    def innermost(self) -> Block:
        return self.bodies[-1]

    @property
    def is_in_parts(self) -> bool:
        """Whether the unit has several sweeps."""
        return self.unit.sweeps is not None and len(self.unit.sweeps.data) > 1

    def begin(self, sweep: Sweep) -> None:
        """Open a sweep's loops.  Of several each has one loop at least, so that what it moves is its own."""
        counts = sweep.counts or ((1,) if self.is_in_parts else ())
        self.loops += [(None, count) for count in counts]
        self.bodies += [Block() for _ in counts]
        self.levels |= {ROWS: self.inside(sweep.row), COLUMNS: self.inside(sweep.column)}

    def inside(self, place: Affine) -> Affine:
        """An affine of a sweep's loops as one of all loops."""
        return Affine(place.base, (0,) * self.shared + place.loops if place.loops else (), place.cluster)

    def end(self, outer_depth: int) -> None:
        """Nest the bodies into the one at a depth."""
        for depth in range(len(self.loops) - 1, outer_depth - 1, -1):
            outer, body = self.bodies[depth], self.bodies[depth + 1]
            moves = depth and any(not isinstance(op, isa.AllocOp | isa.RepeatOp) for op in outer.ops)
            stage = 1 if moves and self.deepest_copies > 1 else 0
            outer.add_op(isa.RepeatOp(self.loops[depth][1], Region(body), stage=stage))
        del self.loops[outer_depth:], self.bodies[outer_depth + 1 :]

    def inner_stage(self) -> int:
        """Stage of the layers: behind the loads of the same body, if the body is a loop and has loads."""
        moves = any(not isinstance(op, isa.AllocOp) for op in self.innermost.ops)
        return 1 if self.loops and moves and self.deepest_copies > 1 else 0

    def depth_of(self, starts: Sequence[Affine]) -> int:
        """How many loops must be open for something at these positions (already in loop levels)."""
        return max((len(start.loops) for start in starts), default=0)

    def least_depth(self, starts: Sequence[Affine]) -> int:
        """Loops that must be open for what begins here, in tile indices: one's own sweep if it moves with it."""
        moves = any(any(start.loops[ROWS:]) for start in starts)
        return self.shared + 1 if self.is_in_parts and moves else 0

    def copies(self, depth: int) -> int:
        """Copies of what is moved in the body at a depth, so that the next pass may load while this one computes."""
        return self.deepest_copies if depth else 1

    def passes_outside(self, dimension: int) -> Affine:
        """Which pass of the loops outside of a dimension's own this is; raises if others are inside."""
        own = [level for level, (d, _) in enumerate(self.loops) if d == dimension]
        level = own[0] if own else len(self.loops)
        if level < len(self.loops) - 1 or self.unit.sweeps is not None:
            raise PassFailedException(
                f"unit {self.unit.unit_name.data}: rows roll in the innermost loop, found loops {self.unit.loop_order}"
            )
        number, passes = Affine(), 1
        for outer in range(level - 1, -1, -1):
            number, passes = number + Affine.index(outer, passes), passes * self.loops[outer][1]
        return number
