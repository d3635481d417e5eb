"""The listing of a program."""

from random_program import Maker

from frustum.backend.file.listing import disassemble, instruction_text
from frustum.dialects.isa import program as p
from frustum.dialects.isa.format import INSTRUCTION_FORMATS


def test_listing_of_a_program() -> None:
    view = p.View("f32", p.Affine(64, (4,)), (0, 0, 16, 4), "nram", p.Ring(2, 512, 1))
    span = p.Span(p.Affine(-1, (8,)), 10, 56)
    relu = p.Unary(
        kind="relu",
        in_view=view,
        out_view=view,
        box=p.Box.of(span, span, span, span),
        stage=1,
        waits=(p.Wait(3, "own", p.Affine(1, (1,))),),
        signal=2,
        layer=0,
    )
    program = p.Program(
        body=(p.Repeat(4, (relu,)), p.Barrier(layer=1)),
        externals=(p.External("x", "input", 0, 4, (), "f32"),),
        name="net",
        layers=("conv1",),
        units=("u0",),
    )
    box = ", ".join(["-1 + 8*i0 : 10 in 56"] * 4)
    at = "nram[64 + 4*i0]:f32(0,0,16,4) ring(2 of 512 at level 1)"
    assert disassemble(program).splitlines() == [
        "program net f32",
        "external input 'x' scalar f32 at dram[0], 4 bytes",
        "page 0",
        "  repeat 4",
        f"    unary.vector stage 1 waits own 3 at 1 + 1*i0 in_view={at} out_view={at} kind=relu box=<{box}>"
        " alpha=0.0 beta=0.0 signal 2  ; conv1 of u0",
        "  barrier  ; u0",
        "page 1",
    ]


def test_every_instruction_can_be_listed() -> None:
    program = Maker(3).program(200)
    names = {instruction_text(node).split(".")[0] for node in p.instructions(program.body)}
    assert names == {form.name for form in INSTRUCTION_FORMATS}


def test_a_view_that_wraps_says_around_what() -> None:
    around = p.View("f16", p.Affine(64), (0, 0, 16, 2), "sram", wrap=p.Wrap(2, 10, p.Affine(0, (4,))))
    span = p.Span(p.Affine(), 1, 1)
    load = p.Copy(engine="gdma", src_view=around, dst_view=around, box=p.Box.of(span, span, span, span))
    assert "dst_view=sram[64]:f16(0,0,16,2) wrap(2 + 4*i0 mod 10) " in instruction_text(load)
