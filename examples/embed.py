"""Frustum's passes inside another xDSL compiler, which has a dialect of its own.

    python examples/embed.py

The other compiler has a function with neural layers (`fgraph`), an operation of its own between them (`acme.sharpen`),
and host code (`arith`).  Its pipeline runs Frustum's passes beside a pass of its own:

1. `frustum-graph-outline` makes networks of the layers before and behind `acme.sharpen`, and calls of them
2. Frustum's pipeline compiles every network to a program (`fisa`) for a machine
3. `acme-to-call` lowers what is the other compiler's own: `acme.sharpen` becomes a call of a library function

No pass of Frustum moves or changes what is not Frustum's.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, builtin, func
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Dialect
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, result_def
from xdsl.parser import Parser
from xdsl.passes import ModulePass, PassPipeline
from xdsl.rewriter import Rewriter

from frustum.backend.pipeline import STOPS, Choices, passes_to
from frustum.backend.set_target import SetTarget
from frustum.dialects.graph import FGraph
from frustum.dialects.isa import FIsa
from frustum.passes.graph.outline import OutlineNetworks


@irdl_op_definition
class SharpenOp(IRDLOperation):
    """The other compiler's own operation on images."""

    name = "acme.sharpen"
    image = operand_def(TensorType)
    strength = prop_def(builtin.FloatAttr)
    result = result_def(TensorType)
    assembly_format = "$image `by` $strength attr-dict `:` type($image) `->` type($result)"


ACME = Dialect("acme", [SharpenOp])


@dataclass(frozen=True)
class AcmeToCall(ModulePass):
    """Lower `acme.sharpen` to a call of the library."""

    name = "acme-to-call"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for sharpen in [inner for inner in op.walk() if isinstance(inner, SharpenOp)]:
            strength = arith.ConstantOp(sharpen.strength)
            call = func.CallOp("acme_sharpen", [sharpen.image, strength.result], [sharpen.result.type])
            Rewriter.replace_op(sharpen, [strength, call])


TEXT = """
builtin.module {
  func.func private @acme_sharpen(tensor<1x8x16x16xf32>, f32) -> tensor<1x8x16x16xf32>
  func.func @camera(%image : tensor<1x8x32x32xf32>, %count : i32) -> (tensor<1x8x16x16xf32>, i32) {
    %next = arith.addi %count, %count : i32
    %small = fgraph.pool max %image kernel [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] ceil_pads [0, 0]
      : (tensor<1x8x32x32xf32>) -> tensor<1x8x16x16xf32>
    %sharp = acme.sharpen %small by 5.0e-01 : f32 : tensor<1x8x16x16xf32> -> tensor<1x8x16x16xf32>
    %soft = fgraph.unary <sigmoid> %small : tensor<1x8x16x16xf32>
    %both = fgraph.binary add %sharp, %soft
      : (tensor<1x8x16x16xf32>, tensor<1x8x16x16xf32>) -> tensor<1x8x16x16xf32>
    func.return %both, %next : tensor<1x8x16x16xf32>, i32
  }
}
"""


def context() -> Context:
    """The other compiler's dialects beside Frustum's."""
    made = Context()
    for dialect in (builtin.Builtin, func.Func, arith.Arith, ACME, FGraph, FIsa):
        made.load_dialect(dialect)
    return made


def pipeline() -> tuple[ModulePass, ...]:
    """The other compiler's passes and Frustum's in one list."""
    ours = (step for stop in STOPS[1:] for step in passes_to(stop, Choices()))
    return (SetTarget("edge"), OutlineNetworks(), *ours, AcmeToCall())


def compiled() -> ModuleOp:
    """The module after all passes; verified behind each."""
    ctx = context()
    module = Parser(ctx, TEXT).parse_module()
    PassPipeline(pipeline(), lambda before, module, behind: module.verify()).apply(ctx, module)
    return module


if __name__ == "__main__":
    print(compiled())
