# Tests: test/passes/plan/tree/test_search.py
"""What candidates of a nest cost for every size of SRAM: arrays, without a word about loops.

More SRAM buys fewer DRAM bytes.  The ways of one tensor are a convex list of steps, which all tensors together fill in
the order of what a byte of SRAM saves: the least for all sizes at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from frustum.passes.plan.tree.spans import Floats

Chosen: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class NestPrices:
    """Bytes of tensors under candidates.

    Of tensors from outside (those inside have zeros): `size` and `moved`, [tensors, candidates], of the way with the
    least SRAM; `sizes` and `saved`, [steps, tensors, candidates], of SRAM taken and DRAM saved by each step up.
    Of tensors inside: `border` stays from pass to pass, `tile` is what one pass makes.  `slices`: what is streamed.
    `alive`, [layers, tensors]: 1 where a tile lives while a layer runs, or its slices pass; `replaced`: pairs of a
    layer's place and of the result and operand that share storage there.  `repeated`: infinite where too much is
    computed again.  `busy`: bytes that the DRAM port could move while cores work; with `adds_up` they come on top, else
    those that it does not move count, each as such a part of a byte as `idle` says.  So do those for which the first
    pass waits, and behind the last one: `first`, [tensors], of each byte in SRAM.
    """

    outside: NDArray[np.bool_]
    adds_up: bool
    idle: float
    whole: Floats
    first: Floats
    size: Floats
    moved: Floats
    sizes: Floats
    saved: Floats
    border: Floats
    tile: Floats
    slices: Floats
    alive: Floats
    replaced: tuple[tuple[int, int, int], ...]
    repeated: Floats
    busy: Floats

    def only(self, chosen: Chosen) -> NestPrices:
        arrays: dict[str, Any] = {name: getattr(self, name)[..., chosen] for name in _BY_CANDIDATE}
        return replace(self, **arrays)

    @staticmethod
    def joined(parts: Sequence[NestPrices]) -> NestPrices:
        """Candidates of several nests of the same layers."""
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in _BY_CANDIDATE
        }
        return replace(parts[0], **arrays)

    def own(self, resident: NDArray[np.bool_]) -> Floats:
        """SRAM of what the layers hand each other and stream."""
        free = ~resident
        alive = (self.alive * free) @ (self.tile + self.slices)
        for layer, new, old in self.replaced:
            if free[new] and free[old]:
                alive[layer] -= np.minimum(self.tile[new], self.tile[old])
        return free @ self.border + alive.max(axis=0)

    def priced(self, shares: Floats, room: Floats) -> Floats:
        """The fewest DRAM bytes, by room in SRAM and candidate, where of each tensor this share is in SRAM already;
        infinite where the room does not do."""
        moves = np.where(self.outside, 1.0 - shares, 0.0)
        base = self.own(shares == 1.0) + (moves > 0) @ self.size
        moved = self.repeated + moves @ self.moved
        if self.adds_up:
            moved = moved + self.busy
        left = room[:, None] - base[None, :]
        found = np.repeat(moved[None, :], len(room), axis=0)
        free = np.flatnonzero(moves)
        late = np.where(moves > 0, self.first, 0.0)
        waits = np.repeat((late @ self.size)[None, :], len(room), axis=0) if late.any() else None
        size = self.sizes[:, free].reshape(-1, len(base))
        save = (self.saved[:, free] * moves[free, None]).reshape(-1, len(base))
        wait = np.broadcast_to(late[free], (len(self.sizes), len(free))).reshape(-1)
        useful = save.any(axis=1)
        size, save, wait = size[useful], save[useful], wait[useful]
        if len(size):
            density, later = save / size, np.repeat(wait[:, None], len(base), axis=1)
            order = np.argsort(-(density - later), axis=0, kind="stable")
            column = np.arange(len(base))[None, :]
            size, density, later = size[order, column], density[order, column], later[order, column]
            size = np.where(density > later, size, 0.0)
            before = np.cumsum(size, axis=0) - size
            for k in range(len(size)):
                filled = left - before[k]
                np.maximum(filled, 0.0, out=filled)
                np.minimum(filled, size[k], out=filled)
                found -= filled * density[k]
                if waits is not None:
                    waits += filled * later[k]
        if not self.adds_up and self.busy.any():
            found += np.maximum(self.busy - found, 0.0) * self.idle
        if waits is not None:
            found += waits
        found[left < 0] = np.inf
        return found


_BY_CANDIDATE = ("size", "moved", "sizes", "saved", "border", "tile", "slices", "repeated", "busy")
