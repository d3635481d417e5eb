"""The source keeps the measures of `make measures` (test/support/house.py)."""

import ast

import house
import pytest

LIMITS = {
    "lines of code": 39_938,
    "files": 349,
    "longest file": 780,
    "longest class": 460,
    "longest function": 103,
    "most arguments": 31,
    "circles of imports at run time": 3,
    "circles of imports for types only": 4,
    "imports against the order in passes": 21,
    "string look-ups in params": 53,
    "casts": 66,
    "type: ignore": 35,
    "class names with several meanings": 55,
}
MOST_FILES_IN_A_FOLDER = 78
LEAST_DOCSTRINGS_PER_100 = 12.0


@pytest.fixture(scope="module")
def source() -> house.House:
    return house.House.of_tree()


@pytest.mark.parametrize("measure", LIMITS)
def test_measure_is_within_its_limit(source, measure):
    assert house.MEASURES[measure](source) <= LIMITS[measure]


def test_no_folder_is_crowded(source):
    folder, files = house.per_folder(source).most_common(1)[0]
    assert files <= MOST_FILES_IN_A_FOLDER, folder


def test_docstrings_are_kept(source):
    assert house.docstrings_per_100(source) >= LEAST_DOCSTRINGS_PER_100


def of(**files: str) -> house.House:
    return house.House({path.replace("__", "/") + ".py": text for path, text in files.items()})


def test_code_is_what_is_neither_comment_nor_docstring():
    text = '"""Doc.\n\nMore."""\n\n# why\nx = """a\nb"""  # c\n\ndef f():\n    """Doc."""\n    return (\n        1)\n'
    assert sorted(house.code_lines(text)) == [6, 7, 9, 11, 12]
    assert sorted(house.docstring_lines(ast.parse(text))) == [1, 2, 3, 10]


def test_circles_are_found_with_what_they_are_for():
    here = of(
        passes__a="from frustum.passes import b",
        passes__b="def f():\n    from frustum.passes.a import x",
        passes__c="from frustum.passes import d",
        passes__d="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from frustum.passes.c import x",
    )
    assert house.circles_at(here, types=False) == 1
    assert house.circles_at(here, types=True) == 1


def test_order_of_passes_is_watched():
    here = of(
        passes__analysis__a="from frustum.passes.tile.b import x",
        passes__tile__b="from frustum.passes.analysis import c",
        passes__analysis__c="",
    )
    assert [use.module for use in house.against_order(here)] == ["frustum.passes.analysis.a"]


def test_names_and_arguments_and_look_ups_are_counted():
    here = of(
        passes__a="class Work: ...\ndef f(a, b, *, c): return a.params['kernel'] + params.get('stride')",
        passes__b="class Work:\n    def g(self, x): return cast(int, x)  # type: ignore",
        dialects__graph__c="class ConvOp: ...",
        dialects__isa__d="class ConvOp: ...",
    )
    assert list(house.several_meanings(here)) == ["Work"]
    assert next(iter(house.arguments(here).values())) == 3
    assert len(house.look_ups(here)) == 2
    assert len(here.calls("cast")) == 1
    assert house.ignores(here) == 1
