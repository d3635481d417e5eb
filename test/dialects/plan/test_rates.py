"""Ranges of clusters against brute force: they begin where windows of readers do, and share every axis out."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from axis_networks import network
from hypothesis import given, settings
from hypothesis import strategies as st

from frustum.dialects import graph as g
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import classes_apart
from frustum.dialects.plan.rates import edges_of, longest, ranges_of, rates_of, steps_of_class


def rows(net):
    """The axis of rows of the last layer, and its class."""
    axis, *_ = net.layers[-1].result.dims[2][0].leaves
    return axis, next(group for group in classes_apart(net.layers) if axis in group)


def chain(height, windows):
    """Convolutions one after the other: of each the kernel, the stride, and the pad at both ends of the rows."""

    def build(x, *weights):
        ops = []
        for weight, (_, stride, pad) in zip(weights, windows, strict=True):
            ops.append(g.ConvOp(ops[-1].result if ops else x, weight, None, (stride, 1), (pad, 0, pad, 0)))
        return ops

    return network(build, (1, 2, height, 4), *((2, 2, kernel, 1) for kernel, *_ in windows))


def pool(x):
    return g.PoolOp("max", x, kernel=(2, 1), strides=(2, 1))


def by_extent(found):
    return {own.extent: each for own, each in found.items()}


# ------------------------------------------------------------ rates


def test_strides_multiply():
    net = chain(41, [(3, 3, 0), (2, 2, 0)])
    assert by_extent(rates_of(*rows(net), net.layers)) == {41: 6, 13: 2, 6: 1}


def test_a_row_that_no_window_reads_does_not_count():
    """Of 49 rows the pool reads 48: two for each of its own, not 49 / 24."""
    net = network(lambda x: (pool(x),), (1, 2, 49, 4))
    assert by_extent(rates_of(*rows(net), net.layers)) == {49: 2, 24: 1}


def test_rows_that_are_read_several_times_go_on_more_slowly():
    net = network(lambda x: (g.ResizeOp("nearest", x, (36, 8), scale=(0.5, 0.5), offset=(0.0, 0.0)),), (1, 2, 18, 4))
    assert by_extent(rates_of(*rows(net), net.layers)) == {18: Fraction(1, 2), 36: 1}


def test_without_a_reader_rows_go_on_in_proportion():
    """Two layers read one map, and neither reads the other."""
    net = network(lambda x, w: (g.ConvOp(x, w, None), pool(x)), (1, 2, 49, 4), (2, 2, 3, 1))
    axis, group = rows(net)
    assert by_extent(rates_of(axis, group, net.layers)) == {49: 2, 47: Fraction(47, 24), 24: 1}
    assert ranges_of((0, 11, 24), next(own for own in group if own.extent == 47), axis, {}) == [(0, 22), (22, 47)]


# ------------------------------------------------------------ edges


def test_what_windows_leave_over_the_last_cluster_has():
    net = network(lambda x: (pool(x),), (1, 2, 49, 4))
    steps = steps_of_class(*rows(net), net.layers, 4)
    assert by_extent(steps) == {49: 12, 24: 6}
    assert [longest(own, steps[own], 4) for own in sorted(steps, key=lambda own: own.extent)] == [6, 13]


def test_the_last_cluster_may_have_more_so_that_none_is_idle():
    """Nine rows for four clusters: with ranges of three one would have nothing."""
    net = chain(9, [(1, 1, 0)])
    axis, group = rows(net)
    steps = steps_of_class(axis, group, net.layers, 4)
    assert edges_of(axis, steps[axis], 4) == (0, 2, 4, 6, 9)


def test_where_there_are_fewer_rows_than_clusters_each_has_one():
    net = chain(3, [(1, 1, 0)])
    axis, group = rows(net)
    assert edges_of(axis, steps_of_class(axis, group, net.layers, 4)[axis], 4) == (0, 1, 2, 3)


@pytest.mark.parametrize("clusters", range(1, 7))
def test_edges_make_ranges_of_one_length_but_for_the_last(clusters):
    for extent in range(1, 25):
        axis = Axis("y", extent)
        for step in range(1, extent + 1):
            edges = edges_of(axis, step, clusters)
            lengths = [b - a for a, b in pairwise(edges)]
            assert (edges[0], edges[-1], len(lengths)) == (0, extent, min(clusters, math.ceil(extent / step)))
            assert set(lengths[:-1]) <= {step} and lengths[-1] > 0
            assert len(lengths) < clusters or max(lengths) == longest(axis, step, clusters)


# ------------------------------------------------------------ against brute force


@st.composite
def chains(draw):
    """A chain of one to three windows along rows, of which the last makes two at least."""
    extent = height = draw(st.integers(8, 60))
    windows = []
    for _ in range(draw(st.integers(1, 3))):
        kernel = draw(st.integers(1, min(4, extent)))
        stride, pad = draw(st.integers(1, 3)), draw(st.integers(0, kernel // 2))
        made = (extent + 2 * pad - kernel) // stride + 1
        if made < 2:
            break
        extent = made
        windows.append((kernel, stride, pad))
    return chain(height, windows or [(1, 1, 0)])


@settings(max_examples=60, derandomize=True, deadline=None)
@given(chains(), st.data())
def test_ranges_cover_every_axis_once_and_in_order(net, data):
    axis, group = rows(net)
    inner = data.draw(st.sets(st.integers(1, axis.extent - 1), max_size=5))
    for own in group:
        found = ranges_of((0, *sorted(inner), axis.extent), own, axis, rates_of(axis, group, net.layers))
        assert [p for low, high in found for p in range(low, high)] == list(range(own.extent))


@settings(max_examples=60, derandomize=True, deadline=None)
@given(chains(), st.integers(2, 6))
def test_no_other_step_shares_out_better(net, clusters):
    """No cluster is idle, if that may be; and the one with the most of an axis has the least."""
    axis, group = rows(net)
    rates = rates_of(axis, group, net.layers)

    def badness(step):
        edges = edges_of(axis, step, clusters)
        parts = {own: [b - a for a, b in ranges_of(edges, own, axis, rates)] for own in group}
        is_idle = any(len(own) < clusters or not all(own) for own in parts.values())
        return is_idle, max(max(own) / each.extent for each, own in parts.items())

    found = steps_of_class(axis, group, net.layers, clusters)
    assert badness(found[axis]) == min(map(badness, range(1, axis.extent + 1)))


@settings(max_examples=60, derandomize=True, deadline=None)
@given(chains(), st.integers(2, 6))
def test_steps_of_all_axes_are_where_the_ranges_begin(net, clusters):
    axis, group = rows(net)
    steps = steps_of_class(axis, group, net.layers, clusters)
    edges = edges_of(axis, steps[axis], clusters)
    for own in group:
        found = ranges_of(edges, own, axis, rates_of(axis, group, net.layers))
        assert [low for low, _ in found] == [min(k * steps[own], own.extent) for k in range(len(edges) - 1)]
