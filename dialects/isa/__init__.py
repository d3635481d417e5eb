"""Instruction level: the machine's instructions on buffers in its memories.

| operation | does |
|---|---|
| `program` | holds the program text |
| `external`, `alloc` | buffers in DRAM that the host knows; buffers of the program in any memory |
| `repeat` | a loop with pipeline stages |
| `copy` | moves a box of elements between memories |
| `line_buffer` | how the next convolution writes the line buffer |
| `conv` | convolution and matrix product |
| `depthwise`, `pool`, `unary`, `binary`, `softmax`, `hide`, `reduce`, `lrn`, `resize` | the vector unit |
| `fetch`, `table` | brings pages of the program, address tables |
| `barrier`, `wait` | draining, events |

The whole level: docs/ir-isa.md.

Names are loaded on first use: the machine reads `program.py` without loading xDSL.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frustum.dialects.isa.attributes import *  # noqa: F403
    from frustum.dialects.isa.operations import *  # noqa: F403
    from frustum.dialects.isa.program import *  # noqa: F403
    from frustum.dialects.isa.sync import *  # noqa: F403

_HOMES = ("program", "attributes", "operations", "sync", "instruction")


def __getattr__(name: str) -> Any:
    if name[0].isupper() or name == "emit":  # others are modules
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
