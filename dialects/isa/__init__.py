"""Instruction level: the machine's instructions on buffers in its memories.

| operation | does |
|---|---|
| `program` | holds the program text |
| `external`, `alloc` | buffers in DRAM that the host knows; buffers of the program in any memory |
| `repeat` | a loop with pipeline stages |
| `copy` | moves a box of elements between memories |
| `line_buffer` | how the next convolution writes the line buffer |
| `conv` | convolution and matrix product |
| `pool`, `unary`, `binary`, `softmax`, `reduce`, `lrn`, `resize` | the vector unit |
| `fetch`, `table` | brings pages of the program, address tables |
| `barrier`, `wait` | draining, events |

The whole level: docs/ir-isa.md.

Names are loaded on first use: the machine reads `program.py` without loading xDSL.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frustum.dialects.isa.attributes import DRAM, NRAM, SRAM, WRAM, BufferType
    from frustum.dialects.isa.dialect import FIsa
    from frustum.dialects.isa.instruction import Instruction
    from frustum.dialects.isa.line_buffer import LineBufferOp
    from frustum.dialects.isa.matrix import ConvOp
    from frustum.dialects.isa.program import Act, Affine, Box, Scale, Span, View, Wait, Wrap
    from frustum.dialects.isa.sync import (
        AllocOp,
        BarrierOp,
        ExternalOp,
        FetchOp,
        ProgramOp,
        RepeatOp,
        WaitOp,
    )
    from frustum.dialects.isa.table import TableOp
    from frustum.dialects.isa.transfer import CopyOp
    from frustum.dialects.isa.vector import (
        BinaryOp,
        LrnOp,
        PoolOp,
        ReduceOp,
        ResizeOp,
        SoftmaxOp,
        UnaryOp,
    )

_HOME = {
    "attributes": "DRAM NRAM SRAM WRAM BufferType",
    "dialect": "FIsa",
    "instruction": "Instruction",
    "line_buffer": "LineBufferOp",
    "matrix": "ConvOp",
    "program": "Act Affine Box Scale Span View Wait Wrap",
    "sync": "AllocOp BarrierOp ExternalOp FetchOp ProgramOp RepeatOp WaitOp",
    "table": "TableOp",
    "transfer": "CopyOp",
    "vector": "BinaryOp LrnOp PoolOp ReduceOp ResizeOp SoftmaxOp UnaryOp",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "DRAM",
    "NRAM",
    "SRAM",
    "WRAM",
    "Act",
    "Affine",
    "AllocOp",
    "BarrierOp",
    "BinaryOp",
    "Box",
    "BufferType",
    "ConvOp",
    "CopyOp",
    "ExternalOp",
    "FIsa",
    "FetchOp",
    "Instruction",
    "LineBufferOp",
    "LrnOp",
    "PoolOp",
    "ProgramOp",
    "ReduceOp",
    "RepeatOp",
    "ResizeOp",
    "Scale",
    "SoftmaxOp",
    "Span",
    "TableOp",
    "UnaryOp",
    "View",
    "Wait",
    "WaitOp",
    "Wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
