"""Which bytes an execution of an instruction reads and writes, by operand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from frustum.dialects.isa.program import ELEMENT_BYTES, Conv, Copy, Reduce, Wrap
from frustum.runtime.device.expand import Expanded, Rows


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of `size` bytes at `address` of memory `place` of kind `kind`, and of the `copies - 1` after it."""

    slot: int
    is_write: bool
    kind: int
    place: int
    copies: int
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int

    @property
    def lowest(self) -> int:
        """The first byte."""
        return self.address + sum((n - 1) * min(0, s) for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def end(self) -> int:
        """One past the last byte."""
        reach = sum((n - 1) * max(0, s) for n, s in zip(self.shape, self.strides, strict=True))
        return self.address + reach + self.size


def accesses(expanded: Expanded, rows: Rows, row: int, unit: int) -> Iterator[Access]:
    """Reads first, then writes; nothing for an inactive unit."""
    if not rows.active[row, unit]:
        return
    static = int(rows.static[row])
    operands = expanded.forms[static].operands
    extent, read = (tuple(part[:, row, unit].tolist()) for part in (rows.extent, rows.read))
    flags = bool(rows.is_first[row]), bool(rows.is_last[row])
    uses = [
        (slot, is_write)
        for is_write in (False, True)
        for slot, operand in enumerate(operands)
        if operand is not None
        and (operand.is_written if is_write else operand.is_read)
        and _happens(expanded.instructions[static], slot, is_write, *flags)
    ]
    for slot, is_write in uses:
        operand = operands[slot]
        assert operand is not None
        shape, strides = _region(expanded.instructions[static], slot, extent, read, operand.view.strides)
        if 0 not in shape:
            access = Access(
                slot, is_write, int(expanded.memory[static, slot]), int(rows.place[slot, row, unit]),
                int(expanded.copies[static, slot]), int(rows.address[slot, row, unit]), shape, strides,
                ELEMENT_BYTES[operand.view.element],
            )  # fmt: skip
            around = operand.view.wrap
            if around is not None and rows.split[slot, around.dim, row, unit] and strides[around.dim]:
                yield from _in_two(access, around, int(rows.split[slot, around.dim, row, unit]))
            else:
                yield access


def _in_two(access: Access, around: Wrap, split: int) -> tuple[Access, Access]:
    """An access that goes beyond the end of a ring: what lies before the end, and what begins the ring."""
    before, after = list(access.shape), list(access.shape)
    before[around.dim] = min(split, access.shape[around.dim])
    after[around.dim] = access.shape[around.dim] - before[around.dim]
    moved = (split - around.size) * access.strides[around.dim]
    return (
        replace(access, shape=tuple(before)),
        replace(access, shape=tuple(after), address=access.address + moved),
    )


def _happens(instruction: object, slot: int, is_write: bool, is_first: bool, is_last: bool) -> bool:
    """Whether accumulators and the way out use this operand in this pass."""
    match instruction, slot, is_write:
        case (Conv(), 2, _) | (Conv(), 4, _):
            return is_last
        case Conv(), 3, True:
            return not is_last
        case (Conv(), 3, False) | (Reduce(), 1, False):
            return not is_first
    return True


def _region(
    instruction: object, slot: int, extent: tuple[int, ...], read: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of what is touched; an axis of stride 0 is touched once."""
    match instruction, slot:
        case Conv(), 0:
            per_group = instruction.box.extent[1] // instruction.groups
            n, c, h, w = strides
            groups = 1 if instruction.groups == 1 else extent[1] // per_group
            shape = (read[0], groups, *read[1:])
            strides = (n, c * instruction.channels.extent, c, h, w)
        case Conv(), 1:
            shape = (extent[1], read[1], *instruction.kernel)
        case Copy(expand=int(slot_bytes)), 0:
            element = ELEMENT_BYTES[instruction.src_view.element]
            return (slot_bytes // element,), (element,)
        case (Copy(), 1) | (Conv(), _):
            shape = extent
        case _, 0:
            shape = read
        case _:
            shape = extent
    empty = 0 in shape
    return tuple(0 if empty else n if s else 1 for n, s in zip(shape, strides, strict=True)), strides
