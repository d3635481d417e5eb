"""Plans of networks of integers as programs: bit for bit what the graph says, and the bytes that plans are counted to
move; for models of the file, what the planner of units makes of them."""

import lowered_plans
import numpy as np
import onnx
import plan_nets
import pytest
from integer_networks import IntegerNet
from plan_values import check_values
from stops import run_module
from stored_models import Graph

import frustum
from frustum.dialects import graph as g
from frustum.dialects.graph import ActAttr, ScaleAttr
from frustum.dialects.plan.count import count
from frustum.dialects.plan.parse import extents_of, read_plan
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.plan.tree.good_plans import fitting_plan
from frustum.runtime.machine import Machine


def case(build, text="", dtype=np.int8):
    """A network of integers, with a plan in braces."""
    net = IntegerNet(5, dtype)
    outputs = build(net)
    found = plan_nets.Case(*net.module(*(outputs if isinstance(outputs, tuple) else (outputs,))))
    if text:
        found.plan = read_plan(f'plan @net for "edge" {{ {text} }}', lambda _: extents_of(found.axes), "plan").node
    return found


def check(found, kib=512, cores=4, **machine):
    """The bytes moved, and those that the plan is counted to move."""
    target = lowered_plans.machine(sram_bytes=kib * 1024, cores=cores, **machine)
    if found.plan is None:
        found.plan, _ = fitting_plan(found.axes, target.cluster.sram.capacity_bytes)
    machine = Machine(lowered_plans.executable_of(found.module, found.plan, target))
    result = machine.run(found.inputs, "functional", checked=True)
    for name, wanted in run_module(found.module, found.inputs).items():
        np.testing.assert_array_equal(result.outputs[name], wanted, err_msg=name)
    return lowered_plans.dram_bytes(machine, target), count(found.axes, found.plan).dram_bytes


def convolutions(net):
    """Zero points of weights, biases, clips; windows that reach beyond the map."""
    x = net.integer_input(2, 8, 13, 11)
    y = net.product(net.product(x, 12, clip=True), 16, strides=(2, 2), dilations=(2, 1), pads=(2, 1, 2, 1), bias=False)
    return net.product(y, 7, 1, w_zero=False)


def groups(net):
    """Channel by channel, on the vector unit too; several channels of a group."""
    y = net.product(net.integer_input(1, 12, 9, 9), 12, groups=12, clip=True)
    return net.product(y, 8, groups=4), net.product(y, 24, groups=12)


def products(net):
    x = net.integer_input(5, 70)
    return net.matrix(net.matrix(x, 40, clip=True), 11, trans_b=True, w_zero=False)


def accumulators(net):
    """Sums go out as they are."""
    return net.product(net.integer_input(1, 40, 7, 7), 10, accumulator=True), net.matrix(
        net.integer_input(3, 90), 20, accumulator=True
    )


def fused(net):
    """A residual that a product takes itself."""
    x = net.integer_input(1, 8, 10, 10)
    w, extra = net.constant(net.numbers(8, 8, 3, 3)), net.extras(8, 72)
    scales = [ScaleAttr.of(0.05, extra["zeros"][1]), net.scale(), net.scale()]
    return net.layer(g.ConvOp(x, w, residual=x, pads=(1,) * 4, scales=scales, **extra | {"act": ActAttr.of("relu")}))


def windows(net):
    x = net.integer_input(1, 9, 12, 12)
    largest = net.pool("max", x, 3, 2, pads=(1, 1, 1, 1))
    return largest, net.pool("avg", x, 3, 2, pads=(1, 1, 1, 1), scales=net.scales(2))


def reductions(net):
    x = net.integer_input(1, 9, 12, 12)
    return tuple(net.layer(g.ReduceOp(kind, x, (2, 3), scales=net.scales(2))) for kind in ("max", "mean", "sum"))


