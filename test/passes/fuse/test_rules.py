"""Each rule judges numbers, and on some small network it alone makes the difference."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from networks import Net
from stops import aimed, target
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr

from frustum.dialects import graph
from frustum.dialects.graph import ActAttr
from frustum.dialects.module import MAPS
from frustum.dialects.unit import UnitOp
from frustum.passes.analysis.project import layers_of
from frustum.passes.fuse.candidate import Weights
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.fuse.operators import Operator, operators_of
from frustum.passes.fuse.rules import RULES, Addition, Remedy

MAIN, SCALAR, VECTOR = (
    lambda *reads, kind=kind: Operator(kind, reads) for kind in ("main", "scalar", "vector")
)
SRAM, WRAM, NRAM = 1000, 100, 50


def unit(**numbers):
    """Numbers that satisfy every rule, but for those given."""
    fine = {
        "outputs": 1, "operators": (MAIN(), MAIN(0), SCALAR(1), VECTOR(2)), "computed_weights": 0, "shared_weights": 0,
        "weights": (Weights(50, 5),), "adjacent_weight_bytes": 100, "is_small": True, "loaded_bytes": 300,
        "once_bytes": 300, "in_bytes": 400, "buffer_bytes": 200, "wanted_in_bytes": 400, "wanted_out_bytes": 300,
        "may_overwrite": False, "load_bytes": 70, "store_bytes": 70, "wanted_sub_map_bytes": 50, "maps": 16,
        "borders": (4, 3), "sram_bytes": SRAM, "wram_bytes": WRAM, "nram_bytes": NRAM,
    }  # fmt: skip
    found = {**fine, **numbers}
    return SimpleNamespace(**found, sub_weight_bytes=max(w.sub_map for w in found["weights"]))


FAILS = [
    (4, {"outputs": 2}, "2 > 1 outputs"),
    (5, {"operators": (MAIN(), VECTOR(0))}, "1 < 2 main layers"),
    (6, {"operators": (MAIN(), SCALAR(0), MAIN(1), VECTOR(2))}, "0 < 1 places where two main layers"),
    (6, {"operators": (MAIN(), VECTOR(0), MAIN(1), VECTOR(2))}, "0 < 1 places where two main layers"),
    (6, {"operators": (MAIN(), MAIN(0))}, "0 < 1 places where two main layers"),
    (7, {"operators": (MAIN(), VECTOR(0), SCALAR(1))}, "0 < 1 scalar layers with a vector layer behind"),
    (8, {"computed_weights": 1}, "1 > 0 convolutions with computed weights"),
    (9, {"shared_weights": 2}, "2 > 0 convolutions with shared weights"),
    (10, {"weights": (Weights(9, 1), Weights(101, 50))}, "101 > 100 bytes of WRAM"),
    (10, {"weights": (Weights(9, 1), Weights(102, 51))}, "51 > 50 bytes of half the WRAM for one output channel"),
    (11, {"is_small": False, "loaded_bytes": 603}, "101 > 100 % loaded again"),
    (12, {"wanted_out_bytes": 600}, "1000 >= 1000 bytes of SRAM for input and output"),
    (
        12,
        {"wanted_in_bytes": 1000, "may_overwrite": True},
        "1000 >= 1000 bytes of SRAM for the larger of input and output",
    ),
    (13, {"buffer_bytes": 551}, "1001 > 1000 bytes of SRAM for weights, maps and buffers"),
    (14, {"load_bytes": 801}, "1001 > 1000 bytes of SRAM while a sub-map is loaded"),
    (15, {"store_bytes": 801}, "1001 > 1000 bytes of SRAM while a sub-map is stored"),
    (16, {"adjacent_weight_bytes": 101}, "101 > 100 bytes of WRAM for two sub-maps"),
    (17, {"wanted_sub_map_bytes": 51}, "51 > 50 bytes of NRAM"),
    (18, {"maps": 17}, "17 > 16 maps"),
    (19, {"borders": (2, 5)}, "5 > 4 rows or columns of borders"),
]
SMALL_ONLY, LARGE_ONLY = (13, 14, 15, 16, 18), (11,)


def judge(number, candidate):
    rule = RULES[number]
    return rule.judge(candidate, rule.threshold.default if rule.threshold else None)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4, 20))
def test_each_rule_holds(number):
    assert judge(number, unit()).holds


@pytest.mark.slow
@pytest.mark.parametrize(("number", "numbers", "text"), FAILS)
def test_each_rule_fails_with_its_numbers(number, numbers, text):
    verdict = judge(number, unit(**numbers))
    assert not verdict.holds
    assert str(verdict).startswith(text)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "numbers", "text"), [f for f in FAILS if f[0] in SMALL_ONLY + LARGE_ONLY])
def test_rules_of_one_mode_hold_in_the_other(number, numbers, text):
    assert judge(number, unit(**{**numbers, "is_small": number in LARGE_ONLY})).holds


@pytest.mark.slow
def test_an_output_that_may_overwrite_the_input_needs_room_for_the_larger_only():
    both = {"wanted_in_bytes": 600, "wanted_out_bytes": 600}
    assert not judge(12, unit(**both)).holds
    assert judge(12, unit(**both, may_overwrite=True)).holds


@pytest.mark.slow
def test_an_activation_between_two_main_layers_belongs_to_the_first():
    conv_relu_conv_relu = (MAIN(), Operator("vector", (0,), is_activation=True), MAIN(1), VECTOR(2))
    assert judge(6, unit(operators=conv_relu_conv_relu)).holds


@pytest.mark.slow
def test_every_rule_that_judges_has_a_remedy():
    assert all(rule.remedies for number, rule in RULES.items() if number > 3)
    assert RULES[10].remedies == (
        Remedy.SPLIT_COUT, Remedy.COUT_PIECES, Remedy.FEWER_MAPS, Remedy.REMOVE_LAYER
    )  # fmt: skip


@pytest.mark.slow
def test_search_rules_order_the_steps():
    ahead, behind = Addition((3,), True, ((3, 4, 5),)), Addition((1,), False)
    assert RULES[1].order([ahead, behind]) == [ahead]
    assert RULES[2].order([ahead, behind]) == [behind, ahead]
    assert RULES[3].order([behind, ahead]) == [behind, Addition((3, 4, 5), True, is_block=True), ahead]


@pytest.mark.slow
def test_what_was_folded_into_a_layer_is_an_operator_of_its_own():
    net = Net()
    x = net.conv(net.input(1, 4, 8, 8), 4, act="relu")
    scaled = net.binary("mul", x, net.weight(1, 4, 1, 1))
    y = net.layer(graph.ConvOp(scaled, net.weight(4, 4, 1, 1), residual=x, act=ActAttr.of("relu")))
    ops = [op for op in net.block.ops if not isinstance(op, graph.WeightOp)]
    assert y.owner is ops[-1]
    assert operators_of(layers_of(ops)) == (
        Operator("main", ()), Operator("vector", (0,), is_activation=True), Operator("vector", (1,)),
        Operator("main", (2,)), Operator("scalar", (3, 1)), Operator("vector", (4,), is_activation=True),
    )  # fmt: skip


# --- networks on which one rule makes the difference -------------------------------------------------------


def behind_a_unary(net):
    return net.conv(net.unary("relu", net.input(1, 4, 16, 16)), 4)


def five_rows_more(net):
    return net.conv(net.conv(net.unary("relu", net.input(1, 4, 16, 16)), 4), 4, 5)


def block_of_three(net):
    x = net.unary("relu", net.input(1, 4, 16, 16))
    return net.binary("add", net.conv(net.conv(net.conv(x, 4), 4), 4), x)


def one_convolution(net):
    return net.layer(graph.LrnOp(net.conv(net.input(1, 4, 16, 16), 4), 3, 0.1, 0.75, 1.0))


def two_convolutions(net):
    return net.conv(net.conv(net.input(1, 4, 16, 16), 4), 4)


def computed(net):
    x = net.conv(net.input(1, 4, 16, 16), 4)
    return net.layer(graph.ConvOp(x, net.input(4, 4, 1, 1)))


def shared(net):
    w = net.weight(4, 4, 1, 1)
    return net.layer(graph.ConvOp(net.layer(graph.ConvOp(net.input(1, 4, 16, 16), w)), w))


def heavy_channels(net):
    """Two output channels for each core, with 36 KiB of weights each: no two of them fit WRAM."""
    return net.conv(net.unary("relu", net.input(1, 1024, 16, 16)), 8)


def deep(net):
    """Channels are all that there is: even a position for every core needs more than 18 KiB, two do not."""
    return net.unary("relu", net.conv(net.input(2, 1024, 2, 6), 8, 1))


def heavy_beside_maps(net):
    """A convolution of 36 KiB of weights for the one channel of a core, whose input takes most of 64 KiB."""
    return net.unary("relu", net.conv(net.input(1, 512, 4, 6), 4))


def wide_inside(net):
    """A map between the layers that is much larger than input and output, and needed whole by every core."""
    return net.conv(net.conv(net.input(1, 16, 2, 4), 256, 1), 2)


def heavy_behind(net):
    """A large output of the first layer is stored while the weights of the second come."""
    return net.conv(net.conv(net.input(1, 16, 2, 2), 256, 1), 64)


def heavy_neighbours(net):
    """Pieces of nearly half of WRAM, then one channel that takes more than half."""
    return net.conv(net.conv(net.input(1, 8, 4, 4), 1024), 4)


def many_channels(net):
    """One position of all channels, with the window that it needs, is more than a core holds."""
    return net.pool("max", net.pool("max", net.input(1, 64, 8, 1), 3, 1, pads=(1,) * 4), 3, 1, pads=(1,) * 4)


def weights_again(net):
    """Neither the maps nor the weights of two layers fit SRAM: weights come again for every tile."""
    return net.conv(net.conv(net.input(1, 16, 12, 12), 16), 16)


def many_images(net):
    return net.unary("relu", net.conv(net.input(32, 4, 4, 4), 4, 1))


def three_convolutions(net):
    return net.conv(two_convolutions(net), 4)


CAPACITY = "S1,1,4,10,12,13,14,15,16,17"
"""All rules of this kind, of which each decides without the help of the others."""

DECIDES = [
    (1, behind_a_unary, "edge", "S2,1,4", "S2,4"),
    (2, five_rows_more, "edge", "S2,2,4,19", "S2,4,19"),
    (3, block_of_three, "edge", "S1,3,4,19", "S1,4,19"),
    (4, block_of_three, "edge", "S1,1,4", "S1,1"),
    (5, one_convolution, "edge", "S1,1,4,5", "S1,1,4"),
    (6, two_convolutions, "edge", "S1,1,4,6", "S1,1,4"),
    (7, one_convolution, "edge", "S1,1,4,7", "S1,1,4"),
    (8, computed, "edge", "S1,1,4,8", "S1,1,4"),
    (9, shared, "edge", "S1,1,4,9", "S1,1,4"),
    (10, heavy_channels, "edge", CAPACITY, CAPACITY.replace("10,", "")),
    (11, weights_again, "tiny", "S1,1,4,11", "S1,1,4"),
    (12, deep, 18, CAPACITY, CAPACITY.replace("12,", "")),
    (13, heavy_beside_maps, 64, CAPACITY, CAPACITY.replace("13,", "")),
    (14, wide_inside, 18, CAPACITY, CAPACITY.replace("14,", "")),
    (15, heavy_behind, 32, CAPACITY, CAPACITY.replace("15,", "")),
    (16, heavy_neighbours, "edge", CAPACITY, CAPACITY.replace("16,", "")),
    (17, many_channels, "tiny", CAPACITY, CAPACITY.replace(",17", "")),
    (18, many_images, "edge", "S1,1,4,18", "S1,1,4"),
    (19, three_convolutions, "edge", "S1,1,4,19", "S1,1,4"),
]
"""A number instead of a target: `edge` with so many KiB of SRAM."""


def machine(where):
    return edge_with(where) if isinstance(where, int) else where


def edge_with(kib):
    whole = target("edge")
    sram = replace(whole.cluster.sram, capacity_bytes=kib * 1024)
    return replace(whole, chip=replace(whole.chip, cluster=replace(whole.cluster, sram=sram)))


def test_every_rule_decides_something():
    assert [case[0] for case in DECIDES] == list(RULES)


def units(build, where, rules):
    """Layers, images in a unit map and the reason, of every unit; the runs of one together."""
    net = Net()
    module = aimed(net.module(build(net))[0], machine(where))
    FuseLayers(rules=rules).apply(Context(), module)
    module.verify()
    found = []
    for op in module.walk():
        if isinstance(op, UnitOp):
            layers = [o.name for o in op.body.block.ops if o.name not in ("fgraph.weight", "funit.yield")]
            maps = op.attributes.get(MAPS)
            if re.match("run (?!1 )", op.stopped_by.data):
                found[-1][0].extend(layers)
                continue
            reason = re.sub("^run 1 of [0-9]+: ", "", op.stopped_by.data)
            found.append((layers, maps.value.data if isinstance(maps, IntegerAttr) else 1, reason))
    return found


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("number", "build", "where", "rules", "without"), DECIDES, ids=lambda p: getattr(p, "__name__", None)
)
def test_the_rule_decides(number, build, where, rules, without):
    found, other = units(build, where, rules), units(build, where, without)
    assert [u[:2] for u in found] != [u[:2] for u in other]
    if number in range(4, 20) and number not in (
        4,
        18,
    ):  # these two make the unit larger, the unit map smaller
        assert any(f"rule {number} " in reason for _, _, reason in found)
    assert not any(f"rule {number} " in reason for _, _, reason in other)


@pytest.mark.slow
def test_a_block_is_fused_whole():
    ((layers, _, reason),) = units(block_of_three, "edge", "S1,3,4,19")
    assert layers == ["fgraph.unary", *["fgraph.conv"] * 3, "fgraph.binary"]
    assert reason == "output follows"


@pytest.mark.slow
def test_a_block_in_a_branch_of_a_block():
    def nested(net):
        x = net.unary("relu", net.input(1, 4, 16, 16))
        y = net.conv(x, 4, 1)
        inner = net.binary("add", net.conv(y, 4), net.unary("tanh", y))
        return net.binary("add", net.conv(inner, 4), x)

    assert [len(u[0]) for u in units(nested, "edge", "S1,1,3,4,19")] == [7]


@pytest.mark.slow
def test_start_rules():
    """S1 begins at the first layer, S2 at the first convolution; what stands before it stays alone."""
    assert [len(u[0]) for u in units(behind_a_unary, "edge", "S1,1,4")] == [2]
    assert [u[::2] for u in units(behind_a_unary, "edge", "S2,1,4")] == [
        (["fgraph.unary"], "rule S2: no convolution or pooling is left to start from"),
        (["fgraph.conv"], "output follows"),
    ]


@pytest.mark.slow
def test_fewer_maps_are_loaded_until_the_count_is_allowed():
    assert [u[1] for u in units(many_images, "edge", "S1,1,4,18")] == [16]
    assert [u[1] for u in units(many_images, "edge", "S1,1,4")] == [32]


def test_the_reason_names_the_numbers_and_the_layer():
    reasons = [u[2] for u in units(three_convolutions, "edge", "S1,1,4,19")]
    assert reasons[0] == "rule 19 stride-redundancy: 6 > 4 rows or columns of borders with 'conv_3'"
