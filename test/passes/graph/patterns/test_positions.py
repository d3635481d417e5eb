"""Layers of positions see them as those around them do, and make the same."""

from __future__ import annotations

from after_pass import after_pass
from networks import Net

from frustum.dialects import graph as g
from frustum.passes.graph.layer_moves import LayerMoves


def seen(net, *results):
    """Layers and moves, in order, after the pass, which changes no number but by rounding."""
    found = after_pass(LayerMoves(), net, *results, rtol=1e-5, atol=1e-6)
    return [op for op in found.walk() if op.results and not is_constant(op)]


def is_constant(op):
    return isinstance(op, g.WeightOp) or (isinstance(op, g.ReshapeOp) and isinstance(op.x.owner, g.WeightOp))


def shapes(ops, kind):
    return [g.shape_of(op.results[0]) for op in ops if isinstance(op, kind)]


def tokens(net, x):
    """The rows and columns of a map as tokens, channels last."""
    n, c, h, w = g.shape_of(x)
    return net.layer(g.TransposeOp(net.layer(g.ReshapeOp(x, (n, c, h * w))), (0, 2, 1)))


def as_map(net, x, rows, columns):
    n, _, c = g.shape_of(x)
    return net.layer(g.ReshapeOp(net.layer(g.TransposeOp(x, (0, 2, 1))), (n, c, rows, columns)))


def product(net, x, outputs, **rest):
    return net.layer(g.MatmulOp(x, net.weight(g.shape_of(x)[-1], outputs), net.weight(outputs), **rest))


def normalised(net, x):
    c = g.shape_of(x)[-1]
    return net.layer(g.NormaliseOp(x, net.weight(1, c), net.weight(c), axes=(2,), epsilon=1e-5))


def test_a_convolution_between_products_of_tokens():
    """As in SegFormer: all layers see rows and columns, and the transpositions are turns."""
    net = Net()
    x = tokens(net, net.conv(net.input(2, 4, 3, 5), 6))
    hidden = net.conv(as_map(net, product(net, normalised(net, x), 8), 3, 5), 8, groups=8)
    hidden = net.unary("gelu", net.binary("mul", tokens(net, hidden), net.weight(1, 1, 8)))
    ops = seen(net, product(net, hidden, 6, residual=x))
    assert shapes(ops, g.MatmulOp) == [(2, 3, 5, 8), (2, 3, 5, 6)]
    assert shapes(ops, g.NormaliseOp) == [(2, 3, 5, 6)]
    assert shapes(ops, g.TurnOp) == [(2, 3, 5, 6), (2, 8, 3, 5), (2, 3, 5, 8)]
    assert shapes(ops, g.TransposeOp) == []
    assert shapes(ops, g.ReshapeOp) == [(2, 15, 6)]  # what the network gives


def test_layers_on_both_sides_of_a_reshape_see_the_same():
    """As in MobileViT: the sum has an axis of one element more than the norm and the products behind it."""
    net = Net()
    x = net.layer(g.TransposeOp(net.conv(net.input(1, 4, 3, 5), 6), (0, 3, 2, 1)))
    total = net.binary("add", x, net.layer(g.TransposeOp(net.input(1, 6, 3, 5), (0, 3, 2, 1))))
    made = product(net, normalised(net, net.layer(g.ReshapeOp(total, (5, 3, 6)))), 6)
    last = net.binary("add", total, net.layer(g.ReshapeOp(made, (1, 5, 3, 6))))
    ops = seen(net, net.conv(net.layer(g.TransposeOp(last, (0, 3, 2, 1))), 2))
    assert {*shapes(ops, g.MatmulOp), *shapes(ops, g.NormaliseOp), *shapes(ops, g.BinaryOp)} == {(1, 5, 3, 6)}
    assert shapes(ops, g.ReshapeOp) == []


def attended(net, *, through):
    """A product of what attention makes, and a convolution of so many channels of that."""
    x = net.input(1, 15, 8)
    rows = net.layer(g.AttentionOp(x, x, x, heads=(2, 2), sizes=(4, 4), firsts=(0, 0, 0), scale=0.5, is_merged=True))
    return net.conv(as_map(net, product(net, rows, through), 3, 5), 2)


def test_the_larger_maps_decide():
    net = Net()
    ops = seen(net, attended(net, through=16))
    assert (shapes(ops, g.MatmulOp), shapes(ops, g.TurnOp)) == ([(1, 3, 5, 16)], [(1, 16, 3, 5)])
    net = Net()
    ops = seen(net, attended(net, through=4))
    assert (shapes(ops, g.MatmulOp), shapes(ops, g.TurnOp)) == ([(1, 15, 4)], [])


def test_what_is_not_of_each_position_is_left():
    """A constant that differs between positions, and a transposition that is read as tokens too."""
    net = Net()
    x = net.binary("add", tokens(net, net.conv(net.input(1, 4, 3, 5), 6)), net.weight(15, 6))
    assert shapes(seen(net, net.conv(as_map(net, x, 3, 5), 2)), g.BinaryOp) == [(1, 15, 6)]
    net = Net()
    turned = net.layer(g.TransposeOp(product(net, net.input(1, 15, 4), 6), (0, 2, 1)))
    mapped = net.conv(net.layer(g.ReshapeOp(turned, (1, 6, 3, 5))), 2)
    assert shapes(seen(net, mapped, net.unary("exp", turned)), g.MatmulOp) == [(1, 15, 6)]


def attention(net, made, batch=1):
    """One map with queries, keys and values of 6 rows as attention reads it."""
    rows = net.layer(g.ReshapeOp(made, (batch, 6 // batch, 24)))
    numbers = {"heads": (2, 2), "sizes": (4, 4), "firsts": (0, 8, 16), "scale": 0.5, "is_merged": True}
    return net.layer(g.AttentionOp(rows, rows, rows, **numbers))


def test_rows_of_attention_are_seen_so_by_all_layers_of_one_loop():
    """As torch exports MultiheadAttention with the batch behind the rows: [6, 1, C], [6, C] and [1, 6, C] in turn."""
    net = Net()
    x = net.input(1, 6, 8)
    first = net.layer(g.ReshapeOp(normalised(net, x), (6, 1, 8)))
    made = net.layer(g.ReshapeOp(attention(net, product(net, first, 24)), (6, 8)))
    made = net.layer(g.ReshapeOp(product(net, made, 8), (6, 1, 8)))
    ops = seen(net, net.layer(g.BinaryOp("add", net.layer(g.ReshapeOp(made, (1, 6, 8))), x)))
    assert shapes(ops, g.MatmulOp) == [(1, 6, 24), (1, 6, 8)]
    assert not any(isinstance(op.a.owner, g.ReshapeOp) for op in ops if isinstance(op, g.MatmulOp))


def test_products_of_rows_that_attention_sees_in_two_ways_stay():
    """Of [1, 6, C] and of [2, 3, C]: neither is what all want."""
    net = Net()
    x = net.layer(g.ReshapeOp(net.unary("relu", net.input(1, 6, 8)), (6, 8)))
    made = product(net, x, 24)
    ops = seen(net, attention(net, made), attention(net, made, batch=2))
    assert shapes(ops, g.MatmulOp) == [(6, 24)]
