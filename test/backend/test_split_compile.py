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
from stops import aimed, run_module, target

from frustum.backend.compile import built
from frustum.backend.cost import Cost, Count
from frustum.backend.pipeline import Choices, Run
from frustum.backend.refuse import STRATEGIES, Limits, Refusal
from frustum.backend.split_compile import Splitting, compile_pieces
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.fuse.policy import PolicyError
from frustum.runtime.model.build import count_run, written_bytes

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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.soak(but=1)
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


@pytest.mark.slow
def test_of_named_cuts_a_piece_has_its_own():
    module, inputs = chain(outputs=(2,))
    expected = run_module(module, inputs)
    for cuts in ("conv_1,conv_5", "conv_4"):
        found = compile_pieces(module.clone(), target("edge"), Choices(policy="optimal", cuts=cuts), OUTPUTS)
        assert len(found.executables) == 2
        assert_agree(run_pieces(found.executables, inputs, found.outputs), expected)
    with pytest.raises(PolicyError, match="no layer is called 'conv_9'"):
        compile_pieces(module, target("edge"), Choices(policy="optimal", cuts="conv_1,conv_9"), OUTPUTS)


def test_a_single_layer_that_does_not_fit_is_named_with_the_bytes():
    module, _ = chain(4, size=64)
    with pytest.raises(DoesNotFit, match=r"node 'conv_1' \(fgraph.conv\).*needed \d+ B, available 4096 B of dram"):
        compile_pieces(module, smaller("edge", dram_bytes=4096), Choices())


def test_outputs_alone_are_not_cut_again():
    module, _ = chain(8, outputs=(3,))
    with pytest.raises(DoesNotFit):
        compile_pieces(module, smaller("edge", dram_bytes=10 << 10), Choices(), OUTPUTS)


@pytest.mark.slow
@pytest.mark.soak(but=2)
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


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 3)
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


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 3)
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


# --- auto: by what a run costs -----------------------------------------------------------------------------

WORKED = (1, 2, 3)
"""Of the chain 1-2-4-6-8: all but the first convolution hand their results out."""


