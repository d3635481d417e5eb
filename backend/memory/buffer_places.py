"""Places in SRAM with as many copies of what loops load into as pay.

More copies let loads run ahead of their loop; buffers of the next units that lie beside them let loads run ahead of
their unit.  Both take the same room, so several ways to share it out are packed, and `forecast.py` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from frustum.backend.memory.buffering import deeper
from frustum.backend.memory.cost_model import Forecast
from frustum.backend.memory.interference import Life, life_of, meetings, outermost
from frustum.backend.memory.packing import pack_apart, usable
from frustum.backend.memory.prefetch import Want, wishes_of
from frustum.backend.waits.loop_tree import Buffer, Path
from frustum.backend.waits.read_code import Code
from frustum.dialects.isa.sync import ALIGNMENT_BYTES
from frustum.dialects.target import Target

WAYS = ((0, 0.25), (2, 0.5), (0, 1.0))
"""What part of SRAM (1 / n; 0: by units) what lies between two buffers loads where their sharing costs nothing, and
the share of free SRAM for more copies; the likeliest first."""
BETTER = 0.99
"""A later way must be at least so much better: the model is about as exact."""
EFFORT = 1000
"""Buffers that all ways together place at most: small networks try all of them, large ones fewer."""
ROUNDS = 6
"""So often copies are given back at most before a way is given up."""


@dataclass
class DeepPlaces:
    """The buffers of a program in SRAM (`group`), which all have `capacity` bytes; at most `copies` of each."""

    code: Code
    target: Target
    uses: Sequence[Sequence[Path]]
    wants: Sequence[Want]
    group: Sequence[int]
    copies: int

    def __post_init__(self) -> None:
        self.before: list[Buffer] = list(self.code.buffers)
        self.capacity = usable(self.target.memory("sram").capacity_bytes)

    def best(self) -> Sequence[int] | None:
        """The offsets in the way that takes least; the code's buffers then have its depths.  None if none fits."""
        found: tuple[float, Sequence[int], dict[int, int]] | None = None
        for ahead, share in WAYS[: max(1, EFFORT // max(1, len(self.group)))]:
            depths = self.deepened(share)
            offsets = self.fit(depths, self.capacity // ahead if ahead else 0)
            if offsets is None:
                continue
            cycles = self.forecast.cycles(dict(zip(self.group, offsets, strict=True)))
            if found is None or cycles < BETTER * found[0]:
                found = cycles, offsets, depths
        self.set_depths({} if found is None else found[2])
        return None if found is None else found[1]

    @cached_property
    def forecast(self) -> Forecast:
        return Forecast(self.code, self.target)

    @cached_property
    def met(self) -> list[list[int]]:
        """For each of the group those it must not share bytes with: more copies change nothing of that."""
        return meetings(self.lives)

    @cached_property
    def lives(self) -> list[Life]:
        return [life_of(self.before[n], self.uses[n]) for n in self.group]

    @cached_property
    def loaded(self) -> list[int]:
        """What is loaded from DRAM into each of the group."""
        found = dict.fromkeys(self.group, 0)
        for section in self.code.sections:
            for instruction in section.instructions:
                for access in instruction.accesses if instruction.engine == "gdma" else ():
                    if access.writes and access.buffer in found:
                        own = self.before[access.buffer]
                        found[access.buffer] += own.bytes * prod(instruction.counts[: own.level])
        return list(found.values())

    def deepened(self, share: float) -> dict[int, int]:
        """More copies, of each buffer that may have them."""
        self.set_depths({})
        found: dict[int, int] = {}
        for section in self.code.sections:
            found |= deeper(self.code, section, self.uses, self.capacity, self.copies, share)
        return found

    def set_depths(self, depths: Mapping[int, int]) -> None:
        self.code.buffers[:] = self.before
        for number, depth in depths.items():
            self.code.buffers[number] = replace(self.before[number], depth=depth)

    def fit(self, depths: dict[int, int], ahead_bytes: int) -> Sequence[int] | None:
        """Offsets with these depths, or with fewer copies where not all find a place (`depths` tells)."""
        wishes = wishes_of([self.wants[n] for n in self.group], self.met, self.loaded, ahead_bytes)
        starts = [outermost(life)[0] for life in self.lives]
        for _ in range(ROUNDS):
            self.set_depths(depths)
            sizes = [
                -(-self.code.buffers[n].total_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for n in self.group
            ]
            packing = pack_apart(sizes, self.met, wishes, starts, self.capacity)
            if not isinstance(packing, int):
                return packing.offsets
            near = [self.group[packing], *(self.group[n] for n in self.met[packing])]
            given = [n for n in near if n in depths]
            if not given:
                return None
            for number in given:
                depths[number] = (depths[number] + self.before[number].depth) // 2
                if depths[number] == self.before[number].depth:
                    del depths[number]
        return None
