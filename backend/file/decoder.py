# Tests: test/backend/file/test_encoder.py
"""Bytes to instructions: the reader of the format that `dialects/isa/format.py` declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frustum.dialects.isa import format as f
from frustum.dialects.isa import program as p
from frustum.dialects.isa.fields import FieldError, RegisterKind

OPCODE_MASK = (1 << f.OPCODE_BITS) - 1
LENGTH_MASK = (1 << f.LENGTH_BITS) - 1
WORD_MASK = (1 << f.WORD_BITS) - 1
WITH_ENGINE = [type_ for type_, own in f.FIELDS_OF_TYPE.items() if any(field.name == "engine" for field in own)]
"""Instructions of several engines."""


class CodeError(ValueError):
    """Bytes that are no program; the message names the word."""


def decode(code: bytes, layers: Sequence[int] = (), units: Sequence[int] = ()) -> tuple[p.Node, ...]:
    """The program text in `code`; `layers` and `units` of each instruction in textual order, if known."""
    if len(code) % f.WORD_BYTES:
        raise CodeError(f"the code ends inside a word: {len(code)} bytes")
    reader = _Decoder(code, layers, units)
    body = reader.body(0, len(code) // f.WORD_BYTES, depth=0)
    if len(layers) not in (0, reader.count) or len(units) not in (0, reader.count):
        raise CodeError(f"{reader.count} instructions, but layers of {len(layers)} and units of {len(units)}")
    return body


class _Decoder:
    """Reads nodes; keeps what the register files hold."""

    def __init__(self, code: bytes, layers: Sequence[int], units: Sequence[int]) -> None:
        self.code = code
        self.layers, self.units = layers, units
        self.count = 0
        self.files: dict[RegisterKind, dict[int, Any]] = {kind: {} for kind in f.FILES.values()}

    def value_of(self, kind: RegisterKind, number: int) -> Any:
        try:
            return self.files[kind][number]
        except KeyError:
            raise FieldError(f"{kind} register {number}", "defined") from None

    def body(self, start: int, stop: int, depth: int) -> tuple[p.Node, ...]:
        """The nodes in words [start, stop)."""
        nodes: list[p.Node] = []
        at = start
        while at < stop:
            head = self._number(at, 1)
            form = f.FORMAT_OF_OPCODE.get(head & OPCODE_MASK)
            if form is None:
                raise CodeError(f"word {at}: unknown opcode {head & OPCODE_MASK}")
            words = (head >> f.OPCODE_BITS & LENGTH_MASK) + 1
            if at + words > stop or words < form.words:
                raise CodeError(f"word {at}: '{form.name}' has a wrong length of {words} words")
            try:
                node, at = self._node(form, at, words, stop, depth)
            except FieldError as error:
                raise CodeError(f"word {at}: '{form.name}': {error}") from None
            if node is not None:
                nodes.append(node)
        return tuple(nodes)

    def _node(self, form: f.Format, at: int, words: int, stop: int, depth: int) -> tuple[p.Node | None, int]:
        """The node at word `at`, if it is one, and the word after it."""
        total = self._number(at, words)
        after = at + words
        if form is f.REPEAT_FORMAT:
            return self._repeat(total, after, stop, depth)
        if form.file is not None:
            self._set_up(form, total, words)
            return None, after
        node = self._instruction(form, total, words)
        if isinstance(node, p.Barrier):
            for file in self.files.values():
                file.clear()
        return node, after

    def _repeat(self, total: int, after: int, stop: int, depth: int) -> tuple[p.Repeat, int]:
        head = f.REPEAT_FORMAT.unpack_head(total, self)
        body = f.REPEAT_FORMAT.unpack_body(total, self)
        end = after + body["body_words"]
        if end > stop or depth >= p.MAX_LOOPS:
            raise FieldError(f"a body of {body['body_words']} words at depth {depth}", "possible here")
        return p.Repeat(body["count"], self.body(after, end, depth + 1), head["stage"]), end

    def _instruction(self, form: f.Format, total: int, words: int) -> p.Instruction:
        head = form.unpack_head(total, self)
        if head["waits"] > f.WAITS_INSIDE:
            raise FieldError(head["waits"], f"0 to {f.WAITS_INSIDE}", "waits")
        if words != form.words + head["waits"]:
            raise FieldError(words, f"the length of '{form.name}' with {head['waits']} waits")
        inside = tuple(self._wait(total, place) for place in range(form.words, words))
        assert form.type is not None
        fields = form.unpack_body(total, self)
        if form.type in WITH_ENGINE:
            fields["engine"] = head["engine"]
        number = self.count
        self.count += 1
        instruction: p.Instruction = form.type(
            stage=head["stage"],
            waits=inside,
            signal=head["signal"],
            layer=int(self.layers[number]) if number < len(self.layers) else 0,
            unit=int(self.units[number]) if number < len(self.units) else 0,
            **fields,
        )
        return instruction

    def _wait(self, total: int, place: int) -> p.Wait:
        wait: p.Wait = f.unpack_field(f.WAIT_FIELD, total >> place * f.WORD_BITS, self)
        return wait

    def _set_up(self, form: f.Format, total: int, words: int) -> None:
        assert form.file is not None and form.type is not None
        head = form.unpack_head(total, self)
        register = head.pop("register")
        if form is f.AFFINE_FORMAT:
            self.files[form.file][register] = self._affine(head, total, words)
            return
        if words != form.words:
            raise FieldError(words, f"the length of '{form.name}'")
        self.files[form.file][register] = form.type(**head, **form.unpack_body(total, self))

    def _affine(self, head: dict[str, Any], total: int, words: int) -> p.Affine:
        terms, wide = head["terms"], head["wide"]
        if words != f.AFFINE_FORMAT.words + (2 if wide else 1) + len(terms):
            raise FieldError(words, f"the length of 'affine' with {len(terms)} terms")
        shift = f.AFFINE_FORMAT.words * f.WORD_BITS
        kind = f.WIDE if wide else f.COEFFICIENT
        base = kind.read(iter((total >> shift & (1 << kind.bits) - 1,)), self)
        shift += kind.bits
        values = [0] * (p.MAX_LOOPS + 2)
        for term in terms:
            values[term] = f.COEFFICIENT.read(iter((total >> shift & WORD_MASK,)), self)
            shift += f.WORD_BITS
        return p.Affine(base, tuple(values[:p.MAX_LOOPS]), values[p.MAX_LOOPS], values[p.MAX_LOOPS + 1])

    def _number(self, at: int, words: int) -> int:
        return int.from_bytes(self.code[at * f.WORD_BYTES : (at + words) * f.WORD_BYTES], "little")
