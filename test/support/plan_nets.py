"""Small networks of each kind that plans are made for, with values."""

from networks import Net

from frustum.dialects import graph as g
from frustum.dialects.graph import shape_of
from frustum.dialects.graph.axes import read_with_views


class Case:
    """A module with its inputs, its network as layers of axes, and a plan of that."""

    def __init__(self, module, inputs, plan=None):
        self.module, self.inputs, self.plan = module, inputs, plan
        (self.network,) = g.networks_of(module)
        self.axes, self.views = read_with_views(self.network)


def case(build):
    net = Net(5)
    outputs = build(net)
    return Case(*net.module(*(outputs if isinstance(outputs, tuple) else (outputs,))))


def product(net, x, columns, act=None):
    w = net.weight(shape_of(x)[-1], columns, scale=shape_of(x)[-1] ** -0.5)
    return net.layer(g.MatmulOp(x, w, net.weight(columns), act=act and g.ActAttr.of(act)))


def norm(net, x, axes, rms=False):
    channels = (1,) * (len(shape_of(x)) - 1) + shape_of(x)[-1:]
    return net.layer(g.NormaliseOp(x, net.weight(*channels), None, axes=axes, epsilon=1e-3, rms=rms))


def mlp(net):
    return product(net, product(net, product(net, net.input(40, 12), 48, "gelu"), 48, "relu"), 8)


def attention(net):
    x = net.input(1, 24, 16)
    q, k, v = (product(net, x, 16) for _ in range(3))
    numbers = {"heads": (4, 4), "sizes": (4, 4), "scale": 0.5, "is_merged": True, "causal_from": 0}
    y = product(net, net.layer(g.AttentionOp(q, k, v, None, **numbers)), 16)
    return norm(net, net.binary("add", x, y), (2,))


def conv_stack(net):
    x = net.conv(net.input(1, 3, 20, 16), 8, act="relu")
    return net.pool("max", net.conv(net.conv(x, 8, act="relu"), 6))


def residual(net):
    """A norm, a product and its hidden channels, added to what they read."""
    x = net.input(1, 20, 12)
    y = product(net, product(net, norm(net, x, (2,), rms=True), 40, "gelu"), 12)
    return net.binary("add", x, y)


def depthwise(net):
    x = net.conv(net.input(1, 6, 18, 14), 18, 1, act="relu")
    y = net.conv(x, 18, 3, groups=18, strides=(2, 2), act="relu")
    squeezed = net.layer(g.ReduceOp("mean", y, (2, 3)))
    return net.conv(net.binary("mul", y, net.unary("sigmoid", net.conv(squeezed, 18, 1))), 6, 1)


def pools(net):
    x = net.conv(net.input(2, 4, 19, 15), 6)
    y = net.pool("avg", x, 3, 2, pads=(1, 1, 1, 1))
    return net.pool("max", y, 3, 1), net.layer(g.SoftmaxOp(net.layer(g.ReduceOp("max", x, (2, 3))), 1))


def unet(net):
    skip = net.conv(net.input(1, 3, 16, 16), 6, act="relu")
    inner = net.conv(net.pool("max", skip), 8, act="relu")
    scale = {"scale": (0.5, 0.5), "offset": (-0.25, -0.25)}
    up = net.layer(g.ResizeOp("linear", inner, (16, 16), **scale))
    return net.conv(net.layer(g.ConcatOp([skip, up], 1)), 4)


def dense(net):
    x = net.conv(net.input(1, 4, 12, 12), 6)
    for _ in range(2):
        y = net.conv(net.layer(g.NormaliseOp(x, None, None, axes=(1, 2, 3), groups=2, epsilon=1e-3)), 4)
        x = net.layer(g.ConcatOp([x, y], 1))
    return net.pool("avg", x)


def transposed(net):
    """A transposed convolution as it is read: phases, interleaved."""
    x = net.conv(net.input(1, 4, 9, 8), 6, act="relu")
    phases = [net.conv(x, 5, (1 + a, 1 + b), pads=(0, 0, a, b)) for a in (0, 1) for b in (0, 1)]
    return net.conv(net.layer(g.InterleaveOp(phases, (2, 2))), 3)


KINDS = mlp, attention, conv_stack, residual, depthwise, pools, unet, dense, transposed


def norm_alone(net):
    """The residual network without its residual: the norm is the last to read the input."""
    x = net.input(1, 20, 12)
    return product(net, product(net, norm(net, x, (2,), rms=True), 40, "gelu"), 12)
