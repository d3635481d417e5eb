"""The sheets of docs/validation.md, worked out by hand, are what the emulator counts."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import validation
from validation_sheets import SHEETS

ROOT = Path(__file__).parents[2]
EVERY_SHEET = pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.name)
counted = cache(lambda name: validation.counted(next(sheet for sheet in SHEETS if sheet.name == name)))


@pytest.mark.slow(but=4)
@EVERY_SHEET
def test_every_action_of_an_engine_is_as_worked_out(sheet):
    found = counted(sheet.name)
    by_hand = {}
    for line in validation.by_hand(sheet, found.pages):
        by_hand.setdefault(line.engine, []).append(line.action)
    assert by_hand == found.actions


@pytest.mark.slow(but=2)
@EVERY_SHEET
def test_the_critical_path_is_the_one_of_the_sheet(sheet):
    found = counted(sheet.name)
    lines = validation.by_hand(sheet, found.pages)
    names = {engine: [line.name for line in lines if line.engine == engine] for engine in found.actions}
    assert [names[engine][place] for engine, place in found.path] == sheet.path.split()
    assert validation.end(lines) == found.report["cycles"]["total"]


@EVERY_SHEET
def test_the_sums_are_those_of_the_report(sheet):
    found = counted(sheet.name)
    lines = validation.by_hand(sheet, found.pages)
    report = found.report
    busy = {name.rpartition(".")[2]: each["busy"] for name, each in report["engines"].items() if each["busy"]}
    assert {engine: sum(cycles) for engine, cycles in validation.busy(lines).items()} == busy
    assert validation.dram_bytes(lines) == (report["dram"]["read_bytes"], report["dram"]["write_bytes"])
    assert validation.worth(sheet.steps) == report["line_buffer"]["compute_steps"]
    assert validation.worth(sheet.writes) == report["line_buffer"]["writes"]


def test_a_wrong_figure_of_a_sheet_is_another_action():
    sheet, found = SHEETS[0], counted(SHEETS[0].name)
    wrong = replace(sheet, lines=sheet.lines.replace("4000 / 10", "4000 / 8"))
    loads = [line.action for line in validation.by_hand(wrong, found.pages) if line.engine == "gdma"]
    assert [mine == theirs for mine, theirs in zip(loads, found.actions["gdma"], strict=True)] == [False] * 3


@pytest.mark.slow
def test_the_page_is_what_the_sheets_say():
    assert (ROOT / "docs" / "validation.md").read_text() == validation.page(), "run `make docs`"
