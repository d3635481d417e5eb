"""Random small networks of every operation on maps, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st
from networks import Net

from frustum.dialects import graph
from frustum.dialects.functions import Border
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
def networks(draw, layers=5, kinds=None, size=1):
    """A chain with branches of so many layers, or small groups of layers, of some kinds (`LAYERS`); what nobody reads
    is an output.  Inputs have `size` times the channels, rows and columns."""
    net = Net(draw(st.integers(0, 99)))
    small = st.integers(1, 3)
    plane = (size * (3 * draw(small) + draw(small)) for _ in range(2))
    maps = [net.input(draw(small), 2 * size * draw(small), *plane)]
    for _ in range(draw(st.integers(1, layers))):
        x = maps[-1] if draw(st.integers(0, 3)) else draw(st.sampled_from(maps))
        maps.append(draw(st.sampled_from(kinds or LAYERS))(draw, net, x, maps))
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


def per_axis(draw, net, shape):
    """A constant that broadcasts to a shape."""
    return net.weight(*(extent if draw(st.booleans()) else 1 for extent in shape), scale=1.0)


def normalise(draw, net, x, maps):
    """With or without scale and shift; by groups, or along any axes."""
    shape = shape_of(x)
    groups = draw(st.sampled_from([each for each in (1, 1, 2, 3, 4) if shape[1] % each == 0]))
    some = [(1,), (1, 2, 3)] if groups > 1 else [(1,), (2, 3), (3,), (2,), (1, 3), (1, 2, 3)]
    scale = per_axis(draw, net, shape) if draw(st.booleans()) else None
    shift = per_axis(draw, net, shape) if scale is not None and draw(st.booleans()) else None
    numbers = {"axes": draw(st.sampled_from(some)), "groups": groups, "rms": draw(st.booleans())}
    numbers["act"] = graph.ActAttr.of("silu") if numbers["rms"] else None
    return net.layer(graph.NormaliseOp(x, scale, shift, epsilon=1e-2, **numbers))


def normalise_in_parts(draw, net, x, maps):
    """As a file has it whose exporter knows no normalisation."""
    axes = draw(st.sampled_from([(1,), (2, 3), (3,), (1, 2, 3)]))
    if not draw(st.booleans()):
        x = net.binary("sub", x, net.layer(graph.ReduceOp("mean", x, axes)))
    squares = net.layer(graph.ReduceOp("mean", net.binary("mul", x, x), axes))
    root = net.unary("sqrt", net.binary("add", squares, net.constant(1e-2)))
    y = net.binary("div", x, root)
    return net.binary("mul", y, per_axis(draw, net, shape_of(x))) if draw(st.booleans()) else y


def product(draw, net, x, maps):
    """The map as matrices, times a constant, one constant for each, or another map, turned or not."""
    n, c, _, depth = shape_of(x)
    way = draw(st.sampled_from(["constant", "constants", "maps", "maps"]))
    if way == "maps":
        fitting = [
            (value, turned)
            for value in maps
            for turned in (False, True)
            if shape_of(value)[:2] == (n, c) and shape_of(value)[3 if turned else 2] == depth
        ]
        if not fitting:
            return net.layer(graph.MatmulOp(x, x, trans_b=True))
        other, turned = draw(st.sampled_from(fitting))
        return net.layer(graph.MatmulOp(x, other, trans_b=turned))
    columns, turned = draw(st.integers(1, 9)), draw(st.booleans())
    shape = (columns, depth) if turned else (depth, columns)
    w = net.weight(*((n, c) if way == "constants" else ()), *shape, scale=depth**-0.5)
    bias = net.weight(columns) if draw(st.booleans()) else None
    act = draw(st.sampled_from([None, "relu", "gelu"]))
    return net.layer(graph.MatmulOp(x, w, bias, trans_b=turned, act=act and graph.ActAttr.of(act)))


def perceptron(draw, net, x, maps):
    """Two products with a function between, added to what they read."""
    width, inner = shape_of(x)[3], draw(st.integers(1, 16))
    y = net.layer(graph.MatmulOp(x, net.weight(inner, width), net.weight(inner), trans_b=True))
    y = net.unary(draw(st.sampled_from(["gelu", "relu", "tanh"])), y)
    y = net.layer(graph.MatmulOp(y, net.weight(width, inner), trans_b=True))
    return net.binary("add", x, y) if draw(st.booleans()) else y


def keys_for(draw, x, maps):
    """Two maps with heads that those of x may share, rows as long as each other and as those of x."""
    n, heads, _, size = shape_of(x)

    def fits(value):
        shape = shape_of(value)
        return shape[0] == n and heads % shape[1] == 0 and shape[3] == size

    k = draw(st.sampled_from([value for value in maps if fits(value)] or [x]))
    v = draw(st.sampled_from([value for value in maps if shape_of(value)[:3] == shape_of(k)[:3]] or [k]))
    return k, v


def mask_for(draw, net, heads, rows, keys, batch):
    if not draw(st.booleans()):
        return None
    return per_axis(draw, net, (batch, heads, rows, keys))


def attention(draw, net, x, maps):
    """Channels are heads, rows see rows of other maps; or heads are some channels of each position."""
    if draw(st.booleans()):
        return attention_of_positions(draw, net, x)
    k, v = keys_for(draw, x, maps)
    (batch, heads, rows, size), (_, groups, keys, _) = shape_of(x), shape_of(k)
    mask = mask_for(draw, net, heads, rows, keys, batch)
    merged = draw(st.booleans())
    y = net.layer(
        graph.AttentionOp(
            x, k, v, mask, heads=(heads, groups), sizes=(size, shape_of(v)[3]), scale=size**-0.5,
            softcap=draw(st.sampled_from([0.0, 0.0, 1.5])), is_merged=merged,
            causal_from=draw(st.sampled_from([None, None, 0, keys - rows])) if keys >= rows else None,
        )
    )  # fmt: skip
    return net.layer(graph.ReshapeOp(y, (batch, 1, *shape_of(y)[1:]))) if merged else y


def attention_of_positions(draw, net, x):
    """Queries, keys and values from one product of all channels, which come first or last."""
    n, c, h, w = shape_of(x)
    heads, size = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([2, 3, 4, 8]))
    first = draw(st.booleans())
    numbers = {"heads": (heads, heads), "sizes": (size, size), "scale": size**-0.5}
    if first:
        made = net.layer(graph.ReshapeOp(net.conv(x, 3 * heads * size, 1), (n, 3 * heads * size, h * w)))
    else:
        rows = net.layer(graph.ReshapeOp(x, (n, c * h, w)))
        made = net.layer(graph.MatmulOp(rows, net.weight(w, 3 * heads * size, scale=w**-0.5)))
    firsts = (0, heads * size, 2 * heads * size)
    y = net.layer(
        graph.AttentionOp(
            made, made, made, firsts=firsts, is_merged=not first, is_channels_first=first, **numbers
        )
    )
    return net.layer(graph.ReshapeOp(y, (n, heads * size, h, w) if first else (n, c, h, heads * size)))


def attention_in_parts(draw, net, x, maps):
    """As a file has it that knows no attention: one key head for each of queries'."""
    same = [value for value in maps if shape_of(value)[:2] == shape_of(x)[:2]]
    k = draw(st.sampled_from([value for value in same if shape_of(value)[3] == shape_of(x)[3]]))
    v = draw(st.sampled_from([value for value in same if shape_of(value)[2] == shape_of(k)[2]]))
    scores = net.layer(graph.MatmulOp(x, k, trans_b=True))
    scores = net.binary("mul", scores, net.constant(shape_of(x)[3] ** -0.5))
    mask = mask_for(draw, net, *shape_of(scores)[1:], shape_of(x)[0])
    if mask is not None:
        scores = net.binary("add", scores, mask)
    return net.layer(graph.MatmulOp(net.layer(graph.SoftmaxOp(scores, 3)), v))


