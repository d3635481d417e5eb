# Tests: test/backend/memory/test_allocation.py
"""Places in SRAM, and how deep each buffer is buffered into which a loop loads from DRAM: how many copies it has.

With two copies a load runs at most two passes ahead of what uses it.  More of them let the engine that loads go on
while the computation waits for something else; buffers of the next units that lie beside them let loads run ahead of
their unit.  Both take the same room, so several ways to share it out are packed, and `cost_model.py` compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from frustum.backend.memory.cost_model import CostModel
from frustum.backend.memory.early_lives import EarlyLives
from frustum.backend.memory.interference import EARLY, Life, Want, interference, life_of, outermost, wishes_of
from frustum.backend.memory.packing import pack_apart, usable
from frustum.backend.waits.loop_tree import Buffer, Path, Step
from frustum.backend.waits.read_code import Code, Section
from frustum.dialects.extents import aligned
from frustum.dialects.isa.sync import ExternalOp
from frustum.dialects.target import Target


def more_copies(
    code: Code, section: Section, uses: Sequence[Sequence[Path]], capacity: int, most: int, share: float
) -> dict[int, int]:
    """The depths, at most `most`, of buffers of a section into which a loop loads, where they are more than now.

    In each loop the buffers in turn get one copy more, as long as all together take at most `share` of the bytes that
    the buffers in use there at any time leave.
    """
    passes = _streams(code, section)
    loops: dict[int, list[int]] = {}
    for buffer in passes:
        loops.setdefault(code.buffers[buffer].path[0].position, []).append(buffer)
    found: dict[int, int] = {}
    spare = _spare(code, section, uses, loops, capacity)
    for loop, buffers in loops.items():
        growing, left = list(buffers), int(spare[loop] * share)
        while growing:
            buffer = min(growing, key=lambda b: found.get(b, code.buffers[b].depth))
            depth, size = found.get(buffer, code.buffers[buffer].depth), code.buffers[buffer].bytes
            if depth >= min(most, passes[buffer]) or size > left:
                growing.remove(buffer)
                continue
            found[buffer], left = depth + 1, left - size
    return found


def _streams(code: Code, section: Section) -> dict[int, int]:
    """The buffers in SRAM with copies that loads from DRAM fill, and nothing else, with the passes of their bodies."""
    passes: dict[int, int] = {}
    others: set[int] = set()
    for instruction in section.instructions:
        from_dram = all(
            isinstance(code.storage[a.buffer], ExternalOp) for a in instruction.accesses if not a.writes
        )
        for access in instruction.accesses:
            buffer = code.buffers[access.buffer]
            if not access.writes or buffer.memory != "sram" or buffer.depth < 2 or buffer.rolling:
                continue
            if instruction.engine == "gdma" and from_dram:
                passes[access.buffer] = prod(instruction.counts[: buffer.level])
            else:
                others.add(access.buffer)
    return {buffer: count for buffer, count in passes.items() if buffer not in others}


def _spare(
    code: Code, section: Section, uses: Sequence[Sequence[Path]], loops: Mapping[int, object], capacity: int
) -> dict[int, int]:
    """Of each loop the bytes of SRAM that no buffer in use there has."""
    used = {access.buffer for instruction in section.instructions for access in instruction.accesses}
    changes: list[tuple[int, int]] = []
    for number in used:
        buffer = code.buffers[number]
        if buffer.memory == "sram":
            start, stop = outermost(life_of(buffer, uses[number]))
            changes += [(start, buffer.total_bytes), (stop + 1, -buffer.total_bytes)]
    changes.sort()
    spare, left, at = {}, capacity, 0
    for loop in sorted(loops):
        while at < len(changes) and changes[at][0] <= loop:
            left -= changes[at][1]
            at += 1
        spare[loop] = left
    return spare


WAYS = ((0, 0.25), (2, 0.5), (0, 1.0))
"""What part of SRAM (1 / n; 0: by units) what lies between two buffers loads where their sharing costs nothing, and
the share of free SRAM for more copies; the likeliest first."""
BETTER = 0.99
"""A later way must be at least so much better: the model is about as exact."""
EFFORT = 1000
"""Buffers that all ways together place at most: small networks try all of them, large ones fewer."""
EARLY_PARTS = (1.0, 0.9, 0.8, 0.7)
"""Of SRAM that early loads may fill, in the order tried: buffers leave holes."""
EARLY_BETTER = 0.95
"""Than other ways, for those where loads come early.  Measured: vit_b_block_197 f16, `default`, 183,028 cycles without
them and 185,557 with, though the model has it 3.5 % better; resnet50 int8 on one core with 8 MiB of SRAM, 11 % better
by the model, 1,639,397 cycles, without 1,756,269."""
EARLY_SHARE = 0.25
"""Of free SRAM for more copies where loads come early."""
SEARCHES = 40
"""Orders of the buffers that are tried where SRAM is full without any copy: elsewhere copies may have room."""
ROUNDS = 6
"""So often copies are given back at most before a way is given up."""


@dataclass
class BufferPlaces:
    """The buffers of a program in SRAM (`group`), which all have `capacity` bytes; at most `copies` of each."""

    code: Code
    target: Target
    uses: Sequence[Sequence[Path]]
    wants: Sequence[Want]
    group: Sequence[int]
    copies: int

    def __post_init__(self) -> None:
        self.before: list[Buffer] = list(self.code.buffers)
        self.capacity: int = usable(self.target.memory("sram").capacity_bytes)

    def best(self) -> Sequence[int] | None:
        """The offsets in the way that takes least; the code's buffers then have its depths.  None if none fits."""
        found: tuple[float, Sequence[int], dict[int, int]] | None = None
        for offsets, depths, better in self.ways():
            cycles = self.cost_model.cycles(dict(zip(self.group, offsets, strict=True)))
            if found is None or cycles < better * found[0]:
                found = cycles, offsets, depths
        self.set_depths({} if found is None else found[2])
        return None if found is None else found[1]

    def ways(self) -> Iterator[tuple[Sequence[int], dict[int, int], float]]:
        """Offsets and depths, which the code's buffers have meanwhile, and how much better than the ways before they
        must be; at last those with buffers that live from when they could be filled."""
        for ahead, share in WAYS[: max(1, EFFORT // max(1, len(self.group)))]:
            depths = self.deepened(share)
            offsets = self.fit(depths, self.capacity // ahead if ahead else 0)
            if offsets is not None:
                yield offsets, depths, BETTER
        depths = self.deepened(EARLY_SHARE)
        for part in EARLY_PARTS:
            self.set_depths(depths)
            lives = self.early_lives(int(part * self.capacity))
            early = self.packed(interference(lives), searches=SEARCHES)
            if not isinstance(early, int):
                yield early, depths, EARLY_BETTER
                return

    def early_lives(self, capacity: int) -> list[Life]:
        """The lives of the group, of buffers that can be filled early from then on."""
        sizes = {n: aligned(self.code.buffers[n].total_bytes) for n in self.group}
        early = frozenset(n for n in self.group if self.wants[n].worth == EARLY)
        starts = EarlyLives(self.cost_model, sizes, early, capacity).starts()
        found: list[Life] = []
        for number, life in zip(self.group, self.lives, strict=True):
            start = starts.get(number)
            found.append(life if start is None else Life((Step(0, start, 0),), start, outermost(life)[1], 0))
        return found

    @cached_property
    def cost_model(self) -> CostModel:
        return CostModel(self.code, self.target)

    @cached_property
    def interfering(self) -> list[list[int]]:
        """For each of the group those it must not share bytes with: more copies change nothing of that."""
        return interference(self.lives)

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
            found |= more_copies(self.code, section, self.uses, self.capacity, self.copies, share)
        return found

    def set_depths(self, depths: Mapping[int, int]) -> None:
        self.code.buffers[:] = self.before
        for number, depth in depths.items():
            self.code.buffers[number] = replace(self.before[number], depth=depth)

    def fit(self, depths: dict[int, int], ahead_bytes: int) -> Sequence[int] | None:
        """Offsets with these depths, or with fewer copies where not all find a place (`depths` tells)."""
        for _ in range(ROUNDS):
            self.set_depths(depths)
            offsets = self.packed(self.interfering, ahead_bytes)
            if not isinstance(offsets, int):
                return offsets
            near = [self.group[offsets], *(self.group[n] for n in self.interfering[offsets])]
            given = [n for n in near if n in depths]
            if not given:
                offsets = self.packed(self.interfering, ahead_bytes, SEARCHES)
                return None if isinstance(offsets, int) else offsets
            for number in given:
                depths[number] = (depths[number] + self.before[number].depth) // 2
                if depths[number] == self.before[number].depth:
                    del depths[number]
        return None

    def packed(
        self, interfering: Sequence[Sequence[int]], ahead_bytes: int = 0, searches: int = 0
    ) -> Sequence[int] | int:
        """Offsets with the depths that the code has; or the number in the group of one that finds no place."""
        sizes = [aligned(self.code.buffers[n].total_bytes) for n in self.group]
        wishes = wishes_of([self.wants[n] for n in self.group], interfering, self.loaded, ahead_bytes)
        starts = [outermost(life)[0] for life in self.lives]
        packing = pack_apart(sizes, interfering, wishes, starts, self.capacity, searches)
        return packing if isinstance(packing, int) else packing.offsets
