"""Seeded cases of orders x policies x borders x owners x batches x machines: a small ONNX network and how it is
compiled, judged in checked mode against onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from random_target import random_target
from stops import target
from window_chains import machine

import frustum
from frustum.backend import targets
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.errors import Unsupported
from frustum.passes.tile.orders import DIRECTIONS, ORDERS
from frustum.runtime.host.oracle import oracle_outputs

KINDS = ("conv", "conv", "conv", "depthwise", "max", "mean", "relu", "add", "concat")
POLICIES = ("optimal", "pyramid", "template", "greedy", "none")
BORDERS = (None, "overlap", "exchange", "auto")
OWNERS = (None, None, "clusters", "cores", "auto")
TOLERANCE = 1e-4
"""Of the largest element of an output."""


@dataclass(frozen=True)
class Case:
    """A network with its inputs, a machine, and options of `frustum.compile`."""

    seed: int
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    machine: Target
    options: dict[str, str | None]

    def __repr__(self):
        chip = self.machine.chip
        where = f"{self.machine.name} {chip.clusters}x{chip.cluster.cores} of {chip.cluster.sram.capacity_bytes} B"
        nodes = " ".join(node.op_type for node in self.model.graph.node)
        return f"seed {self.seed}: {where}, x {self.inputs['x'].shape}, {nodes}, {self.options}"


def case_of(seed):
    """The case of a number; consecutive numbers go through orders, policies and borders in turn."""
    random = Random(seed)
    model, inputs = _network(random)
    borders = BORDERS[seed // len(ORDERS) % len(BORDERS)]
    policy = POLICIES[seed // (len(ORDERS) * len(BORDERS)) % len(POLICIES)]
    order = _words(random, ORDERS[seed % len(ORDERS)], owned=borders == "exchange")
    options = {"order": order, "policy": policy, "borders": borders, "host": "never"}
    return Case(seed, model, inputs, _machine(random), options)


def judged(case):
    """`good`, or what refuses the case; AssertionError where a number is wrong.  Other errors are not caught."""
    try:
        made = frustum.compile(case.model, case.machine, **case.options)
    except (DoesNotFit, Unsupported) as refused:
        assert str(refused)
        return type(refused).__name__
    found = frustum.run(made, case.inputs, checked=True, mode="functional").outputs
    for name, wanted in oracle_outputs(case.model, case.inputs).items():
        most = max(1e-3, float(np.abs(wanted).max()))
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=TOLERANCE * most, err_msg=f"{case} {name}")
    return "good"


def _words(random, order, owned):
    """An order as it is typed, perhaps with who owns tiles."""
    words = []
    if order == "bands":
        words = [f"bands={random.randint(1, 3)}", f"direction={random.choice(DIRECTIONS)}"]
    owners = random.choice(OWNERS) if owned else None
    if owners != "cores" and random.random() < 0.25:
        words.append("depth=breadth-first")
    if owners is not None:
        words.append(f"owners={owners}")
    return f"{order}{{{','.join(words)}}}" if words else order


def _machine(random):
    """A shipped machine, one with less memory and other numbers of cores, or a random one."""
    kind = random.randrange(5)
    if kind == 0:
        return target(random.choice([*targets.names(), "tiny"]))
    if kind == 1:
        return random_target(random)
    if kind == 2:
        sizes = {"sram": random.choice([2048, 4000, 16384, 65536]), "nram": random.choice([1000, 3000, 4096, 65536])}
        cdma = random.choice([None, 4, 16])
        return machine(random.randint(1, 7), random.randint(1, 4), cdma, channels=random.choice([1, 4, 16]), **sizes)
    whole = target(random.choice(("default", "manycore")))
    core, cluster = whole.core, whole.cluster
    core = replace(core, nram=replace(core.nram, capacity_bytes=random.choice([1024, 2048, 4096, 16384])))
    sram = replace(cluster.sram, capacity_bytes=1024 * random.choice([2, 3, 4, 8, 16, 32]))
    cluster = replace(cluster, sram=sram, core=core, cores=random.randint(1, 4))
    return replace(whole, chip=replace(whole.chip, cluster=cluster, clusters=random.randint(1, 5)))


def _network(random):
    """One to five layers with branches; what nobody reads is an output."""
    shape = random.choice([1, 1, 2, 3, 4]), random.randint(1, 6), random.randint(1, 32), random.randint(1, 32)
    net = _Net(random, shape)
    for _ in range(random.randint(1, 5)):
        net.add(random.choice(KINDS))
    x = net.rng.standard_normal(shape).astype(np.float32)
    return net.model(shape), {"x": x}


class _Net:
    """A network as it grows."""

    def __init__(self, random, shape):
        self.random, self.rng = random, np.random.default_rng(random.randrange(1 << 30))
        self.nodes, self.weights = [], {}
        self.shapes = {"x": shape}

    def add(self, kind):
        """A layer of the last map, or of any; none where it has no place."""
        names = list(self.shapes)
        x = names[-1] if self.random.random() < 0.75 else self.random.choice(names)
        if kind in ("add", "concat"):
            first = 1 if kind == "add" else 2  # where shapes have to be equal
            same = [n for n in names if n != x and self._differs_not(n, x, first)]
            if same:
                other = self.random.choice(same)
                if kind == "add":
                    self._node("Add", [x, other], self.shapes[x])
                else:
                    n, c, *plane = self.shapes[x]
                    self._node("Concat", [x, other], (n, c + self.shapes[other][1], *plane), axis=1)
        elif kind == "relu":
            self._node("Relu", [x], self.shapes[x])
        else:
            self._window(kind, x)

    def _differs_not(self, a, b, first):
        a, b = self.shapes[a], self.shapes[b]
        return a[0] == b[0] and a[first:] == b[first:]

    def _window(self, kind, x):
        random = self.random
        n, channels, *plane = self.shapes[x]
        kernel = [random.choice([1, 2, 3, 3, 5]) for _ in plane]
        stride = random.choice([1, 1, 1, 2])
        pads = [k // 2 if random.random() < 0.8 else random.randint(0, k // 2) for k in kernel * 2]
        made = [(s + pads[d] + pads[d + 2] - kernel[d]) // stride + 1 for d, s in enumerate(plane)]
        if min(made) < 1:
            return
        options = {"pads": pads, "strides": [stride, stride]}
        if kind in ("conv", "depthwise"):
            group = channels if kind == "depthwise" else 1
            outputs = channels if kind == "depthwise" else random.randint(1, 8)
            weights = self.rng.standard_normal((outputs, channels // group, *kernel)) / np.sqrt(np.prod(kernel))
            name = f"w{len(self.weights)}"
            self.weights[name] = weights.astype(np.float32)
            self._node("Conv", [x, name], (n, outputs, *made), group=group, **options)
        else:
            operator = "MaxPool" if kind == "max" else "AveragePool"
            self._node(operator, [x], (n, channels, *made), kernel_shape=kernel, **options)

    def _node(self, operator, inputs, shape, **options):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **options))
        self.shapes[name] = shape

    def model(self, shape):
        if not self.nodes:
            self._node("Relu", ["x"], shape)
        read = {name for node in self.nodes for name in node.input}
        outputs = [name for name in self.shapes if name not in read]
        graph = helper.make_graph(
            self.nodes, "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name]) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


__all__ = ["Case", "case_of", "judged"]
