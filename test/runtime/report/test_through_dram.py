"""What moves between units through DRAM, and why units end, are of the program as it ran."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from networks import Net

import frustum
from frustum.backend.targets import load
from frustum.dialects import graph as g
from frustum.runtime.report.units import stopped_by


def turned():
    """Moves between convolutions, which may stay in SRAM as they lie in DRAM."""
    net = Net()
    x = net.conv(net.input(1, 8, 24, 16), 8)
    x = net.layer(g.TransposeOp(x, (0, 1, 3, 2)))
    return net, net.conv(x, 8)


def convolved():
    net = Net()
    x = net.input(1, 8, 64, 64)
    for _ in range(3):
        x = net.conv(x, 16, act="relu")
    return net, x


def cubed():
    net = Net()
    x = net.input(96, 96)
    for _ in range(3):
        x = net.layer(g.MatmulOp(net.layer(g.TransposeOp(x, (1, 0))), net.weight(96, 96)))
    return net, x


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("build", [turned, convolved, cubed])
@pytest.mark.parametrize("policy", ["optimal", "none"])
def test_the_report_tells_what_ran(build, policy):
    net, y = build()
    module, inputs = net.module(y)
    exe = frustum.compile(module, "edge", "f32", policy=policy, compress_weights="none")
    report = frustum.run(exe, inputs).report
    dram, units = report["dram"], {unit["name"] for unit in report["units"]}
    assert sum(each["bytes"] for each in dram["through_dram"]) == dram["intermediate_bytes"]
    assert bool(dram["through_dram"]) or policy != "none"
    for each in dram["through_dram"]:
        assert each["written_by"] and each["read_by"]
        assert {*each["written_by"], *each["read_by"]} <= units
        assert each["why"].startswith(("no view: ", "a view exists: "))
        assert ("only policy optimal keeps tensors in SRAM" in each["why"]) == (policy == "none")
    moved = {}
    for layer in report["layers"]:
        moved[layer["unit"]] = moved.get(layer["unit"], 0) + layer["dram_bytes"]
    for unit in report["units"]:
        said = re.findall(r"(\d+) (?:DRAM bytes here|in all)", unit["stopped_by"] or "")
        assert said in ([], [str(moved[unit["name"]])], [str(moved[unit["name"]]), str(sum(moved.values()))])
        assert said or policy == "none"


def why_of(net, y, target="edge", **options):
    module, _ = net.module(y)
    exe = frustum.compile(module, target, "f32", compress_weights="none", **options)
    return {each["name"]: each["why"] for each in frustum.run(exe, {}, mode="timing").report["dram"]["through_dram"]}


def folded():
    """Rows of four are read as rows of eight."""
    net = Net()
    x = net.layer(g.ReshapeOp(net.unary("relu", net.input(1, 8, 64, 4)), (1, 8, 32, 8)))
    return net, net.layer(g.SoftmaxOp(x, 3))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("build", "name", "view"),
    [
        (convolved, "u0.0", "a view exists: it is read as it is made"),
        (
            folded, "u0.0",
            "no view: 'softmax_3' reads as 1x8x8x32 (strides [0, 1, 256, 8]) what is made as 1x8x64x4 "
            "(strides [0, 256, 4, 1])",
        ),
        (cubed, "u0.0", "no view: 'transpose_1' moves elements from tensor to tensor"),
        (cubed, "u1.0", "no view: 'transpose_3' moves its elements to another tensor"),
    ],
)  # fmt: skip
def test_the_report_says_which_view_there_is(build, name, view):
    assert why_of(*build(), policy="none")[name] == f"{view}; only policy optimal keeps tensors in SRAM"


def test_the_report_says_how_much_room_there_is():
    """Of 16 KiB of SRAM units leave some."""
    small = replace(load("edge").cluster.sram, capacity_bytes=16384)
    whole = load("edge")
    target = replace(whole, chip=replace(whole.chip, cluster=replace(whole.cluster, sram=small)))
    found = why_of(*cubed(), target)
    words = r"no view: .*; it needs 36864 bytes of SRAM from its first writer to its last reader, (\d+) are free"
    free = [int(re.fullmatch(words, each)[1]) for each in found.values()]
    assert free and all(0 <= each < 36864 for each in free)


def test_words_without_bytes_stay():
    assert stopped_by("policy none", 3, 4) == "policy none"
    cut = "cut before 'a': {} DRAM bytes here, {} in all"
    assert stopped_by(cut.format(10, 20), 3, 4) == cut.format(3, 4)
    assert stopped_by("end of the network: 7 DRAM bytes here", 3, 4) == "end of the network: 3 DRAM bytes here"
