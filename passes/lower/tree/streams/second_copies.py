# Tests: test/passes/lower/tree/test_second_copies.py
"""Buffers in SRAM that have two copies, so that passes of a loop overlap: what is loaded comes a pass ahead, and what
is made goes to DRAM a pass behind."""

from __future__ import annotations

from collections.abc import Callable, Collection

from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.occupancy import Counted
from frustum.dialects.target.fit import HOLES
from frustum.passes.lower.tree.code import Code
from frustum.passes.lower.tree.loop_spans import LoopSpans


class SecondCopies(LoopSpans):
    """How much of SRAM is taken, and which buffers may have two copies."""

    code: Code
    inside: frozenset[str]
    """Layers of the innermost loop of the plan."""
    counted: Counted
    capacity: int
    used: int
    """Bytes of SRAM that are taken."""
    most: int
    """The most of them at a time in the body of the innermost loop."""
    later: int
    """Bytes that the tree leaves free in what follows there, outside of what is being written."""

    def left_beside(self, used: int, taken: Callable[[Counted], int]) -> int:
        """Bytes that are left where so many are used and others are taken by the tree, with slices as wide as runs in
        DRAM want them."""
        return self.capacity - used - taken(self.counted.at_ease or self.counted)

    def take(self, size: int) -> None:
        """Counts bytes of SRAM that are taken."""
        self.used += size
        self.most = max(self.most, self.used)

    def has_second(self, size: int, beside: int = 0) -> bool:
        """Whether there is room for two copies of so many bytes: in all of the body of the innermost loop, and now with
        so many bytes beside them; buffers may leave holes."""
        room = min(self.later, self.capacity - self.most, self.capacity - self.used - beside)
        return self.code.depth > 0 and 2 * size <= room - self.capacity // HOLES

    def keep_second(self, taken: int, most: int) -> None:
        """Notes bytes of both copies, which lie in all of that body; `most`: what had been taken before."""
        self.most, self.later = max(self.most, most + taken), self.later - taken

    def comes_ahead(self, tensor: Tensor) -> bool:
        """Whether a tensor may be loaded a pass of the innermost loop ahead."""
        return self.code.stage > 0 and tensor not in self.made_here

    def leaves_behind(self, tensor: Tensor, near: Collection[str] = ()) -> bool:
        """Whether a result may go to DRAM a pass behind: no layer of that loop reads it there.  Those that are near
        read it in SRAM."""
        readers = {reader.name for reader in self.network.readers.get(tensor, [])}
        return self.inside.isdisjoint(readers.difference(near))

    @property
    def made_here(self) -> frozenset[Tensor]:
        """What the innermost loop of the plan makes in its passes."""
        return frozenset(self.layers[name].result for name in self.inside)
