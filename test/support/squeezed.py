"""Squeeze and excite: a map that is made of a small one, pooled, and multiplied with what comes of that."""

from networks import Net

from frustum.dialects import graph as g


def squeezed(images=1, size=48, channels=8, hidden=32):
    """A hidden map of 3x3 windows, its mean over each plane, and a product of both."""
    net = Net()
    x = net.input(images, channels, size, size)
    made = net.conv(x, hidden)
    pooled = net.layer(g.ReduceOp("mean", made, (2, 3), True))
    gate = net.unary("sigmoid", net.conv(pooled, hidden, kernel=1))
    return net.module(net.conv(net.binary("mul", made, gate), channels, kernel=1))
