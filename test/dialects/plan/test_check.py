"""What is said of trees that are no plan of their network."""

import pytest
import random_plans
from axis_networks import SHAPES, mlp, network, windows
from hypothesis import given, settings

from frustum.dialects import graph as g
from frustum.dialects.plan.check import PlanError, check_plan, check_structure, with_copies
from frustum.dialects.plan.count import count
from frustum.dialects.plan.parse import read_plan
from frustum.dialects.plan.tree import Compute, Copy, Halo, Loop, Over, Part, Resident, Sequence, Sum, steps


@given(random_plans.planned())
@settings(max_examples=15, deadline=None)
def test_random_plans_are_plans(planned):
    check_plan(planned.axes, planned.plan)
    assert count(planned.axes, planned.plan).dram_bytes > 0


PERCEPTRON = 'compute matmul, unary, "matmul#2"'
WRONG = {
    # rule 1
    "{ compute matmul, unary }": "layers that no compute has: matmul#2; add them to one",
    'compute unary, matmul, "matmul#2"': "unary reads matmul, which is made after it: move its maker before it",
    'compute matmul, unry, "matmul#2"': "no layer is called unry; did you mean 'unary'",
    "{ subsets clusters [1, 1] { compute matmul { compute unary, \"matmul#2\" } } }": (
        "unary reads matmul, which another subset makes at the same time: make it before them, or pipeline"
    ),
    "{ recompute mul as m2 compute m2 PLAN }": "recompute mul: no layer is called mul; did you mean 'matmul'",
    '{ recompute unary as matmul compute matmul, unary, "matmul#2" }': "the network has a layer of that name",
    # rule 2
    "for matmul.c step 5 of 21 { PLAN }": "ranges end at 21, the extent of the axis is 20",
    "for matmul.d step 5 of 20 { PLAN }": "no axis is called matmul.d; did you mean 'matmul.c'",
    "for x0.1 step 4 of 8 { PLAN }": "for x0.1: unary reads matmul, a sum over x0.1 that is whole after the last pass",
    '{ for "matmul#2.c" step 4 of 8 { compute matmul } compute unary, "matmul#2" }': "no layer inside has it",
    # rule 3
    "{ resident mat PLAN }": "resident mat: no tensor is called mat; did you mean 'matmul'",
    "{ resident x1 [x1.2 0:3] PLAN }": "resident x1: no axis of it is called x1.2; did you mean 'x1.",
    "{ resident x1 [x1.0 0:9] PLAN }": "resident x1: x1.0 ends at 8, found 0:9",
    "{ resident x1 sharded x1.0 PLAN }": "sharded x1.0, but no loop or subset is distributed here",
    "for matmul.c step 5 of 20 over clusters { resident x1 sharded y PLAN }": "no axis of it is called y",
    '{ compute matmul resident x1 compute unary, "matmul#2" }': "resident x1: no layer there makes or reads it",
    '{ resident unary compute matmul compute unary, "matmul#2" }': "unary makes it in a later child: state it before",
    '{ compute matmul, unary sum unary as f32 compute "matmul#2" }': "sum unary: unary sums over no axis",
    '{ compute matmul compute unary, "matmul#2" sum matmul as f32 }': "compute unary, matmul#2 does not make it",
    "{ resident x1 at x2 PLAN }": "resident x1 at x2: nothing makes it; leave out 'at'",
    "{ resident unary at x2 PLAN }": "resident unary at x2: unary does not read x2; leave out 'at'",
    "{ resident unary at matmul PLAN }": "resident unary at matmul: matmul is not resident there",
    "{ resident unary at matmull PLAN }": "no tensor is called matmull; did you mean 'matmul'",
    "{ resident x0, matmul at x0 PLAN }": "240 B in the 96 B of x0",
}
RIGHT = (
    '{ compute matmul for matmul.c step 4 of 20 { compute unary, "matmul#2" } }',
    "{ resident matmul, unary at matmul PLAN }",
    "{ resident matmul for x0.0 step 4 of 6 { resident unary at matmul PLAN } }",
    "for matmul.c step 5 of 20 over clusters { resident x1 sharded x1.1 PLAN }",
    "for matmul.c step 5 of 20 { PLAN sum matmul as f32 }",
    "for x0.0 step 2 of 6 pipelined subsets cores [1, 1] { compute matmul { compute unary, \"matmul#2\" } }",
)


@pytest.mark.parametrize("text", WRONG)
def test_what_breaks_a_rule_is_said(text):
    net = network(mlp, *SHAPES)
    plan = read_plan(f'plan @net for "edge" {text.replace("PLAN", PERCEPTRON)}', file="a.plan")
    with pytest.raises(PlanError, match=WRONG[text]) as error:
        check_plan(net, plan.node)
    assert str(plan.located(error.value)).startswith("a.plan:1:")
    with pytest.raises(PlanError, match=WRONG[text]):
        count(net, plan.node)


@pytest.mark.parametrize("text", RIGHT)
def test_what_breaks_none_is_a_plan(text):
    check_plan(network(mlp, *SHAPES), read_plan(f'plan @net for "edge" {text.replace("PLAN", PERCEPTRON)}').node)


def test_storage_is_not_taken_from_a_tensor_that_is_read_later():
    def build(x):
        first = g.UnaryOp("relu", x)
        second = g.UnaryOp("exp", first.result)
        return first, second, g.BinaryOp("add", first.result, second.result)

    net = network(build, (6, 8))
    layers = Compute(tuple(layer.name for layer in net.layers))
    first, second, last = layers.layers
    held = Resident(first, 0, 0)
    with pytest.raises(PlanError, match=f"{last} reads {first} later; leave out 'at'"):
        check_plan(net, Sequence((layers,), (held, Resident(second, 0, 0, storage_of=first))))
    check_plan(net, Sequence((layers,), (held, Resident(last, 0, 0, storage_of=first))))
    net.tensors[1].is_output = True
    with pytest.raises(PlanError, match="the network's output reads"):
        check_plan(net, Sequence((layers,), (held, Resident(last, 0, 0, storage_of=first))))


