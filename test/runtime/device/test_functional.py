"""The sequence of calls: empty programs, halves on two threads, threads of the matrix products."""

from dataclasses import replace

import numpy as np
import pytest
from isa_cases import SIZES, Layout, agree, span

from frustum.dialects.isa import program as p
from frustum.runtime.device import functional, products
from frustum.runtime.device.expand import expand
from frustum.runtime.device.functional import ExecutionPlan
from frustum.runtime.device.memory import AccessError, Memories
from frustum.runtime.kernels import convolution

A = p.Affine


def test_an_empty_program_is_an_empty_plan():
    plan = ExecutionPlan(expand(p.Program(()), 2, 2), (16, 16, 16, 16))
    plan.run(Memories((1, 2, 4, 4), (16, 16, 16, 16)))
    assert len(plan) == 0 and not plan.steps


def test_halves_on_two_threads_give_the_same_bytes(monkeypatch):
    """Every call of more than one unit is cut in two, over clusters or over cores."""
    monkeypatch.setattr(functional, "LARGE", 1)
    monkeypatch.setattr(products, "LARGE", 1)
    cut = []
    for place, name in ((functional, "_halves"), (products, "_halves")):
        halves = getattr(place, name)
        monkeypatch.setattr(place, name, lambda part, halves=halves: cut.append(part) or halves(part))
    layout = Layout()
    box = p.Box.of(span(0, 1, 1), span(0, 3, 3), span(A(0, (2,), cluster=6, core=2), 2, 11), span(0, 8, 8))
    moves = {"cluster": 3 * 8 * 6 * 4, "core": 3 * 8 * 2 * 4}
    load = p.Copy(engine="iodma", src_view=layout.view("dram", (1, 3, 40, 8), **moves),
                  dst_view=layout.view("nram", box.extent), box=box)  # fmt: skip
    work = p.Unary(kind="relu", in_view=load.dst_view, out_view=layout.view("nram", box.extent), box=box)
    conv = p.Conv(
        in_view=work.out_view, weight_view=layout.view("wram", (5, 3, 1, 1)), box=replace(box, extent=(1, 5, 2, 8),
        bound=(1, 5, 11, 8)), out_view=layout.view("nram", (1, 5, 2, 8)), channels=span(0, 3, 3),
        rows=box.spans[2], cols=box.spans[3], kernel=(1, 1), strides=(1, 1), dilations=(1, 1),
    )  # fmt: skip
    agree(p.Program((p.Repeat(2, (load, work, conv)),)), 2, 3)
    assert {type(part) for part in cut} == {list, tuple}, "groups of an effect, and of products"


def test_copies_that_follow_each_other_are_one_step():
    """Of one size of elements, whichever engine makes them; the order stays that of the program."""
    layout = Layout()

    def move(memories, element="f32"):
        box = p.Box.of(*[span(0, n, n) for n in (1, 1, 1, 50)])
        views = [layout.view(memory, box.extent, element) for memory in memories]
        engine = "mvdma" if memories[0] == "sram" else "gdma"
        return p.Copy(engine=engine, src_view=views[0], dst_view=views[1], box=box)

    first, second, third = move(("dram", "sram")), move(("sram", "nram")), move(("dram", "sram"), "f16")
    plan = ExecutionPlan(expand(p.Program((first, second, third, p.Repeat(3, (first,)))), 2, 2), tuple(SIZES.values()))
    assert [(kind, last - first) for kind, first, last in plan.steps] == [(functional.COPIES, n) for n in (2, 1, 3)]


@pytest.mark.parametrize("operand", ["in", "weight", "out"])
def test_a_convolution_outside_its_memory_does_not_run(operand):
    layout = Layout()
    box = p.Box.of(*[span(0, n, n) for n in (1, 4, 3, 5)])
    views = {name: layout.view(memory, shape) for name, memory, shape in
             (("in", "nram", (1, 2, 3, 5)), ("weight", "wram", (4, 2, 1, 1)), ("out", "nram", box.extent))}  # fmt: skip
    size = SIZES[views[operand].memory]
    views[operand] = replace(views[operand], offset=A(2 * size - 4, (), -4))
    conv = p.Conv(in_view=views["in"], weight_view=views["weight"], out_view=views["out"], box=box,
                  channels=span(0, 2, 2), rows=box.spans[2], cols=box.spans[3], kernel=(1, 1), strides=(1, 1),
                  dilations=(1, 1))  # fmt: skip
    with pytest.raises(AccessError, match=r"conv 0 \(layer 'only'\): an operand lies outside its memory"):
        ExecutionPlan(expand(p.Program((conv,), layers=("only",)), 1, 2), tuple(SIZES.values()))


@pytest.mark.parametrize(("engine", "copies"), [("mvdma", 1), ("bus", 2)])
def test_a_copy_outside_its_memory_does_not_run(engine, copies):
    layout = Layout()
    box = p.Box.of(*[span(0, n, n) for n in (1, 1, 1, 50)])
    target = replace(layout.view("nram", box.extent), offset=A(2 * SIZES["nram"] - 100 - (copies - 1) * SIZES["nram"]))
    copy = p.Copy(engine=engine, src_view=layout.view("sram", box.extent), dst_view=target, box=box)
    with pytest.raises(AccessError, match=f"copy 0 by {engine}: an operand lies outside its memory"):
        ExecutionPlan(expand(p.Program((copy,)), 1, 2), tuple(SIZES.values()))


def test_products_take_one_thread_inside_and_as_many_as_before_after_it():
    found = convolution._functions()
    if found is None:
        pytest.skip("this numpy brings no OpenBLAS")
    before = found[0]()
    with convolution.single_threaded():
        assert found[0]() == 1
        assert np.array_equal(np.ones((3, 3)) @ np.ones((3, 3)), np.full((3, 3), 3.0))
    assert found[0]() == before


def test_without_an_openblas_nothing_is_set(monkeypatch):
    monkeypatch.setattr(convolution, "_functions", lambda: None)
    with convolution.single_threaded():
        assert (np.ones((2, 2)) @ np.ones((2, 2)))[0, 0] == 2
