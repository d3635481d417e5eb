"""`frustum-hold-stationary`: what it leaves where it is, and right numbers in checked mode."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser

import frustum
from frustum.backend.set_target import SetTarget
from frustum.backend.stationary import HoldStationary
from frustum.dialects.isa.operations import CopyOp, FIsa
from frustum.dialects.isa.sync import RepeatOp

PROGRAM = """
builtin.module attributes {{frustum.dtype = "f32", frustum.layers = ["sum"], frustum.units = ["u0"]}} {{
  fisa.program @main {{
    %all = fisa.alloc bytes {all_bytes} : !fisa.buffer<sram>
    fisa.repeat 5 {{
      fisa.repeat 3 {{
        %piece = fisa.alloc bytes {bytes} {copies} : !fisa.buffer<nram>
        %sum = fisa.alloc bytes 32 : !fisa.buffer<nram>
        fisa.copy mvdma %all <f32, {offset}, [0, 0, 32, 4]{wrap}> -> %piece <f32, {place}, [0, 0, 32, 4]> box <0 : 1 in 1, 0 : 1 in 1, {start} : 1 in 3{limit}, 0 : 8 in 8> : !fisa.buffer<sram> -> !fisa.buffer<nram>
        {more}
        fisa.unary relu %piece <f32, 0, [0, 0, 32, 4]> -> %sum <f32, 0, [0, 0, 32, 4]> box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8>
      }}
    }}
  }}
}}
"""  # noqa: E501  # instructions are lines
PLAIN = {
    "all_bytes": 96, "bytes": 32, "copies": "depth 2", "offset": "32*i1", "wrap": "", "place": "0", "start": "1*i1",
    "limit": "", "more": "",
}  # fmt: skip
BACK = (
    "fisa.copy mvdma %sum <f32, 0, [0, 0, 32, 4]> -> %all <f32, 0, [0, 0, 32, 4]> "
    "box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8> : !fisa.buffer<nram> -> !fisa.buffer<sram>"
)
IN_PLACE = (
    "fisa.unary relu %piece <f32, 0, [0, 0, 32, 4]> -> %piece <f32, 0, [0, 0, 32, 4]> "
    "box <0 : 1 in 1, 0 : 1 in 1, 0 : 1 in 1, 0 : 8 in 8>"
)


def depth_of_copy(**other):
    """The number of loops around the copy to the core, when the pass is done."""
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(FIsa)
    module = Parser(context, PROGRAM.format(**PLAIN | other)).parse_module()
    SetTarget(target="edge").apply(context, module)
    HoldStationary().apply(context, module)
    module.verify()
    copy = next(op for op in module.walk() if isinstance(op, CopyOp))
    depth, around = 0, copy.parent_op()
    while isinstance(around, RepeatOp):
        depth, around = depth + 1, around.parent_op()
    return depth


@pytest.mark.parametrize(
    ("other", "depth"),
    [
        ({}, 1),  # in front of the outer loop, with one over pieces
        ({"offset": "0", "start": "0"}, 0),  # the same in all passes of both
        ({"offset": "32*i0", "start": "1*i0"}, 1),  # of the inner loop alone
        ({"offset": "32*i0 + 32*i1", "start": "1*i0 + 1*i1"}, 2),  # both move it
        ({"limit": " to 4 - 1*i0"}, 2),  # it is not there in all passes
        ({"copies": "rolling 2"}, 2),  # what stays of it is another pass's
        ({"more": BACK}, 2),  # its source changes
        ({"more": IN_PLACE}, 2),  # it changes itself
        ({"all_bytes": 98304, "bytes": 32768}, 2),  # three pieces are more than the core has beside the sums
    ],
)
def test_where_copies_stand(other, depth):
    assert depth_of_copy(**other) == depth


def recurrent(steps=66, size=32):
    """An LSTM of so many steps."""
    rng, shape = np.random.default_rng(3), (1, 4 * size, size)
    weights = {name: rng.standard_normal(shape) / size**0.5 for name in ("W", "R")}
    node = helper.make_node("LSTM", ["x", *weights], ["y"], hidden_size=size)
    graph = helper.make_graph(
        [node], "lstm", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, 1, size))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (steps, 1, 1, size))],
        [numpy_helper.from_array(each.astype(np.float32), name) for name, each in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow
def test_steps_in_time_find_their_weights_in_the_cores(monkeypatch):
    """The same values, in checked mode; weights pass between SRAM and cores once, not in each step."""
    model, x = recurrent(), np.random.default_rng(4).standard_normal((66, 1, 32)).astype(np.float32)

    def run():
        found = frustum.run(frustum.compile(model, "edge", "f32", policy="tree"), {"x": x}, checked=True)
        engines = found.report["engines"].items()
        moved = sum(each["bytes"] for name, each in engines if "mvdma" in name)
        return found.outputs["y"], found.report["cycles"]["total"], moved

    values, cycles, moved = run()
    monkeypatch.setattr(HoldStationary, "apply", lambda *_: None)
    others, more_cycles, more_moved = run()
    np.testing.assert_array_equal(values, others)
    assert moved < more_moved / 2 and cycles < more_cycles
