"""The sheets of `validation.py`, written by hand.  Every line is an action of an engine:

    name | engine | bytes | begins | busy cycles | latency

`page_bytes` are the sizes of the program's two pages, which are given.  `a.free` is when the engine of an earlier line
`a` is free again, `a.there` when its effect is there.  A line begins when the line before it on the same engine is
free, and what it reads is there.  Numbers of the machine are those of `pencil.yaml`: DRAM moves 10 bytes in a cycle and
answers 100 cycles later, everything on chip 100 bytes and 50 cycles; the matrix unit has 10 lines and 10 channels, 2
cycles a step; the vector unit makes 20 lanes / 2 cycles = 10 elements in a cycle and pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx.helper import make_node

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Sheet:
    """A network, and its run worked out by hand."""

    name: str
    says: str
    """Markdown: how bytes and cycles come about."""
    inputs: Shapes
    outputs: Shapes
    weights: Shapes
    nodes: Sequence[onnx.NodeProto]
    lines: str
    path: str
    """The names of the lines on the critical path, the first first."""
    writes: str = "0"
    """Of line buffers."""
    steps: str = "0"
    """Of matrix units."""


MAP = (1, 10, 10, 10)
"""A map of 10 channels, 10 rows, 10 columns: 4000 bytes, one chunk."""
START = """
page_0 | fetch | page_bytes[0] | 0 | ceil(page_bytes[0] / 10) | 100
page_1 | fetch | page_bytes[1] | page_0.free | ceil(page_bytes[1] / 10) | 100
"""
"""The program comes first; all other engines wait for it."""

SHEETS = (
    Sheet(
        "One Relu",
        """The map comes to SRAM whole and goes through the core in two halves of 5 columns: contiguous runs of
20 bytes, which is no less than the 10 that take the port's least time. A half has 500 elements; one pass over them
takes 500 / 10 cycles. The vector unit reads 2000 bytes and writes as many. Loading the second half overlaps with
computing the first, and storing the first with computing the second.""",
        {"x": MAP}, {"y": MAP}, {}, [make_node("Relu", ["x"], ["y"], "relu")],
        START + """
load_x | gdma | 10 * 10 * 10 * 4 | page_1.there | 4000 / 10 | 100
in_0 | mvdma | 10 * 10 * 5 * 4 | load_x.there | 2000 / 100 | 50
in_1 | mvdma | 10 * 10 * 5 * 4 | in_0.free | 2000 / 100 | 50
relu_0 | vector | 2000 + 2000 | in_0.there | 500 / 10 | 50
relu_1 | vector | 2000 + 2000 | max(relu_0.free, in_1.there) | 500 / 10 | 50
out_0 | mvdma | 2000 | relu_0.there | 2000 / 100 | 50
out_1 | mvdma | 2000 | max(out_0.free, relu_1.there) | 2000 / 100 | 50
store_0 | gdma | 2000 | out_0.there | 2000 / 10 | 100
store_1 | gdma | 2000 | max(store_0.free, out_1.there) | 2000 / 10 | 100
""",
        "page_0 page_1 load_x in_0 relu_0 out_0 store_0 store_1",
    ),
    Sheet(
        "Convolution of 1 x 1",
        """10 channels in, 10 out; 10 x 10 x 4 bytes of weights go into WRAM once. Each half has 10 rows of
5 columns, 50 windows: 50 / 10 = 5 passes, each of 10 input channels x 1 tap = 10 steps of 2 cycles. A pass fills
10 lines with two rows of 5, in 2 writes for each channel: 5 x 10 x 2 = 100 writes, one a cycle. No table says where
operands are: 50 windows + 10 products take a cycle each. The unit is busy for the most of 100, 100 and 60 cycles.""",
        {"x": MAP}, {"y": MAP}, {"w": (10, 10, 1, 1)}, [make_node("Conv", ["x", "w"], ["y"], "conv")],
        START + """
