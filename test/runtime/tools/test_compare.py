"""`frustum compare`: lists, counts, refuses; as text and as JSON."""

import json

import pytest

from frustum.runtime.study.published.cases import cases
from frustum.runtime.tools import cli


def test_the_list_says_what_is_published_and_by_whom(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["case", "figure", "published", "by"]
    assert all("-" not in line.split() for line in lines[: lines.index("")])
    assert "frustum compare CASE, or --all, counts ours beside it" in lines
    assert {line.split()[0] for line in lines[1 : lines.index("")]} == set(cases())
    assert any(line.startswith("SoMa: HPCA 2025") for line in lines)
    assert max(map(len, lines)) <= 110


@pytest.mark.slow
def test_a_case_is_counted_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "tiny-anomaly", "--json"]) == 0
    bytes_, time = json.loads(capsys.readouterr().out)
    assert (bytes_["case"], bytes_["figure"], bytes_["theirs"]) == ("tiny-anomaly", "dram.bytes", 207840)
    assert bytes_["ours"] / bytes_["theirs"] == bytes_["ratio"] > 1, "Vela compresses its weights"
    assert time["ours"] >= time["bound"] > 0 and time["bound_by"]
    assert cli.main(["compare", "tiny-anomaly"]) == 0
    text = capsys.readouterr().out
    assert f"{time['ours']:,}" in text and "62,705" in text and "Arm Vela 5.2.0: its own estimate" in text


def test_a_wrong_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "tiny-anomaly", "nothing"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("frustum: error: no published case 'nothing' (frustum compare lists the ")
    assert err.count("\n") == 1
