"""The sequence of calls: empty programs, halves on two threads, threads of the matrix products."""

import numpy as np
import pytest
from isa_cases import SIZES, Layout, agree, span

from frustum.dialects.isa import program as p
from frustum.runtime import blas, functional
from frustum.runtime.expand import expand
from frustum.runtime.functional import Plan
from frustum.runtime.memory import Memories

A = p.Affine


def test_an_empty_program_is_an_empty_plan():
    plan = Plan(expand(p.Program(()), 2, 2), (16, 16, 16, 16))
    plan.run(Memories((1, 2, 4, 4), (16, 16, 16, 16)))
    assert len(plan) == 0 and not list(plan.steps())


def test_halves_on_two_threads_give_the_same_bytes(monkeypatch):
    """Every call of more than one unit is cut in two, over clusters or over cores."""
    monkeypatch.setattr(functional, "LARGE", 1)
    layout = Layout()
    box = p.Box.of(span(0, 1, 1), span(0, 3, 3), span(A(0, (2,), cluster=6, core=2), 2, 11), span(0, 8, 8))
    moves = {"cluster": 3 * 8 * 6 * 4, "core": 3 * 8 * 2 * 4}
    load = p.Copy(engine="iodma", src_view=layout.view("dram", (1, 3, 40, 8), **moves),
                  dst_view=layout.view("nram", box.extent), box=box)  # fmt: skip
    work = p.Unary(kind="relu", in_view=load.dst_view, out_view=layout.view("nram", box.extent), box=box)
    spread = p.Copy(engine="bus", src_view=layout.view("sram", (1, 1, 1, 50)),
                    dst_view=layout.view("wram", (1, 1, 1, 50)),
                    box=p.Box.of(*[span(0, n, n) for n in (1, 1, 1, 50)]))  # fmt: skip
    program = p.Program((spread, p.Repeat(2, (load, work))))
    steps = list(Plan(expand(program, 2, 3), [SIZES[name] for name in p.MEMORIES]).steps())
    assert sum(in_halves for _, in_halves, _ in steps) >= 3
    agree(program, 2, 3)


def test_products_take_one_thread_inside_and_as_many_as_before_after_it():
    found = blas._functions()
    if found is None:
        pytest.skip("this numpy brings no OpenBLAS")
    before = found[0]()
    with blas.single_threaded():
        assert found[0]() == 1
        assert np.array_equal(np.ones((3, 3)) @ np.ones((3, 3)), np.full((3, 3), 3.0))
    assert found[0]() == before


def test_without_an_openblas_nothing_is_set(monkeypatch):
    monkeypatch.setattr(blas, "_functions", lambda: None)
    with blas.single_threaded():
        assert (np.ones((2, 2)) @ np.ones((2, 2)))[0, 0] == 2
