"""From a module with addresses to the plain program."""

from pathlib import Path

import pytest
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.utils.exceptions import VerifyException

import frustum.backend.targets
from frustum.backend.file.read_program import read_program, slots_of
from frustum.dialects.isa import (
    Affine,
    AllocOp,
    BarrierOp,
    Box,
    CopyOp,
    ExternalOp,
    ProgramOp,
    RepeatOp,
    Span,
    UnaryOp,
    View,
    Wait,
    Wrap,
)
from frustum.dialects.isa import program as p
from frustum.dialects.isa.instruction import integers
from frustum.dialects.module import DTYPE, LAYERS, TARGET, UNITS, USEFUL_MACS
from frustum.dialects.target import read_target, to_attribute

VIEW = View("f32", Affine(8, (4,)), (0, 0, 0, 4))
SPAN = Span(Affine(), 8, 8)
BOX = Box.of(SPAN, SPAN, SPAN, SPAN)


def module() -> ModuleOp:
    program, loop = ProgramOp("net"), RepeatOp(4, stage=1)
    data = ExternalOp("data", "input", 32, (8,), "f32", model_dtype="float16", address=4096)
    outer = AllocOp("nram", 64, depth=2, address=128)
    inner = AllocOp("nram", 32, depth=3, address=256)
    relu = UnaryOp(outer, inner, kind="relu", in_view=VIEW, out_view=VIEW, box=BOX, signal=5)
    back = UnaryOp(
        inner, outer, kind="relu", in_view=VIEW, out_view=VIEW, box=BOX, waits=(Wait(7, "cluster", Affine(1)),)
    )
    loop.body.block.add_ops([inner, relu, back])
    program.body.block.add_ops([data, outer, loop, BarrierOp(layer=1)])
    made = ModuleOp([program])
    (folder,) = frustum.backend.targets.__path__
    text = (Path(folder) / "edge.yaml").read_text()
    made.attributes.update(
        {
            TARGET: to_attribute(read_target(text, "edge.yaml")),
            DTYPE: StringAttr("f32"),
            LAYERS: ArrayAttr([StringAttr("conv1"), StringAttr("end")]),
            UNITS: ArrayAttr([StringAttr("u0")]),
            USEFUL_MACS: integers((10, 0)),
        }
    )
    return made


def test_buffers_become_addresses() -> None:
    program = read_program(module())
    loop, barrier = program.body
    assert isinstance(loop, p.Repeat) and (loop.count, loop.stage) == (4, 1)
    relu, _ = loop.body
    assert isinstance(relu, p.Unary)
    assert relu.in_view == View("f32", Affine(136, (4,)), (0, 0, 0, 4), "nram")  # one copy: its body runs once
    ring = p.Ring(3, 32, level=1)
    assert relu.out_view == View("f32", Affine(264, (4,)), (0, 0, 0, 4), "nram", ring)
    assert barrier == p.Barrier(layer=1)


def test_what_the_module_knows_is_kept() -> None:
    program = read_program(module())
    assert program.name == "net" and program.dtype == "f32"
    assert program.layers == ("conv1", "end") and program.units == ("u0",)
    assert program.useful_macs == (10, 0)
    assert program.externals == (p.External("data", "input", 4096, 32, (8,), "f32", "float16"),)
    assert program.peak_bytes == {"dram": 4128, "nram": 352}
    assert (program.core_slots, program.cluster_slots) == (6, 8)
    assert '"name": "edge"' in program.target


def test_slots_are_counted_for_cores_and_clusters() -> None:
    def hold(engine: p.Engine, scope: p.Scope, slot: int) -> p.Hold:
        return p.Hold(engine=engine, waits=(Wait(slot, scope, Affine(1)),))

    assert slots_of([hold("bus", "own", 2), hold("matrix", "own", 4)]) == (5, 3)
    assert slots_of([hold("bus", "cores", 2), hold("matrix", "all_clusters", 4)]) == (3, 5)
    assert slots_of([hold("bus", "all_cores", 2), hold("matrix", "cluster", 4)]) == (3, 5)
    assert slots_of([]) == (0, 0)


def test_a_buffer_without_an_address_is_refused() -> None:
    made = module()
    for op in made.walk():
        if isinstance(op, AllocOp):
            del op.properties["address"]
    with pytest.raises(VerifyException, match=r"'fisa.alloc' has no address: run frustum-allocate first"):
        read_program(made)


def test_a_module_without_program_or_target_is_refused() -> None:
    with pytest.raises(VerifyException, match=r"expected one 'fisa.program' in the module, found 0"):
        read_program(ModuleOp([]))
    made = module()
    del made.attributes[TARGET]
    with pytest.raises(VerifyException, match="the module has no target: attribute"):
        read_program(made)
    made = module()
    del made.attributes[DTYPE]
    with pytest.raises(VerifyException, match=r"the module has no frustum.dtype"):
        read_program(made)


def wrapping(depth: int) -> ModuleOp:
    """The module with a load into a ring of 10 positions in its loop."""
    made = module()
    loop = next(op for op in made.walk() if isinstance(op, RepeatOp))
    data = next(op for op in made.walk() if isinstance(op, ExternalOp))
    ring = AllocOp("sram", 64, depth=depth, address=512)
    around = View("f32", Affine(8), (0, 0, 0, 4), wrap=Wrap(3, 10, Affine(0, (8,))))
    loop.body.block.add_ops([ring, CopyOp(data, ring, engine="gdma", src_view=VIEW, dst_view=around, box=BOX)])
    return made


def test_a_view_that_wraps_stays_as_it_is() -> None:
    copy = read_program(wrapping(1)).body[0].body[-1]  # type: ignore[union-attr]
    assert isinstance(copy, p.Copy)
    assert copy.dst_view == View("f32", Affine(520), (0, 0, 0, 4), "sram", None, Wrap(3, 10, Affine(0, (8,))))


def test_a_ring_has_no_copies() -> None:
    with pytest.raises(VerifyException, match=r"'fisa.copy': dst_view wraps, .* but it has 2 copies"):
        read_program(wrapping(2))