class Counted:
    """A count of runs that a test makes up, by the layers of a program; the others as the emulator counts."""

    def __init__(self, **cycles):
        self.cycles, self.seen = cycles, []

    def __call__(self, program, page_bytes, image):
        self.seen.append(program.layers)
        found = count_run(program, page_bytes, image)
        cycles = self.cycles.get(f"of_{len(program.layers)}", found.cost.cycles)
        layers = {name: Cost(cycles // len(program.layers), cost.dram_bytes) for name, cost in found.layers.items()}
        return Count(Cost(cycles, self.cycles.get("dram_bytes", found.cost.dram_bytes)), layers)


def test_a_chain_whose_pieces_move_more_at_least_stays_whole_and_no_piece_is_compiled():
    module, inputs = chain(5, outputs=WORKED)
    expected = run_module(module, inputs)
    tried, count = [], Counted()

    def at_stop(piece):
        tried.append(piece)
        return lambda stop, module: None

    found = compile_pieces(module, target("edge"), Choices(), at_stop=at_stop, count_run=count)
    assert [e.program.name for e in found.executables] == ["net"] and set(tried) == {""}
    assert found.log[0].endswith("tried at output branches, after 'conv_2', 'conv_3', 'conv_4'")
    (executable,) = found.executables
    whole = count(executable.program, executable.code.page_bytes, executable.weights).cost
    line = f"the whole takes {whole.cycles:,} cycles and {whole.dram_bytes:,} bytes of DRAM: it stays whole"
    assert found.log[1].startswith("split: the 4 pieces would move at least ") and found.log[1].endswith(line)
    assert_agree(run_pieces(found.executables, inputs, found.outputs), expected)


@pytest.mark.slow
def test_the_least_bytes_are_what_pieces_through_dram_move():
    """Layer by layer on a machine with room for everything, pieces move next to nothing beyond that."""
    module, _ = chain(5, outputs=WORKED)
    pieces = compile_pieces(module.clone(), target("default"), Choices(), OUTPUTS).executables
    counts = [count_run(each.program, each.code.page_bytes, each.weights) for each in pieces]
    moved = sum(each.of(piece.program.layers).dram_bytes for each, piece in zip(counts, pieces, strict=True))
    log = compile_pieces(module, target("default"), Choices(), count_run=count_run).log
    least = int(log[1].split(" at least ")[1].split(" bytes")[0].replace(",", ""))
    assert 0.95 * moved <= least <= moved


def test_pieces_that_cost_less_are_taken_and_both_costs_are_said():
    """A whole that takes more cycles than its pieces, for as many bytes: by a count made up."""
    module, inputs = chain(4, outputs=(1,))
    expected = run_module(module, inputs)
    count = Counted(of_4=1000, of_2=300, dram_bytes=10**6)
    found = compile_pieces(module, target("edge"), Choices(), count_run=lambda *run: made_up(count, run))
    assert [e.program.layers for e in found.executables] == [("conv_1", "conv_2"), ("conv_3", "conv_4")]
    assert found.log[-1] == (
        "split: the 2 pieces take 600 cycles and 900,000 bytes of DRAM,"
        " the whole 1,000 cycles and 1,000,000 bytes of DRAM: it is cut"
    )
    assert [line for line in found.log if line.startswith("refuse forward")] == [
        "refuse forward: 'conv_1' to 'conv_4' (4 layers): 1,000 cycles and 1,000,000 bytes of DRAM,"
        " apart 600 cycles and 900,000 bytes of DRAM: apart"
    ]
    assert found.whole is not None
    assert_agree(run_pieces(found.executables, inputs, found.outputs), expected)


def made_up(count, run):
    """A whole of four layers moves 1,000,000 bytes, a half of it 450,000."""
    found = count(*run)
    share = len(run[0].layers) / 4
    dram_bytes = 10**6 if share == 1 else 450_000
    layers = {name: Cost(cost.cycles, dram_bytes // len(run[0].layers)) for name, cost in found.layers.items()}
    return Count(Cost(found.cost.cycles, dram_bytes), layers)


@pytest.mark.slow
def test_what_did_not_fit_is_fused_again_as_long_as_nothing_rises():
    small = smaller("edge", dram_bytes=16 << 10)
    module, inputs = chain(8)
    expected = run_module(module, inputs)
    found = compile_pieces(module.clone(), small, Choices(policy="pyramid"), count_run=count_run)
    apart = compile_pieces(module, small, Choices(policy="pyramid"))
    costs = [sum_of_costs(each) for each in (found, apart)]
    assert costs[0].is_within(costs[1])
    lines = [line for line in found.log if line.startswith("refuse ")]
    assert lines and all(line.endswith((": fused", ": apart")) or "does not fit" in line for line in lines)
    assert {line.split()[1] for line in lines} <= {"forward:", "pairs:"}
    assert_agree(run_pieces(found.executables, inputs, found.outputs), expected)


def sum_of_costs(found):
    costs = [count_run(each.program, each.code.page_bytes, each.weights).cost for each in found.executables]
    return Cost(sum(each.cycles for each in costs), sum(each.dram_bytes for each in costs))


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 4)
@given(branching(), st.sampled_from(["tiny", "edge"]))
def test_auto_never_costs_more_than_never_nor_more_memory(drawn, target_name):
    machine = target(target_name)
    auto = compile_pieces(drawn.module.clone(), machine, Choices(), measured=written_bytes, count_run=count_run)
    never = compile_pieces(drawn.module, machine, Choices(), Splitting("never"))
    assert sum_of_costs(auto).is_within(sum_of_costs(never))
    (whole,) = never.executables
    for each in auto.executables:
        assert all(written_bytes(each)[memory] <= written_bytes(whole)[memory] for memory in ON_CHIP)


# --- weights, where compressed ones are better -------------------------------------------------------------


def wide():
    net = Net()
    return net.module(net.conv(net.conv(net.input(1, 64, 8, 8), 64), 64))


@pytest.mark.slow
def test_weights_are_compressed_where_that_moves_fewer_bytes_in_no_more_cycles():
    module, inputs = wide()
    choices = Choices(dtype="f16", compression="auto", if_better=True)
    plain = built(aimed(module, "edge"), Choices(dtype="f16"), Run())
    found = built(aimed(module, "edge"), choices, Run(), count_run=count_run)
    before, after = (
        count_run(e.program, e.code.page_bytes, e.weights).cost for e in (plain.executable, found.executable)
    )
    assert after.cycles <= before.cycles and after.dram_bytes < 0.95 * before.dram_bytes
    assert found.count.cost == after
    assert found.executable.manifest["options"]["weights"]["compressed_tensors"] == 2
    assert found.executable.manifest["options"]["compress_weights"] == "auto"
    outputs = [run_pieces([each.executable], inputs, ("y0",)) for each in (plain, found)]
    np.testing.assert_array_equal(outputs[0]["y0"], outputs[1]["y0"])


@pytest.mark.parametrize(("cycles", "tensors"), [(1004, 1), (1006, None)])
def test_weights_of_layers_that_take_more_cycles_stay_raw(cycles, tensors):
    """By counts made up: compressed, the second layer takes more; without its own the run may take half a percent."""
    module, _ = wide()
    counts = iter([
        Count(Cost(1000, 100), {"conv_1": Cost(500, 50), "conv_2": Cost(500, 50)}),
        Count(Cost(1100, 60), {"conv_1": Cost(500, 30), "conv_2": Cost(600, 30)}),
        Count(Cost(cycles, 80), {"conv_1": Cost(500, 30), "conv_2": Cost(cycles - 500, 50)}),
    ])  # fmt: skip
    choices = Choices(dtype="f16", compression="auto", if_better=True)
    found = built(aimed(module, "edge"), choices, Run(), count_run=lambda *run: next(counts))
    said = found.executable.manifest["options"].get("weights", {})
    assert said.get("compressed_tensors") == tensors and not list(counts)
    assert tensors is None or said["raw_loads"]["takes more cycles"] == 2  # its bias too


@pytest.mark.slow
@pytest.mark.parametrize("worse", [Cost(1, 0), Cost(0, 0)])
def test_weights_stay_raw_where_that_takes_more_cycles_or_no_fewer_bytes(worse):
    """By counts made up; the stops that are shown last are those of the executable."""
    module, _ = wide()
    costs, shown = iter([Cost(10, 10), Cost(10 + worse.cycles, 10 + worse.dram_bytes - worse.cycles)]), {}
    run = Run(lambda stop, module: shown.update({stop: str(module)}))
    choices = Choices(dtype="f16", compression="auto", if_better=True)
    found = built(aimed(module, "edge"), choices, run, count_run=lambda *run: Count(next(costs), {}))
    assert "weights" not in found.executable.manifest["options"] and found.count.cost == Cost(10, 10)
    plain = {}
    built(aimed(module, "edge"), Choices(dtype="f16"), Run(lambda stop, module: plain.update({stop: str(module)})))
    assert shown == plain
