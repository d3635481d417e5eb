"""Targets that say only the differences to another one; checks between keys; the schema for editors."""

import json
import re

import pytest

from frustum.backend import targets
from frustum.backend.targets import load
from frustum.dialects.target import TargetError, cross_checks, declared, json_schema, to_json
from frustum.runtime.tools.cli import main


def write(folder, text, name="own.yaml"):
    file = folder / name
    file.write_text(text)
    return file


def test_what_is_not_said_is_the_base_s(tmp_path):
    text = "extends: edge\nname: mine\nchip: {cluster: {sram: {capacity_bytes: 256 KiB}, bus: {bytes_per_cycle: 8}}}\n"
    found, edge = to_json(load(write(tmp_path, text))), to_json(load("edge"))
    edge["name"] = "mine"
    edge["chip"]["cluster"]["sram"]["capacity_bytes"] = 256 << 10
    edge["chip"]["cluster"]["bus"]["bytes_per_cycle"] = 8
    assert found == edge


def test_null_takes_away_and_files_extend_files(tmp_path):
    write(tmp_path, "extends: default\nname: first\nclock_hz: 1 GHz\n", "first.yaml")
    second = write(tmp_path, "extends: first.yaml\nname: second\nchip: {cluster: {cdma: null}}\n", "second.yaml")
    found = load(second)
    assert (found.name, found.clock_hz, found.cluster.cdma) == ("second", 10**9, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: edg\nname: a\n", "1:10: error: extends: no target 'edg'; did you mean 'edge'?"),
        ("extends: 5\nname: a\n", "1:10: error: extends: found 5, allowed a shipped target or a file"),
        ("extends: own.yaml\nname: a\n", "extends itself"),
        ("extends: none.yaml\nname: a\n", "cannot be read: No such file"),
        ("extends: edge\n", "lacks the key 'name'"),
        ("extends: edge\nname: a\nclok_hz: 5\n", "3:1: error: the description has no key 'clok_hz'"),
        ("extends: edge\nname: a\nalignment_bytes: 24\n", "3:18: error: alignment_bytes: found 24, allowed a power"),
        ("extends: edge\nname: a\nchips: 2\n", "there are 2 chips that need a link"),
        (
            "extends: edge\nname: a\nchip: {cluster: {sram: {capacity_bytes: 256, minimum_run_bytes: 512}}}\n",
            "chip.cluster.sram.capacity_bytes: found 256 B, less than the 512 B of minimum_run_bytes",
        ),
    ],
)
def test_what_is_wrong_is_pointed_at(tmp_path, text, message):
    with pytest.raises(TargetError) as caught:
        load(write(tmp_path, text))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", targets.names())
def test_shipped_targets_have_nothing_against_each_other(name):
    assert cross_checks(load(name)) == []


def test_the_schema_knows_every_key_and_its_range(capsys):
    assert main(["targets", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json_schema()

    def check(section, owner):
        for name, field in declared(owner).items():
            found = section["properties"][name]
            found = found["anyOf"][0] if field.optional else found
            if field.is_section:
                assert not found["additionalProperties"]
                check(found, field.kind)
            elif field.parameter.choices:
                assert found["enum"] == list(field.parameter.choices)

    from frustum.dialects.target import Target

    check(schema, Target)
    size = schema["properties"]["clock_hz"]["anyOf"]
    assert re.fullmatch(size[1]["pattern"], "500 MHz") and size[0]["minimum"] == 1