load_x | gdma | 10 * 10 * 10 * 4 | page_1.there | 4000 / 10 | 100
load_w | gdma | 10 * 10 * 4 | load_x.free | 400 / 10 | 100
weights | mvdma | 400 | load_w.there | 400 / 100 | 50
in_0 | mvdma | 10 * 10 * 5 * 4 | max(weights.free, load_x.there) | 2000 / 100 | 50
in_1 | mvdma | 10 * 10 * 5 * 4 | in_0.free | 2000 / 100 | 50
conv_0 | matrix | 2000 + 400 + 2000 | max(in_0.there, weights.there) | max(5 * 10 * 2, 5 * 10 * 2, 50 + 10) | 50
conv_1 | matrix | 2000 + 400 + 2000 | max(conv_0.free, in_1.there) | max(5 * 10 * 2, 5 * 10 * 2, 50 + 10) | 50
out_0 | mvdma | 2000 | max(in_1.free, conv_0.there) | 2000 / 100 | 50
out_1 | mvdma | 2000 | max(out_0.free, conv_1.there) | 2000 / 100 | 50
store_0 | gdma | 2000 | out_0.there | 2000 / 10 | 100
store_1 | gdma | 2000 | max(store_0.free, out_1.there) | 2000 / 10 | 100
""",
        "page_0 page_1 load_x load_w weights in_0 conv_0 out_0 store_0 store_1",
        writes="2 * (5 * 10 * 2)", steps="2 * (5 * 10)",
    ),
    Sheet(
        "Convolution of 3 x 3",
        """4 channels in, 10 out, padding 1. The core takes 2 input channels at a time, with their
10 x 2 x 3 x 3 x 4 = 720 bytes of weights; the second part adds to the sums of the first, so it reads 4000 bytes more.
100 windows are 10 passes of 2 channels x 9 taps = 18 steps. A write takes 10 elements and fills (10 - 3) / 1 + 1 = 8
lines, so a row of 10 windows takes 2: 10 passes x 2 channels x 3 kernel rows x 2 = 120. Addresses: 100 + 18.""",
        {"x": (1, 4, 10, 10)}, {"y": MAP}, {"w": (10, 4, 3, 3)},
        [make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])],
        START + """
load_x | gdma | 4 * 10 * 10 * 4 | page_1.there | 1600 / 10 | 100
load_w0 | gdma | 10 * 2 * 9 * 4 | load_x.free | 720 / 10 | 100
load_w1 | gdma | 10 * 2 * 9 * 4 | load_w0.free | 720 / 10 | 100
in_0 | mvdma | 2 * 10 * 10 * 4 | load_x.there | 800 / 100 | 50
w_0 | mvdma | 720 | max(in_0.free, load_w0.there) | ceil(720 / 100) | 50
in_1 | mvdma | 2 * 10 * 10 * 4 | w_0.free | 800 / 100 | 50
w_1 | mvdma | 720 | max(in_1.free, load_w1.there) | ceil(720 / 100) | 50
conv_0 | matrix | 800 + 720 + 4000 | w_0.there | max(10 * 18 * 2, 10 * 2 * 3 * 2, 100 + 18) | 50
conv_1 | matrix | 800 + 720 + 2 * 4000 | max(conv_0.free, w_1.there) | max(10 * 18 * 2, 10 * 2 * 3 * 2, 100 + 18) | 50
out | mvdma | 4000 | conv_1.there | 4000 / 100 | 50
store | gdma | 10 * 10 * 10 * 4 | out.there | 4000 / 10 | 100
""",
        "page_0 page_1 load_x load_w0 w_0 conv_0 conv_1 out store",
        writes="2 * (10 * 2 * 3 * 2)", steps="2 * (10 * 18)",
    ),
    Sheet(
        "Two convolutions in one unit",
        """Two convolutions of 1 x 1, one behind the other. The map between them never leaves the core: the second
begins when the first has left the matrix unit, and finds its input in NRAM. 100 windows are 10 passes of 10 steps; rows
of 10 windows take one write for each channel: 10 x 10. Of DRAM the map between asks nothing; layer by layer it would be
4000 bytes written and 4000 read.""",
        {"x": MAP}, {"y": MAP}, {"v": (10, 10, 1, 1), "w": (10, 10, 1, 1)},
        [make_node("Conv", ["x", "v"], ["h"], "first"), make_node("Conv", ["h", "w"], ["y"], "second")],
        START + """
