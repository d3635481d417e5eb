"""The small values of programs: arithmetic, clipping, copies of buffers, text."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.dialects.isa.program import Affine, Box, Ring, Span, Wait

numbers = st.integers(-100, 100)
affines = st.builds(Affine, numbers, st.lists(numbers, max_size=4).map(tuple), numbers, numbers)
INDICES, CLUSTER, CORE = (3, 5, 7, 11), 2, 13


def at(affine: Affine) -> int:
    return affine.at(INDICES, CLUSTER, CORE)


@given(affines, affines, numbers)
def test_arithmetic_of_functions_is_arithmetic_of_their_values(a: Affine, b: Affine, factor: int) -> None:
    assert at(a + b) == at(a) + at(b)
    assert at(a - b) == at(a) - at(b)
    assert at(a * factor) == at(factor * a) == at(a) * factor
    assert at(a + factor) == at(factor + a) == at(a) + factor
    assert at(-a) == -at(a)
    assert a - a == Affine()


def test_equal_functions_are_equal_values() -> None:
    assert Affine(1, (2, 0, 0)) == Affine(1, (2,))
    assert hash(Affine(1, (0,))) == hash(Affine(1))
    assert Affine(1, (0,)).is_constant and not Affine(core=1).is_constant
    assert Affine.of(4) == Affine(4) and Affine.index(2, 8) == Affine(0, (0, 0, 8))


def test_text_of_an_affine() -> None:
    assert str(Affine(16, (4, 0, -8), 3, 512)) == "16 + 4*i0 - 8*i2 + 512*core + 3*cluster"
    assert str(Affine(0, (-3,))) == "-3*i0"
    assert str(Affine()) == "0"


@pytest.mark.parametrize(
    ("row", "clipped"), [(0, (0, 3)), (1, (3, 7)), (2, (7, 10)), (3, (11, 10))]
)  # first, inner, last tile, and one that is empty
def test_a_span_is_clipped_to_bound_and_start(row: int, clipped: tuple[int, int]) -> None:
    assert Span(Affine(-1, (4,)), 4, 10).clip((row,)) == clipped


def test_a_limit_clips_like_a_bound_that_moves() -> None:
    assert Span(Affine(0), 8, 100, Affine(2, core=3)).clip((), 0, 1) == (0, 5)


def test_a_box_is_four_spans() -> None:
    spans = [Span(Affine(n), n + 1, n + 2, Affine(9) if n == 2 else None) for n in range(4)]
    assert Box.of(*spans).spans == tuple(spans)
    assert str(Box.of(*spans)) == "0 : 1 in 2, 1 : 2 in 3, 2 : 3 in 4 to 9, 3 : 4 in 5"


def test_a_ring_takes_the_next_copy_in_each_pass_of_its_body() -> None:
    ring = Ring(3, 256, level=2)
    copies = [ring.copy((i, j, 4), (2, 4, 9)) for i in range(2) for j in range(4)]
    assert copies == [0, 1, 2, 0, 1, 2, 0, 1]


def test_text_of_a_wait() -> None:
    assert str(Wait(3, "own", Affine(1, (1,)))) == "own 3 at 1 + 1*i0"


def test_programs_need_neither_xdsl_nor_numpy() -> None:
    check = "import sys, frustum.dialects.isa.program as p; sys.exit('xdsl' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_the_package_has_no_other_names() -> None:
    import frustum.dialects.isa as isa

    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        isa.Nothing  # noqa: B018
    assert isa.Affine is Affine and isa.FIsa.name == "fisa" and isa.emit(isa.Barrier()).name == "fisa.barrier"
