"""The module says by which policy its layers were fused, whatever it said before."""

from __future__ import annotations

import pytest
from networks import Net
from stops import aimed
from xdsl.context import Context
from xdsl.dialects.builtin import StringAttr

from frustum.dialects.module import POLICY
from frustum.passes.fuse.fuse_layers import FuseLayers


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"policy": "pyramid"}, "pyramid"),
        ({"policy": "none"}, "none"),
        ({"rules": "S1,1,4"}, "custom"),
        ({"cuts": "conv_1"}, "cuts"),
        ({}, "optimal"),
    ],
)
def test_the_module_says_what_was_done(words, said):
    net = Net()
    module = aimed(net.module(net.conv(net.conv(net.input(1, 4, 8, 8), 4), 4))[0], "edge")
    module.attributes[POLICY] = StringAttr("optimal" if said != "optimal" else "none")
    FuseLayers(**words).apply(Context(), module)
    assert module.attributes[POLICY] == StringAttr(said)