load_x | gdma | 10 * 10 * 10 * 4 | page_1.there | 4000 / 10 | 100
load_v | gdma | 10 * 10 * 4 | load_x.free | 400 / 10 | 100
load_w | gdma | 10 * 10 * 4 | load_v.free | 400 / 10 | 100
in_x | mvdma | 4000 | load_x.there | 4000 / 100 | 50
in_v | mvdma | 400 | max(in_x.free, load_v.there) | 400 / 100 | 50
in_w | mvdma | 400 | max(in_v.free, load_w.there) | 400 / 100 | 50
first | matrix | 4000 + 400 + 4000 | max(in_x.there, in_v.there) | max(10 * 10 * 2, 10 * 10, 100 + 10) | 50
second | matrix | 4000 + 400 + 4000 | max(first.free, in_w.there) | max(10 * 10 * 2, 10 * 10, 100 + 10) | 50
out | mvdma | 4000 | second.there | 4000 / 100 | 50
store | gdma | 10 * 10 * 10 * 4 | out.there | 4000 / 10 | 100
""",
        "page_0 page_1 load_x in_x in_v first second out store",
        writes="2 * (10 * 10)", steps="2 * (10 * 10)",
    ),
    Sheet(
        "Residual addition",
        """A convolution of 1 x 1 and the addition of its own input, on 4 rows. The matrix unit adds the residual on
the way out, in no cycles; the core loads its half of the map twice, as input (`in`) and as residual (`add`). An engine
has at most 4 transfers in flight: the fifth begins when the first is there. A half has 4 rows of 5 columns: 20 windows,
2 passes of 10 steps; 4 pieces of rows x 10 channels = 40 writes.""",
        {"x": (1, 10, 4, 10)}, {"y": (1, 10, 4, 10)}, {"w": (10, 10, 1, 1)},
        [make_node("Conv", ["x", "w"], ["h"], "conv"), make_node("Add", ["h", "x"], ["y"], "sum")],
        START + """
load_x | gdma | 10 * 4 * 10 * 4 | page_1.there | 1600 / 10 | 100
load_w | gdma | 10 * 10 * 4 | load_x.free | 400 / 10 | 100
weights | mvdma | 400 | load_w.there | 400 / 100 | 50
in_0 | mvdma | 10 * 4 * 5 * 4 | weights.free | 800 / 100 | 50
add_0 | mvdma | 10 * 4 * 5 * 4 | in_0.free | 800 / 100 | 50
in_1 | mvdma | 10 * 4 * 5 * 4 | add_0.free | 800 / 100 | 50
add_1 | mvdma | 10 * 4 * 5 * 4 | max(in_1.free, weights.there) | 800 / 100 | 50
conv_0 | matrix | 800 + 400 + 800 + 800 | add_0.there | max(2 * 10 * 2, 4 * 10, 20 + 10) | 50
conv_1 | matrix | 800 + 400 + 800 + 800 | max(conv_0.free, add_1.there) | max(2 * 10 * 2, 4 * 10, 20 + 10) | 50
out_0 | mvdma | 800 | conv_0.there | 800 / 100 | 50
out_1 | mvdma | 800 | max(out_0.free, conv_1.there) | 800 / 100 | 50
store_0 | gdma | 800 | out_0.there | 800 / 10 | 100
store_1 | gdma | 800 | max(store_0.free, out_1.there) | 800 / 10 | 100
""",
        "page_0 page_1 load_x load_w weights in_0 add_0 conv_0 out_0 store_0 store_1",
        writes="2 * (4 * 10)", steps="2 * (2 * 10)",
    ),
    Sheet(
        "Fully connected layer",
        """10 images, 50 inputs, 10 outputs, a bias. The positions of a fully connected layer are the images of the
batch: 10 windows, one pass. The core takes 25 inputs at a time, 25 x 10 x 4 = 1000 bytes of weights with them, in
25 steps and 25 writes. The second part reads the 400 bytes of sums of the first and the 40 of the bias too.""",
        {"x": (10, 50)}, {"y": (10, 10)}, {"w": (50, 10), "b": (10,)},
        [make_node("Gemm", ["x", "w", "b"], ["y"], "fc")],
        START + """
