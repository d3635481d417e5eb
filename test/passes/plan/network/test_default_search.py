"""The default search of unit maps never moves more DRAM bytes than any other, modelled and counted (zoo:
test/soak/soak_searches.py)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from searches import counted, modelled, with_sram

from frustum.passes.plan.tile_search import SEARCHES

pytestmark = pytest.mark.slow


def head_of_vgg(net):
    """Two convolutions at the size of the map, then a pooling: the first layers of VGG, with fewer channels."""
    x = net.conv(net.input(1, 3, 64, 64), 16, act="relu")
    return net.pool("max", net.conv(x, 16, act="relu"))


def deep_convolution(net):
    """Neither map nor weights fit: what is loaded again depends on the tile."""
    return net.conv(net.input(1, 32, 20, 20), 48)


def strided(net):
    return net.conv(net.conv(net.input(2, 8, 28, 28), 32, 5), 16, 3, strides=(2, 2))


@pytest.mark.parametrize(
    ("build", "kib", "name"),
    [
        (head_of_vgg, 16, "edge"),
        (head_of_vgg, 32, "default"),
        (deep_convolution, 16, "edge"),
        (strided, 16, "edge"),
    ],
)
def test_small_networks(build, kib, name):
    net = Net()
    module = net.module(build(net))[0]
    where = with_sram(name, kib)
    model = {search: modelled(module, where, search) for search in ("all", *SEARCHES)}
    machine = {search: counted(module, where, search) for search in ("all", *SEARCHES)}
    assert all(model["all"][unit] <= min(model[s][unit] for s in SEARCHES) for unit in model["all"])
    assert machine["all"] <= min(machine[s] for s in SEARCHES)


@settings(max_examples=8)
@given(
    st.sampled_from(["default", "edge"]),
    st.sampled_from([8, 12, 16, 24, 40]),
    st.tuples(st.integers(1, 2), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    st.integers(1, 64),
    st.sampled_from([1, 3, 5]),
    st.sampled_from([1, 2]),
)
def test_single_convolutions(name, kib, shape, outputs, kernel, stride):
    net = Net()
    module = net.module(net.conv(net.input(*shape), outputs, kernel, strides=(stride, stride)))[0]
    found = {search: modelled(module, with_sram(name, kib), search) for search in ("all", *SEARCHES)}
    assert all(found["all"][unit] <= min(found[s][unit] for s in SEARCHES) for unit in found["all"])
