"""Random small networks of every operation on maps, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st
from networks import Net

from frustum.dialects import graph
from frustum.dialects.graph import shape_of

MOST_CHANNELS, MOST_PLANE = 12, 16
ACTS = (None, "relu", "sigmoid", "hard_swish")


class Drawn:
    """A module with its inputs, shown as its IR."""

    def __init__(self, module, inputs):
        self.module, self.inputs = module, inputs

    def __repr__(self):
        return f"\n{self.module}\n"


@st.composite
def networks(draw, layers=5):
    """A chain with branches; what nobody reads is an output."""
    net = Net(draw(st.integers(0, 99)))
    small = st.integers(1, 3)
    maps = [
        net.input(draw(small), 2 * draw(small), 3 * draw(small) + draw(small), 3 * draw(small) + draw(small))
    ]
    for _ in range(draw(st.integers(1, layers))):
        x = maps[-1] if draw(st.integers(0, 3)) else draw(st.sampled_from(maps))
        maps.append(draw(st.sampled_from(LAYERS))(draw, net, x, maps))
    unread = [value for value in dict.fromkeys(maps) if not value.uses]
    return Drawn(*net.module(*unread))


def conv(draw, net, x, maps):
    _, channels, *plane = shape_of(x)
    groups = draw(st.sampled_from([g for g in (1, 1, 2, 3, channels) if channels % g == 0]))
    windows = [window(draw, size, lowest=-1) for size in plane]
    outputs = groups * draw(st.integers(1, max(1, MOST_CHANNELS // groups)))
    return net.conv(
        x,
        outputs,
        [w[0] for w in windows],
        groups=groups,
        bias=draw(st.booleans()),
        act=draw(st.sampled_from(ACTS)),
        **spread(windows),
    )


def window(draw, size, lowest=0):
    """kernel, stride, dilation, low pad, high pad along one axis; at least one window fits."""
    kernel, stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    reach = (kernel - 1) * dilation
    if reach >= size:
        kernel, dilation, reach = 1, 1, 0
    pad = st.integers(lowest if size - reach > 2 else 0, min(2, reach // 2))
    return kernel, stride, dilation, draw(pad), draw(pad)


def spread(windows):
    (_, sh, dh, top, bottom), (_, sw, dw, left, right) = windows
    return {"strides": (sh, sw), "dilations": (dh, dw), "pads": (top, left, bottom, right)}


def pool(draw, net, x, maps):
    windows = [window(draw, size) for size in shape_of(x)[2:]]
    kind = draw(st.sampled_from(["max", "avg"]))
    include = kind == "avg" and draw(st.booleans())
    ceil = tuple(
        draw(st.integers(0, max(0, min(stride - 1, (kernel - 1) * dilation - high))))
        for kernel, stride, dilation, _, high in windows
    )
    return net.layer(
        graph.PoolOp(
            kind,
            x,
            kernel=tuple(w[0] for w in windows),
            ceil_pads=ceil,
            count_include_pad=include,
            **spread(windows),
        )
    )


def unary(draw, net, x, maps):
    return net.unary(draw(st.sampled_from(["relu", "tanh", "sigmoid", "abs", "gelu", "neg", "identity"])), x)


def binary(draw, net, x, maps):
    """With another map of its shape, or with a constant that is broadcast along some axes; either may be first."""
    kind, shape = draw(st.sampled_from(["add", "sub", "mul", "max", "prelu"])), shape_of(x)
    same = [value for value in maps if shape_of(value) == shape]
    other = draw(st.sampled_from(same))
    if draw(st.booleans()):
        other = net.weight(*(extent if draw(st.booleans()) else 1 for extent in shape))
    a, b = (x, other) if draw(st.booleans()) else (other, x)
    return net.binary(kind, a, b, act=draw(st.sampled_from(ACTS)))


def lrn(draw, net, x, maps):
    return net.layer(graph.LrnOp(x, draw(st.integers(1, 6)), 0.1, 0.75, draw(st.sampled_from([1.0, 2.0]))))


def resize(draw, net, x, maps):
    plane = [
        min(MOST_PLANE, max(1, draw(st.sampled_from([size // 2, size, 2 * size, size + 1]))))
        for size in shape_of(x)[2:]
    ]
    scale = tuple(size / out for size, out in zip(shape_of(x)[2:], plane, strict=True))
    offset = tuple(draw(st.sampled_from([0.0, s / 2 - 0.5])) for s in scale)
    rounding = draw(st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]))
    mode = draw(st.sampled_from(["nearest", "linear"]))
    return net.layer(graph.ResizeOp(mode, x, tuple(plane), scale=scale, offset=offset, rounding=rounding))


def concat(draw, net, x, maps):
    axis = draw(st.integers(1, 3))
    limit = MOST_CHANNELS if axis == 1 else MOST_PLANE
    fitting = [
        v
        for v in maps
        if all(a == b or d == axis for d, (a, b) in enumerate(zip(shape_of(v), shape_of(x), strict=True)))
        and shape_of(v)[axis] + shape_of(x)[axis] <= limit
    ]
    return net.layer(graph.ConcatOp([x, draw(st.sampled_from(fitting))], axis)) if fitting else x


def cut(draw, net, x, maps):
    starts, sizes, steps = [], [], []
    for extent in shape_of(x):
        step = draw(st.sampled_from([1, 1, 2, -1, -2]))
        size = draw(st.integers(1, -(-extent // abs(step))))
        room = extent - 1 - (size - 1) * abs(step)
        start = draw(st.integers(0, room))
        starts.append(start if step > 0 else extent - 1 - start)
        sizes.append(size)
        steps.append(step)
    return net.layer(graph.SliceOp(x, tuple(starts), tuple(sizes), tuple(steps)))


def pad(draw, net, x, maps):
    low, high = ([draw(st.integers(-1 if extent > 2 else 0, 2)) for extent in shape_of(x)] for _ in range(2))
    return net.layer(graph.PadOp(x, (0, *low[1:]), (0, *high[1:]), draw(st.sampled_from([0.0, -1.5]))))


def transpose(draw, net, x, maps):
    return net.layer(graph.TransposeOp(x, tuple(draw(st.permutations(range(4))))))


def reduce(draw, net, x, maps):
    axes = draw(st.sets(st.integers(0, 3), min_size=1).map(sorted))
    return net.layer(graph.ReduceOp(draw(st.sampled_from(["mean", "sum", "max", "min"])), x, tuple(axes)))


def softmax(draw, net, x, maps):
    return net.layer(graph.SoftmaxOp(x, draw(st.integers(0, 3))))


def normalise(draw, net, x, maps):
    groups = draw(st.sampled_from([each for each in (1, 1, 2, 3, 4) if graph.shape_of(x)[1] % each == 0]))
    axes = draw(st.sampled_from([(1,), (1, 2, 3)])) if groups > 1 else draw(st.sampled_from([(1,), (2, 3), (3,)]))
    rms = draw(st.booleans())
    return net.layer(graph.NormaliseOp(x, axes=axes, epsilon=1e-2, groups=groups, rms=rms))


def product(draw, net, x, maps):
    """The map as matrices, times a constant or times itself turned."""
    if draw(st.booleans()):
        return net.layer(graph.MatmulOp(x, x, trans_b=True))
    return net.layer(graph.MatmulOp(x, net.weight(shape_of(x)[3], draw(st.integers(1, 9)))))


LAYERS = (
    conv,
    conv,
    conv,
    pool,
    pool,
    unary,
    binary,
    binary,
    lrn,
    resize,
    concat,
    cut,
    pad,
    transpose,
    reduce,
    softmax,
    normalise,
    product,
)
