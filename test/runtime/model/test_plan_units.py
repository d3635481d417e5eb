"""Units that a policy or cuts give to plans as trees."""

from pathlib import Path

import mixed_models
import onnx
import planned_models
import pytest
import recurrent_models

import frustum
from frustum.backend import targets
from frustum.backend.network_to_plan import networks_to_plan
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.axes.recurrence import recurrences_of
from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.tree import layers_in
from frustum.passes.fuse.policy import PolicyError
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.plan.text.cuts import cuts_after, source_of
from frustum.runtime.failures import UsageError
from frustum.runtime.model import plan_units
from frustum.runtime.model.plan_units import AskedUnits

EDGE = targets.load("edge")
RULES = "S1,1,4"


def read(model: onnx.ModelProto) -> AxisNetwork:
    (network,) = networks_to_plan(import_onnx(model), EDGE, "f16")
    return network


def fork() -> onnx.ModelProto:
    """A convolution between another one and what that is read by."""
    weights = {name: planned_models.np.ones((8, 8, 1, 1), "float32") for name in ("v", "w", "u")}
    nodes = [
        mixed_models.node("Conv", ["x", "v"], ["first"]),
        mixed_models.node("Conv", ["x", "w"], ["aside"]),
        mixed_models.node("Conv", ["first", "u"], ["second"]),
        mixed_models.node("Sub", ["second", "aside"], ["y"]),
    ]
    return mixed_models.model(nodes, {"x": (1, 8, 16, 16)}, ["y"], weights)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A model, and a machine with 16 KiB of SRAM."""
    model = planned_models.save(tmp_path, "residual", planned_models.residual(2))
    return model, planned_models.machine(tmp_path, 16)


def units(files: tuple[str, str], **asked: object) -> list[list[str]]:
    (found,) = frustum.plan(files[0], target=files[1], dtype="f16", **asked)
    return [list(layers_in(child)) for child in found.tree.children]


# --- policies -----------------------------------------------------------------------------------------------


def test_units_are_those_that_rules_grow(files):
    assert units(files, policy="none") == [["a0"], ["b0"], ["a1"], ["b1"], ["y"]]
    assert units(files, policy="pyramid") == [["a0", "b0"], ["a1", "b1", "y"]]
    assert units(files, rules=RULES) == [["a0", "b0", "a1", "b1", "y"]]
    assert units(files, rules=f"{RULES},19") == units(files, policy="pyramid"), "rule 19 has a threshold of 4"


def test_rules_have_the_thresholds_that_are_said(files, monkeypatch):
    found = []

    def grown(_network, _target, policy):
        found.append((policy.start, [rule.number for rule in policy.rules], dict(policy.thresholds)))
        return []

    monkeypatch.setattr(plan_units, "grow_units", grown)
    assert units(files, rules=f"{RULES},19", thresholds="19=6") == units(files, policy="none")
    assert found == [("S1", [1, 4, 19], {19: 6})]


def test_policy_none_writes_and_reads_every_map(files):
    (found,) = frustum.plan(files[0], target=files[1], dtype="f16", policy="none")
    maps, y, weights = 2 * 8 * 24 * 24, 2 * 8 * 12 * 12, 4 * 2 * 8 * 8 * 9
    assert found.counted.write_bytes == 4 * maps + y
    assert found.counted.read_bytes >= 7 * maps + weights, "both residuals are read twice"
    curves = [frustum.curve(files[0], target=files[1], dtype="f16", policy=name)[0] for name in ("none", "optimal")]
    assert curves[0].moved[-1] == found.counted.dram_bytes > curves[1].moved[-1]


def test_layers_of_one_operation_stay_together():
    net = read(planned_models.perceptron())
    assert [layer.name for layer in net.layers] == ["first", "up", "down", "y.sums", "y"]
    ((ordered, cuts),) = AskedUnits("none").of([net], EDGE)
    assert ordered is net and cuts.after == {"first", "up", "down", "y"} and not cuts.is_crossed


def test_layers_of_a_unit_follow_each_other(monkeypatch):
    """In the order in which units make their results."""
    net = read(fork())
    assert [layer.name for layer in net.layers] == ["first", "aside", "second", "y"]
    ops = {layer.name: source_of(layer) for layer in net.layers}
    grown = [("aside",), ("first", "second"), ("y",)]

    class Unit:
        def __init__(self, names):
            self.ops = tuple(ops[name] for name in names)

    monkeypatch.setattr(plan_units, "grow_units", lambda *_: [Unit(names) for names in grown])
    ((ordered, cuts),) = AskedUnits("greedy").of([net], EDGE)
    assert [layer.name for layer in ordered.layers] == ["aside", "first", "second", "y"]
    assert cuts.after == {"aside", "second", "y"}
    grown[:] = [("first", "y"), ("second",)]
    with pytest.raises(PolicyError, match="reads 'first', which a later unit makes, that of conv 'first'"):
        AskedUnits("greedy").of([net], EDGE)


def test_operations_that_rules_do_not_know_are_units_by_themselves():
    net = read(mixed_models.transformer())
    for policy in ("none", "greedy"):
        ((ordered, cuts),) = AskedUnits(policy).of([net], EDGE)
        assert set(ordered.layers) == set(net.layers) and cuts.after
        inside = [layer for layer in ordered.layers if layer.name not in cuts.after]
        later = [ordered.layers[ordered.layers.index(layer) + 1] for layer in inside]
        if policy == "none":
            assert [source_of(a) for a in inside] == [source_of(b) for b in later] != []


def test_a_policy_of_the_target_counts(files, tmp_path):
    other = tmp_path / "rules.yaml"
    other.write_text(Path(files[1]).read_text() + "options: {policy: none}\n")
    assert units((files[0], str(other))) == units(files, policy="none") != units(files)
    assert units((files[0], str(other)), policy="optimal") == units(files)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_steps_of_a_recurrence_are_one_unit(op, tmp_path):
    """What stands before the loop and copies of states behind it are units by themselves, whatever the policy."""
    model = tmp_path / "recurrent.onnx"
    onnx.save(recurrent_models.model_of(op, steps=5)[0], model)
    for policy in ("none", "greedy"):
        (found,) = frustum.plan(model, target="edge", policy=policy)
        own = [list(layers_in(child)) for child in found.tree.children]
        steps = {layer.name for each in recurrences_of(found.network.layers) for layer in each.layers}
        (loop,) = [layers for layers in own if steps & {*layers}]
        assert {*loop} >= steps and all(len(layers) == 1 for layers in own if layers != loop)
        assert len(own) > 2


def test_policies_that_are_none_are_named(files):
    for asked, said in (
        ({"policy": "greedy", "cuts": "a0"}, "--cuts and --policy: one of them says where units end"),
        ({"rules": "S9"}, "rules: unknown rule 'S9'"),
        ({"thresholds": "11=75"}, "thresholds: policy 'optimal' has no rules"),
    ):
        with pytest.raises(UsageError, match=said.replace("--", "-*")):
            units(files, **asked)


# --- cuts ---------------------------------------------------------------------------------------------------


def test_cuts_are_after_layers_and_plans_cross_them(files):
    for policy in (None, "optimal"):
        (found,) = frustum.plan(files[0], target=files[1], dtype="f16", policy=policy, cuts="b0, y")
        assert [list(layers_in(child)) for child in found.tree.children] == [["a0", "b0"], ["a1", "b1", "y"]]
        assert found.counted.dram_bytes == found.network.compulsory_bytes
    (alone,) = frustum.plan(files[0], target=files[1], dtype="f16", policy="pyramid")
    assert alone.counted.dram_bytes == found.counted.dram_bytes + 2 * 2 * 8 * 24 * 24


def test_cuts_are_of_all_networks_of_a_model(tmp_path):
    networks = [read(planned_models.perceptron()), read(planned_models.residual())]
    both = cuts_after(networks, "up,a0, y.sums")
    assert [cuts.after for cuts in both] == [{"up", "y.sums"}, {"a0"}]
    assert [cuts.after for cuts in cuts_after(networks, "y")] == [{"y"}, {"y"}], "the last layer of the softmax"
    model = tmp_path / "mixed.onnx"
    onnx.save(mixed_models.sandwich(8, 12), model)
    assert [len(each.tree.children) for each in frustum.plan(model, target="edge", cuts="c2")] == [1, 1]


@pytest.mark.parametrize("text", ["", " , "])
def test_cuts_name_a_layer(files, text):
    with pytest.raises(PlanError, match="cuts: no layer is named"):
        units(files, cuts=text)


def test_a_layer_that_is_none_is_named(files):
    with pytest.raises(PlanError, match=r"cuts: no layer is called 'b00'; did you mean 'b0'\? \(there are 5 layers\)"):
        units(files, cuts="a0,b00")
