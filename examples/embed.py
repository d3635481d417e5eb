"""Frustum's passes inside another xDSL compiler: operations of other dialects are left alone.

    python examples/embed.py

A host program (dialects `func` and `arith`) stands in one module with a network; the passes cut the network into
units with partitions for a machine, and the host program stays as it is.
"""

from xdsl.context import Context
from xdsl.dialects import arith, builtin, func
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import PassPipeline

from frustum.backend.set_target import SetTarget
from frustum.dialects.graph import FGraph
from frustum.dialects.unit import FUnit
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.graph.canonicalize import Canonicalize

TEXT = """
builtin.module {
  func.func @host(%a : i32) -> i32 {
    %b = arith.addi %a, %a : i32
    func.return %b : i32
  }
  fgraph.network @net (%x : tensor<1x8x32x32xf32>) inputs ["x"] outputs ["y"] {
    %p = fgraph.pool max %x kernel [3, 3] strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] ceil_pads [0, 0]
      : (tensor<1x8x32x32xf32>) -> tensor<1x8x32x32xf32>
    %y = fgraph.unary <relu> %p : tensor<1x8x32x32xf32>
    fgraph.output %y : tensor<1x8x32x32xf32>
  }
}
"""


def context() -> Context:
    """The other compiler's dialects beside ours."""
    made = Context()
    for dialect in (builtin.Builtin, func.Func, arith.Arith, FGraph, FUnit):
        made.load_dialect(dialect)
    return made


def compiled() -> ModuleOp:
    """The module after the passes."""
    ctx = context()
    module = Parser(ctx, TEXT).parse_module()
    PassPipeline((SetTarget("edge"), Canonicalize(), FuseLayers("pyramid"))).apply(ctx, module)
    module.verify()
    return module


if __name__ == "__main__":
    print(compiled())
