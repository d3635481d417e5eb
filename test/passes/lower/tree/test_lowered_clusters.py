"""Plans over clusters as programs: values in checked mode, bytes of DRAM, and what goes over links."""

import contextlib
from dataclasses import replace

import lowered_plans
import numpy as np
import plan_nets
import pytest
import random_plans
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from frustum.backend import targets
from frustum.dialects import graph as g
from frustum.dialects.isa import program as p
from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.clusters import clusters_of
from frustum.dialects.plan.count import count
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.plan.tree.good_plans import fitting_plan
from frustum.runtime.machine import Machine

SLOW = {"deadline": None, "suppress_health_check": list(HealthCheck), "phases": [Phase.explicit, Phase.generate]}


def rows_net(net):
    """Two windows over rows, and a mean of what they make."""
    x = net.input(1, 4, 16, 6)
    return net.conv(net.conv(x, 4, 3), 4, 3)


def pooled_net(net):
    x = net.conv(net.input(1, 4, 16, 6), 6, 1)
    return net.layer(g.ReduceOp("mean", x, (2, 3)))


def halved_net(net):
    """A map of which a second unit reads windows."""
    return net.conv(net.conv(net.input(1, 4, 16, 6), 4, 1), 4, 3)


def in_place_net(net):
    """A function that takes the storage of what it reads; behind it a window over rows."""
    return net.conv(net.unary("relu", net.conv(net.input(1, 4, 16, 6), 4)), 4)


def heads_net(net):
    """Three boxes for each position of a map, then those of a smaller one, as detection heads have them."""
    x = net.input(1, 4, 16, 6)
    maps = net.conv(x, 12, 3), net.conv(net.layer(g.PoolOp("max", x, kernel=(8, 1), strides=(8, 1))), 12, 3)
    rows = [net.layer(g.TransposeOp(each, (0, 2, 3, 1))) for each in maps]
    parts = [net.layer(g.ReshapeOp(each, (1, positions, 4))) for each, positions in zip(rows, (288, 36), strict=True)]
    return net.unary("tanh", net.layer(g.ConcatOp(parts, 1)))


def in_place(sharded):
    """Neighbours want rows of what is made in place, and none of what was there."""
    loop = "for {}.y step 4 of 16 over clusters exchanged {{ compute {} }}".format
    first, second, third = loop("conv_1", "conv_1"), loop("conv_1", "unary_2"), loop("conv_3", "conv_3")
    return f"resident conv_1 until unary_2{sharded} {first} resident unary_2 at conv_1{sharded} {second} {third}"