def reshape(draw, net, x, maps):
    """Axes cut and joined anew: the least factors of the number of elements are dealt out, mostly in their order."""
    n, c, h, w = shape_of(x)
    ways = [(n, c * h, w, 1), (n, 1, c, h * w), (1, n * c, h, w), (n, h, c, w), (n, c, w, h), (n, w, h, c)]
    ways += [(n, c // k, k * h, w) for k in (2, 3) if c % k == 0]
    ways += [(n, c * k, h // k, w) for k in (2, 3) if h % k == 0]
    ways += [(n, c, h * k, w // k) for k in (2, 3) if w % k == 0]
    return net.layer(graph.ReshapeOp(x, draw(st.sampled_from(ways))))


def phases(draw, net, x, maps):
    n, c, h, w = shape_of(x)
    factor = draw(st.sampled_from([(2, 2), (1, 2), (2, 1), (3, 3)]))
    count = factor[0] * factor[1]
    if c % count == 0 and h * factor[0] <= MOST_PLANE and w * factor[1] <= MOST_PLANE:
        apart = draw(st.sampled_from([1, c // count]))
        shape = (n, c // count, h * factor[0], w * factor[1])
        return net.layer(graph.DepthToSpaceOp(x, factor, apart, shape))
    if h % factor[0] == w % factor[1] == 0 and c * count <= 2 * MOST_CHANNELS:
        return net.layer(graph.SpaceToDepthOp(x, factor, draw(st.sampled_from([1, c]))))
    return x


def border(draw, net, x, maps):
    mode = draw(st.sampled_from(Border))
    taken = {Border.REFLECT: 1, Border.EDGE: -2, Border.WRAP: 0}[mode]
    most = [min(2, extent - taken) for extent in shape_of(x)[2:]]
    low, high = (tuple(draw(st.integers(0, each)) for each in most) for _ in range(2))
    return net.layer(graph.BorderOp(mode, x, low, high))


def shuffle(draw, net, x, maps):
    groups = draw(st.sampled_from([g for g in (1, 2, 3, 4) if shape_of(x)[1] % g == 0]))
    return net.layer(graph.ShuffleOp(x, groups))


def residual(draw, net, x, maps):
    """A depthwise convolution between two of single positions, or one of windows; added, or after a pooled gate."""
    channels = shape_of(x)[1]
    if draw(st.booleans()):
        inner = draw(st.sampled_from([channels, 2 * channels]))
        y = net.conv(net.conv(x, inner, 1, act="relu"), inner, 3, groups=inner)
        y = net.conv(y, channels, 1)
    else:
        y = net.conv(x, channels, 3)
    if draw(st.booleans()):
        gate = net.layer(graph.ReduceOp("mean", y, (2, 3)))
        y = net.binary("mul", y, net.unary("sigmoid", net.conv(gate, channels, 1)))
    return net.binary("add", x, y, act=draw(st.sampled_from(ACTS)))


def three_axes(draw, net, x, maps):
    """Rows of a sequence: along each of three axes, and back."""
    n, c, h, w = shape_of(x)
    y = net.layer(graph.ReshapeOp(x, draw(st.sampled_from([(n, c, h * w), (n, c * h, w), (n * c, h, w)]))))
    kind = draw(st.sampled_from(["softmax", "normalise", "turn", "reduce", "matmul"]))
    if kind == "softmax":
        y = net.layer(graph.SoftmaxOp(y, draw(st.integers(0, 2))))
    elif kind == "normalise":
        y = net.layer(graph.NormaliseOp(y, axes=draw(st.sampled_from([(1,), (2,), (1, 2)])), epsilon=1e-2))
    elif kind == "turn":
        y = net.layer(graph.TransposeOp(y, tuple(draw(st.permutations(range(3))))))
    elif kind == "reduce":
        axes = (draw(st.integers(0, 2)),)
        y = net.layer(graph.ReduceOp(draw(st.sampled_from(["mean", "max"])), y, axes))
    else:
        y = net.layer(graph.MatmulOp(y, y, trans_b=True))
    a, b, c = shape_of(y)
    return net.layer(graph.ReshapeOp(y, draw(st.sampled_from([(a, b, c, 1), (a, 1, b, c), (1, a, b, c)]))))


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

MORE = (
    normalise,
    normalise_in_parts,
    product,
    perceptron,
    attention,
    attention,
    attention_in_parts,
    reshape,
    reshape,
    phases,
    border,
    shuffle,
    residual,
    residual,
    three_axes,
    softmax,
    transpose,
    cut,
    concat,
)
"""What transformers, generators of images and detectors have beside."""

GRAPHS = (*LAYERS[3:], *MORE, *MORE)
