"""Layers of a unit that follow each other in the cores: which do, and that it is right at every level."""

from __future__ import annotations

from dataclasses import replace

import pytest
import random_network
from agreement import check_agreement
from happens_before import check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from integer_networks import IntegerNet
from networks import Net
from stops import modules_at_stops, run_module
from stops import target as machine
from units import Group, as_units, placed
from xdsl.utils.exceptions import PassFailedException

from frustum.backend.pipeline import Choices
from frustum.dialects import graph, isa
from frustum.dialects import tile as t
from frustum.dialects.graph import ScaleAttr
from frustum.dialects.isa.sync import ProgramOp
from frustum.dialects.unit import Partition, UnitOp
from frustum.passes.analysis.project import unit_layers
from frustum.passes.plan import runs, unit_runs
from frustum.passes.plan.cost import CutUnit
from frustum.passes.tile.choose_runs import ChooseRuns, kept_tiles

TARGETS = ("df", "edge", "default")
STOPS = ("typed", "placed", "fixed")


def conv_then_pool(net):
    return net.pool("max", net.conv(net.input(1, 3, 20, 22), 8, act="relu", strides=(2, 2)), 3, 2)


def depthwise_then_pointwise(net):
    return net.conv(net.conv(net.input(1, 4, 20, 22), 4, groups=4, act="relu"), 10, 1)


def pointwise_then_depthwise(net):
    return net.conv(net.conv(net.input(1, 4, 20, 22), 8, 1, act="relu"), 8, groups=8, strides=(2, 2))


def residual(net):
    x = net.input(1, 4, 20, 22)
    y = net.conv(net.conv(x, 6, act="relu"), 4)
    return net.unary("sigmoid", net.binary("add", y, x))


def fire(net):
    squeezed = net.conv(net.input(1, 4, 20, 22), 4, 1, act="relu")
    parts = [net.conv(squeezed, 6, 1), net.conv(squeezed, 5, 3, dilations=(2, 2), pads=(2, 2, 2, 2))]
    return net.conv(net.pool("avg", net.layer(graph.ConcatOp(parts, 1)), 3, 1, pads=(1, 1, 1, 1)), 7, 1)


def shuffled(net):
    groups = net.layer(graph.ShuffleOp(net.conv(net.input(1, 6, 20, 22), 12, 1, groups=3), 3))
    return net.conv(net.conv(groups, 12, groups=12, strides=(2, 2)), 8, 1)


def grouped(net):
    x = net.input(1, 12, 14, 14)
    groups = net.layer(graph.ShuffleOp(net.conv(x, 24, 1, groups=2, act="relu"), 2))
    return net.conv(net.conv(groups, 24, groups=24), 24, 1, groups=2, act="relu")


def some_of_shuffled(net):
    """Channels that begin and end inside of those that follow each other in a shuffle."""
    groups = net.layer(graph.ShuffleOp(net.input(1, 6, 11, 8), 2))
    return net.unary("sigmoid", net.layer(graph.PickOp(groups, (0, 1, 0, 0), (1, 4, 11, 4), (1, 1, 1, 2))))


NETWORKS = (
    conv_then_pool,
    depthwise_then_pointwise,
    pointwise_then_depthwise,
    residual,
    fire,
    shuffled,
    grouped,
    some_of_shuffled,
)
POLICIES = {shuffled: "optimal", grouped: "optimal", some_of_shuffled: "optimal"}
"""Of networks whose layers other policies do not fuse."""


