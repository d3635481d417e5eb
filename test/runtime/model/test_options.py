"""Options are declared once: the page, the parser and the API have what runtime/model/options.py says."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import onnx_models
import pytest

import frustum
from frustum.backend.pipeline import STOPS
from frustum.runtime import option_table
from frustum.runtime.failures import UsageError
from frustum.runtime.model import options
from frustum.runtime.model.options import Keywords, Request, RunOptions, Told, flag_of, options_of
from frustum.runtime.tools import cli

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"
STAGES = ("typed", "fused", "tiled", "placed", "lowered", "fixed")


def test_the_committed_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page.count(option_table.BEGIN) == page.count(option_table.END) == 1
    assert page == option_table.with_tables(page), "run `make docs`"


def test_every_option_of_every_command_is_on_the_page() -> None:
    """What argparse takes is typed there, with what is allowed and what holds where nobody says it."""
    head, *parts = option_table.tables().split("\n### `frustum ")
    sections = {"run": head} | {part.partition("`")[0]: part for part in parts}
    assert sections.keys() == cli.COMMANDS.keys()
    (commands,) = (each for each in cli._parser()._actions if each.dest == "command")
    for name, parser in commands.choices.items():
        typed = {each.option_strings[-1] if each.option_strings else each.metavar for each in parser._actions}
        own = set(re.findall(r"^\| `(-[\w-]+|[^ `]+)", sections[name].replace("\\|", "|"), re.MULTILINE))
        if issubclass(kind := cli.COMMANDS[name][0], Request):
            common = Told if issubclass(kind, Told) else Request
            shared = {flag_of(each) or "MODEL" for each, said in options_of(common) if said.is_typed}
            typed, own = typed - shared, own - shared
        assert typed - {"--help", "-h"} == own, name
    rows = [row for text in sections.values() for row in text.splitlines() if row.startswith(("| `", "| -"))]
    cells = [row.strip("| ").replace("\\|", "/").split("|") for row in rows]
    assert [row for row in cells if not all(map(str.strip, row))] == []


SAID = {
    "dtype": "model", "policy": ("optimal", "tree"), "optimise": "time", "carry": "auto", "borders": "auto",
    "host": "auto",
    "split": "auto", "placement": "one", "compress_weights": "auto", "weights": "replicated", "calibrate": "minmax",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_what_holds_where_nothing_is_said_is_what_the_page_says(name: str) -> None:
    (said,) = (said for each, said in options_of(RunOptions) if each.name == name)
    values = SAID[name] if isinstance(SAID[name], tuple) else (SAID[name],)
    assert all(f"`{value}`" in said.unsaid for value in values)
    others = {"dtype": "int8"} if name == "calibrate" else {"policy": "optimal"} if name == "borders" else {}

    def code(**how: object) -> list[object]:
        made = frustum.compile(onnx_models.network(), "edge", **{**others, **how})
        return [each.code for each in made.chain.executables]

    assert code() in [code(**{name: value}) for value in values]


def test_no_default_is_left_out_of_the_test_above() -> None:
    named = {each.name for each, said in options_of(Request) if said.unsaid.startswith("`")}
    assert named - SAID.keys() == {"target", "weights_seed"}


def test_the_parameters_of_compile_are_the_fields() -> None:
    parameters = inspect.signature(frustum.compile).parameters
    assert list(parameters) == [each.name for each in sorted(fields(Keywords), key=lambda each: each.kw_only)]
    assert [name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD] == [
        "model", "target", "dtype", "policy",
    ]  # fmt: skip
    assert frustum.compile.__name__ == "compile"
    assert all(f"    {name}: " in frustum.compile.__doc__ for name in parameters)


def test_every_option_is_typed_under_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    shown = re.findall(r"^  (--?[\w-]+)", capsys.readouterr().out.replace("  -h, ", "  "), re.MULTILINE)
    shown.remove("--help")
    assert sorted(shown) == sorted(
        flag_of(each) for each, said in options_of(RunOptions) if said.is_typed and flag_of(each)
    )


def test_stops_are_those_of_the_pipeline() -> None:
    known = {None, options.IMPORTED, options.COMPILED, *STOPS}
    assert {said.until for _, said in options_of(RunOptions)} <= known


LATE = [
    ("policy", "none", "fused"), ("dtype", "f16", "fused"), ("order", "row-major", "tiled"),
    ("borders", "overlap", "tiled"), ("compress_weights", "zero", "lowered"), ("weights", "shared", "lowered"),
]  # fmt: skip


@pytest.mark.parametrize("stop", STAGES)
@pytest.mark.parametrize(("name", "value", "until"), LATE)
def test_an_option_has_an_effect_up_to_its_stop(name: str, value: str, until: str, stop: str) -> None:
    request, stops = Request("m", **{name: value}), STOPS[: STOPS.index(stop) + 1]
    if stop not in STOPS[STOPS.index(until) :]:
        options.refuse_late(request, "m", stops, {})
        return
    flag = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=f"^m: error: {flag} {value} has no effect at stop '{stop}'$"):
        options.refuse_late(request, "m", stops, {})
    options.refuse_late(request, "m", stops, {name: value})


def test_what_says_nothing_is_not_refused() -> None:
    request = Request("m", dtype="model", host="never", placement="each")
    options.refuse_late(request, "m", STOPS, {})
    options.refuse_imported(request, "m")
    options.refuse_beside_pipeline(request)
    options.refuse_compiled(Request("m", placement="each"))


def test_a_seed_of_0_is_said() -> None:
    with pytest.raises(UsageError, match=r"^m: error: is compiled already: --weights-seed has no effect on it$"):
        options.refuse_compiled(Request("m", weights_seed=0))