load_x | gdma | 10 * 50 * 4 | page_1.there | 2000 / 10 | 100
load_b | gdma | 10 * 4 | load_x.free | 40 / 10 | 100
load_w0 | gdma | 25 * 10 * 4 | load_b.free | 1000 / 10 | 100
load_w1 | gdma | 25 * 10 * 4 | load_w0.free | 1000 / 10 | 100
bias | mvdma | 40 | load_b.there | ceil(40 / 100) | 50
in_0 | mvdma | 10 * 25 * 4 | max(bias.free, load_x.there) | 1000 / 100 | 50
w_0 | mvdma | 1000 | max(in_0.free, load_w0.there) | 1000 / 100 | 50
in_1 | mvdma | 10 * 25 * 4 | w_0.free | 1000 / 100 | 50
w_1 | mvdma | 1000 | max(in_1.free, load_w1.there) | 1000 / 100 | 50
fc_0 | matrix | 1000 + 1000 + 400 | max(in_0.there, w_0.there) | max(25 * 2, 25, 10 + 25) | 50
fc_1 | matrix | 1000 + 1000 + 400 + 400 + 40 | max(fc_0.free, in_1.there, w_1.there) | max(25 * 2, 25, 10 + 25) | 50
out | mvdma | 400 | fc_1.there | 400 / 100 | 50
store | gdma | 10 * 10 * 4 | out.there | 400 / 10 | 100
""",
        "page_0 page_1 load_x load_b load_w0 load_w1 w_1 fc_1 out store",
        writes="2 * 25", steps="2 * 25",
    ),
    Sheet(
        "Matrix product",
        """Two matrices that come from outside, of 10 x 50 and 50 x 10. The second goes where weights go. As before
the core takes 25 of the 50 products at a time.""",
        {"a": (10, 50), "b": (50, 10)}, {"y": (10, 10)}, {}, [make_node("MatMul", ["a", "b"], ["y"], "product")],
        START + """
load_a | gdma | 10 * 50 * 4 | page_1.there | 2000 / 10 | 100
load_b0 | gdma | 25 * 10 * 4 | load_a.free | 1000 / 10 | 100
load_b1 | gdma | 25 * 10 * 4 | load_b0.free | 1000 / 10 | 100
a_0 | mvdma | 10 * 25 * 4 | load_a.there | 1000 / 100 | 50
b_0 | mvdma | 1000 | max(a_0.free, load_b0.there) | 1000 / 100 | 50
a_1 | mvdma | 10 * 25 * 4 | b_0.free | 1000 / 100 | 50
b_1 | mvdma | 1000 | max(a_1.free, load_b1.there) | 1000 / 100 | 50
product_0 | matrix | 1000 + 1000 + 400 | max(a_0.there, b_0.there) | max(25 * 2, 25, 10 + 25) | 50
product_1 | matrix | 1000 + 1000 + 400 + 400 | max(product_0.free, b_1.there) | max(25 * 2, 25, 10 + 25) | 50
out | mvdma | 400 | product_1.there | 400 / 100 | 50
store | gdma | 10 * 10 * 4 | out.there | 400 / 10 | 100
""",
        "page_0 page_1 load_a load_b0 load_b1 b_1 product_1 out store",
        writes="2 * 25", steps="2 * 25",
    ),
    Sheet(
        "Softmax",
        """10 rows of 100, the core takes 5 rows at a time. Softmax is 1 (maximum) + 1 (subtract) + 4 (exponential)
+ 1 (sum) + 4 (divide) = 11 passes over 500 elements, 50 cycles each. The vector unit, not
DRAM, is what this run waits for.""",
        {"x": (10, 100)}, {"y": (10, 100)}, {}, [make_node("Softmax", ["x"], ["y"], "softmax", axis=-1)],
        START + """