def elements(net):
    x, y = net.integer_input(1, 6, 8, 8), net.integer_input(1, 6, 8, 8)
    total = net.added("mul", x, y, "relu")
    sigmoid = net.layer(g.UnaryOp(ActAttr.of("sigmoid"), total, net.scales(2)))
    return sigmoid, net.added("sub", y, x), net.layer(g.UnaryOp("identity", x, net.scales(2)))


def softmax(net):
    return net.layer(g.SoftmaxOp(net.integer_input(6, 40), 1, net.scales(2)))


def resized(net):
    x, numbers = net.integer_input(1, 5, 6, 7), {"scale": (0.5, 0.5), "offset": (-0.25, -0.25)}
    linear = net.layer(g.ResizeOp("linear", x, (12, 14), **numbers, scales=net.scales(2)))
    return linear, net.layer(g.ResizeOp("nearest", x, (12, 14), **numbers))


def neighbours(net):
    x = net.integer_input(1, 10, 6, 6)
    return net.layer(g.LrnOp(x, 3, 1e-2, 0.75, 1.0, net.scales(2)))


def converted(net):
    """From floats and back; results are wider and narrower than what they are made of."""
    q = net.layer(g.QuantizeOp(net.input(1, 5, 9, 7), ScaleAttr.of(0.03, 5)))
    y = net.product(q, 6)
    return net.layer(g.DequantizeOp(y, ScaleAttr.of(0.02, y.owner.zeros[1])))


def padded(net):
    """Pads of zero points, and of another value, beside a window's own padding; tensors side by side."""
    x = net.integer_input(1, 6, 8, 8)
    y = net.product(x, 6)
    zero = y.owner.zeros[0]
    pads = [net.layer(g.PadOp(x, (0, 0, 1, 2), (0, 0, 1, 0), value)) for value in (zero, zero + 9)]
    return y, *(net.product(pad, 6) for pad in pads), net.product(net.layer(g.ConcatOp([x, x], 1)), 4)


def reshaped(net):
    """Rows and columns of a map that are read as one position of what it was before."""
    return net.product(net.layer(g.ReshapeOp(net.integer_input(1, 2 * 9 * 8), (1, 2, 9, 8))), 5)


NETWORKS = (
    convolutions, groups, products, fused, windows, reductions, elements, softmax, resized, neighbours, padded,
    reshaped,
)  # fmt: skip


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("kib", [8, 512])
@pytest.mark.parametrize("build", [*NETWORKS, accumulators, converted], ids=lambda build: build.__name__)
def test_bits_are_those_of_the_network(build, kib):
    moved, claimed = check(case(build), kib)
    assert moved == claimed


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("build", [*NETWORKS, accumulators], ids=lambda build: build.__name__)
def test_plans_on_values_have_the_bits_of_the_network(build):
    found = case(build)
    found.plan, _ = fitting_plan(found.axes, 8 * 1024)
    check_values(found, rtol=0)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("build", NETWORKS, ids=lambda build: build.__name__)
def test_integers_of_16_bits(build):
    moved, claimed = check(case(build, dtype=np.int16), cores=1)
    assert moved == claimed


# ------------------------------------------------------------ sums that wait


def perceptron(net):
    return net.matrix(net.matrix(net.matrix(net.integer_input(12, 16), 40, clip=True), 18), 9)


def deep(net):
    """Sums of more channels than a core takes at a time."""
    return net.product(net.product(net.integer_input(1, 96, 6, 5), 48), 33, 1, clip=True)


