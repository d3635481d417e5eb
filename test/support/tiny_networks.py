"""Networks of at most six layers of axes and a few elements, for those who try all plans of them."""

from __future__ import annotations

from axis_networks import mlp, network, windows

from frustum.dialects import graph as g


def scores(q, k, v):
    """A softmax between two products of what is read."""
    first = g.MatmulOp(q, k, trans_b=True)
    soft = g.SoftmaxOp(first.result, 1)
    return first, soft, g.MatmulOp(soft.result, v)


def heads(x, k, v):
    """Attention of two heads behind a product."""
    q = g.MatmulOp(x, k)
    numbers = {"heads": (2, 2), "sizes": (2, 2), "scale": 0.5, "is_merged": True}
    return q, g.AttentionOp(q.result, v, v, None, **numbers)


def normed(x, scale, w):
    norm = g.NormaliseOp(x, scale, None, axes=(1,), epsilon=1e-3)
    return norm, g.MatmulOp(norm.result, w)


def block(x, scale, w, v):
    """Norm, hidden channels, and the addition of what was read."""
    norm, act = normed(x, scale, w), []
    act = g.UnaryOp("gelu", norm[1].result)
    down = g.MatmulOp(act.result, v)
    return *norm, act, down, g.BinaryOp("add", down.result, x)


def excited(x, w, v):
    """The mean of a feature map scales it."""
    first = g.ConvOp(x, w, None, (1, 1), (1, 1, 1, 1))
    mean = g.ReduceOp("mean", first.result, (2, 3), True)
    gate = g.ConvOp(mean.result, v, None)
    return first, mean, gate, g.BinaryOp("mul", first.result, gate.result)


def strided(x, w, v):
    """A convolution of stride 2, a pointwise one, and a pool."""
    first = g.ConvOp(x, w, None, (2, 2), (1, 1, 1, 1))
    second = g.ConvOp(first.result, v, None)
    return first, second, g.PoolOp("max", second.result, (2, 2), (2, 2), (0, 0, 0, 0))


def skipped(x, w, v):
    """Two convolutions of a feature map, and the addition of it."""
    first, second = windows(x, w, v)
    return first, second, g.BinaryOp("add", second.result, x)


def joined(x, w, v, u):
    """Two branches side by side, a product of both."""
    a, b = g.MatmulOp(x, w), g.MatmulOp(x, v)
    both = g.ConcatOp([a.result, b.result], 1)
    return a, b, both, g.MatmulOp(both.result, u)


def parted(x, w, v):
    """Two halves of one product meet, transposed."""
    first = g.MatmulOp(x, w)
    shape = g.shape_of(first.result)
    half = shape[0], shape[1] // 2
    low = g.SliceOp(first.result, (0, 0), half, (1, 1))
    high = g.SliceOp(first.result, (0, half[1]), half, (1, 1))
    gate = g.UnaryOp("sigmoid", high.result)
    both = g.BinaryOp("mul", low.result, gate.result)
    turned = g.TransposeOp(both.result, (1, 0))
    return first, low, high, gate, both, turned, g.MatmulOp(v, turned.result)


def wide(x, w, v):
    """A softmax over rows of a product, and a product of that."""
    first = g.MatmulOp(x, w)
    soft = g.SoftmaxOp(first.result, 1)
    return first, soft, g.MatmulOp(soft.result, v)


TINY = {
    "mlp": (mlp, (3, 4), (4, 6), (6, 4)),
    "scores": (scores, (4, 3), (5, 3), (5, 2)),
    "heads": (heads, (1, 3, 4), (4, 4), (1, 4, 4)),
    "normed": (normed, (4, 5), (1, 5), (5, 3)),
    "block": (block, (3, 3), (1, 3), (3, 5), (5, 3)),
    "windows": (windows, (1, 2, 6, 3), (3, 2, 3, 3), (2, 3, 3, 3)),
    "strided": (strided, (1, 2, 8, 4), (2, 2, 3, 3), (3, 2, 1, 1)),
    "skipped": (skipped, (1, 2, 5, 3), (2, 2, 3, 3), (2, 2, 3, 3)),
    "excited": (excited, (1, 2, 4, 3), (4, 2, 3, 3), (4, 4, 1, 1)),
    "joined": (joined, (4, 3), (3, 3), (3, 2), (5, 2)),
    "parted": (parted, (3, 3), (3, 4), (4, 2)),
    "wide": (wide, (4, 3), (3, 5), (5, 2)),
    "least normed": (normed, (2, 3), (1, 3), (3, 2)),
    "least mlp": (mlp, (2, 2), (2, 3), (3, 2)),
    "least windows": (windows, (1, 1, 3, 1), (2, 1, 3, 3), (1, 2, 3, 3)),
}


def tiny(name):
    build, *shapes = TINY[name]
    return network(build, *shapes)
