"""docs/passes.md has every pass and every option, as the passes say."""

from dataclasses import dataclass
from pathlib import Path

from xdsl.passes import ModulePass, get_pass_option_infos

from frustum.runtime import pass_table
from frustum.runtime.universe import PASSES, load

PAGE = Path(__file__).parents[2] / "docs" / "passes.md"


@dataclass(frozen=True)
class Shrink(ModulePass):
    """Makes `x` < 3.

    At length.
    """

    name = "toy-shrink"
    by: int
    word: str | None = None
    is_fast: bool = True

    def apply(self, ctx, op) -> None:
        pass


def test_the_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text() == pass_table.pass_table(), "run `make docs`"


def test_every_pass_and_option_is_there() -> None:
    page = PAGE.read_text()
    sections = dict(part.split("`\n", 1) for part in page.split("\n## `")[1:])
    assert set(sections) == {name for name, _ in PASSES}
    for name, place in PASSES:
        for info in get_pass_option_infos(load(place)):
            assert f"| `{info.name}` |" in sections[name]


def test_a_row_for_each_option() -> None:
    assert pass_table._section(Shrink).splitlines() == [
        "## `toy-shrink`", "", "Makes `x` &lt; 3.", "", "At length.", "",
        "| option | type | default |", "| --- | --- | --- |",
        "| `by` | `int` | must be given |", "| `word` | `str\\|None` | - |", "| `is_fast` | `bool` | `true` |",
    ]  # fmt: skip