SUMS = {
    "over a loop": "resident matmul_2 { for matmul_1.c step 16 { compute matmul_1, matmul_2 sum matmul_2 as i32 } }"
    " compute matmul_3",
    "over a loop inside another one": "for x0.0 step 5 { resident matmul_2 {"
    " for matmul_1.c step 8 { compute matmul_1, matmul_2 sum matmul_2 as i32 } compute matmul_3 } }",
    "and are read there": "resident matmul_2 { for matmul_1.c step 16 { compute matmul_1, matmul_2"
    " sum matmul_2 as i32 } compute matmul_3 }",
    "over two loops": "resident matmul_2, matmul_1 { compute matmul_1 for matmul_1.c step 20 {"
    " for matmul_1.c step 5 { compute matmul_2 sum matmul_2 as i32 } } compute matmul_3 }",
}  # fmt: skip


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("cores", [1, 4])
@pytest.mark.parametrize("name", SUMS)
def test_sums_wait_in_the_type_that_holds_them(name, cores):
    moved, claimed = check(case(perceptron, SUMS[name]), cores=cores)
    assert moved == claimed


@pytest.mark.slow
def test_sums_of_16_bit_integers_wait_in_64():
    text = SUMS["over a loop"].replace("i32", "i64")
    moved, claimed = check(case(perceptron, text, np.int16))
    assert moved == claimed


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize("around", ["", "for x0.1 step 256"])
def test_sums_stay_in_the_cores_over_slices(around, dtype):
    """Over slices of a streamed layer alone, and in passes of a loop around these, where they wait in between."""

    def build(net):
        return net.matrix(net.matrix(net.integer_input(4, 1024), 8, clip=True), 6)

    wide = {np.int8: "i32", np.int16: "i64"}[dtype]
    text = f"{{ compute matmul_1 sum matmul_1 as {wide} }}"
    moved, claimed = check(case(build, f"resident matmul_1 {{ {around} {text} }} compute matmul_2", dtype), 12)
    assert moved == claimed


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kib", [12, 24, 512])
def test_searched_plans_say_what_sums_wait_as(kib):
    found = case(deep)
    moved, claimed = check(found, kib)
    assert moved == claimed


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_sums_of_what_integers_stand_for_wait_in_floats(kind):
    def build(net):
        return net.layer(g.ReduceOp(kind, net.integer_input(1, 5, 9, 10), (2, 3), scales=net.scales(2)))

    text = "resident reduce_1 for x0.2 step 4 { for x0.3 step 5 { compute reduce_1 sum reduce_1 as f32 } }"
    moved, claimed = check(case(build, text.replace("x0.2 step 4", "x0.2 step 3")))
    assert moved == claimed
    with pytest.raises(NotLowered, match="reduce_1: sums of integers that wait as i8"):
        check(case(build, "resident reduce_1 for x0.2 step 4 { compute reduce_1 }"))


def test_largest_integers_wait_as_they_are():
    def build(net):
        return net.layer(g.ReduceOp("max", net.integer_input(1, 5, 9, 10), (2, 3), scales=net.scales(2)))

    moved, claimed = check(case(build, "resident reduce_1 for x0.2 step 4 { compute reduce_1 }"))
    assert moved == claimed


def test_statistics_of_a_softmax_are_kept():
    text = "resident softmax_1.sums for x0.1 step 16 { compute softmax_1.sums } for x0.1 step 24 { compute softmax_1 }"
    moved, claimed = check(case(softmax, text))
    assert moved == claimed


def test_sums_that_nothing_holds_are_refused_by_name():
    with pytest.raises(NotLowered, match="matmul_2: sums of integers that wait as i8"):
        check(case(perceptron, SUMS["over a loop"].replace(" sum matmul_2 as i32", "")))


# ------------------------------------------------------------ clusters


def rows(net):
    return net.product(net.product(net.integer_input(1, 4, 16, 6), 4), 4)


def largest(net):
    return net.layer(g.ReduceOp("max", net.integer_input(1, 5, 16, 10), (2, 3), scales=net.scales(2)))