def test_axes_of_one_name_are_not_looped_over():
    net = network(lambda x: (g.UnaryOp("relu", x),), (6, 8))
    for axis in net.layers[0].axes:
        axis.name = "rows"
    with pytest.raises(PlanError, match="for rows: axes of extents 6, 8 are called so; loop over another axis"):
        check_plan(net, Loop("rows", steps(6, 2), Sequence((Compute(("unary",)),))))


def test_tensors_of_one_name_are_not_resident():
    net = network(mlp, *SHAPES)
    net.tensors[1].name = "x2"
    plan = Sequence((Compute(("matmul", "unary", "matmul#2")),), (Resident("x2", 0, 0),))
    with pytest.raises(PlanError, match="several tensors are called x2; leave it in DRAM"):
        check_plan(net, plan)


# ------------------------------------------------------------ copies of layers


def branches(x, w, v):
    """A map that a mean reads, and what scales the map by it."""
    first = g.ConvOp(x, w, None, (1, 1), (0, 0, 0, 0))
    mean = g.ReduceOp("mean", first.result, (2, 3))
    scaled = g.BinaryOp("mul", first.result, mean.result)
    return first, mean, scaled, g.ConvOp(scaled.result, v, None, (1, 1), (0, 0, 0, 0))


BRANCHES = (1, 3, 8, 8), (16, 3, 1, 1), (4, 16, 1, 1)


def test_readers_after_a_copy_read_the_copy():
    net = network(branches, *BRANCHES)
    rows = net.layers[0].result.axes[1].name
    text = f"""plan @net for "edge" {{
      recompute conv as again.conv
      resident x1, x2
      compute conv, reduce
      for {rows} step 2 of 8 {{ compute "again.conv", binary, "conv#2" }}
    }}"""
    plan = read_plan(text.replace('"again.conv"', "again.conv")).node
    check_plan(net, plan)
    copied = with_copies(net, plan)
    layers = {layer.name: layer for layer in copied.layers}
    read = {name: [p.tensor.name for o in layer.operands for p in o.pieces] for name, layer in layers.items()}
    assert read["binary"] == ["again.conv", "reduce"] and read["reduce"] == ["conv"]
    assert read["again.conv"] == read["conv"]
    found = count(net, plan)
    assert found.points["again.conv"] == found.points["conv"]
    mean = next(layer.result for layer in net.layers if layer.name == "reduce")
    image = net.tensors[0].size_bytes
    assert found.dram_bytes == net.compulsory_bytes + image + mean.size_bytes * (1 + 4), "twice the image, no map"


def test_without_copies_the_network_is_itself():
    net = network(mlp, *SHAPES)
    assert with_copies(net, Compute(("matmul", "unary", "matmul#2"))) is net


# ------------------------------------------------------------ trees alone


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (Compute(()), "a compute has at least one layer"),
        (Compute(("a",), "gpu"), "no engine is called gpu"),
        (Compute(("a",), sums=(Sum("a", "f8"),)), "sum a as f8: sums wait as f16, bf16, f32, i32"),
        (Sequence((Compute(("a",)), Sequence(()))), "it has no children"),
        (Sequence((Compute(("a",)),), (Resident("w", 0, 1),)), "from child 0 to child 1, the sequence has 1"),
        (Sequence((Compute(("a",)),), (Resident("w", 0, 0, Part("x", 3, 3)),)), "positions 3:3 of x"),
        (Sequence((Compute(("a",)),), (Resident("w", 0, 0, memory="ram"),)), "no memory is called ram"),
        (Sequence((Compute(("a",)),), (Resident("", 0, 0),)), "the tensor has no name"),
        (Sequence((Compute(("a",)),), subsets=(1,)), "subsets are of clusters, cores or chips"),
        (Sequence((Compute(("a",)),), over=Over.CORES), "subsets are of clusters, cores or chips"),
        (Sequence((Compute(("a", "b")),), copies=(Copy("x", "b"), Copy("y", "b"))), "2 copies are called b"),
        (Sequence((Compute(("a",)),), copies=(Copy("x", "b"),)), "recompute x as b: no compute inside has b"),
        (Loop("x", (0,), Sequence((Compute(("a",)),))), "ranges rise from 0"),
        (Loop("x", (0, 2), Sequence((Compute(("a",)),)), order="spiral"), "no order of passes is called spiral"),
        (Loop("x", (0, 2), Sequence((Compute(("a",)),)), order="zorder 2"), "map zorder takes 2 extents, found '2'"),
    ],
)
def test_what_no_network_has_is_refused_by_itself(tree, said):
    with pytest.raises(PlanError, match=said):
        check_structure(tree)


def test_only_passes_in_time_are_counted():
    net = network(windows, (1, 2, 12, 10), (4, 2, 3, 3), (2, 4, 3, 3))
    rows = net.layers[1].result.axes[1].name
    body = Sequence((Compute(("conv", "conv#2")),))
    for loop in (Loop(rows, steps(12, 6), body, Halo.EXCHANGED), Loop(rows, steps(12, 6), body, over=Over.CORES)):
        check_plan(net, loop)
        with pytest.raises(PlanError, match="only passes in time are counted"):
            count(net, loop)