def in_core(module):
    """How many computations stay in the core."""
    return sum(isinstance(op, t.ComputeOp) and t.is_in_core(op.result) for op in module.walk())


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("build", NETWORKS)
def test_runs_are_right(build, target, dtype):
    """As long runs as fit: what they give at every level, and what waits for what."""
    net, chip = Net(1), machine(target).chip
    module, inputs = net.module(build(net))
    choices = Choices(dtype=dtype, policy=POLICIES.get(build, "greedy"), runs="longest")
    modules = modules_at_stops(module, target, choices)
    outputs = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in STOPS}
    check_agreement(outputs, dtype)
    for program in modules["fixed"].walk():
        if isinstance(program, ProgramOp):
            assert check(program, chip.clusters, chip.cluster.cores)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "count"), [*((build, 1) for build in NETWORKS[:4]), (fire, 3), (shuffled, 2), (grouped, 2)]
)
def test_layers_of_a_run_read_from_the_core(build, count):
    """On one cluster of four cores; the map between is in no buffer of SRAM, and two layers are one nest."""
    net = Net(1)
    module, _ = net.module(build(net))
    modules = modules_at_stops(module, "edge", Choices(policy=POLICIES.get(build, "greedy"), runs="longest"))
    assert in_core(modules["placed"]) == count
    layers = [op for op in modules["placed"].walk() if isinstance(op, t.ComputeOp)]
    stores = [op for op in modules["lowered"].walk() if isinstance(op, isa.CopyOp) and to_sram(op)]
    assert len(stores) == len(layers) - count


def to_sram(op):
    kinds = [operand.type.memory for operand in op.operands]
    return kinds == ["nram", "sram"]


def two_units(build, partitions, target):
    """The network with each of its two layers in a unit of its own, the map between in SRAM."""
    net = Net(1)
    module, inputs = net.module(build(net))
    groups = [Group((0,), partitions[0], (0,)), Group((1,), partitions[1])]
    return as_units(module, target, groups), inputs


def test_units_through_which_a_run_goes_are_one():
    """A convolution and its pooling, each in one tile; the vector unit works beside the matrix unit."""
    partitions = Partition((1, 16, 32, 32), 2, 1), Partition((1, 16, 16, 16), 2, 1)
    module, inputs = two_units(even_windows, partitions, "edge")
    before = run_module(module, inputs)
    ChooseRuns().apply(None, module)
    (unit,) = [op for op in module.walk() if op.name == "funit.unit"]
    assert unit.unit_name.data == "u0" and not unit.kept
    assert [op.name for op in unit.body.block.ops if "frustum.in_core" in op.attributes] == ["fgraph.conv"]
    after = placed(module)
    check_agreement({"before": before, "after": run_module(after, inputs)}, "f32")


def test_units_stay_apart_where_a_layer_would_be_made_again_too_often():
    """Pooling dealt by rows to clusters behind a convolution of which each would make all."""
    partitions = Partition((1, 8, 10, 11), 0, 1), Partition((1, 8, 5, 5), 0, 1)
    module, _ = two_units(wide_windows, partitions, "edge")
    ChooseRuns().apply(None, module)
    assert len([op for op in module.walk() if op.name == "funit.unit"]) == 2


@pytest.mark.parametrize(("share", "units", "held"), [(1.0, 2, 1_577_088), (0.7, 3, 394_272)])
def test_units_stay_apart_where_a_map_read_by_channels_would_have_no_room_by_rows(share, units, held):
    """Each of four clusters makes a quarter of the channels and pools these; where pooling goes with the convolution
    behind it, whose rows are dealt, every cluster has room for all channels of the map."""
    net = Net(1)
    module, _ = net.module(net.conv(net.pool("max", net.conv(net.input(1, 3, 111, 111), 32, 7), 3, 2), 16, 1))
    parts = Partition((1, 8, 111, 111), 1, 1), Partition((1, 8, 55, 55), 1, 1), Partition((1, 16, 14, 55), 2, 1)
    groups = [Group((0,), parts[0], (0,)), Group((1,), parts[1], (1,)), Group((2,), parts[2])]
    module = as_units(module, "default", groups)
    ChooseRuns(sram=share).apply(None, module)
    left = [op for op in module.walk() if op.name == "funit.unit"]
    assert len(left) == units
    assert kept_tiles(left, machine("default"))[left[0].results[0]] == held


def even_windows(net):
    return net.pool("max", net.conv(net.input(1, 8, 32, 32), 16, 3), 2, 2)


