"""What a network takes, told by its module before it is compiled."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr

from frustum.dialects import graph
from frustum.dialects.isa.program import Element, External
from frustum.dialects.module import MODEL_DTYPES
from frustum.runtime.device.memory import DTYPES
from frustum.runtime.failures import UsageError
from frustum.runtime.reference.graph import numpy_type

__all__ = ["network_inputs"]


def network_inputs(module: ModuleOp) -> list[External] | None:
    """What a network takes, as far as a machine checks it; None for a module that has no network any more."""
    network = next((op for op in module.walk() if isinstance(op, graph.NetworkOp)), None)
    if network is None:
        return None
    noted = network.attributes.get(MODEL_DTYPES)
    dtypes = [a.data for a in noted.data if isinstance(a, StringAttr)] if isinstance(noted, ArrayAttr) else []
    found = []
    for index, (name, value) in enumerate(zip(network.inputs, network.body.block.args, strict=True)):
        own = numpy_type(graph.tensor_of(value).element_type)
        element: Element | None = next((element for element, dtype in DTYPES.items() if dtype == own), None)
        if element is None:
            raise UsageError(
                f"error: input '{name}' has elements of {graph.tensor_of(value).element_type}, which no engine of the "
                f"device computes: allowed are {', '.join(DTYPES)}"
            )
        dtype = dtypes[index] if dtypes else ""
        found.append(External(name, "input", 0, 0, graph.shape_of(value), element, dtype))
    return found
