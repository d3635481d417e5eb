"""One small network at every stop of the pipeline, as a page: `python examples/stops.py > docs/stops.md`.

A residual block on a machine whose SRAM holds a few rows of each map only, so that the block becomes one rolling unit.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from io import StringIO

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.printer import Printer

from frustum.backend import targets
from frustum.backend.pipeline import STOPS, Choices, Run
from frustum.dialects.graph import NetworkOp
from frustum.dialects.isa.sync import ProgramOp
from frustum.dialects.module import TARGET
from frustum.dialects.target import Target, to_attribute
from frustum.passes.onnx.import_onnx import import_onnx

CHANNELS, HEIGHT, WIDTH = 8, 64, 48
SRAM_BYTES = 40 << 10

HEAD = f"""# One network at every stop

Written by `make docs` (examples/stops.py); a test compares it with what the compiler gives.
The network is a residual block: two convolutions of 3 x 3 with {CHANNELS} channels on {HEIGHT} x {WIDTH}, an addition,
a maximum pool, in f32. The machine is `edge` with {SRAM_BYTES >> 10} KiB of SRAM and one core: a map has
{CHANNELS * HEIGHT * WIDTH * 4 >> 10} KiB, so nothing of it stays whole on chip. `frustum run MODEL --dump-ir DIR`
writes the same for any network, and every file continues from where it is.
"""
SAYS = {
    "imported": """What the file says, with its names and its order; weights are named, their numbers lie beside
the text.""",
    "typed": """Simplified, in the types of the device. The addition has become an operand of the convolution before
it: the matrix unit adds it on the way out, at no cycles.""",
    "fused": """All layers in one unit, with how it is cut (`exchange`: rows are kept, nothing is computed twice),
each layer with the piece that a core takes at a time, and why the unit ends.""",
    "tiled": "The same; layouts of maps between units are chosen (there are none here).",
    "placed": """The unit as a loop over steps of rows. Maps of which rows are kept are rings: a step makes the next
rows of each layer, ahead of the layers that need them; regions are affine in the step.""",
    "lowered": """Instructions on buffers that have no address yet: copies into and out of rings (`wrap`),
convolutions on pieces, loops with stages for what runs ahead.""",
    "fixed": """The same with addresses, and with the counters that instructions signal and wait for. The next step
is bytes.""",
}


def model() -> onnx.ModelProto:
    """x -> conv -> relu -> conv -> + x -> relu -> max pool."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.normal(0, 0.1, (CHANNELS, CHANNELS, 3, 3)).astype(np.float32), name)
        for name in ("first_weights", "second_weights")
    ]
    nodes = [
        helper.make_node("Conv", ["x", "first_weights"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "first_relu"),
        helper.make_node("Conv", ["b", "second_weights"], ["c"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "x"], ["d"], "sum"),
        helper.make_node("Relu", ["d"], ["e"], "sum_relu"),
        helper.make_node("MaxPool", ["e"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, CHANNELS, HEIGHT, WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CHANNELS, HEIGHT // 2, WIDTH // 2])
    graph = helper.make_graph(nodes, "block", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def machine() -> Target:
    """`edge` with little SRAM and one core."""
    edge = targets.load("edge")
    cluster = replace(edge.cluster, cores=1, sram=replace(edge.cluster.sram, capacity_bytes=SRAM_BYTES))
    return replace(edge, chip=replace(edge.chip, cluster=cluster))


def page() -> str:
    """The whole page."""
    module = import_onnx(model())
    module.attributes[TARGET] = to_attribute(machine())
    parts = [HEAD]

    def at_stop(stop: str, reached: ModuleOp) -> None:
        parts.append(f"## `{stop}`\n\n{SAYS[stop]}\n\n```mlir\n{text(reached)}\n```\n")

    at_stop(STOPS[0], module)
    Run(at_stop).advance(module, STOPS[1:], Choices(policy="optimal"))
    return "\n".join(parts)


def text(module: ModuleOp) -> str:
    """The network or program of a module, without the module's attributes (the machine and names for reports)."""
    found: Operation = next(op for op in module.walk() if isinstance(op, NetworkOp | ProgramOp))
    out = StringIO()
    Printer(stream=out).print_op(found)
    return out.getvalue().strip()


if __name__ == "__main__":
    sys.stdout.write(page())
