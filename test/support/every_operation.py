"""Small networks that together hold every operation of the graph level in every form that lowers differently."""

from __future__ import annotations

import math

from networks import Net

from frustum.dialects import graph

PLANE = (1, 6, 11, 13)


def convolutions(net):
    x = net.input(*PLANE)
    odd = net.conv(x, 10, 3, pads=(0, 2, 1, -1), strides=(2, 1), act="relu")
    return [
        net.conv(odd, 9, (1, 5), pads=(-1, 0, 0, 3), strides=(1, 2)),
        net.conv(x, 5, 3, dilations=(2, 3), pads=(2,) * 4),
    ]


def grouped(net):
    x = net.input(2, 12, 9, 7)
    few = net.conv(x, 18, 3, groups=3, bias=False)
    return [few, net.conv(x, 8, 3, groups=2, strides=(2, 2)), net.conv(x, 24, 3, groups=12, act="relu")]


def depthwise_chain(net):
    x = net.conv(net.input(*PLANE), 16, 1, act="relu")
    x = net.conv(x, 16, 3, groups=16, strides=(2, 2), act="hard_swish")
    return net.conv(x, 6, 1)


def deep_and_wide(net):
    """More channels in and out than the small targets hold at once."""
    return net.conv(net.conv(net.input(1, 40, 6, 5), 36, 3, act="relu"), 38, 1, bias=False)


def long_kernel(net):
    return net.conv(net.input(1, 3, 17, 40), 8, 7, strides=(4, 4), pads=(3, 2, 4, 5))


def dense_layers(net):
    return net.dense(net.dense(net.input(3, 4, 5, 5), 50, act="relu"), 17)


def products(net):
    a, b = net.input(2, 3, 7, 20), net.input(2, 3, 20, 9)
    across = net.layer(graph.MatmulOp(a, net.input(2, 3, 9, 20), trans_b=True, act=graph.ActAttr.of("tanh")))
    turned = net.layer(graph.MatmulOp(net.input(2, 3, 20, 7), b, trans_a=True))
    shared = net.layer(graph.MatmulOp(a, net.weight(20, 11), net.weight(11)))
    one = net.layer(graph.MatmulOp(net.input(7, 20), b))
    return [net.layer(graph.MatmulOp(a, b)), across, turned, shared, one]


def max_pools(net):
    x = net.input(*PLANE)
    return [
        net.pool("max", x, 3, 2, ceil_pads=(0, 1), pads=(1, 0, 1, 0)),
        net.pool("max", x, 3, 1, dilations=(2, 1)),
    ]


def average_pools(net):
    x = net.input(*PLANE)
    wide = net.pool("avg", x, 3, 2, pads=(1, 1, 1, 1), ceil_pads=(1, 1), count_include_pad=True)
    return [
        wide,
        net.pool("avg", x, 3, 2, pads=(1, 0, 1, 1), ceil_pads=(1, 0)),
        net.pool("avg", x, 2, 2, pads=(0, 0, -1, 0)),
    ]


def reductions(net):
    x = net.input(2, 5, 6, 7)
    cases = [
        ("mean", (2, 3)),
        ("sum", (1,)),
        ("max", (0, 2)),
        ("min", (3,)),
        ("mean", (0, 1, 2, 3)),
        ("sum", (1, 3)),
    ]
    outputs = [net.layer(graph.ReduceOp(kind, x, axes, len(axes) > 1)) for kind, axes in cases]
    return [*outputs, net.layer(graph.ReduceOp("mean", net.input(2, 3, 2, 3, 4), (2, 3, 4)))]


def normalisations(net):
    x, y = net.input(2, 12, 6, 7), net.input(2, 3, 2, 5, 4)
    scale, shift = net.weight(12, 1, 1), net.weight(12, 1, 1)
    wide = net.layer(graph.NormaliseOp(y, net.weight(5, 4), axes=(3, 4), epsilon=1e-5))
    rms = net.layer(graph.NormaliseOp(y, axes=(1,), epsilon=1e-3, rms=True, act=graph.ActAttr.of("silu")))
    cases = [((1, 2, 3), 4), ((1, 2, 3), 1), ((1,), 3), ((2, 3), 1), ((3,), 1), ((1,), 1), ((1, 3), 2)]
    return [wide, rms] + [
        net.layer(graph.NormaliseOp(x, scale, shift, axes=axes, epsilon=1e-5, groups=groups)) for axes, groups in cases
    ]


