# Tests: test/passes/lower/tree/test_copies.py
"""Instructions as they are written: open loops, the stage and the names that what is added belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block, Operation, Region, SSAValue

from frustum.dialects import isa
from frustum.dialects.extents import aligned
from frustum.dialects.isa.program import MAX_LOOPS, ZERO, Affine, Instruction, Memory, Span
from frustum.dialects.target import Target
from frustum.passes.lower.tree.spans import NotLowered, end, extremes


class Code:
    """A program while it is written.

    `counts`: passes of the loops that are open, outermost first; `layer` and `unit` are what added instructions belong
    to in reports, `stage` is theirs in the innermost loop; `around`: blocks and stages outside of each open loop.
    """

    def __init__(self, target: Target) -> None:
        self.target: Target = target
        self.counts: list[int] = []
        self.block: Block = Block()
        self.stage: int = 0
        self.around: list[tuple[Block, int]] = []
        self.layer: int = 0
        self.unit: int = 0

    @property
    def cores(self) -> int:
        """Of a cluster."""
        return self.target.cluster.cores

    @property
    def clusters(self) -> int:
        """Of a chip."""
        return self.target.chip.clusters

    @property
    def depth(self) -> int:
        """How many loops are open."""
        return len(self.counts)

    def add(self, op: Operation) -> Operation:
        """Adds an operation to the innermost loop."""
        self.block.add_op(op)
        return op

    def emit(self, instruction: Instruction, *buffers: SSAValue | None) -> Operation:
        """Adds an instruction on these buffers."""
        tags = {"layer": self.layer, "unit": self.unit, "stage": self.stage}
        return self.add(isa.emit(instruction, *buffers, **tags))

    def allocate(self, memory: Memory, size_bytes: int, copies: int = 1, *, rolls: bool = False) -> SSAValue:
        """A buffer of the innermost loop; `rolls`: its bytes stay from pass to pass."""
        size = aligned(max(1, size_bytes))
        made = isa.AllocOp(memory, size, rolling=1) if rolls else isa.AllocOp(memory, size, copies)
        self.add(made)
        return made.buffer

    @contextmanager
    def repeat(self, count: int, *, is_kept: bool = False) -> Iterator[Affine]:
        """A loop around what is added meanwhile, and its index; none where there is one pass, unless it is kept."""
        if count == 1 and not is_kept:
            yield ZERO
            return
        if len(self.counts) == MAX_LOOPS:
            raise NotLowered(f"more than {MAX_LOOPS} loops around each other")
        outer, stage = self.block, self.stage
        self.block, self.stage = Block(), 0
        self.counts.append(count)
        self.around.append((outer, stage))
        yield Affine.index(len(self.counts) - 1)
        self.around.pop()
        self.counts.pop()
        body, self.block, self.stage = self.block, outer, stage
        self.add(isa.RepeatOp(count, Region(body), stage=stage))

    @contextmanager
    def supposed(self, counts: Sequence[int]) -> Iterator[tuple[Affine, ...]]:
        """Indices of loops of so many passes as if they were open, while nothing is added."""
        depth = len(self.counts)
        self.counts.extend(counts)
        try:
            yield tuple(Affine.index(depth + k) for k in range(len(counts)))
        finally:
            del self.counts[depth:]

    @contextmanager
    def at_stage(self, stage: int) -> Iterator[None]:
        """What is added meanwhile has this stage."""
        before, self.stage = self.stage, stage
        yield
        self.stage = before

    @contextmanager
    def before_loop(self) -> Iterator[None]:
        """What is added meanwhile stands in front of the innermost loop."""
        inner, count, outer = (self.block, self.stage), self.counts.pop(), self.around.pop()
        self.block, self.stage = outer
        yield
        (self.block, self.stage), outer = inner, (self.block, self.stage)
        self.around.append(outer)
        self.counts.append(count)

    # ------------------------------------------------------------ questions about loops

    def extremes(self, value: Affine) -> tuple[int, int]:
        """The least and greatest value in the loops that are open."""
        return extremes(value, self.counts, self.cores, self.clusters)

    def is_inside(self, span: Span) -> bool:
        """Whether no pass clips the span."""
        low, high = self.extremes(span.start)
        return low >= 0 and high + span.extent <= span.bound and (span.limit is None or self._is_beyond(span))

    def _is_beyond(self, span: Span) -> bool:
        assert span.limit is not None
        return self.extremes(span.limit - span.start)[0] >= span.extent

    def is_passed(self, span: Span, reach: int) -> bool:
        """Whether pieces that reach over so many positions go beyond a span, where there are positions."""
        return reach > span.extent and self.extremes(end(span))[0] < span.bound

    def plain(self, span: Span) -> Span:
        """The span without a limit that cuts nothing."""
        return Span(span.start, span.extent, span.bound) if span.limit is not None and self._is_beyond(span) else span


def set_stage(op: Operation, stage: int) -> None:
    """The stage of an instruction or a loop."""
    op.properties["stage"] = IntegerAttr(stage, i64)
