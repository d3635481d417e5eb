"""Chains in the cores: against all numbers of pieces, and what counts as one."""

import numpy as np
import pytest
from axis_networks import SHAPES, mlp, network
from hypothesis import given
from hypothesis import strategies as st

from frustum.backend import targets
from frustum.dialects import graph as g
from frustum.dialects.plan.core_chains import ChainCycles, handed_on
from frustum.dialects.plan.layer_cycles import LayerCycles

EDGE = targets.load("edge").cluster
CYCLES = st.tuples(*[st.integers(0, 5000)] * 3).filter(any)


def with_pieces(layers, pieces):
    """Of the busiest engine, whose instructions wait for their memories, and the first piece one after the other."""
    engines = zip(*layers, strict=True)
    waits = EDGE.core.nram.latency_cycles, EDGE.core.nram.latency_cycles, EDGE.sram.latency_cycles
    busiest = max(sum(own) + pieces * wait * sum(c > 0 for c in own) for own, wait in zip(engines, waits, strict=True))
    return busiest + sum(max(matrix + vector, copies) for matrix, vector, copies in layers) / pieces


@given(st.lists(CYCLES, min_size=2, max_size=6))
def test_hardly_any_number_of_pieces_is_better(layers):
    found = ChainCycles.of(EDGE, [LayerCycles(*each) for each in layers])
    best = min(with_pieces(layers, 1.1**k) for k in range(80))
    assert 0.99 * best <= found.cycles <= 1.15 * best
    assert found.engines == LayerCycles(*np.sum(layers, axis=0).tolist())


def test_a_chain_takes_no_longer_than_its_layers_one_by_one():
    """The engines share the work: a hundred times as much on one of them is all that counts."""
    busy, idle = LayerCycles(10_000.0, 0.0, 0.0), LayerCycles(0.0, 100.0, 100.0)
    assert 10_000 < ChainCycles.of(EDGE, [busy, idle]).cycles < 10_700


@pytest.mark.parametrize(("count", "own", "found"), [(2, True, 1), (3, True, 2), (2, False, 0)])
def test_what_others_want_leaves_the_core(count, own, found):
    net = network(mlp, *SHAPES)
    layers = net.layers[:count]
    handed = handed_on(net, layers, [layer.result for layer in layers if own])
    assert handed == frozenset(layer.result for layer in layers[:found])


def test_a_layer_that_hands_nothing_on_makes_no_chain():
    net = network(lambda x: (g.UnaryOp("relu", x), g.UnaryOp("abs", x)), (4, 16))
    assert handed_on(net, net.layers, [layer.result for layer in net.layers]) is None