def softmaxes(net):
    x = net.input(2, 5, 6, 7)
    return [net.layer(graph.SoftmaxOp(x, axis)) for axis in range(4)] + [
        net.layer(graph.SoftmaxOp(net.input(2, 2, 3, 4, 5), 3))
    ]


def across_channels(net):
    x = net.input(1, 9, 6, 7)
    narrow = net.layer(graph.LrnOp(x, 4, 0.5, 0.75, 1.5))
    return [net.layer(graph.LrnOp(net.unary("relu", x), 5, 1e-2, 0.75, 1.0)), narrow]


def nearest(net):
    x = net.input(*PLANE)
    up = graph.ResizeOp("nearest", x, (22, 26), scale=(0.5, 0.5), offset=(0.0, 0.0))
    down = graph.ResizeOp(
        "nearest", x, (5, 6), scale=(2.0, 2.0), offset=(0.5, 0.5), rounding="round_prefer_floor"
    )
    odd = graph.ResizeOp(
        "nearest", x, (16, 31), scale=(11 / 16, 13 / 31), offset=(-0.15, 0.2), rounding="ceil"
    )
    return [net.unary("relu", net.layer(up)), net.layer(down), net.layer(odd)]


def linear(net):
    x = net.input(*PLANE)
    half = graph.ResizeOp("linear", x, (22, 26), scale=(0.5, 0.5), offset=(-0.25, -0.25))
    third = graph.ResizeOp("linear", x, (33, 13), scale=(1 / 3, 1.0), offset=(-1 / 3, 0.0))
    ends = graph.ResizeOp("linear", x, (29, 7), scale=(10 / 28, 12 / 6), offset=(0.0, 0.0))
    return [net.conv(net.layer(half), 4), net.layer(third), net.layer(ends)]


def functions(net):
    x = net.input(1, 4, 5, 6)
    kinds = [
        ("leaky_relu", 0.1),
        ("clip", -0.5, 0.5),
        ("clip", 0.0, math.inf),
        ("hard_sigmoid", 0.2, 0.5),
        ("elu", 1.0),
        ("affine", -0.5, 2.0),
        "sigmoid",
        "tanh",
        "gelu",
        "gelu_tanh",
        "exp",
        "neg",
        "abs",
        "floor",
        "ceil",
        "round",
        "erf",
        "softplus",
        "hard_swish",
        "silu",
        "round_f16",
        "round_bf16",
        "identity",
    ]
    outputs = [
        net.unary(kind, x) if isinstance(kind, str) else net.unary(*kind[:1], x, *kind[1:]) for kind in kinds
    ]
    positive = net.unary("exp", x)
    return outputs + [net.unary(kind, positive) for kind in ("log", "sqrt", "reciprocal")]


def broadcasts(net):
    x, plane = net.input(2, 4, 5, 6), net.input(2, 1, 5, 6)
    outputs = [
        net.binary("add", x, net.weight(4, 1, 1)),
        net.binary("sub", plane, x, act="relu"),
        net.binary("mul", x, net.weight(1)),
        net.binary("div", x, net.binary("add", net.unary("exp", plane), net.weight(1))),
    ]
    row, column = net.input(1, 4, 1, 6), net.input(2, 4, 5, 1)
    outputs += [
        net.binary("max", row, column),
        net.binary("min", net.input(6), x),
        net.binary("prelu", x, net.weight(4, 1, 1)),
    ]
    five = net.binary("add", net.input(2, 3, 4, 1, 1), net.input(1, 3, 4, 2, 2))
    return [*outputs, net.binary("pow", net.unary("exp", x), net.weight(1, scale=0.5)), five]


def residual(net):
    x = net.conv(net.input(1, 8, 10, 9), 8, act="relu")
    for _ in range(2):
        x = net.binary("add", net.conv(net.conv(x, 8, act="relu"), 8), x, act="relu")
    return net.layer(graph.ReduceOp("mean", x, (2, 3)))


