"""What layers make and read in the passes of loops, where programs have shown it: values and bytes."""

import lowered_plans
from lowered_plans import case

from frustum.dialects import graph as g


def test_what_nobody_asks_for_before_the_first_column_is_not_in_a_loop_of_one_pass():
    """The convolution reads a column before the first, and each core holds its own columns alone."""

    def build(net):
        x = net.layer(g.PoolOp("avg", net.input(3, 2, 7, 8), kernel=(3, 1), strides=(1, 2), dilations=(2, 2)))
        return net.conv(x, 10, (2, 3), pads=(1, 1, 1, 1), groups=2, strides=(3, 3), dilations=(2, 1))

    found = case(build, "for pool_1.x step 4 { resident x0 compute pool_1 compute conv_2 }")
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine(cores=2))
    assert moved == claimed


def test_a_rolling_loop_loads_nothing_before_its_first_pass_that_no_pass_reads():
    """The pad cuts the first column away."""

    def build(net):
        x = net.layer(g.PadOp(net.input(1, 2, 4, 8), low=(0, 0, 0, -1), high=(0, 0, 0, 2), value=-1.5))
        return net.layer(g.PoolOp("avg", x, kernel=(2, 1), strides=(2, 1)))

    found = case(build, "for pool_2.x step 2 rolling { resident x0 compute pool_2 }")
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine())
    assert moved == claimed


def test_what_is_streamed_comes_in_passes_that_make_something():
    """The pass before the first fills the ring of the part that stays, and reads nothing else."""

    def build(net):
        numbers = {"strides": (1, 2), "pads": (0, 1, 1, 0), "dilations": (2, 1)}
        return net.layer(g.PoolOp("avg", net.input(3, 2, 12, 5), kernel=(3, 4), **numbers))

    found = case(build, "for pool_1.x step 1 rolling { resident x0 [x0.3 4:5], pool_1 compute pool_1 }")
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine(cores=1))
    assert moved == claimed


def test_a_ring_begins_with_the_first_row_that_is_read():
    """The first row is cut away, and each pass reads a row of the one before."""

    def build(net):
        return net.conv(net.input(3, 4, 9, 7), 10, (2, 3), pads=(-1, 2, 1, 2), strides=(2, 1), dilations=(2, 2))

    found = case(build, "for conv_1.y step 2 rolling { resident x0, w, w.1, conv_1 compute conv_1 }")
    moved, claimed = lowered_plans.check_lowered(found, lowered_plans.machine(cores=2))
    assert moved == claimed
