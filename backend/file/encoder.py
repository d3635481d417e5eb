"""Instructions to bytes: the writer of the format that `dialects/isa/format.py` declares.

Which value stands in which register of the register file, while a program is written.

Equal values share a register.  A full file gives up its least recently used entry, with two exceptions that loops
ask for, because set-up instructions inside a loop run again in every pass:

* A value defined outside a loop and used inside it keeps its register until the loop ends.
* What a loop defined is forgotten where it ends: a pass in which the loop was not run would not have defined it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from frustum.dialects.isa import format as f
from frustum.dialects.isa import program as p
from frustum.dialects.isa.fields import REGISTERS, FieldError, FieldKind, RegisterKind
from frustum.dialects.target.fit import CODE, DoesNotFit


@dataclass(frozen=True)
class Code:
    """A program's bytes.  `page_bytes` are the sizes of its pages, which end at barriers; `layers` and `units` are
    those of each instruction in textual order."""

    bytes: bytes
    page_bytes: tuple[int, ...]
    layers: tuple[int, ...]
    units: tuple[int, ...]


def encode(program: p.Program, instruction_memory_bytes: int | None = None) -> Code:
    """The bytes of a program; raises DoesNotFit for a value wider than its field or pages larger than memory."""
    writer = _Encoder(program)
    for node in program.body:
        writer.node(node, depth=0)
    writer.end_page()
    pages = tuple(writer.page_bytes)
    if instruction_memory_bytes is not None:
        _check_pages(pages, instruction_memory_bytes)
    return Code(bytes(writer.bytes), pages, tuple(writer.layers), tuple(writer.units))


def _check_pages(pages: tuple[int, ...], available: int) -> None:
    for number, size in enumerate(pages):
        if size > available:
            raise DoesNotFit("program page", f"page {number}", f"{size} B", f"{available} B of {CODE}", CODE)
    for number, (one, next_) in enumerate(pairwise(pages)):
        if one + next_ > available:  # the next page arrives while one runs
            where = f"pages {number} and {number + 1}"
            raise DoesNotFit("program", where, f"{one + next_} B", f"{available} B of {CODE}", CODE)


@dataclass(frozen=True)
class _Loop:
    """The body of a `repeat` instruction."""

    count: int
    body_words: int


class _Encoder:
    """Writes nodes; defines registers before the instruction that needs them."""

    def __init__(self, program: p.Program) -> None:
        self.program = program
        self.bytes = bytearray()
        self.page_bytes: list[int] = []
        self.layers: list[int] = []
        self.units: list[int] = []
        self.page_start = 0
        self.files: dict[RegisterKind, RegisterFile] = {kind: RegisterFile() for kind in f.FILES.values()}

    def node(self, node: p.Node, depth: int) -> None:
        if isinstance(node, p.Repeat):
            self._repeat(node, depth)
            return
        try:
            self._instruction(node)
        except FieldError as error:
            raise self._does_not_fit(node, error) from None
        if isinstance(node, p.Barrier):
            assert depth == 0, "a barrier stands in no loop"
            self.end_page()

    def end_page(self) -> None:
        size = len(self.bytes) - self.page_start
        if size:
            self.page_bytes.append(size)
        self.page_start = len(self.bytes)
        for file in self.files.values():
            file.reset()

    def number_of(self, kind: RegisterKind, value: Any) -> int:
        number, is_new = self.files[kind].find(value)
        if is_new:
            self._set_up(number, value)
        return number

    def _repeat(self, node: p.Repeat, depth: int) -> None:
        if depth >= p.MAX_LOOPS:
            raise DoesNotFit("nest of loops", f"loop of {node.count}", depth + 1, p.MAX_LOOPS)
        start = len(self.bytes)
        self._append(0, f.REPEAT_FORMAT.words)
        for file in self.files.values():
            file.open_loop()
        for child in node.body:
            self.node(child, depth + 1)
        for file in self.files.values():
            file.close_loop()
        words = f.REPEAT_FORMAT.words
        body = _Loop(node.count, (len(self.bytes) - start) // f.WORD_BYTES - words)
        try:
            total = f.REPEAT_FORMAT.pack({"stage": node.stage}, body, self, words)
        except FieldError as error:
            raise DoesNotFit(f"'repeat': {error.field}", "loop", str(error.value), error.allowed) from None
        self.bytes[start : start + words * f.WORD_BYTES] = total.to_bytes(words * f.WORD_BYTES, "little")

    def _instruction(self, node: p.Instruction) -> None:
        form, waits = f.FORMAT_OF_TYPE[type(node)], node.waits
        if len(waits) > f.WAITS_INSIDE:
            raise FieldError(len(waits), f"0 to {f.WAITS_INSIDE}", "waits")
        words = form.words + len(waits)
        head = {
            "engine": node.engine or p.ENGINES[0],
            "stage": node.stage,
            "waits": len(waits),
            "signal": node.signal,
        }
        total = form.pack(head, node, self, words)
        for place, wait in enumerate(waits, form.words):
            total |= f.pack_field(f.WAIT_FIELD, wait, self) << place * f.WORD_BITS
        self._append(total, words)
        self.layers.append(node.layer)
        self.units.append(node.unit)

    def _append(self, total: int, words: int) -> None:
        self.bytes += total.to_bytes(words * f.WORD_BYTES, "little")

    def _set_up(self, register: int, value: Any) -> None:
        """Put a value into a register."""
        if isinstance(value, p.Affine):
            self._affine(register, value)
            return
        form = setup_format(value)
        names = [field.name for field in form.head]
        head = {name: register if name == "register" else getattr(value, name) for name in names}
        self._append(form.pack(head, value, self, form.words), form.words)

    def _affine(self, register: int, value: p.Affine) -> None:
        loops = value.loops + (0,) * (p.MAX_LOOPS - len(value.loops))
        terms = [(place, c) for place, c in enumerate((*loops, value.cluster, value.core)) if c]
        wide = not -(1 << f.WORD_BITS - 1) <= value.base < 1 << f.WORD_BITS - 1
        words = f.AFFINE_FORMAT.words + (2 if wide else 1) + len(terms)
        head = {"register": register, "terms": [place for place, _ in terms], "wide": wide}
        total = f.AFFINE_FORMAT.pack(head, None, self, words)
        shift = f.AFFINE_FORMAT.words * f.WORD_BITS
        total |= self._number("base", f.WIDE if wide else f.COEFFICIENT, value.base) << shift
        shift += f.WORD_BITS * (2 if wide else 1)
        for _, coefficient in terms:
            total |= self._number("coefficient", f.COEFFICIENT, coefficient) << shift
            shift += f.WORD_BITS
        self._append(total, words)

    def _number(self, name: str, kind: FieldKind, value: int) -> int:
        try:
            return kind.write(value, self)[0]
        except FieldError as error:
            raise error.inside(name) from None

    def _does_not_fit(self, node: p.Instruction, error: FieldError) -> DoesNotFit:
        layers = self.program.layers
        layer = layers[node.layer] if node.layer < len(layers) else str(node.layer)
        name = f.FORMAT_OF_TYPE[type(node)].name
        where = f"instruction {len(self.layers)} ('{name}') of layer '{layer}'"
        return DoesNotFit(f"field {error.field}", where, str(error.value), error.allowed)


def setup_format(value: Any) -> f.Format:
    """The set-up instruction that puts a value into a register."""
    match value:
        case p.View(ring=ring, wrap=wrap):
            assert value.memory is not None, "a program's views are physical"
            assert ring is None or wrap is None, "a ring has no copies"
            return f.VIEW_FORMATS[ring is not None, wrap is not None]
        case p.Span(limit=limit):
            is_wide = max(value.extent, value.bound) >= 1 << f.WORD_BITS // 2
            return f.SPAN_FORMATS[is_wide, limit is not None]
    return f.ACT_FORMAT if isinstance(value, p.Act) else f.SCALE_FORMAT


MOST_KEPT = REGISTERS * 3 // 4
"""Registers that loops may keep; the rest always suffices for one instruction."""

Entry: TypeAlias = tuple[int, int]
"""(number of the value, loop depth of its definition)."""


@dataclass
class _Scope:
    """One open loop body, or the page around all loops."""

    defined: list[Entry] = field(default_factory=list)
    kept: list[Entry] = field(default_factory=list)


class RegisterFile:
    """The writer's picture of one register file."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """A page begins: nothing is defined."""
        self._values: dict[Any, int] = {}
        self._register: OrderedDict[Entry, int] = OrderedDict()  # least recently used first
        self._free = list(reversed(range(REGISTERS)))
        self._kept: set[Entry] = set()
        self._scopes = [_Scope()]

    def open_loop(self) -> None:
        self._scopes.append(_Scope())

    def close_loop(self) -> None:
        scope = self._scopes.pop()
        self._kept.difference_update(scope.kept)
        for entry in scope.defined:
            register = self._register.pop(entry, None)
            if register is not None:
                self._free.append(register)

    def find(self, value: Any) -> tuple[int, bool]:
        """The register for `value`, and whether it is new, so that a set-up instruction must define it."""
        number = self._values.setdefault(value, len(self._values))
        depth = len(self._scopes) - 1
        for outer in range(depth, -1, -1):
            entry = number, outer
            if entry in self._register and self._keep(entry, outer, depth):
                self._register.move_to_end(entry)
                return self._register[entry], False
        register = self._free.pop() if self._free else self._evict()
        self._register[number, depth] = register
        self._scopes[depth].defined.append((number, depth))
        return register, True

    def _keep(self, entry: Entry, outer: int, depth: int) -> bool:
        """Keep what is used from outside a loop; False when too much is kept already."""
        if outer == depth or entry in self._kept:
            return True
        if len(self._kept) >= MOST_KEPT:
            return False
        self._kept.add(entry)
        self._scopes[outer + 1].kept.append(entry)
        return True

    def _evict(self) -> int:
        victim = next(entry for entry in self._register if entry not in self._kept)
        return self._register.pop(victim)
