"""What patterns choose does not rest on where operations lie in memory."""

from __future__ import annotations

from networks import Net
from xdsl.ir import OpResult

from frustum.dialects import graph as g
from frustum.passes.graph.patterns.positions import PositionGroup
from frustum.passes.graph.patterns.product_slices import channel_slices

PLANES = (3, 4), (4, 3), (2, 6), (6, 2)
COPIES = 24


def test_of_axes_that_are_wanted_alike_the_first_are_taken(monkeypatch):
    """Whatever the hashes of values are."""
    for salt in range(COPIES):
        monkeypatch.setattr(OpResult, "__hash__", lambda value, salt=salt: hash((salt, id(value))))
        net = Net()
        x = net.input(1, 12, 8)
        seen = [g.ReshapeOp(net.unary("relu", x), (1, *plane, 8)) for plane in PLANES]
        turned = [g.TransposeOp(each.result, (0, 3, 1, 2)) for each in seen]
        assert turned and PositionGroup([each.x.owner for each in seen], seen).wanted() == (1, *PLANES[0])


def test_slices_of_a_product_are_in_the_order_of_their_channels():
    net = Net()
    made = net.layer(g.MatmulOp(net.input(1, 6, 4), net.weight(4, 24)))
    seen = net.layer(g.TransposeOp(net.layer(g.ReshapeOp(made, (1, 6, 3, 2, 4))), (2, 0, 3, 1, 4)))
    ends = [net.layer(g.SliceOp(seen, (k, 0, 0, 0, 0), (1, 1, 2, 6, 4))) for k in range(3)]
    module, _ = net.module(*ends)
    copies = [module.clone() for _ in range(COPIES)]
    products = [op for copy in copies for op in copy.walk() if isinstance(op, g.MatmulOp)]
    assert [[part.first for part in channel_slices(op)] for op in products] == [[0, 8, 16]] * COPIES
