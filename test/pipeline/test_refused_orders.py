"""Orders that only DRAM could carry out are refused by name; the others move no map of a group through DRAM."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from window_chains import first_broad, machine

import frustum
from frustum.backend import targets
from frustum.dialects.target.fit import OrderDoesNotFit
from frustum.runtime.failures import UsageError
from frustum.runtime.tools.cli import main

KIB = 1024


def model(channels=8, size=32):
    """Three convolutions and a pool: maps of 32 KiB before the pool, of 8 KiB behind it."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal((channels, n, 3, 3)).astype(np.float32) / 9 for name, n in SOURCES.items()
    }
    pads = [1] * 4
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], "a", pads=pads),
        helper.make_node("Conv", ["a", "w"], ["b"], "b", pads=pads),
        helper.make_node("MaxPool", ["b"], ["c"], "c", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["c", "u"], ["y"], "y", pads=pads),
    ]
    graph = helper.make_graph(
        nodes, "three",
        [helper.make_tensor_value_info("x", 1, [1, 3, size, size])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


SOURCES = {"v": 3, "w": 8, "u": 8}
INPUT = {"x": np.zeros((1, 3, 32, 32), np.float32)}


@cache
def moved(clusters, kib, policy, order, borders, optimise="time"):
    """DRAM bytes by class."""
    where = machine(clusters, 4, 16, sram=kib * KIB)
    executable = frustum.compile(
        model(), where, policy=policy, order=order, borders=borders, split="never", optimise=optimise
    )
    return frustum.run(executable, INPUT, mode="timing").report["dram"]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("policy", ["optimal", "greedy", "pyramid"])
@pytest.mark.parametrize(("clusters", "kib"), [(4, 16), (1, 16)])
def test_no_order_moves_maps_of_a_group_through_dram(clusters, kib, policy):
    """With borders exchanged, as many bytes between units as without an order, or a refusal that says why."""
    least = moved(clusters, kib, policy, None, "exchange", "bytes")["intermediate_bytes"]
    refused = []
    for words in (
        "row-major",
        "z-order",
        "bands{bands=2,direction=top-down}",
        "checkerboard{depth=breadth-first}",
    ):
        try:
            assert moved(clusters, kib, policy, words, "exchange", "bytes")["intermediate_bytes"] <= least, (
                words
            )
        except OrderDoesNotFit as error:
            refused.append(words)
            assert f"order {words} with borders exchange: unit u0: the maps of node 'a'" in str(error)
            assert "needed 65536 B, available 16384 B of SRAM of all clusters" in str(error)
    assert refused == ([] if clusters == 4 else ["checkerboard{depth=breadth-first}"])


@pytest.mark.slow
def test_maps_that_a_unit_was_to_keep_stay_when_it_runs_layer_by_layer():
    """Policy optimal keeps maps between its units on 4 clusters."""
    assert moved(4, 16, "optimal", None, None)["intermediate_bytes"] == 0
    assert moved(4, 16, "optimal", "mirrored{depth=breadth-first}", None)["intermediate_bytes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("split", ["auto", "never"])
def test_a_refused_order_is_neither_cut_nor_tried_with_less_memory(split):
    """Each of these would move more maps through DRAM."""
    with pytest.raises(OrderDoesNotFit, match=re.escape("order checkerboard with borders exchange: unit u0")):
        options = {"policy": "optimal", "order": "checkerboard", "borders": "exchange", "split": split}
        frustum.compile(model(), machine(1, 4, sram=16 * KIB), **options)


@pytest.mark.slow
def test_with_borders_auto_they_overlap_instead():
    words = "z-order{depth=breadth-first}"
    assert moved(1, 16, "pyramid", words, "auto") == moved(1, 16, "pyramid", "z-order", "overlap")


@pytest.mark.slow
def test_without_cdma_what_clusters_send_is_refused_by_name():
    whole = machine(2, 2)
    options = {"policy": "pyramid", "order": "mirrored{depth=breadth-first}"}
    wanted = (
        "order mirrored{depth=breadth-first}: unit u0.0: what clusters send each other between node 'a' ("
    )
    with pytest.raises(OrderDoesNotFit, match=re.escape(wanted)) as refused:
        frustum.compile(model(), whole, **options)
    assert "needed cdma (chip.cluster.cdma), available none" in str(refused.value)
    frustum.compile(model(), whole, **options, borders="auto")  # overlaps


@pytest.mark.slow
def test_the_command_says_so_with_exit_code_4(tmp_path, capsys):
    onnx.save(model(), tmp_path / "three.onnx")
    (tmp_path / "two.yaml").write_text(
        targets.path("edge").read_text().replace("clusters: 1 ", "clusters: 2 ")
    )
    words = first_broad("z-order")
    code = main(["compile", str(tmp_path / "three.onnx"), "-o", str(tmp_path / "out"), "--target",
                 str(tmp_path / "two.yaml"), "--order", words, "--policy", "greedy"])  # fmt: skip
    assert code == 4
    assert f"order {words}" in (error := capsys.readouterr().err) and "cdma" in error
    assert not (tmp_path / "out").exists()


def refused(order, where, **options):
    with pytest.raises(OrderDoesNotFit) as error:
        frustum.compile(model(), where, order=order, borders="exchange", **options)
    return str(error.value)


STRIPS = (
    "a strip for each core of every map from node 'a' (fgraph.conv) to node '{}' (fgraph.{}) does not fit: "
    "needed strips side by side from end to end, available "
)


@pytest.mark.slow
def test_cores_that_own_no_strips_are_not_replaced_by_clusters():
    """A checkerboard has no strips; where owners are left open its tiles belong to clusters, layer by layer."""
    where, words = machine(1, 4, 16, sram=64 * KIB), "checkerboard{owners=cores}"
    had = STRIPS.format("c", "pool") + "tiles through which a core goes in another way in this order"
    assert refused(words, where, policy="pyramid") == f"order {words} with borders exchange: unit u0: {had}"
    for open_words in ("checkerboard", "checkerboard{owners=clusters}"):
        options = {"policy": "pyramid", "order": open_words, "borders": "exchange"}
        assert frustum.run(frustum.compile(model(), where, **options), INPUT, mode="timing").report["units"]


@pytest.mark.slow
def test_without_cdma_cores_of_several_clusters_own_no_strips():
    words = "row-major{owners=cores}"
    had = STRIPS.format("c", "pool") + "no cdma (chip.cluster.cdma) for what clusters send each other"
    assert (
        refused(words, machine(2, 2), policy="pyramid")
        == f"order {words} with borders exchange: unit u0: {had}"
    )


@pytest.mark.slow
def test_steps_that_do_not_fit_are_refused_with_the_bytes():
    said = refused("row-major{owners=cores}", machine(1, 4, 16, sram=6 * KIB), policy="pyramid")
    assert "B of SRAM for all maps of a step, which is less than the shortest steps need" in said


@pytest.mark.slow
@pytest.mark.parametrize(("order", "borders", "wanted"), [
    ("row-major{owners=cores}", None, "owners are asked for with borders exchange"),
    ("row-major{owners=clusters}", "overlap", "owners are asked for with borders exchange"),
    ("mirrored{depth=breadth-first,owners=cores}", "exchange", "layer by layer, tiles belong to clusters"),
])  # fmt: skip
def test_owners_that_nothing_would_give_are_no_option(order, borders, wanted):
    with pytest.raises(UsageError, match=wanted):
        frustum.compile(model(), machine(4, 4, 16), order=order, borders=borders)
