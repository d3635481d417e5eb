"""The bound on cycles again, from the ONNX file and the target's numbers alone; nothing of the compiler is imported.

For floating-point networks of convolutions, matrix products, pooling, normalisation, and what costs nothing here.
Batch normalisation behind a convolution becomes its weights and bias.  Source: docs/report.md, "The bound".
"""

from __future__ import annotations

import math

from onnx import helper, shape_inference

WINDOWS = {"MaxPool", "AveragePool"}
WHOLE = {"GlobalAveragePool", "GlobalMaxPool"}
PRODUCTS = {"Conv", "Gemm", "MatMul"}


class Net:
    """Products and other layers in order, each with its readers' view of what is behind it."""

    def __init__(self, model, element_bytes):
        model = shape_inference.infer_shapes(model, data_prop=True)
        graph = model.graph
        values = [*graph.value_info, *graph.input, *graph.output]
        self.shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
        self.weights = {w.name: list(w.dims) for w in graph.initializer}
        self.inputs = [i.name for i in graph.input if i.name not in self.weights]
        self.nodes, self.size = list(graph.node), element_bytes
        self.outputs = [o.name for o in graph.output]
        self.made_by = {name: node for node in self.nodes for name in node.output}
        self.read = dict.fromkeys(self.inputs, (0, 0))

    def shape(self, name):
        return self.weights.get(name) or self.shapes[name]

    def attributes(self, node):
        return {a.name: helper.get_attribute_value(a) for a in node.attribute}

    def bias_bytes(self, node):
        """Of a bias of its own, or one that a following normalisation brings; 4 bytes for each channel."""
        follows = [n for n in self.nodes if node.output[0] in n.input and n.op_type == "BatchNormalization"]
        channels = self.shape(node.output[0])[1]
        return 4 * channels if len(node.input) > 2 or follows else 0


