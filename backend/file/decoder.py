"""Bytes to instructions: the reader of the format that `dialects/isa/format.py` declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frustum.dialects.isa.fields import FieldError, RegisterKind
from frustum.dialects.isa.format import (
    AFFINE_FORMAT,
    COEFFICIENT,
    FIELDS_OF_TYPE,
    FILES,
    FORMAT_OF_OPCODE,
    LENGTH_BITS,
    OPCODE_BITS,
    REPEAT_FORMAT,
    WAIT_FIELD,
    WAITS_INSIDE,
    WIDE,
    WORD_BITS,
    WORD_BYTES,
    Format,
    unpack_field,
)
from frustum.dialects.isa.program import (
    MAX_LOOPS,
    Affine,
    Barrier,
    Instruction,
    Node,
    Repeat,
    Wait,
)

OPCODE_MASK = (1 << OPCODE_BITS) - 1
LENGTH_MASK = (1 << LENGTH_BITS) - 1
WORD_MASK = (1 << WORD_BITS) - 1
WITH_ENGINE = [type_ for type_, own in FIELDS_OF_TYPE.items() if any(field.name == "engine" for field in own)]
"""Instructions of several engines."""


class CodeError(ValueError):
    """Bytes that are no program; the message names the word."""


def decode(code: bytes, layers: Sequence[int] = (), units: Sequence[int] = ()) -> tuple[Node, ...]:
    """The program text in `code`; `layers` and `units` of each instruction in textual order, if known."""
    if len(code) % WORD_BYTES:
        raise CodeError(f"the code ends inside a word: {len(code)} bytes")
    reader = _Decoder(code, layers, units)
    body = reader.body(0, len(code) // WORD_BYTES, depth=0)
    if len(layers) not in (0, reader.count) or len(units) not in (0, reader.count):
        raise CodeError(f"{reader.count} instructions, but layers of {len(layers)} and units of {len(units)}")
    return body


class _Decoder:
    """Reads nodes; keeps what the register files hold."""

    def __init__(self, code: bytes, layers: Sequence[int], units: Sequence[int]) -> None:
        self.code = code
        self.layers, self.units = layers, units
        self.count = 0
        self.files: dict[RegisterKind, dict[int, Any]] = {kind: {} for kind in FILES.values()}

    def value_of(self, kind: RegisterKind, number: int) -> Any:
        try:
            return self.files[kind][number]
        except KeyError:
            raise FieldError(f"{kind} register {number}", "defined") from None

    def body(self, start: int, stop: int, depth: int) -> tuple[Node, ...]:
        """The nodes in words [start, stop)."""
        nodes: list[Node] = []
        at = start
        while at < stop:
            head = self._number(at, 1)
            form = FORMAT_OF_OPCODE.get(head & OPCODE_MASK)
            if form is None:
                raise CodeError(f"word {at}: unknown opcode {head & OPCODE_MASK}")
            words = (head >> OPCODE_BITS & LENGTH_MASK) + 1
            if at + words > stop or words < form.words:
                raise CodeError(f"word {at}: '{form.name}' has a wrong length of {words} words")
            try:
                node, at = self._node(form, at, words, stop, depth)
            except FieldError as error:
                raise CodeError(f"word {at}: '{form.name}': {error}") from None
            if node is not None:
                nodes.append(node)
        return tuple(nodes)

    def _node(self, form: Format, at: int, words: int, stop: int, depth: int) -> tuple[Node | None, int]:
        """The node at word `at`, if it is one, and the word after it."""
        total = self._number(at, words)
        after = at + words
        if form is REPEAT_FORMAT:
            return self._repeat(total, after, stop, depth)
        if form.file is not None:
            self._set_up(form, total, words)
            return None, after
        node = self._instruction(form, total, words)
        if isinstance(node, Barrier):
            for file in self.files.values():
                file.clear()
        return node, after

    def _repeat(self, total: int, after: int, stop: int, depth: int) -> tuple[Repeat, int]:
        head = REPEAT_FORMAT.unpack_head(total, self)
        body = REPEAT_FORMAT.unpack_body(total, self)
        end = after + body["body_words"]
        if end > stop or depth >= MAX_LOOPS:
            raise FieldError(f"a body of {body['body_words']} words at depth {depth}", "possible here")
        return Repeat(body["count"], self.body(after, end, depth + 1), head["stage"]), end

    def _instruction(self, form: Format, total: int, words: int) -> Instruction:
        head = form.unpack_head(total, self)
        if head["waits"] > WAITS_INSIDE:
            raise FieldError(head["waits"], f"0 to {WAITS_INSIDE}", "waits")
        if words != form.words + head["waits"]:
            raise FieldError(words, f"the length of '{form.name}' with {head['waits']} waits")
        inside = tuple(self._wait(total, place) for place in range(form.words, words))
        assert form.type is not None
        fields = form.unpack_body(total, self)
        if form.type in WITH_ENGINE:
            fields["engine"] = head["engine"]
        number = self.count
        self.count += 1
        instruction: Instruction = form.type(
            stage=head["stage"],
            waits=inside,
            signal=head["signal"],
            layer=int(self.layers[number]) if number < len(self.layers) else 0,
            unit=int(self.units[number]) if number < len(self.units) else 0,
            **fields,
        )
        return instruction

    def _wait(self, total: int, place: int) -> Wait:
        wait: Wait = unpack_field(WAIT_FIELD, total >> place * WORD_BITS, self)
        return wait

    def _set_up(self, form: Format, total: int, words: int) -> None:
        assert form.file is not None and form.type is not None
        head = form.unpack_head(total, self)
        register = head.pop("register")
        if form is AFFINE_FORMAT:
            self.files[form.file][register] = self._affine(head, total, words)
            return
        if words != form.words:
            raise FieldError(words, f"the length of '{form.name}'")
        self.files[form.file][register] = form.type(**head, **form.unpack_body(total, self))

    def _affine(self, head: dict[str, Any], total: int, words: int) -> Affine:
        terms, wide = head["terms"], head["wide"]
        if words != AFFINE_FORMAT.words + (2 if wide else 1) + len(terms):
            raise FieldError(words, f"the length of 'affine' with {len(terms)} terms")
        shift = AFFINE_FORMAT.words * WORD_BITS
        kind = WIDE if wide else COEFFICIENT
        base = kind.read(iter((total >> shift & (1 << kind.bits) - 1,)), self)
        shift += kind.bits
        values = [0] * (MAX_LOOPS + 2)
        for term in terms:
            values[term] = COEFFICIENT.read(iter((total >> shift & WORD_MASK,)), self)
            shift += WORD_BITS
        return Affine(base, tuple(values[:MAX_LOOPS]), values[MAX_LOOPS], values[MAX_LOOPS + 1])

    def _number(self, at: int, words: int) -> int:
        return int.from_bytes(self.code[at * WORD_BYTES : (at + words) * WORD_BYTES], "little")
