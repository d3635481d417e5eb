"""Networks in pieces: the chain gives what the uncut network gives; what does not fit is cut again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import branching
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from run_chain import run_pieces
from stops import run_module, target

from frustum.backend.pipeline import Choices
from frustum.backend.refuse import STRATEGIES, Limits, Refusal
from frustum.backend.split_compile import Splitting, compile_pieces
from frustum.dialects.fit import DoesNotFit

POLICIES = ("none", "pyramid")
ON_CHIP = ("sram", "nram", "wram")
OUTPUTS = Splitting("outputs")


def smaller(name, **changes):
    """A target with less of something: dram_bytes, code_bytes, sram_bytes."""
    found = target(name)
    cluster = found.cluster
    if "sram_bytes" in changes:
        cluster = replace(cluster, sram=replace(cluster.sram, capacity_bytes=changes["sram_bytes"]))
    if "code_bytes" in changes:
        cluster = replace(cluster, instruction_memory_bytes=changes["code_bytes"])
    chip = replace(found.chip, cluster=cluster)
    if "dram_bytes" in changes:
        chip = replace(chip, dram=replace(chip.dram, capacity_bytes=changes["dram_bytes"]))
    return replace(found, chip=chip)


def chain(layers=6, size=16, outputs=()):
    """Convolutions in a row; `outputs` are the numbers of those that are outputs too."""
    net = Net()
    x, found = net.input(1, 4, size, size), []
    for number in range(layers):
        x = net.conv(x, 4, act="relu")
        if number in outputs:
            found.append(x)
    return net.module(*found, x)


def assert_agree(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        atol = 1e-5 * max(np.abs(array).max(initial=0), 1e-30)
        np.testing.assert_allclose(np.asarray(found[name], np.float32), array, rtol=0, atol=atol, err_msg=name)


def test_a_network_is_cut_at_its_output_branches():
    module, inputs = chain(outputs=(1, 3))
    expected = run_module(module, inputs)
    found = compile_pieces(module, target("edge"), Choices(), OUTPUTS)
    assert [e.program.name for e in found.executables] == ["net_0", "net_1", "net_2"]
    assert [e.program.layers for e in found.executables] == [
        ("conv_1", "conv_2"), ("conv_3", "conv_4"), ("conv_5", "conv_6"),
    ]  # fmt: skip
    assert found.log[0] == "split: 'conv_1' to 'conv_6' (6 layers) cut at output branches, after 'conv_2', 'conv_4'"
    assert_agree(run_pieces(found.executables, inputs, found.outputs), expected)


def test_never_and_no_branches_give_the_executable_of_the_whole():
    for outputs, splitting in (((1,), Splitting("never")), ((), Splitting())):
        module, _ = chain(3, outputs=outputs)
        found = compile_pieces(module, target("edge"), Choices(), splitting)
        assert [e.program.name for e in found.executables] == ["net"] and not found.log


def code_of_one_layer():
    module, _ = chain(1)
    (only,) = compile_pieces(module, target("edge"), Choices()).executables
    return sum(only.manifest["page_bytes"])


@pytest.mark.parametrize("change", [{"dram_bytes": 16 << 10}, {"code_bytes": None}])
def test_what_does_not_fit_is_cut_again_and_the_result_is_right(change):
    small = smaller("edge", **{name: value or code_of_one_layer() + 64 for name, value in change.items()})
    module, inputs = chain(8)
    expected = run_module(module, inputs)
    choices = Choices(policy="pyramid")  # the optimal one needs no DRAM between these layers
    with pytest.raises(DoesNotFit):
        compile_pieces(module.clone(), small, choices, Splitting("never"))
    said = []
    found = compile_pieces(module, small, choices, say=said.append)
    assert len(found.executables) > 1 and found.whole is None
    assert said == found.log
    assert "'conv_1' to 'conv_8' (8 layers) does not fit (" in said[0]
    assert "cut at the articulation point nearest to half of its cost, after 'conv_4'" in said[0]
    assert_agree(run_pieces(found.executables, inputs, found.outputs), expected)


def test_a_single_layer_that_does_not_fit_is_named_with_the_bytes():
    module, _ = chain(4, size=64)
    with pytest.raises(DoesNotFit, match=r"node 'conv_1' \(fgraph.conv\).*needed \d+ B, available 4096 B of dram"):
        compile_pieces(module, smaller("edge", dram_bytes=4096), Choices())


def test_outputs_alone_are_not_cut_again():
    module, _ = chain(8, outputs=(3,))
    with pytest.raises(DoesNotFit):
        compile_pieces(module, smaller("edge", dram_bytes=10 << 10), Choices(), OUTPUTS)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fused_again_it_gives_the_same(strategy):
    module, inputs = chain(6, outputs=(0, 1, 2, 3, 4))
    expected = run_module(module, inputs)
    refusal = Refusal(strategy, Limits(nodes=(0, 4)))
    found = compile_pieces(module, target("edge"), Choices(), Splitting("outputs", refusal))
    counts = {"conditions": [4, 2], "pairs": [2, 2, 2], "forward": [2, 2, 2], "bidirectional": [2, 2, 2]}
    assert [len(e.program.layers) for e in found.executables] == counts[strategy]
    assert f"refuse {strategy}: 'conv_1' to" in found.log[1] and found.log[1].endswith("fits")
    assert_agree(run_pieces(found.executables, inputs, found.outputs), expected)


def test_a_candidate_that_does_not_fit_stays_apart():
    small = smaller("edge", dram_bytes=16 << 10)
    module, inputs = chain(8)
    expected = run_module(module, inputs)
    found = compile_pieces(module, small, Choices(policy="pyramid"), Splitting(refusal=Refusal("forward")))
    assert any("does not fit" in line for line in found.log if line.startswith("refuse"))
    assert_agree(run_pieces(found.executables, inputs, found.outputs), expected)


@settings(max_examples=15)
@given(branching(), st.sampled_from(["tiny", "edge"]), st.sampled_from(POLICIES), st.sampled_from([None, *STRATEGIES]))
def test_chains_give_what_the_network_gives(drawn, target_name, policy, strategy):
    refusal = Refusal(strategy, Limits(nodes=(0, 3))) if strategy else None
    expected = run_module(drawn.module, drawn.inputs)
    found = compile_pieces(
        drawn.module.clone(), target(target_name), Choices(policy=policy), Splitting("outputs", refusal)
    )
    assert_agree(run_pieces(found.executables, drawn.inputs, found.outputs), expected)
    if found.whole is not None:
        most = found.whole.program.peak_bytes
        for each in found.executables:
            for memory in ON_CHIP:
                assert each.program.peak_bytes.get(memory, 0) <= most.get(memory, 0), memory


@settings(max_examples=15)
@given(branching(), st.sampled_from([3, 4, 6, 8]), st.sampled_from(POLICIES), st.sampled_from([None, *STRATEGIES]))
def test_too_little_dram_gives_the_same_or_names_a_layer(drawn, kibibytes, policy, strategy):
    small = smaller("edge", dram_bytes=kibibytes << 10)
    expected = run_module(drawn.module, drawn.inputs)
    splitting = Splitting(refusal=Refusal(strategy) if strategy else None)
    try:
        found = compile_pieces(drawn.module.clone(), small, Choices(policy=policy), splitting)
    except DoesNotFit as error:
        assert str(error).startswith("node '") and f"available {kibibytes << 10} B of dram" in str(error)
        return
    assert_agree(run_pieces(found.executables, drawn.inputs, found.outputs), expected)
    for each in found.executables:
        assert all(e.address + e.bytes <= kibibytes << 10 for e in each.program.externals)