def product(net, node, target, batch):
    """Matrix cycles, vector cycles where it is depthwise, bytes of weights and bias."""
    unit, lanes = target.chip.cluster.core.matrix, target.chip.cluster.core.vector
    e, out, held = net.size, net.shape(node.output[0]), net.shape(node.input[1])
    P, Q, steps = unit.line_buffer.lines, unit.channels, unit.cycles_per_step.of(e)
    attributes = net.attributes(node)
    groups, strides, kernel, dilation = attributes.get("group", 1), [1, 1], [1, 1], 1
    windows, channels, depth = math.prod(out[:-1]), out[-1], math.prod(held) // out[-1]
    if node.op_type == "Conv":
        kernel, strides = held[2:], attributes.get("strides", [1, 1])
        dilation = attributes.get("dilations", [1, 1])[1]
        windows, channels, depth = out[0] * math.prod(out[2:]), held[0] // groups, held[1]
        rows = (out[2] - 1) * strides[0] + (kernel[0] - 1) * attributes.get("dilations", [1, 1])[0] + 1
        columns = (out[3] - 1) * strides[1] + (kernel[1] - 1) * dilation + 1
        pads = attributes.get("pads", [0] * 4)
        if node.input[0] in net.read:
            own = net.shape(node.input[0])[2:]
            box = (min(own[0], rows - pads[0]), min(own[1], columns - pads[1]))
            net.read[node.input[0]] = tuple(map(max, net.read[node.input[0]], box))
    lines, slices = -(-windows // P), -(-channels // Q)
    passes = groups * max(-(-channels * lines // Q), -(-windows * slices // P))
    block, stride = unit.line_buffer.block_bytes // e, 1 if kernel[1] == 1 else strides[1]
    by_rows, left = 0.0, kernel[1]
    while left > 0:
        taps = min(left, (block - 1) // dilation + 1)
        by_rows, left = by_rows + depth / ((block - (taps - 1) * dilation - 1) // stride + 1), left - taps
    writes = windows * slices * groups * kernel[0] * min(by_rows, min(stride, kernel[1]) * depth / block)
    matrix = max(passes * depth * math.prod(kernel) * steps, writes)
    vector = 0
    if groups > 1 and depth == 1:
        vector = math.prod(out) * math.prod(kernel) * lanes.cycles_per_element.of(e) / lanes.lanes
    return matrix, vector, math.prod(held) * e + net.bias_bytes(node)


def others(net, node, target):
    """Cycles of all vector units for what is no product."""
    vector = target.chip.cluster.core.vector
    kind, passes = node.op_type, 0
    elements = math.prod(net.shape(node.output[0])) if kind in WINDOWS | {"LRN", "Softmax"} else 0
    if kind in WINDOWS:
        passes = math.prod(net.attributes(node)["kernel_shape"])
    elif kind in WHOLE:
        passes, elements = 1, math.prod(net.shape(node.input[0]))
    elif kind == "LRN":
        passes = net.attributes(node)["size"] + 8
    elif kind == "Softmax":
        passes = 11
    return elements * passes * vector.cycles_per_element.of(net.size) / vector.lanes


def shared(matrix, vector, either):
    """The least of the longer of both, where each of `either` may be divided between them."""
    best = max(matrix, vector + sum(v for _, v in either))
    for m, v in sorted(either, key=lambda each: each[0] / each[1]):
        rest = sum(its for _, its in either) if best else 0
        either, rest = [each for each in either if each != (m, v)], rest - v
        part = min(1.0, max(0.0, (vector + rest + v - matrix) / (m + v)))
        best = min(best, max(matrix + part * m, vector + rest + (1 - part) * v))
        matrix += m
    return best


def bound(model, target, element_bytes):
    """All terms by name."""
    net = Net(model, element_bytes)
    dram = target.chip.dram
    rate = target.chips * dram.port_bytes_per_cycle
    core = target.chip.cluster.core
    cores = target.chips * target.chip.clusters * target.chip.cluster.cores
    memory = target.chips * target.chip.clusters * (
        target.chip.cluster.sram.capacity_bytes
        + target.chip.cluster.cores * (core.nram.capacity_bytes + core.wram.capacity_bytes)
    )  # fmt: skip
    work, behind, far, before = {}, {}, {}, {}
    for k, node in enumerate(net.nodes):
        is_product = node.op_type in PRODUCTS and node.input[1] in net.weights
        work[k] = product(net, node, target, 1) if is_product else (0, 0, 0)
        sources = {net.nodes.index(net.made_by[name]) for name in node.input if name in net.made_by}
        before[k] = {k}.union(*(before[s] for s in sources))
        join = set.intersection if node.op_type == "Concat" else set.union
        # products whose map a result needs, and those with another product in between
        behind[k] = join(*(behind[s] | far[s] | ({s} if work[s][0] else set()) for s in sources)) if sources else set()
        passed = [{p for q in [s] if work[q][0] for p in behind[q]} | far[s] for s in sources]
        far[k] = join(*passed) if passed else set()

    def compute(those):
        both = [work[k][:2] for k in those if work[k][1]]
        return shared(sum(work[k][0] for k in those if not work[k][1]), 0, both) / cores

    boxes = {name: box if box != (0, 0) else (math.inf, math.inf) for name, box in net.read.items()}
    compulsory = sum(math.prod(net.shape(name)) for name in net.outputs) * element_bytes
    compulsory += sum(w[2] for w in work.values())
    for name, box in boxes.items():
        n = net.shape(name)
        is_map = len(n) == 4
        compulsory += element_bytes * (n[0] * n[1] * min(n[2], box[0]) * min(n[3], box[1]) if is_map else math.prod(n))
    first, room = [0.0], [0.0]
    for p in (k for k in work if work[k][0]):
        # a layer one behind p may begin with some channels of p's map: two behind need all of its weights
        loaded = sum(work[k][2] for k in before[p]) / rate
        grouped = any(net.attributes(net.nodes[q]).get("group", 1) > 1 for q in work if work[q][0])
        first.append(loaded + (0 if grouped else compute([k for k in work if p in far[k]])))
        late = sum(work[k][2] for k in work if p in far[k])
        room.append(compute(before[p]) + (late - memory) / rate if late > memory else 0)
    vector = sum(others(net, node, target) for node in net.nodes)
    both = [each[:2] for each in work.values() if each[1]]
    computes = bool(vector or any(each[0] for each in work.values()))  # else outputs are what came
    return {
        "DRAM port": compulsory / rate + (1 + computes) * dram.latency_cycles,
        "matrix passes": compute(work),
        "vector unit": shared(sum(w[0] for w in work.values() if not w[1]), vector, both) / cores,
        "weights first": max(first), "no room to load ahead": max(room), "compulsory": compulsory,
    }  # fmt: skip
