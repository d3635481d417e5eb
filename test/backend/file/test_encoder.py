"""Programs as bytes: exact round trips, room in every word, and named refusals."""

import dataclasses
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_time import allowed
from random_program import Maker

from frustum.backend.file.decoder import CodeError, decode
from frustum.backend.file.encoder import Code, encode
from frustum.dialects.isa import program as p
from frustum.dialects.isa.format import FORMAT_OF_OPCODE, INSTRUCTION_FORMATS, MAX_WORDS, WAITS_INSIDE
from frustum.dialects.target.fit import DoesNotFit

ZERO = p.Affine()
VIEW = p.View("f32", p.Affine(64), (0, 0, 16, 4), "nram")
BOX = p.Box.of(*[p.Span(ZERO, 4, 4)] * 4)


def read(code: Code) -> tuple[p.Node, ...]:
    return decode(code.bytes, code.layers, code.units)


def unary(offset: p.Affine = ZERO, **common: object) -> p.Unary:
    view = dataclasses.replace(VIEW, offset=offset)
    return p.Unary(kind="relu", in_view=view, out_view=VIEW, box=BOX, **common)  # type: ignore[arg-type]


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_random_programs_round_trip_bit_exactly(seed: int, nodes: int, barriers: int) -> None:
    program = Maker(seed).program(nodes, barriers)
    code = encode(program)
    again = read(code)
    assert again == program.body
    assert encode(dataclasses.replace(program, body=again)) == code
    assert sum(code.page_bytes) == len(code.bytes)


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=4, deadline=None)
def test_programs_with_more_values_than_registers_round_trip(seed: int) -> None:
    program = Maker(seed, pool=700).program(600)
    assert read(encode(program)) == program.body


def test_signs_of_zero_and_infinities_survive() -> None:
    body = (unary(), p.Unary(kind="clip", in_view=VIEW, out_view=VIEW, box=BOX, alpha=-0.0, beta=float("-inf")))
    (_, clip) = read(encode(p.Program(body)))
    assert isinstance(clip, p.Unary)
    assert str(clip.alpha) == "-0.0" and clip.beta == float("-inf")


def test_every_instruction_has_one_to_sixteen_words() -> None:
    for form in FORMAT_OF_OPCODE.values():
        inside = WAITS_INSIDE if form in INSTRUCTION_FORMATS else 0
        assert 1 <= form.words + inside <= MAX_WORDS


def test_every_instruction_of_the_program_has_a_format() -> None:
    assert {form.type for form in INSTRUCTION_FORMATS} == set(p.Instruction.__args__)


def test_equal_values_are_defined_once() -> None:
    one, many = encode(p.Program((unary(),))), encode(p.Program((unary(),) * 11))
    assert len(many.bytes) - len(one.bytes) == 10 * 4 * 8  # ten instructions of eight words, no set-up


def test_a_page_defines_its_own_registers() -> None:
    alone = encode(p.Program((unary(),)))
    paged = encode(p.Program((unary(), p.Barrier(), unary())))
    assert paged.page_bytes == (len(alone.bytes) + 4, len(alone.bytes))


@pytest.mark.slow
def test_five_thousand_instructions_take_seconds_at_most() -> None:
    program = Maker(1, pool=300).program(5000, barriers=10)
    start = time.process_time()
    assert read(encode(program)) == program.body
    assert time.process_time() - start < allowed(6)


# ---------------------------------------------------------------------- what loops ask of the register file


