"""Every dialect and pass of ours is there, under its name, for plain xDSL tools too."""

import pytest
from xdsl.ir import Dialect
from xdsl.passes import ModulePass
from xdsl.universe import Universe

from frustum.backend.pipeline import STOPS, Choices, passes_to
from frustum.runtime.universe import DIALECTS, PASSES, load


@pytest.mark.parametrize(("name", "place"), DIALECTS)
def test_dialect_is_there(name: str, place: str) -> None:
    dialect = load(place)
    assert isinstance(dialect, Dialect)
    assert dialect.name == name


@pytest.mark.parametrize(("name", "place"), PASSES)
def test_pass_is_there(name: str, place: str) -> None:
    kind = load(place)
    assert issubclass(kind, ModulePass)
    assert kind.name == name
    assert name.startswith("frustum-"), "names are shared with every other plugin"
    assert kind.__doc__


def test_passes_of_the_pipeline_are_there() -> None:
    """Each that `compile` runs can be typed."""
    run = {each.name for stop in STOPS for each in passes_to(stop, Choices("int8", order="bands", borders="exchange"))}
    assert run <= {name for name, _ in PASSES}


def test_plain_xdsl_sees_them() -> None:
    everything = Universe.get_multiverse()
    assert {name for name, _ in DIALECTS} <= everything.all_dialects.keys()
    assert {name for name, _ in PASSES} <= everything.all_passes.keys()


@pytest.mark.parametrize(("name", "place"), DIALECTS)
def test_every_operation_says_what_it_is(name: str, place: str) -> None:
    without = [op.name for op in load(place).operations if not vars(op).get("__doc__")]
    assert without == []
