"""A stream of inputs through pieces on several chips: when results are there, and that they are right."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from frustum.backend.targets import load
from frustum.runtime.model.execution import PieceWork, schedule
from frustum.runtime.model.stream import stream_times
from frustum.runtime.tools.cli import main

MANYCORE = load("manycore")
LATENCY = 200
INPUTS = 5


def pieces(*cycles, chips=None, size=0):
    """A chain; each gives the next a value of so many bytes."""
    names = [f"v{k}" for k in range(len(cycles) + 1)]
    return [
        PieceWork((names[k],), {names[k + 1]: size}, cycles[k], (chips or range(len(cycles)))[k])
        for k in range(len(cycles))
    ]


def test_one_chip_takes_inputs_one_after_the_other():
    found = stream_times(pieces(100, 50, chips=(0, 0)), MANYCORE, 4)
    assert found.results == (150, 300, 450, 600) and found.cycles_per_input == 150 and found.moved_bytes == 0


def test_chips_work_on_neighbouring_inputs():
    """Moves of nothing take the latency of DRAM; the slowest chip sets the pace."""
    found = stream_times(pieces(100, 300, 50), MANYCORE, 4)
    first = 100 + LATENCY + 300 + LATENCY + 50
    assert found.results == tuple(first + 300 * n for n in range(4)) and found.cycles_per_input == 300


def test_a_single_input_takes_what_the_chain_does():
    for size in (0, 8 * 4096):
        works = pieces(500, 400, 300, size=size)
        assert stream_times(works, MANYCORE, 1).results == (schedule(works, MANYCORE).total_cycles,)


def test_a_move_takes_the_port_from_the_pieces_at_both_ends():
    """One chunk: 512 cycles of the link, 164 of each port; both chips are busy all the time."""
    found = stream_times(pieces(1000, 1000, size=4096), MANYCORE, 6)
    assert found.moved_bytes == 6 * 4096
    assert np.diff(found.results).tolist()[2:4] == [1000 + 164] * 2, "after the last nothing moves"
    slow = stream_times(pieces(100, 100, size=4096), MANYCORE, 6)
    assert np.diff(slow.results).tolist()[2:4] == [512] * 2, "the link sets the pace"


def test_pieces_of_one_chip_let_the_earliest_input_go_first():
    found = stream_times(pieces(100, 10, 100, chips=(0, 1, 0)), MANYCORE, 8)
    assert list(found.results) == sorted(found.results)
    assert found.cycles_per_input == pytest.approx(200, rel=0.2)


# --- the command -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Eight convolutions one after the other."""
    rng, nodes, weights, x = np.random.default_rng(0), [], [], "data"
    for k in range(8):
        weights.append(numpy_helper.from_array(rng.normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32), f"w{k}"))
        nodes.append(helper.make_node("Conv", [x, f"w{k}"], [f"c{k}"], f"conv{k}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [x := f"r{k}"], f"relu{k}"))
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 24, 24]) for name in ("data", x)]
    graph = helper.make_graph(nodes, "chain", tensors[:1], tensors[1:], weights)
    file = tmp_path_factory.mktemp("stream") / "chain.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    return file


def report_of(tmp_path, *words):
    assert main(["run", *map(str, words), "--report", str(tmp_path / "report.json")]) == 0
    return json.loads((tmp_path / "report.json").read_text())


@pytest.mark.slow
@pytest.mark.soak
def test_four_chips_give_the_results_of_one_and_more_of_them(network, tmp_path):
    words = network, "--target", "manycore", "--dtype", "f16", "--stream", INPUTS, "--check", "--input-seed", 3
    one = report_of(tmp_path, *words, "--output", tmp_path / "one.npz")
    four = report_of(tmp_path, *words, "--output", tmp_path / "four.npz", "--placement", "each")
    assert len(one["subgraphs"]) == 1 and {each["chip"] for each in four["subgraphs"]} == {0, 1, 2, 3}
    assert one["stream"]["inputs"] == four["stream"]["inputs"] == INPUTS
    assert one["stream"]["cycles_per_input"] == one["stream"]["latency_cycles"] == one["cycles"]["total"]
    assert four["stream"]["latency_cycles"] == pytest.approx(four["cycles"]["total"], rel=0.2)
    assert four["stream"]["cycles_per_input"] < one["stream"]["cycles_per_input"] / 1.5
    assert one["check"]["numbers"] == four["check"]["numbers"] == INPUTS * 16 * 24 * 24
    results = [np.load(tmp_path / f"{name}.npz")["r7"] for name in ("one", "four")]
    assert results[0].shape == (INPUTS, 1, 16, 24, 24) and not np.array_equal(results[0][0], results[0][1])
    np.testing.assert_allclose(*results, rtol=0, atol=4 * 2**-10 * np.abs(results[0]).max())
    assert sum(w["cycles"] for unit in four["units"] for w in unit["waits"]) == four["cycles"]["total"]


@pytest.mark.slow
@pytest.mark.soak
def test_each_result_is_that_of_its_input_alone(network, tmp_path):
    given = np.random.default_rng(1).random((3, 1, 16, 24, 24), np.float32)
    np.savez(tmp_path / "all.npz", data=given)
    words = network, "--target", "manycore", "--placement", "each"
    report_of(tmp_path, *words, "--input", tmp_path / "all.npz", "--stream", 3, "--output", tmp_path / "out.npz")
    together = np.load(tmp_path / "out.npz")["r7"]
    for number, each in enumerate(given):
        np.savez(tmp_path / "each.npz", data=each)
        found = report_of(tmp_path, *words[:3], "--input", tmp_path / "each.npz", "--output", tmp_path / "alone.npz")
        assert found["stream"] is None
        alone = np.load(tmp_path / "alone.npz")["r7"]
        np.testing.assert_allclose(together[number], alone, rtol=0, atol=1e-5 * np.abs(alone).max())


def test_inputs_without_an_axis_for_the_stream_are_refused(network, tmp_path, capsys):
    np.savez(tmp_path / "one.npz", data=np.zeros((1, 16, 24, 24), np.float32))
    assert main(["run", str(network), "--stream", "4", "--input", str(tmp_path / "one.npz")]) == 2
    assert "input 'data': found float32 1x16x24x24, expected a leading axis of 4" in capsys.readouterr().err


def test_a_stream_through_the_host_is_refused_by_name(network, capsys):
    assert main(["run", str(network), "--stream", "4", "--host", "only", "--mode", "functional"]) == 2
    assert "--stream: layer 'conv0' (Conv) runs on the host" in capsys.readouterr().err


def test_no_stream_of_nothing(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(Path("x.onnx")), "--stream", "0"])
    assert stopped.value.code == 2 and "at least 1" in capsys.readouterr().err
