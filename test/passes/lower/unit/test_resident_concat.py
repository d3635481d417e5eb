"""Maps of several units, side by side in SRAM, and a channel shuffle of them: written as tiles, run on the machine."""

from __future__ import annotations

import numpy as np
import pytest
from stops import aimed, executable
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser
from xdsl.utils.exceptions import PassFailedException

from frustum.backend.pipeline import Choices, Run
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.sync import AllocOp, ProgramOp
from frustum.passes.weights import WeightStore, attach
from frustum.runtime.machine import Machine
from frustum.runtime.universe import DIALECTS, load

UNARY = 'params {kind = "relu", alpha = 0.0 : f64, beta = 0.0 : f64}'
SAME = "access [#ftile.access<same, same, same, same>]"
FIRST = "!ftile.tile<f32, [1, 2, 4, 8], [0, 1, 2, 3], origin [0, 0, 0, 0]>"
SECOND = FIRST.replace("[1, 2, 4", "[1, 4, 4")
BOTH = FIRST.replace("[1, 2, 4", "[1, 6, 4")


def rectified(name, value, channels, kept):
    """A unit that reads a tensor in steps of 2 rows and leaves all of its rectified map in SRAM."""
    box = f"<0 : 1 in 1, 0 : {channels} in {channels}, 2*i2 : 2 in 4, 0 : 8 in 8>"
    moving = f"!ftile.tile<f32, [1, {channels}, 2, 8], [0, 1, 2, 3]>"
    tensor = f"tensor<1x{channels}x4x8xf32>"
    return f"""
    %{name} = ftile.unit "{name}" (%p = %{value} : {tensor}) -> ({kept}) counts [1, 1, 2, 1] clusters 0 depth 2 {{}} {{
      %t = ftile.load %p view <0, [{channels * 32}, 32, 8, 1]> region {box} : {tensor} -> {moving}
      %r = ftile.compute "unary"(%t) region {box} {SAME} map {submap([1, channels, 1, 8], 2)}
        {UNARY} : ({moving}) -> {kept}
      ftile.yield %r : {kept}
    }}"""


def submap(extent, cores):
    return f"<extent {extent}, cores {cores}, channels 0, outer space, weights unit>"


def module(kind, access, params, piece=2):
    """Two maps of 2 and 4 channels, one behind the other; one layer on the 6 channels of both."""
    whole = "<0 : 1 in 1, 0 : 6 in 6, 0 : 4 in 4, 0 : 8 in 8>"
    out = "!ftile.tile<f32, [1, 6, 4, 8], [0, 1, 2, 3]>"
    return f"""
builtin.module attributes {{frustum.dtype = "f32"}} {{
  fgraph.network @net (%x : tensor<1x2x4x8xf32>, %y : tensor<1x4x4x8xf32>) inputs ["x", "y"] outputs ["z"] {{
    {rectified("a", "x", 2, FIRST)}
    {rectified("b", "y", 4, SECOND)}
    %c = ftile.concat %a, %b : ({FIRST}, {SECOND}) -> {BOTH}
    %z = ftile.unit "c" (%t = %c : {BOTH}) -> (tensor<1x6x4x8xf32>) counts [1, 1, 1, 1] clusters 0 depth 1 {{}} {{
      %r = ftile.compute "{kind}"(%t) region {whole} access [#ftile.access<{access}>] map {submap([1, piece, 4, 8], 1)}
        params {params} : ({BOTH}) -> {out}
      ftile.store %r to 0 : i64 view <0, [192, 32, 8, 1]> region {whole} : {out}
      ftile.yield
    }}
    fgraph.output %z : tensor<1x6x4x8xf32>
  }}
}}"""


def run(text):
    """The lowered module, the inputs by name, and what the machine makes of them in checked mode."""
    context = Context()
    context.load_dialect(Builtin)
    for name, place in DIALECTS:
        context.register_dialect(name, lambda place=place: load(place))
    read = Parser(context, text).parse_module()
    attach(read, WeightStore())
    lowered = aimed(read, "edge")
    Run().advance(lowered, ["lowered"], Choices())
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((1, 2, 4, 8), np.float32),
        "y": rng.standard_normal((1, 4, 4, 8), np.float32),
    }
    outputs = Machine(executable(lowered)).run(inputs, mode="full", checked=True).outputs
    both = np.concatenate([inputs["x"], inputs["y"]], 1)
    return lowered, np.maximum(both, 0), outputs["z"]


def test_maps_of_two_units_lie_side_by_side_in_one_buffer():
    lowered, wanted, found = run(module("unary", "same, same, same, same", UNARY.removeprefix("params ")))
    np.testing.assert_array_equal(found, wanted)
    program = next(op for op in lowered.walk() if isinstance(op, ProgramOp))
    both = next(
        op for op in program.body.block.ops if isinstance(op, AllocOp) and op.bytes.value.data == 6 * 32 * 4
    )
    written = [
        op.dst_view.data.offset.base
        for op in program.walk()
        if isinstance(op, CopyOp) and op.dst is both.buffer
    ]
    assert sorted(written) == [0, 2 * 32 * 4]  # the second behind the two channels of the first


@pytest.mark.parametrize("groups", [2, 3])
def test_a_shuffle_takes_channels_from_every_group_in_turn(groups):
    text = module("shuffle", "same, all 6, same, same", f"{{groups = {groups} : i64}}", groups)
    lowered, wanted, found = run(text)
    np.testing.assert_array_equal(
        found, wanted.reshape(1, groups, 6 // groups, 4, 8).swapaxes(1, 2).reshape(1, 6, 4, 8)
    )
    assert not any(op.name == "fisa.unary" and op.layer.value.data == 2 for op in lowered.walk())


def test_a_tile_of_two_concatenations_is_refused():
    text = module("unary", "same, same, same, same", UNARY.removeprefix("params "))
    twice = text.replace(
        '    %z = ftile.unit "c"',
        f'    %d = ftile.concat %b, %a : ({SECOND}, {FIRST}) -> {BOTH}\n    %z = ftile.unit "c"',
    )
    with pytest.raises(PassFailedException, match="a tile would have to begin at channels"):
        run(twice)