def concatenations(net):
    x, y = net.conv(net.input(2, 5, 6, 7), 5), net.input(2, 5, 6, 7)
    return [net.layer(graph.ConcatOp([x, y, x], axis)) for axis in range(4)]


def slices(net):
    x = net.input(2, 5, 9, 7)
    back = graph.SliceOp(x, (0, 4, 8, 6), (2, 5, 3, 7), (1, -1, -3, -1))
    thin = graph.SliceOp(x, (1, 1, 0, 2), (1, 2, 5, 3), (1, 2, 2, 1))
    return [
        net.layer(back),
        net.unary("relu", net.layer(thin)),
        net.layer(
            graph.SliceOp(net.input(2, 2, 3, 2, 4), (1, 0, 2, 0, 3), (1, 2, 2, 1, 4), (1, 1, -1, 1, -1))
        ),
    ]


def pads(net):
    x = net.input(2, 3, 5, 6)
    return [
        net.layer(graph.PadOp(x, (0, 1, 2, 0), (1, 0, 0, 3), 1.5)),
        net.layer(graph.PadOp(x, (0, 0, -1, 2), (0, -1, 3, -2))),
    ]


def transposes(net):
    x, five = net.input(2, 3, 5, 6), net.input(2, 3, 2, 4, 5)
    turned = [net.layer(graph.TransposeOp(x, perm)) for perm in ((0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3))]
    return [*turned, net.layer(graph.TransposeOp(five, (4, 2, 0, 3, 1)))]


def pixel_shuffle(net):
    """DepthToSpace as the import writes it: reshape, transpose of six dimensions, reshape."""
    x = net.layer(graph.ReshapeOp(net.conv(net.input(1, 3, 4, 5), 8), (1, 2, 2, 2, 4, 5)))
    x = net.layer(graph.TransposeOp(x, (0, 3, 4, 1, 5, 2)))
    return net.layer(graph.ReshapeOp(x, (1, 2, 8, 10)))


def interleaved(net):
    """A transposed convolution of stride 2 as the import writes it."""
    x = net.input(1, 4, 6, 7)
    parts = [net.conv(x, 3, 2, pads=(a, b, 1 - a, 1 - b)) for a in (0, 1) for b in (0, 1)]
    return net.unary("relu", net.layer(graph.InterleaveOp(parts, (2, 2))))


def same_bytes(net):
    """An input as output, two outputs of the same bytes, a constant as output, an input that nobody reads."""
    x, _ = net.input(1, 4, 5, 6), net.input(3)
    y = net.conv(x, 4)
    flat = net.layer(graph.ReshapeOp(y, (4, 30)))
    return [x, y, flat, net.binary("add", y, x), net.weight(2, 3)]


def inception(net):
    x = net.conv(net.input(1, 6, 12, 12), 8, strides=(2, 2), act="relu")
    branches = [
        net.conv(x, 4, 1),
        net.conv(net.conv(x, 4, 1, act="relu"), 6, 3),
        net.pool("max", x, 3, 1, pads=(1,) * 4),
    ]
    x = net.layer(graph.ConcatOp(branches, 1))
    return net.layer(graph.SoftmaxOp(net.dense(net.pool("avg", x, 3, 3), 10), 1))


NETWORKS = {
    build.__name__: build
    for build in (
        convolutions,
        grouped,
        depthwise_chain,
        deep_and_wide,
        long_kernel,
        dense_layers,
        products,
        max_pools,
        average_pools,
        reductions,
        softmaxes,
        normalisations,
        across_channels,
        nearest,
        linear,
        functions,
        broadcasts,
        residual,
        concatenations,
        slices,
        pads,
        transposes,
        pixel_shuffle,
        interleaved,
        same_bytes,
        inception,
    )
}


def network(name, seed=0):
    """(module, inputs) of one of the networks."""
    net = Net(seed)
    outputs = NETWORKS[name](net)
    return net.module(*(outputs if isinstance(outputs, list) else [outputs]))
