"""Graph level: a network's operators on tensors of static shape, in NCHW order.

| operation | is |
|---|---|
| `network`, `output` | the network: inputs as block arguments, outputs as the terminator's operands |
| `weight` | a constant: key and type; the bytes are in the store the module names |
| `quantize`, `dequantize` | between f32 and the integers that stand for it |
| `conv`, `matmul` | products, with bias and activation |
| `attention` | of queries to keys, all heads |
| `pool`, `reduce`, `softmax`, `lrn`, `resize` | windows and sums |
| `unary`, `binary` | element by element |
| `recurrence`, `yield` | a body for each step of time, with states that it hands on |
| `concat`, `slice`, `pad`, `reshape`, `transpose`, `interleave` | moves |

The whole level: docs/ir-graph.md.
"""

from xdsl.ir import Dialect

from frustum.dialects.functions import *  # noqa: F403
from frustum.dialects.graph import attention, layers, network, products, recurrence, scales, views
from frustum.dialects.graph import attributes as a
from frustum.dialects.graph.attention import *  # noqa: F403
from frustum.dialects.graph.attributes import *  # noqa: F403
from frustum.dialects.graph.declaration import declared_in
from frustum.dialects.graph.layers import *  # noqa: F403
from frustum.dialects.graph.network import *  # noqa: F403
from frustum.dialects.graph.products import *  # noqa: F403
from frustum.dialects.graph.recurrence import *  # noqa: F403
from frustum.dialects.graph.scales import *  # noqa: F403
from frustum.dialects.graph.views import *  # noqa: F403

FGraph: Dialect = Dialect(
    "fgraph",
    [
        *(network.NetworkOp, network.OutputOp, network.WeightOp, network.CallOp),
        *(recurrence.RecurrenceOp, recurrence.StepYieldOp),
        *(op for module in (products, attention, layers, views) for op in declared_in(module)),
    ],
    [
        *(a.ActAttr, a.PoolingAttr, a.ReductionAttr, a.ArithmeticAttr, a.InterpolationAttr, a.RoundingAttr),
        a.BorderAttr,
        scales.ScaleAttr,
    ],
)
