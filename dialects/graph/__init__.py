"""Graph level: a network's operators on tensors of static shape, in NCHW order.

| operation | is |
|---|---|
| `network`, `output` | the network: inputs as block arguments, outputs as the terminator's operands |
| `weight` | a constant: key and type; the bytes are in the store the module names |
| `quantize`, `dequantize` | between f32 and the integers that stand for it |
| `conv`, `matmul` | products, with bias and activation |
| `pool`, `reduce`, `softmax`, `lrn`, `resize` | windows and sums |
| `unary`, `binary` | element by element |
| `concat`, `slice`, `pad`, `reshape`, `transpose`, `interleave` | moves |

The whole level: docs/ir-graph.md.
"""

from xdsl.ir import Dialect

from frustum.dialects.functions import Arithmetic, Function, Interpolation, Pooling, Reduction, Rounding
from frustum.dialects.graph.attributes import (
    Act,
    ActAttr,
    ArithmeticAttr,
    Floats,
    InterpolationAttr,
    Ints,
    PoolingAttr,
    ReductionAttr,
    RoundingAttr,
    shape_of,
    tensor_of,
    tensor_type,
)
from frustum.dialects.graph.layers import (
    BinaryOp,
    DequantizeOp,
    LrnOp,
    PoolOp,
    QuantizeOp,
    ReduceOp,
    ResizeOp,
    SoftmaxOp,
    UnaryOp,
)
from frustum.dialects.graph.network import CallOp, NetworkOp, OutputOp, WeightOp, networks_of
from frustum.dialects.graph.products import ConvOp, MatmulOp
from frustum.dialects.graph.scales import Scale, ScaleAttr, bounds, is_integer
from frustum.dialects.graph.views import (
    ConcatOp,
    InterleaveOp,
    PadOp,
    PickOp,
    ReshapeOp,
    ShuffleOp,
    SliceOp,
    TransposeOp,
    TurnOp,
    root_of,
)

__all__ = [
    "Act",
    "ActAttr",
    "Arithmetic",
    "BinaryOp",
    "CallOp",
    "ConcatOp",
    "ConvOp",
    "DequantizeOp",
    "FGraph",
    "Floats",
    "Function",
    "InterleaveOp",
    "Interpolation",
    "Ints",
    "LrnOp",
    "MatmulOp",
    "NetworkOp",
    "OutputOp",
    "PadOp",
    "PickOp",
    "PoolOp",
    "Pooling",
    "QuantizeOp",
    "ReduceOp",
    "Reduction",
    "ReshapeOp",
    "ResizeOp",
    "Rounding",
    "Scale",
    "ScaleAttr",
    "ShuffleOp",
    "SliceOp",
    "SoftmaxOp",
    "TransposeOp",
    "TurnOp",
    "UnaryOp",
    "WeightOp",
    "bounds",
    "is_integer",
    "networks_of",
    "root_of",
    "shape_of",
    "tensor_of",
    "tensor_type",
]

FGraph = Dialect(
    "fgraph",
    [
        NetworkOp,
        OutputOp,
        WeightOp,
        CallOp,
        QuantizeOp,
        DequantizeOp,
        ConvOp,
        MatmulOp,
        PoolOp,
        ReduceOp,
        SoftmaxOp,
        LrnOp,
        ResizeOp,
        InterleaveOp,
        UnaryOp,
        BinaryOp,
        ConcatOp,
        ShuffleOp,
        PickOp,
        TurnOp,
        SliceOp,
        PadOp,
        ReshapeOp,
        TransposeOp,
    ],
    [
        ActAttr,
        PoolingAttr,
        ReductionAttr,
        ArithmeticAttr,
        InterpolationAttr,
        RoundingAttr,
        ScaleAttr,
    ],
)