PASSES = "for conv_1.y step 4 of 16 over clusters { for x0.1 step 2 { compute conv_1 sum conv_1 as i32 } }"
CLUSTERS = {
    "recomputed": (rows, "for conv_2.y step 4 of 16 over clusters recomputed { compute conv_1, conv_2 }"),
    "exchanged": (rows, "for conv_2.y step 4 of 16 over clusters exchanged { compute conv_1, conv_2 }"),
    "shares in which sums have waited": (
        rows, f"resident conv_1 until conv_2 sharded conv_1.y {PASSES}"
        " for conv_2.y step 4 of 16 over clusters recomputed { compute conv_2 }"
    ),
    "gathered, where sums have waited": (
        rows, f"resident conv_1 until conv_2 {PASSES} for conv_2.c step 1 of 4 over clusters {{ compute conv_2 }}"
    ),
    "sums that wait in each": (
        perceptron, "for x0.0 step 3 over clusters { resident matmul_2 { for matmul_1.c step 16"
        " { compute matmul_1, matmul_2 sum matmul_2 as i32 } compute matmul_3 } }"
    ),
    "the largest of all": (largest, "resident reduce_1 for x0.2 step 4 of 16 over clusters { compute reduce_1 }"),
}  # fmt: skip


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_have_the_bits_of_the_network(name):
    moved, claimed = check(case(*CLUSTERS[name]), name="default", clusters=4)
    assert moved == claimed


def test_sums_of_integers_over_clusters_are_refused_by_name():
    text = "compute matmul_1 for matmul_1.c step 10 over clusters { compute matmul_2 } compute matmul_3"
    with pytest.raises(NotLowered, match="matmul_2: sums over passes of a loop"):
        check(case(perceptron, text), name="default", clusters=4)


# ------------------------------------------------------------ models of the file


def quantised(graph, x, scale=0.03, zero=128, dtype=np.uint8):
    numbers = graph.constant(np.float32(scale)), graph.constant(np.array(zero, dtype))
    return graph.op("DequantizeLinear", graph.op("QuantizeLinear", x, *numbers), *numbers)


def layers(kind, *ends):
    """Convolutions, one channel by channel, a residual, pools, a sigmoid, a product, a softmax; `ends`: the zero points
    of what has both signs and of what is positive, and their type."""
    graph = Graph()
    middle, low, dtype = ends
    x = y = quantised(graph, graph.input("x", 1, 8, 12, 12), 0.03, middle, dtype)
    for shape, how in (((16, 8, 3, 3), {}), ((16, 1, 3, 3), {"group": 16}), ((16, 16, 3, 3), {})):
        x, y = y, graph.op("Conv", y, graph.weight(kind, shape), kernel_shape=[3, 3], pads=[1] * 4, **how)
        y = quantised(graph, graph.op("Relu", y) if how else y, 0.02, middle, dtype)
    y = quantised(graph, graph.op("Add", x, y), 0.06, middle, dtype)
    y = graph.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = quantised(graph, graph.op("Sigmoid", y), 1 / 256, low, dtype)
    y = quantised(graph, graph.op("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2]), 1 / 200, low, dtype)
    y = graph.op("Flatten", quantised(graph, graph.op("GlobalAveragePool", y), 1 / 200, low, dtype))
    y = quantised(graph, graph.op("MatMul", y, graph.weight(kind, (16, 30), axis=1)), 0.1, middle, dtype)
    graph.output(quantised(graph, graph.op("Softmax", y, axis=1), 1 / 256, low, dtype), 1, 30)
    return graph.model()


KINDS = {
    "int8": ("int8", 3, -128, np.int8), "uint8": ("uint8", 128, 0, np.uint8), "int4": ("int4", 128, 0, np.uint8),
    "int16": ("int16", 0, -32768, np.int16),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_models_give_the_bits_of_the_planner_of_units(kind, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(layers(*KINDS[kind]), path)
    x, target = np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype(np.float32), lowered_plans.machine()
    found = [
        Machine(frustum.compile(path, target=target, policy=policy).executable).run({"x": x}, checked=True).outputs
        for policy in ("tree", "greedy")
    ]
    (tree,), (units,) = (each.values() for each in found)
    assert len(np.unique(tree)) > 3
    np.testing.assert_array_equal(tree, units)
