"""The host's rates: of shipped targets, of old files, and wrong ones."""

from fractions import Fraction
from math import ceil

import pytest

from frustum.backend import targets
from frustum.dialects.target import TargetError, from_attribute, from_json, read_target, to_attribute, to_json


def text_of(name: str) -> str:
    from importlib.resources import files

    return (files(targets) / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", targets.names())
def test_shipped_targets_have_ten_of_each_a_second(name) -> None:
    target = targets.load(name)
    assert target.host.macs_per_cycle == target.host.bytes_per_cycle == 1e10 / target.clock_hz
    assert target.host_cycles(10**7, 0) == target.host_cycles(0, 10**7) == ceil(Fraction(target.clock_hz, 1000))


def test_by_hand() -> None:
    target = targets.load("manycore")  # 12.5 a cycle
    assert [target.host_cycles(*work) for work in ((0, 0), (0, 25), (0, 26), (26, 25), (12, 0))] == [0, 2, 3, 3, 1]


def test_a_file_without_them_has_those_of_its_clock() -> None:
    text = text_of("edge")
    start = text.index("host:  #")
    old = text[:start] + text[text.index("transfers:"):].replace("clock_hz: 500 MHz", "clock_hz: 500 MHz")
    target = read_target(old.replace("500 MHz", "300 MHz"), "old.yaml")
    assert target.host.macs_per_cycle is None
    assert target.host_cycles(0, 100) == 3 and target.host_cycles(101, 0) == 4  # 33 1/3 a cycle
    assert from_json(to_json(target)) == from_attribute(to_attribute(target)) == target


def test_one_of_them_alone() -> None:
    text = text_of("default").replace("  macs_per_cycle: 10.0 ", "  # macs_per_cycle: 10.0 ")
    text = text.replace("bytes_per_cycle: 10.0 ", "bytes_per_cycle: 0.25 ")
    target = read_target(text, "own.yaml")
    assert target.host_cycles(10, 0) == 1 and target.host_cycles(0, 1) == 4


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("macs_per_cycle: 0 ", "host.macs_per_cycle: found 0, allowed a number, 1e-06 to 1e+09 MAC/cycle, or null"),
        ("macs_per_cycle: fast ", "host.macs_per_cycle: found 'fast', allowed a number"),
        ("macs_per_second: 1 ", "host has no key 'macs_per_second'"),
    ],
)
def test_wrong_ones_are_shown_with_a_caret(line, words) -> None:
    with pytest.raises(TargetError) as error:
        read_target(text_of("default").replace("macs_per_cycle: 10.0 ", line), "own.yaml")
    assert words in str(error.value) and "own.yaml:1" in str(error.value) and "^" in str(error.value)
