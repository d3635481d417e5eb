"""How many copies a buffer may have into which a loop loads from DRAM.

With two copies a load runs at most two passes ahead of what uses it.  More of them let the engine that loads go on
while the computation waits for something else, as far as there is room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from frustum.backend.memory.interference import life_of, outermost
from frustum.backend.waits.loop_tree import Path
from frustum.backend.waits.read_code import Code, Section
from frustum.dialects.isa.sync import ExternalOp


def deeper(
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