CASES = {
    "rows of neighbours in the storage of another tensor": (in_place_net, in_place(" sharded conv_1.y")),
    "all of what clusters make in the storage of another tensor": (in_place_net, in_place("")),
    "recomputed": (rows_net, "for conv_2.y step 4 of 16 over clusters recomputed { compute conv_1, conv_2 }"),
    "exchanged": (rows_net, "for conv_2.y step 4 of 16 over clusters exchanged { compute conv_1, conv_2 }"),
    "exchanged, resident": (
        rows_net,
        "for conv_2.y step 4 of 16 over clusters exchanged { resident conv_1 { compute conv_1 compute conv_2 } }",
    ),
    "fewer ranges than clusters": (
        rows_net, "for conv_2.y step 6 of 16 over clusters recomputed { compute conv_1, conv_2 }"
    ),
    "rolls inside": (
        rows_net,
        "for conv_2.y step 4 of 16 over clusters recomputed { resident x0 for conv_2.y step 1 of 16 rolling "
        "{ compute conv_1, conv_2 } }",
    ),
    "sum": (
        pooled_net, "resident reduce_2 for x0.2 step 4 of 16 over clusters { compute conv_1, reduce_2 }"
    ),
    "sum that waits nowhere": (
        pooled_net, "for x0.2 step 4 of 16 over clusters { compute conv_1, reduce_2 }"
    ),
    "shares": (
        halved_net,
        "resident conv_1 until conv_2 sharded x0.2 for x0.2 step 4 of 16 over clusters { compute conv_1 } "
        "for conv_2.y step 4 of 16 over clusters recomputed { compute conv_2 }",
    ),
    "gathered": (
        halved_net,
        "resident conv_1 until conv_2 for x0.2 step 4 of 16 over clusters { compute conv_1 } "
        "for conv_2.c step 1 of 4 over clusters { compute conv_2 }",
    ),
    "of all clusters alike": (halved_net, "compute conv_1 compute conv_2"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_bytes(name):
    build, text = CASES[name]
    case = lowered_plans.case(build, text)
    moved, counted = lowered_plans.check_lowered(case, lowered_plans.machine("default", clusters=4))
    assert moved == counted


def test_what_clusters_lack_goes_over_links():
    case = lowered_plans.case(*CASES["shares"])
    received = count(case.axes, case.plan).link_bytes
    program = lowered_plans.executable_of(case.module, case.plan, lowered_plans.machine("default", clusters=4))
    assert received == 6 * 4 * 6 * 4, "a row of four channels at each of six borders, in f32"
    assert lowered_plans.link_bytes(program) == received


def test_more_ranges_than_clusters_are_no_plan():
    case = lowered_plans.case(rows_net, "for conv_2.y step 4 of 16 over clusters recomputed { compute conv_1, conv_2 }")
    with pytest.raises(PlanError, match="4 ranges, default has 2 clusters"):
        lowered_plans.check_lowered(case, lowered_plans.machine("default", clusters=2))


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("build", plan_nets.KINDS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("clusters", [2, 4])
def test_searched_plans_run_on_clusters(build, clusters):
    case = lowered_plans.case(build)
    target = lowered_plans.machine("default", 32 * 1024, clusters=clusters)
    case.plan, counted = fitting_plan(case.axes, target.cluster.sram.capacity_bytes, clusters)
    try:
        moved, _ = lowered_plans.check_lowered(case, target)
    except (NotLowered, DoesNotFit) as problem:
        pytest.skip(f"not lowered: {problem}")
    assert moved <= counted.dram_bytes * 1.001


def check(case, kib, cores):
    """Values alone: bytes of plans that nobody would search are those of the cases above."""
    try:
        count(case.axes, case.plan)
    except PlanError:
        assume(False)
    target = lowered_plans.machine("default", kib * 1024, cores, max(2, clusters_of(case.plan)))
    with contextlib.suppress(NotLowered, DoesNotFit):
        lowered_plans.check_lowered(case, target)


@given(random_plans.distributed())
@settings(max_examples=10, **SLOW)
def test_random_plans_of_clusters(case):
    check(case, 64, None)


@pytest.mark.slow
@given(random_plans.distributed(), st.sampled_from([16, 64, 512]), st.sampled_from([None, 1, 2]))
@settings(max_examples=300, **SLOW)
def test_many_random_plans_of_clusters(case, kib, cores):
    check(case, kib, cores)


def test_a_single_cluster_of_a_chip_of_several_has_the_bytes_of_one():
    one, four = (lowered_plans.machine("default", clusters=k) for k in (1, 4))
    case = lowered_plans.case(halved_net, "compute conv_1 compute conv_2")
    assert lowered_plans.check_lowered(case, one) == lowered_plans.check_lowered(case, four)


def test_programs_of_targets_with_several_chips_are_for_one_of_them():
    case = lowered_plans.case(halved_net, "compute conv_1 compute conv_2")
    several = targets.load("manycore")
    one = replace(several, chips=1, chip_link_bytes_per_cycle=None)
    assert lowered_plans.check_lowered(case, several) == lowered_plans.check_lowered(case, one)


# ------------------------------------------------------------ ranges of which the last is longer


def rows_of(rows):
    """Two windows over so many rows."""

    def build(net):
        return net.conv(net.conv(net.input(1, 4, rows, 6), 4), 4)

    return build


def nine_rows(net):
    """`halved_net` with a row more than clusters share equally."""
    return net.conv(net.conv(net.input(1, 4, 9, 6), 4, 1), 4)


def strided(net):
    """49 windows with a stride of 2."""
    return net.pool("max", net.conv(net.input(1, 4, 99, 6), 6), 3, 2)


def joined(net):
    """An output of which two convolutions of one map make channels each."""
    x = net.conv(net.input(1, 4, 9, 6), 4, 1)
    return net.layer(g.ConcatOp([net.conv(x, 4), net.conv(x, 3, 1)], 1))


def beside(net):
    """Two products that lie side by side in rows of an output."""
    x = net.input(9, 16)
    return net.layer(g.ConcatOp([plan_nets.product(net, x, 5), plan_nets.product(net, x, 6)], 1))


FIVE, NINE, POOLED = (f"ranges {own} over clusters" for own in ([0, 1, 2, 3, 5], [0, 2, 4, 6, 9], [0, 12, 24, 36, 49]))
BOTH, HELD = "compute conv_1, conv_2", "resident conv_1 {{ compute conv_1 compute conv_2 }}"
LONGER = {
    "of 5": (rows_of(5), f"for conv_2.y {FIVE} {{0}} {{{{ {BOTH} }}}}"),
    "of 9, resident inside": (rows_of(9), f"for conv_2.y {NINE} {{0}} {{{{ {HELD} }}}}"),
    "of 9, operand resident around": (rows_of(9), f"resident x0 for conv_2.y {NINE} {{0}} {{{{ {BOTH} }}}}"),
    "windows": (strided, f"for pool_2.y {POOLED} {{0}} {{{{ compute conv_1, pool_2 }}}}"),
    "windows, resident around": (
        strided, f"resident conv_1 for pool_2.y {POOLED} {{0}} {{{{ compute conv_1 compute pool_2 }}}}"
    ),
    "windows, shares around": (
        strided,
        f"resident conv_1 sharded conv_1.y for pool_2.y {POOLED} {{0}} {{{{ compute conv_1 compute pool_2 }}}}",
    ),
    "an output of two parts": (
        joined, f"resident w, w.1, w.2 for conv_2.y {NINE} {{0}} {{{{ compute conv_1, conv_2, conv_3 }}}}"
    ),
}  # fmt: skip


@pytest.mark.slow(but=6)
@pytest.mark.parametrize("halo", ["exchanged", "recomputed"])
@pytest.mark.parametrize("name", LONGER)
def test_the_last_range_may_be_longer(name, halo):
    """All clusters make as much as the last one: what they load for it is no more than a row each and layer."""
    build, text = LONGER[name]
    case = lowered_plans.case(build, text.format(halo))
    moved, counted = lowered_plans.check_lowered(case, lowered_plans.machine("default", clusters=4))
    row = 4 * 6 * 4
    assert counted <= moved <= counted + 2 * 3 * row


def test_parts_of_an_output_leave_from_all_clusters():
    """Side by side, in a buffer that lies as the output does."""
    rows = "step 3 of 9 over clusters"
    case = lowered_plans.case(beside, f"for x0.0 {rows} {{ resident x0 compute matmul_1, matmul_2 }}")
    moved, counted = lowered_plans.check_lowered(case, lowered_plans.machine("default", clusters=4))
    assert moved <= counted + 3 * 16 * 4


ODD = {
    "images of a pool": (lambda net: net.pool("max", net.input(5, 3, 7, 5)), "for x0.0 {} {{ compute pool_1 }}"),
    "rows of a product": (
        lambda net: plan_nets.product(net, net.input(5, 16), 6), "for x0.0 {} {{ compute matmul_1 }}"
    ),
    "columns of a product": (
        lambda net: plan_nets.product(net, net.input(6, 16), 5), "for matmul_1.c {} {{ compute matmul_1 }}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_single_layer_of_which_the_last_range_is_longer(name):
    build, text = ODD[name]
    lowered_plans.check_lowered(
        lowered_plans.case(build, text.format(FIVE)), lowered_plans.machine("default", clusters=4)
    )


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (beside, f"for x0.0 {NINE} {{ resident x0 compute matmul_1, matmul_2 }}"),
        (
            lambda net: plan_nets.product(net, net.input(64, 64), 3073),
            "for matmul_1.c ranges [0, 768, 1536, 2304, 3073] over clusters { compute matmul_1 }",
        ),
    ],
)
def test_what_leaves_in_parts_or_slices_is_of_ranges_of_one_length(build, text):
    with pytest.raises(NotLowered, match="several passes store the same of it"):
        lowered_plans.check_lowered(lowered_plans.case(build, text), lowered_plans.machine("default", clusters=4))


MOVED = {
    "cropped": (12, 2, (-1, 0), "step 3 of 10"),
    "cropped, the last longer": (7, 1, (-1, 1), "ranges [0, 1, 2, 3, 7]"),
    "padded": (9, 2, (2, 2), "step 3 of 12"),
    "padded, the last longer": (10, 1, (2, 1), "ranges [0, 3, 6, 9, 13]"),
}


@pytest.mark.parametrize("halo", ["exchanged", "recomputed"])
@pytest.mark.parametrize("name", MOVED)
def test_ranges_of_what_padding_moves(name, halo):
    """What clusters read lies so far from their range of it, and some of what is there nobody reads."""
    rows, kernel, (top, bottom), cut = MOVED[name]

    def build(net):
        return net.conv(net.input(1, 2, rows, 3), 2, (kernel, 1), pads=(top, 0, bottom, 0))

    case = lowered_plans.case(build, f"for conv_1.y {cut} over clusters {halo} {{ resident x0 compute conv_1 }}")
    try:
        count(case.axes, case.plan)
    except PlanError:
        return  # nobody has at that moment what a cluster needs
    lowered_plans.check_lowered(case, lowered_plans.machine("default", clusters=4))


@pytest.mark.parametrize("around", ["resident reduce_2 ", ""])
def test_sums_are_over_ranges_of_which_the_last_is_none_the_longer(around):
    def build(net):
        return net.layer(g.ReduceOp("mean", net.conv(net.input(1, 4, 9, 6), 6, 1), (2, 3)))

    case = lowered_plans.case(build, f"{around}for x0.2 {NINE} {{ compute conv_1, reduce_2 }}")
    with pytest.raises(NotLowered, match=r"for x0\.2: sums over ranges of which the last is the longest"):
        lowered_plans.check_lowered(case, lowered_plans.machine("default", clusters=4))


# ------------------------------------------------------------ units of several classes

UNITS = {
    "rows, then channels": (
        nine_rows,
        f"resident conv_1 until conv_2 for x0.2 {NINE} {{ compute conv_1 }} "
        "for conv_2.c step 1 of 4 over clusters { compute conv_2 }",
    ),
    "channels, then rows": (
        nine_rows,
        "resident conv_1 until conv_2 for conv_1.c step 1 of 4 over clusters { compute conv_1 } "
        f"for conv_2.y {NINE} recomputed {{ compute conv_2 }}",
    ),
    "rows, then other rows": (
        nine_rows,
        f"resident conv_1 until conv_2 for x0.2 step 3 of 9 over clusters {{ compute conv_1 }} "
        f"for conv_2.y {NINE} recomputed {{ compute conv_2 }}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
def test_units_deal_different_classes(name):
    """Every cluster gets the whole tensor that one unit makes and another one reads."""
    case = lowered_plans.case(*UNITS[name])
    moved, counted = lowered_plans.check_lowered(case, lowered_plans.machine("default", clusters=4))
    assert counted <= moved <= counted + 3 * 4 * 6 * 4


# ------------------------------------------------------------ statistics of parts

STATISTICS = {
    "of rows": ((5, 16), (1,), 1, "x0.1 step 4 of 16", ""),
    "of rows, some at a time": ((5, 16), (1,), 1, "x0.1 step 4 of 16", "for x0.0 step 2"),
    "of planes": ((1, 6, 8, 12), (2, 3), 1, "x0.2 step 2 of 8", ""),
    "of planes in passes": ((1, 6, 8, 12), (2, 3), 1, "x0.2 step 2 of 8", "for x0.3 step 5"),
    "of groups": ((1, 6, 8, 12), (1, 2, 3), 3, "x0.2 step 2 of 8", ""),
    "of planes with an odd side": ((1, 6, 8, 9), (2, 3), 1, "x0.2 step 2 of 8", ""),
}
def normalised(x, axes, groups, rms):
    """As the operation says, in f64."""
    own = x.astype(float).reshape(len(x), groups, -1, *x.shape[2:]) if groups > 1 else x.astype(float)
    over = (2, 3, 4) if groups > 1 else axes
    beyond = own - (0.0 if rms else own.mean(over, keepdims=True))
    return (beyond / np.sqrt((beyond**2).mean(over, keepdims=True) + 1e-3)).reshape(x.shape)


def norm_case(shape, axes, groups, text, *, rms=False, offset=0):
    """A norm without scale and shift, of numbers that are all moved so far; and a plan."""

    def build(net):
        x = net.input(*shape)
        net.inputs["x0"] += np.float32(offset)
        return net.layer(g.NormaliseOp(x, None, None, axes=axes, groups=groups, epsilon=1e-3, rms=rms))

    return lowered_plans.case(build, f"resident normalise_1.sums {text} compute normalise_1")


@pytest.mark.slow(but=5)
@pytest.mark.parametrize(("rms", "offset"), [(False, 1000), (True, 0)], ids=["variance", "mean square"])
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_parts_are_joined(name, rms, offset):
    """With mean 1000 and deviation 1 half of the digits of f32 are gone in a square."""
    shape, axes, groups, cut, inside = STATISTICS[name]
    text = f"for {cut} over clusters {{ {inside} {{ compute normalise_1.sums }} }}"
    case = norm_case(shape, axes, groups, text, rms=rms, offset=offset)
    target = lowered_plans.machine("default", clusters=4)
    own = Machine(lowered_plans.executable_of(case.module, case.plan, target))
    found = own.run(case.inputs, "functional", checked=True).outputs["y0"]
    np.testing.assert_allclose(found, normalised(case.inputs["x0"], axes, groups, rms), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("columns", "step"), [(18, 5), (16, 5)])
def test_statistics_of_parts_that_are_not_equal_are_not_joined(columns, step):
    """16 columns are dealt as 5, 5, 5 and 1."""
    text = f"for x0.1 step {step} of {columns} over clusters {{ compute normalise_1.sums }}"
    case = norm_case((5, columns), (1,), 1, text)
    with pytest.raises(NotLowered, match=r"normalise_1\.sums: means of parts that are not equal"):
        lowered_plans.check_lowered(case, lowered_plans.machine("default", clusters=4))


def test_no_cluster_makes_more_of_an_axis_than_there_is():
    """Of rows that lie below others a range may be longer than all of them."""
    layers = "conv_1, pool_2, conv_3, unary_9"
    text = f"resident x0 for unary_9.side step 90 of 324 over clusters exchanged {{ compute {layers} }}"
    case, target = lowered_plans.case(heads_net, text), lowered_plans.machine("default", cores=1, clusters=4)
    moved, counted = lowered_plans.check_lowered(case, target)
    assert moved <= counted
    program = lowered_plans.executable_of(case.module, case.plan, target).program
    convs = [each for each in p.instructions(program.body) if isinstance(each, p.Conv)]
    assert len(convs) > 1 and all(span.extent <= span.bound for each in convs for span in each.box.spans)