def run_set_up(code: bytes, passes_skipped: bool) -> list[p.Instruction]:
    """Decode as the machine's front end would: set-up instructions run again in every pass of their loop, and
    not at all in passes in which their loop is not run."""
    from frustum.backend.file.decoder import _Decoder
    from frustum.dialects.isa.format import REPEAT_FORMAT

    reader, seen = _Decoder(code, (), ()), []

    def run(start: int, stop: int) -> None:
        at = start
        while at < stop:
            head = reader._number(at, 1)
            form = FORMAT_OF_OPCODE[head & 31]
            words = (head >> 5 & 15) + 1
            total = reader._number(at, words)
            at += words
            if form is REPEAT_FORMAT:
                end = at + form.unpack_body(total, reader)["body_words"]
                skip = passes_skipped and form.unpack_head(total, reader)["stage"] > 0
                for _ in range(0 if skip else 2):
                    run(at, end)
                at = end
            elif form.file is not None:
                reader._set_up(form, total, words)
            else:
                node = reader._instruction(form, total, words)
                if node is not None:
                    seen.append(node)

    run(0, len(code) // 4)
    return seen


def expected(body: tuple[p.Node, ...], passes_skipped: bool) -> list[p.Instruction]:
    seen: list[p.Instruction] = []
    for node in body:
        if not isinstance(node, p.Repeat):
            seen.append(dataclasses.replace(node, layer=0, unit=0))
        elif not (passes_skipped and node.stage > 0):
            seen += 2 * expected(node.body, passes_skipped)
    return seen


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("passes_skipped", [False, True])
@pytest.mark.parametrize("pool", [20, 280, 500])
def test_registers_hold_in_every_pass_of_a_loop(pool: int, passes_skipped: bool) -> None:
    program = Maker(pool, pool).program(200, barriers=0)
    assert run_set_up(encode(program).bytes, passes_skipped) == expected(program.body, passes_skipped)


# ---------------------------------------------------------------------- refusals


def test_a_wide_coefficient_is_refused_by_field_and_value() -> None:
    program = p.Program((unary(), unary(p.Affine(0, (2**31,)))), layers=("conv1",))
    with pytest.raises(DoesNotFit) as caught:
        encode(program)
    assert str(caught.value) == (
        "instruction 1 ('unary') of layer 'conv1': field in_view.offset.coefficient does not fit: "
        "needed 2147483648, available in [-2147483648, 2147483647]"
    )


def wrapped_copy(size: int) -> p.Copy:
    around = dataclasses.replace(VIEW, memory="sram", wrap=p.Wrap(2, size, p.Affine(-1, (24,))))
    return p.Copy(engine="mvdma", src_view=around, dst_view=VIEW, box=BOX)


def test_views_that_wrap_are_registers_of_their_own() -> None:
    body = (wrapped_copy(10), wrapped_copy(11), wrapped_copy(10))
    code = encode(p.Program(body))
    assert read(code) == body
    assert len(code.bytes) == len(encode(p.Program(body[:2])).bytes) + 4 * 6  # the third defines nothing


def test_a_wide_ring_is_refused() -> None:
    with pytest.raises(DoesNotFit, match=r"field src_view.wrap.* does not fit: needed 4294967296, available in"):
        encode(p.Program((wrapped_copy(1 << 32),)))


def test_addresses_above_four_gibibytes_fit() -> None:
    body = (unary(p.Affine(15 * 2**30)),)
    assert read(encode(p.Program(body))) == body


def test_a_wide_stage_is_refused() -> None:
    with pytest.raises(DoesNotFit, match=r"field stage does not fit: needed 64, available in \[0, 63\]"):
        encode(p.Program((unary(stage=64),)))


def test_a_seventh_loop_is_refused() -> None:
    node: p.Node = unary()
    for _ in range(7):
        node = p.Repeat(2, (node,))
    with pytest.raises(DoesNotFit, match="nest of loops does not fit: needed 7, available 6"):
        encode(p.Program((node,)))


def test_a_page_larger_than_instruction_memory_is_refused() -> None:
    program = p.Program((unary(), p.Barrier(), *[unary(p.Affine(n)) for n in range(9)]))
    with pytest.raises(DoesNotFit, match=r"page 1: program page does not fit: needed \d+ B, available 128 B") as caught:
        encode(program, instruction_memory_bytes=128)
    assert caught.value.resource == "instruction memory"


def test_two_pages_that_do_not_fit_together_are_refused_with_their_sum() -> None:
    """The next page arrives while one runs; one byte less than both need is too little."""
    program = p.Program((unary(), p.Barrier(), *[unary(p.Affine(n)) for n in range(9)]))
    pages = encode(program).page_bytes
    both = sum(pages)
    assert encode(program, instruction_memory_bytes=both).page_bytes == pages
    with pytest.raises(DoesNotFit) as caught:
        encode(program, instruction_memory_bytes=both - 1)
    wanted = f"pages 0 and 1: program does not fit: needed {both} B, available {both - 1} B of instruction memory"
    assert str(caught.value) == wanted


# ---------------------------------------------------------------------- damaged code


def words(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"\1\2\3", "ends inside a word"),
        (words(0), "word 0: unknown opcode 0"),
        (words(2 | 4 << 5), "word 0: 'view' has a wrong length of 5 words"),
        (words(6 | 2 << 5, 1, 9), "word 0: 'repeat': a body of 9 words at depth 0 is not possible here"),
        (words(18 | 3 << 5 | 3 << 18, 0, 0, 0), "word 0: 'barrier': waits: 3 is not 0 to 2"),
        (words(13 | 3 << 5, 0, 0, 0), "word 0: 'softmax': in_view: view register 0 is not defined"),
    ],
)
def test_damaged_code_is_refused(code: bytes, message: str) -> None:
    with pytest.raises(CodeError, match=message):
        decode(code)


def test_more_than_two_waits_are_refused() -> None:
    """Reading the IR puts more of them into `wait` instructions."""
    waits = tuple(p.Wait(slot, "own", ZERO) for slot in range(3))
    with pytest.raises(DoesNotFit, match=r"instruction 0 \('unary'\) .*: field waits .*: needed 3, available 0 to 2"):
        encode(p.Program((unary(waits=waits),)))


def test_layers_must_match_the_instructions() -> None:
    with pytest.raises(CodeError, match="1 instructions, but layers of 2 and units of 1"):
        decode(encode(p.Program((unary(),))).bytes, [0, 0], [0])


@given(st.integers(0, 2**32), st.data())
@settings(max_examples=60, deadline=None)
def test_any_flipped_bit_gives_a_program_or_a_code_error(seed: int, data: st.DataObject) -> None:
    code = bytearray(encode(Maker(seed).program(6)).bytes)
    bit = data.draw(st.integers(0, 8 * len(code) - 1))
    code[bit // 8] ^= 1 << bit % 8
    try:
        decode(bytes(code))
    except CodeError as error:
        assert str(error).startswith("word ")
