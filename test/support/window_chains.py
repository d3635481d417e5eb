"""Random ONNX chains of windows on maps of few rows and columns, f32 and QDQ int8, and small machines for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from stops import aimed, run_module, target

import frustum
from frustum.backend.pipeline import Choices, Run
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.tile.orders import DIRECTIONS, ORDERS
from frustum.runtime.host.oracle import oracle_outputs

KINDS = ("conv", "conv", "depthwise", "max", "mean", "relu", "whole", "add")
WORDS = tuple(order for order in ORDERS if order != "bands") + tuple(
    f"bands{{bands={depth},direction={direction}}}" for depth in (1, 2) for direction in DIRECTIONS
)
"""Every order, and bands of two depths in every direction, as they are typed."""
QUANTUM = 0.05


@dataclass(frozen=True)
class Chain:
    """A model from `x` to `y`, whether it is quantised, and an input."""

    model: onnx.ModelProto
    is_quantised: bool
    x: np.ndarray


class _Chain:
    def __init__(self, draw, extents, is_quantised):
        self.draw, self.quantised = draw, is_quantised
        self.nodes, self.arrays, self.count = [], {}, 0
        self.rng = np.random.default_rng(draw(st.integers(0, 99)))
        self.name, self.extents = "x", extents
        self.seen = []
        self.hand_on("x", extents)

    def fresh(self):
        self.count += 1
        return f"t{self.count}"

    def constant(self, array):
        name = f"c{len(self.arrays)}"
        self.arrays[name] = np.asarray(array)
        return name

    def hand_on(self, name, extents):
        """The map of a layer, quantised and back where the chain is."""
        if self.quantised:
            scales = [self.constant(np.float32(QUANTUM)), self.constant(np.int8(self.draw(st.sampled_from([0, 3]))))]
            inner, outer = self.fresh(), self.fresh()
            self.nodes.append(helper.make_node("QuantizeLinear", [name, *scales], [inner]))
            self.nodes.append(helper.make_node("DequantizeLinear", [inner, *scales], [outer]))
            name = outer
        self.name, self.extents = name, extents
        self.seen.append((name, extents))

    def weights(self, *shape):
        array = (self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        if not self.quantised:
            return self.constant(array)
        scales = [self.constant(np.float32(0.02)), self.constant(np.int8(0))]
        integers = self.constant(np.clip(np.round(array / 0.02), -127, 127).astype(np.int8))
        name = self.fresh()
        self.nodes.append(helper.make_node("DequantizeLinear", [integers, *scales], [name]))
        return name

    def add_layer(self):
        kind, (channels, rows, columns) = self.draw(st.sampled_from(KINDS)), self.extents
        name = self.fresh()
        if kind == "relu":
            self.nodes.append(helper.make_node("Relu", [self.name], [name]))
        elif kind == "whole":
            self.nodes.append(helper.make_node("GlobalAveragePool", [self.name], [name]))
            rows = columns = 1
        elif kind == "add":
            others = [n for n, extents in self.seen[:-1] if extents == self.extents]
            if not others:
                return
            self.nodes.append(helper.make_node("Add", [self.name, self.draw(st.sampled_from(others))], [name]))
        else:
            made = self.window(kind, name)
            if made is None:
                return
            channels, rows, columns = made
        self.hand_on(name, (channels, rows, columns))

    def window(self, kind, name):
        """A layer with a kernel; the extents of its map, None where that would be empty."""
        channels, *sizes = self.extents
        kernel = [self.draw(st.sampled_from([1, 3, 3, 5])) for _ in sizes]
        stride, is_conv = self.draw(st.sampled_from([1, 1, 1, 2])), kind in ("conv", "depthwise")
        dilation = self.draw(st.sampled_from([1, 1, 2])) if is_conv else 1
        pads = [self.draw(st.integers(0, k // 2)) if self.draw(st.integers(0, 3)) == 0 else k // 2 for k in kernel * 2]
        spans = [(k - 1) * dilation + 1 for k in kernel]
        room = [size + pads[d] + pads[d + 2] - spans[d] for d, size in enumerate(sizes)]
        if min(room) < 0:
            return None
        options = {"pads": pads, "strides": [stride, stride]}
        if is_conv:
            outputs = self.draw(st.integers(1, 8)) if kind == "conv" else channels
            groups = 1 if kind == "conv" else channels
            weights = self.weights(outputs, channels // groups, *kernel)
            options |= {"dilations": [dilation] * 2, "group": groups}
            self.nodes.append(helper.make_node("Conv", [self.name, weights], [name], **options))
            channels = outputs
        else:
            operator = "MaxPool" if kind == "max" else "AveragePool"
            self.nodes.append(helper.make_node(operator, [self.name], [name], kernel_shape=kernel, **options))
        return channels, *(r // stride + 1 for r in room)

    def model(self, extents):
        self.nodes.append(helper.make_node("Identity", [self.name], ["y"]))
        graph = helper.make_graph(
            self.nodes, "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, *extents])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in self.arrays.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@st.composite
def chains(draw, layers=5):
    """One to `layers` layers on a map of 1 to 6 channels, 1 to 8 rows and columns."""
    extents = draw(st.tuples(st.integers(1, 6), st.integers(1, 8), st.integers(1, 8)))
    chain = _Chain(draw, extents, draw(st.integers(0, 2)) == 0)
    for _ in range(draw(st.integers(1, layers))):
        chain.add_layer()
    x = 3 * chain.rng.standard_normal((1, *extents)).astype(np.float32)
    return Chain(chain.model(extents), chain.quantised, x)


def machine(clusters, cores, cdma=None, **sizes):
    """`edge` with so many clusters and cores; `sizes`: bytes of `sram` and `nram`, `dram` bytes per cycle, matrix
    `channels`; `cdma` bytes per cycle, None: no such engine."""
    whole = target("edge")
    cluster, core, dram = whole.cluster, whole.cluster.core, whole.chip.dram
    core = replace(
        core,
        nram=replace(core.nram, capacity_bytes=sizes.get("nram", core.nram.capacity_bytes)),
        matrix=replace(core.matrix, channels=sizes.get("channels", core.matrix.channels)),
    )
    engine = None if cdma is None else replace(cluster.gdma, bytes_per_cycle=cdma)
    sram = replace(cluster.sram, capacity_bytes=sizes.get("sram", cluster.sram.capacity_bytes))
    cluster = replace(cluster, core=core, cores=cores, cdma=engine, sram=sram)
    dram = replace(dram, port_bytes_per_cycle=sizes.get("dram", dram.port_bytes_per_cycle))
    return replace(whole, chip=replace(whole.chip, clusters=clusters, cluster=cluster, dram=dram))


def first_broad(words):
    """The order with `depth=breadth-first`."""
    return f"{words[:-1]},depth=breadth-first}}" if words.endswith("}") else f"{words}{{depth=breadth-first}}"


MACHINES = st.builds(
    machine,
    st.integers(1, 7),
    st.integers(1, 4),
    st.sampled_from([None, 4, 16]),
    sram=st.sampled_from([2048, 4000, 16384, 524288]),
    nram=st.sampled_from([1000, 3000, 4096, 65536]),
    dram=st.sampled_from([8, 64]),
    channels=st.sampled_from([1, 4, 16]),
)
ORDERED = st.one_of(st.none(), st.sampled_from(WORDS), st.sampled_from(WORDS).map(first_broad))
BORDERS = st.sampled_from([None, None, "overlap", "exchange", "auto"])
POLICIES = st.sampled_from(["optimal", "optimal", "pyramid", "none", "greedy", "template"])


def check(chain, machine, **options):
    """A chain in checked mode against onnxruntime, and of integers, bit for bit, against the network whose layers
    compute in integers."""
    try:
        made = frustum.compile(chain.model, machine, split="never", **options)
    except DoesNotFit:
        return
    found = frustum.run(made, {"x": chain.x}, checked=True).outputs["y"]
    wanted = oracle_outputs(chain.model, {"x": chain.x})["y"]
    if chain.is_quantised:  # products are rounded to 24 bits there: now and then to the other side of a half
        np.testing.assert_allclose(found, wanted, atol=2.01 * QUANTUM)
        module = aimed(import_onnx(chain.model, name="chain"), machine)
        Run().advance(module, ["typed"], Choices())
        np.testing.assert_array_equal(found, run_module(module, {"x": chain.x})["y"])
    else:
        np.testing.assert_allclose(found, wanted, atol=1e-4 * max(1e-3, np.abs(wanted).max()))


__all__ = [
    "BORDERS", "MACHINES", "ORDERED", "POLICIES", "QUANTUM", "WORDS", "Chain", "chains", "check", "first_broad",
    "machine",
]  # fmt: skip