load_x | gdma | 10 * 100 * 4 | page_1.there | 4000 / 10 | 100
in_0 | mvdma | 5 * 100 * 4 | load_x.there | 2000 / 100 | 50
in_1 | mvdma | 5 * 100 * 4 | in_0.free | 2000 / 100 | 50
softmax_0 | vector | 2000 + 2000 | in_0.there | 500 / 10 * (1 + 1 + 4 + 1 + 4) | 50
softmax_1 | vector | 2000 + 2000 | max(softmax_0.free, in_1.there) | 500 / 10 * (1 + 1 + 4 + 1 + 4) | 50
out_0 | mvdma | 2000 | softmax_0.there | 2000 / 100 | 50
out_1 | mvdma | 2000 | max(out_0.free, softmax_1.there) | 2000 / 100 | 50
store_0 | gdma | 2000 | out_0.there | 2000 / 10 | 100
store_1 | gdma | 2000 | max(store_0.free, out_1.there) | 2000 / 10 | 100
""",
        "page_0 page_1 load_x in_0 softmax_0 softmax_1 out_1 store_1",
    ),
    Sheet(
        "Pooling",
        """The largest of 2 x 2, with stride 2. The core takes half of the channels at a time: 5 x 10 x 10 elements
in, 5 x 5 x 5 = 125 out. Each of the 4 elements of the kernel is a pass over the output: 13 cycles, as 125 / 10 is
rounded up.""",
        {"x": MAP}, {"y": (1, 10, 5, 5)}, {},
        [make_node("MaxPool", ["x"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2])],
        START + """
load_x | gdma | 10 * 10 * 10 * 4 | page_1.there | 4000 / 10 | 100
in_0 | mvdma | 5 * 10 * 10 * 4 | load_x.there | 2000 / 100 | 50
in_1 | mvdma | 5 * 10 * 10 * 4 | in_0.free | 2000 / 100 | 50
pool_0 | vector | 2000 + 500 | in_0.there | ceil(125 / 10) * 4 | 50
pool_1 | vector | 2000 + 500 | max(pool_0.free, in_1.there) | ceil(125 / 10) * 4 | 50
out_0 | mvdma | 5 * 5 * 5 * 4 | pool_0.there | 500 / 100 | 50
out_1 | mvdma | 5 * 5 * 5 * 4 | max(out_0.free, pool_1.there) | 500 / 100 | 50
store_0 | gdma | 500 | out_0.there | 500 / 10 | 100
store_1 | gdma | 500 | max(store_0.free, out_1.there) | 500 / 10 | 100
""",
        "page_0 page_1 load_x in_0 pool_0 pool_1 out_1 store_1",
    ),
    Sheet(
        "Two outputs of one map",
        """A Relu that a sigmoid and a hyperbolic tangent read, on one channel; both are outputs. The map between
stays in SRAM for both readers, and DRAM has nothing of it. A sigmoid, and a hyperbolic tangent, takes 4 passes over
the 100 elements. An engine works in order: a load behind a store of the same engine (`h_0` behind `out_h`) needs no
wait.""",
        {"x": (1, 1, 10, 10)}, {"y": (1, 1, 10, 10), "z": (1, 1, 10, 10)}, {},
        [make_node("Relu", ["x"], ["h"], "relu"), make_node("Sigmoid", ["h"], ["y"], "sigmoid"),
         make_node("Tanh", ["h"], ["z"], "tanh")],
        START + """
load_x | gdma | 10 * 10 * 4 | page_1.there | 400 / 10 | 100
in_x | mvdma | 400 | load_x.there | 400 / 100 | 50
relu | vector | 400 + 400 | in_x.there | 100 / 10 | 50
out_h | mvdma | 400 | relu.there | 400 / 100 | 50
h_0 | mvdma | 400 | out_h.free | 400 / 100 | 50
sigmoid | vector | 400 + 400 | h_0.there | 100 / 10 * 4 | 50
out_y | mvdma | 400 | sigmoid.there | 400 / 100 | 50
h_1 | mvdma | 400 | out_y.free | 400 / 100 | 50
tanh | vector | 400 + 400 | h_1.there | 100 / 10 * 4 | 50
out_z | mvdma | 400 | tanh.there | 400 / 100 | 50
store_y | gdma | 400 | out_y.there | 400 / 10 | 100
store_z | gdma | 400 | max(store_y.free, out_z.there) | 400 / 10 | 100
""",
        "page_0 page_1 load_x in_x relu out_h h_0 sigmoid out_y h_1 tanh out_z store_z",
    ),
)  # fmt: skip