def wide_windows(net):
    return net.pool("max", net.conv(net.input(1, 64, 10, 11), 8, 7), 6, 1)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("build", [depthwise_then_pointwise, pointwise_then_depthwise, grouped])
def test_the_vector_unit_computes_depthwise_convolutions_of_runs_where_cheaper(build):
    """On `edge` 18 cycles of the matrix unit for the 16 positions of 9 taps, 9 of the vector unit and its terms."""
    net = Net(1)
    module, _ = net.module(build(net))
    choices = Choices(dtype="f16", policy=POLICIES.get(build, "greedy"), runs="longest")
    placed_ = modules_at_stops(module, "edge", choices)["placed"]
    layers = [op for op in placed_.walk() if isinstance(op, t.ComputeOp)]
    depthwise = [op for op in layers if isinstance(op.layer, t.ConvLayer) and op.layer.groups > 2]
    assert in_core(placed_) and depthwise and all(op.map.data.on_vector for op in depthwise)


def test_without_runs_every_map_is_in_sram():
    net = Net(1)
    module, _ = net.module(conv_then_pool(net))
    modules = modules_at_stops(module, "edge", Choices(policy="greedy", runs="none"))
    assert in_core(modules["placed"]) == 0


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("target", TARGETS)
def test_a_softmax_is_of_all_channels_and_in_no_run(target):
    """A run would deal its scores to the cores: each would take the softmax of those that it has."""
    net = IntegerNet(seed=3)
    x = net.layer(graph.QuantizeOp(net.input(1, 64), ScaleAttr.of(0.03, 5)))
    scores = net.layer(
        graph.SoftmaxOp(net.matrix(x, 10), 1, [ScaleAttr.of(0.1, 0), ScaleAttr.of(1 / 256, -128)])
    )
    module, inputs = net.module(net.layer(graph.DequantizeOp(scores, ScaleAttr.of(1 / 256, -128))))
    modules = modules_at_stops(module, target, Choices())
    outputs = {stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in STOPS}
    check_agreement(outputs, "f32")
    (softmax,) = [op for op in modules["placed"].walk() if is_softmax(op)]
    assert not t.is_in_core(softmax.result) and not t.is_in_core(softmax.operands[0])


def is_softmax(op):
    return isinstance(op, t.ComputeOp) and isinstance(op.layer, t.SoftmaxLayer)


def test_kinds_of_runs():
    net = Net(1)
    module, _ = net.module(conv_then_pool(net))
    with pytest.raises(PassFailedException, match="runs is one of auto, none, longest, found all"):
        ChooseRuns(runs="all").apply(None, modules_at_stops(module, "edge", Choices())["tiled"])


WAYS = st.tuples(
    st.sampled_from(["tiny", "tiny", *TARGETS, "manycore"]),
    st.sampled_from(["pyramid", "greedy", "optimal"]),
    st.sampled_from(["f32", "f32", "f16"]),
    st.sampled_from(["auto", "longest", "longest"]),
)
LAYERS = ("conv", "conv", "conv", "pool", "pool", "unary", "binary", "lrn", "concat", "resize", "softmax")


