"""Networks of axes from a few operations of the graph level."""

from xdsl.dialects.builtin import f16
from xdsl.ir import Block

from frustum.dialects import graph as g
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.axes.tensor import Kind
from frustum.dialects.graph.axes.reader import Reader


def network(build, *shapes):
    """Of operations that `build` makes of values of these shapes: an input, then weights; the last is the output."""
    reader, block = Reader(), Block(arg_types=[g.tensor_type(f16, shape) for shape in shapes])
    for k, own in enumerate(block.args):
        reader.views[own] = reader.root(f"x{k}", own, Kind.INPUT if k == 0 else Kind.WEIGHT)
    ops = build(*block.args)
    for op in ops:
        reader.read(op)
    reader.views[ops[-1].results[0]].pieces[0].tensor.is_output = True
    return AxisNetwork("net", reader.layers, reader.tensors)


def mlp(x, w, v):
    """Layers `matmul`, `unary` and `matmul#2`."""
    up = g.MatmulOp(x, w)
    act = g.UnaryOp("gelu", up.result)
    return up, act, g.MatmulOp(act.result, v)


ROWS, CHANNELS, HIDDEN = 6, 8, 20
SHAPES = (ROWS, CHANNELS), (CHANNELS, HIDDEN), (HIDDEN, CHANNELS)
"""Of the perceptron's operands."""


def windows(x, w, v):
    """Layers `conv` and `conv#2`."""
    first = g.ConvOp(x, w, None, (1, 1), (1, 1, 1, 1))
    return first, g.ConvOp(first.result, v, None, (1, 1), (1, 1, 1, 1))
