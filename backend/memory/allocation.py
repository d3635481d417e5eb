"""The pass that gives every buffer its place in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from xdsl.context import Context
from xdsl.dialects.builtin import DenseArrayBase, DictionaryAttr, IntegerAttr, ModuleOp, i64
from xdsl.ir import Attribute
from xdsl.passes import ModulePass

from frustum.backend.memory.buffering import BufferPlaces
from frustum.backend.memory.interference import Want, interference, life_of, outermost, wants_of, wishes_of
from frustum.backend.memory.packing import pack, pack_apart, usable
from frustum.backend.waits.loop_tree import Path
from frustum.backend.waits.read_code import Code, layer_of, read_code, target_of
from frustum.dialects.extents import ALIGNMENT_BYTES, aligned
from frustum.dialects.isa.program import IMAGE_CLASSES, MEMORIES, Memory
from frustum.dialects.isa.sync import AllocOp, ExternalOp, ProgramOp
from frustum.dialects.module import LAYERS, PEAK, texts_of
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit

IMAGE_ALIGNMENT_BYTES = 64
"""Buffers the host fills start at multiples of this: a contiguous run of DRAM pays for at least as much."""
LARGEST = 3
"""So many buffers an error names."""


@dataclass(frozen=True)
class Allocate(ModulePass):
    """Give every `external` and `alloc` its address.

    Before: buffers are symbols.  After: each has `address`, a multiple of 16 (of 64 for externals); a buffer of depth
    d has d copies from there on; `frustum.peak` of the module has, for each memory, the first address behind all
    buffers of each section.  Raises DoesNotFit.

    Externals come first in DRAM, weights and tables before all others, in the order of the program, and stay.  Other
    buffers have their memory between two barriers.  If all buffers of a memory fit side by side, none share; else
    those share that `interference.py` lets, placed by `packing.py`; as far as there is room, not with those of the same
    unit and the units before, as its wishes say.  (Sharing makes instructions wait for each other that otherwise
    would not; nothing is gained by a lower peak.)

    A buffer that nothing but loads from DRAM in a loop fill may have up to `copies` copies, where SRAM has room: so
    many passes the loads may be ahead (`buffering.py`).
    """

    name = "frustum-allocate"

    copies: int = 64

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = target_of(op)
        for program in op.walk():
            if isinstance(program, ProgramOp):
                op.attributes[PEAK] = _allocate(read_code(program), target, texts_of(op, LAYERS), self.copies)


def _allocate(code: Code, target: Target, layers: Sequence[str], copies: int) -> DictionaryAttr:
    placing = _Placing(code, target, layers, copies, [-1] * len(code.buffers))
    behind_externals = placing.externals()
    peaks: dict[str, Attribute] = {}
    for memory in MEMORIES:
        base = behind_externals if memory == "dram" else 0
        peaks[memory] = DenseArrayBase.from_list(i64, placing.memory(memory, base))
    for storage, buffer, address in zip(code.storage, code.buffers, placing.addresses, strict=True):
        storage.properties["address"] = IntegerAttr(address, i64)
        if isinstance(storage, AllocOp) and not buffer.rolling:
            storage.properties["depth"] = IntegerAttr(buffer.depth, i64)
    return DictionaryAttr(peaks)


@dataclass
class _Placing:
    code: Code
    target: Target
    layers: Sequence[str]
    copies: int
    addresses: list[int]

    def __post_init__(self) -> None:
        self.uses: list[list[Path]] = [[] for _ in self.code.buffers]
        self.spans: list[tuple[int, int]] = [(-1, -1)] * len(self.code.buffers)
        for number, section in enumerate(self.code.sections):
            for instruction in section.instructions:
                for access in instruction.accesses:
                    self.uses[access.buffer].append(instruction.path)
                    first = self.spans[access.buffer][0]
                    self.spans[access.buffer] = (number if first < 0 else first, number)
        self.wants: list[Want] = wants_of(self.code)

    def externals(self) -> int:
        """Place the externals; the first address behind them."""
        numbers = [n for n, storage in enumerate(self.code.storage) if isinstance(storage, ExternalOp)]
        numbers.sort(key=lambda n: not self._is_image(n))
        address = 0
        for number in numbers:
            self.addresses[number] = address
            address = aligned(address + self.code.buffers[number].bytes, IMAGE_ALIGNMENT_BYTES)
        capacity = self.target.memory("dram").capacity_bytes
        if address > capacity:
            raise self._error("dram", "the program's weights, inputs and outputs", numbers, address, capacity)
        return address

    def memory(self, memory: Memory, base: int) -> list[int]:
        """Place the buffers of a memory from `base` on; the peak of each section."""
        capacity = self.target.memory(memory).capacity_bytes
        peaks = [base] * len(self.code.sections)
        everything = [n for group in self._groups(memory) for n in group]
        offsets: Sequence[int] | None = None
        if memory == "sram":
            deep = BufferPlaces(self.code, self.target, self.uses, self.wants, everything, self.copies)
            offsets = deep.best()
        if offsets is None:
            offsets = self._pack_apart(everything, usable(capacity) - base)
        for group in self._groups(memory) if offsets is None else ():
            self._place(group, memory, base, capacity)
        for number, offset in zip(everything, offsets or (), strict=offsets is not None):
            self.addresses[number] = base + offset
        for group in [everything]:
            for number in group:
                end = self.addresses[number] + self._size(number)
                first, last = self.spans[number]
                peaks[first : last + 1] = [max(peak, end) for peak in peaks[first : last + 1]]
        return peaks

    def _groups(self, memory: Memory) -> Iterator[list[int]]:
        """The buffers of sections that some buffer connects."""
        numbers = [n for n, storage in enumerate(self.code.storage) if isinstance(storage, AllocOp)]
        numbers = [n for n in numbers if self.code.buffers[n].memory == memory]
        group: list[int] = []
        last = -1
        for number in sorted(numbers, key=lambda n: self.spans[n]):
            if self.spans[number][0] > last and group:
                yield group
                group = []
            group.append(number)
            last = max(last, self.spans[number][1])
        if group:
            yield group

    def _pack_apart(self, group: Sequence[int], capacity: int) -> Sequence[int] | None:
        lives = [life_of(self.code.buffers[n], self.uses[n]) for n in group]
        interfering, sizes = interference(lives), [self._size(n) for n in group]
        wishes = wishes_of([self.wants[n] for n in group], interfering)
        packing = pack_apart(sizes, interfering, wishes, [outermost(life)[0] for life in lives], capacity)
        return None if isinstance(packing, int) else packing.offsets

    def _place(self, group: Sequence[int], memory: Memory, base: int, capacity: int) -> None:
        sizes = [self._size(n) for n in group]
        ends = list(accumulate(sizes, initial=base))
        offsets = ends[:-1]
        if ends[-1] > capacity:
            offsets = self._pack(group, memory, base, capacity)
        for number, offset in zip(group, offsets, strict=True):
            self.addresses[number] = offset

    def _pack(self, group: Sequence[int], memory: Memory, base: int, capacity: int) -> list[int]:
        apart = self._pack_apart(group, usable(capacity) - base)
        if apart is not None:
            return [base + offset for offset in apart]
        sizes = [self._size(n) for n in group]
        lives = [life_of(self.code.buffers[n], self.uses[n]) for n in group]
        interfering = interference(lives)
        packing = pack(sizes, interfering, [life.start for life in lives], usable(capacity) - base)
        if base + packing.peak > capacity:
            end = base + packing.peak
            placed = zip(group, packing.offsets, sizes, strict=True)
            top = [n for n, offset, size in placed if base + offset + size == end]
            raise self._error(memory, self._where(top[0]), group, end, capacity)
        return [base + offset for offset in packing.offsets]

    def _size(self, number: int) -> int:
        return aligned(self.code.buffers[number].total_bytes, ALIGNMENT_BYTES)

    def _is_image(self, number: int) -> bool:
        storage = self.code.storage[number]
        return isinstance(storage, ExternalOp) and storage.class_.data in IMAGE_CLASSES

    def _where(self, number: int) -> str:
        """The section and the layer of the first use of a buffer."""
        section = self.spans[number][0]
        layer = self._layer(number)
        return f"section {section}" + (f" (layer '{layer}')" if layer else "")

    def _layer(self, number: int) -> str:
        section = self.code.sections[self.spans[number][0]]
        for instruction, operation in zip(section.instructions, section.operations, strict=True):
            if any(access.buffer == number for access in instruction.accesses):
                layer = layer_of(operation)
                return self.layers[layer] if layer < len(self.layers) else ""
        return ""

    def _error(
        self, memory: Memory, where: str, group: Sequence[int], needed: int, available: int
    ) -> DoesNotFit:
        largest = sorted(group, key=lambda n: -self._size(n))[:LARGEST]
        what = f"buffers in {memory} (largest: {', '.join(self._describe(n) for n in largest)})"
        return DoesNotFit(what, where, f"{needed} B", f"{available} B of {memory}", memory)

    def _describe(self, number: int) -> str:
        storage, buffer = self.code.storage[number], self.code.buffers[number]
        name = storage.external_name.data if isinstance(storage, ExternalOp) else self._layer(number)
        copies = f"{buffer.depth} x " if buffer.total_bytes > buffer.bytes else ""
        return f"{copies}{buffer.bytes} B" + (f" of '{name}'" if name else "")