@st.composite
def chains(draw):
    """Layers one behind the other, with a map read twice now and then."""
    net = Net(draw(st.integers(0, 99)))
    maps = [
        net.input(
            draw(st.integers(1, 2)), 2 * draw(st.integers(1, 4)), *(draw(st.integers(4, 20)) for _ in "hw")
        )
    ]
    for _ in range(draw(st.integers(2, 5))):
        x = maps[-1] if draw(st.integers(0, 7)) else draw(st.sampled_from(maps))
        maps.append(getattr(random_network, draw(st.sampled_from(LAYERS)))(draw, net, x, maps))
    return random_network.Drawn(*net.module(*(value for value in dict.fromkeys(maps) if not value.uses)))


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(chains(), WAYS)
def test_runs_of_random_chains_are_right(network, way):
    target, policy, dtype, runs = way
    modules = modules_at_stops(network.module, target, Choices(dtype=dtype, policy=policy, runs=runs))
    outputs = {stop: run_module(modules[stop], network.inputs, checked=stop == "fixed") for stop in STOPS}
    check_agreement(outputs, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("build", [conv_then_pool, fire])
@pytest.mark.parametrize("target_name", ["edge", "tiny"])
def test_runs_that_machines_share_are_those_of_the_whole_machine(build, target_name, monkeypatch):
    asked, plan_run = [], runs.plan_run
    monkeypatch.setattr(unit_runs, "plan_run", lambda *own: asked.append(own) or plan_run(*own))
    net = Net()
    modules_at_stops(net.module(build(net))[0], target_name, Choices())
    assert asked
    for run, extent, whole, residency, loops, _, owned in asked:
        found = runs.fastest_run.__wrapped__(run, extent, whole, residency, loops, owned)
        assert plan_run(run, extent, whole, residency, loops, float("inf"), owned) == found


def strips_of(target_name, partition):
    """The other strips that are looked at of a unit of two layers of four images of 24 x 24."""
    net = Net(1)
    module, _ = net.module(net.conv(net.conv(net.input(4, 4, 24, 24), 8, 1, act="relu"), 8, groups=8))
    module = as_units(module, target_name, [Group((0, 1), partition)])
    (unit,) = [op for op in module.walk() if isinstance(op, UnitOp)]
    cut = CutUnit.of(unit_layers(unit), partition, machine(target_name))
    return {other.tile for other in unit_runs.other_strips(cut)}


@pytest.mark.parametrize(("target_name", "clusters"), [("default", 4), ("edge", 1)])
def test_units_of_strips_may_have_others_on_several_clusters(target_name, clusters):
    """Equal ones, of whole rows or whole columns, as many as there were or fewer, not along what clusters share."""
    others = {(1, 8, 12, 24), (1, 8, 8, 24), (1, 8, 6, 24), (1, 8, 24, 12), (1, 8, 24, 8)}
    assert machine(target_name).chip.clusters == clusters
    assert strips_of(target_name, Partition((1, 8, 24, 6), 0, 2)) == (others if clusters > 1 else set())
    assert strips_of(target_name, Partition((1, 8, 6, 6), 2, 2)) == set()
    assert strips_of(target_name, Partition((1, 8, 24, 6), 0, 1)) == set()
    across = {(1, 8, 6, 4), (1, 8, 6, 6)}  # not 5 strips, and not fewer than 4
    assert strips_of(target_name, Partition((1, 8, 6, 3), 2, 2)) == (across if clusters > 1 else set())


@pytest.mark.slow
def test_what_clusters_send_each_other_is_in_no_core():
    """A pool that overlaps nothing reads beside its strip all the same, as its windows begin in the padding."""
    whole = machine("default")
    core = replace(whole.core, nram=replace(whole.core.nram, capacity_bytes=2048))
    sram = replace(whole.cluster.sram, capacity_bytes=2048)
    cluster = replace(whole.cluster, cores=3, core=core, sram=sram)
    net = Net(3)
    a = net.conv(net.input(1, 2, 7, 22), 6, 3, pads=(1, 1, 1, 1))
    b = net.conv(a, 6, (1, 5), pads=(0, 1, 0, 1), groups=6)
    module, inputs = net.module(net.pool("avg", b, 2, 2, pads=(1, 1, 1, 1)))
    choices = Choices(borders="exchange", policy="greedy", order="bands{bands=1,direction=top-down,owners=cores}")
    target = replace(whole, chip=replace(whole.chip, clusters=5, cluster=cluster))
    modules = modules_at_stops(module, target, choices)
    (unit,) = (op for op in modules["placed"].walk() if isinstance(op, t.UnitOp))
    sent = [t.tile_of(op.tile) for op in unit.walk() if isinstance(op, t.SendOp)]
    assert unit.owners is not None and unit.owners.data == "cores"
    assert len(sent) == 5 and not any(tile.core for tile in sent)
    check_agreement({stop: run_module(modules[stop], inputs, checked=stop == "fixed") for stop in STOPS}, "f32")
