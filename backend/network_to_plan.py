# Tests: test/runtime/tools/test_plan.py
"""Networks as the search over plans takes them: the passes of the graph level that every plan begins with."""

from __future__ import annotations

from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from frustum.backend.graph_passes import passes_of_trees
from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.choices import Carry
from frustum.dialects.graph import networks_of
from frustum.dialects.graph.axes import read_network
from frustum.dialects.module import DTYPE, TARGET, text_of
from frustum.dialects.target import Target, to_attribute
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.onnx.place_host import Placement


def networks_of_model(
    found: ModuleOp | Placement, target: Target, dtype: str | None = None, carry: Carry = "auto"
) -> list[AxisNetwork]:
    """The networks of an imported model that have layers: in others all are views, or on the host.

    Of a model in pieces they are called as their executables."""
    modules = [found] if isinstance(found, ModuleOp) else []
    if not isinstance(found, ModuleOp) and found.parts:
        stem = Path(found.parts[0].model.file).stem
        modules = [
            import_onnx(part.model, network=f"{stem}_{number}", whole=part.whole)
            for number, part in enumerate(found.parts) if part.kind != "host"
        ]  # fmt: skip
    networks = [network for module in modules for network in networks_to_plan(module, target, dtype, carry)]
    return [network for network in networks if network.layers]


def networks_to_plan(
    module: ModuleOp, target: Target, dtype: str | None = None, carry: Carry = "auto"
) -> list[AxisNetwork]:  # fmt: skip
    """The networks of an imported module, which is changed; `dtype`: the element type on the device (None: its own),
    `carry`: that of sums that wait."""
    context = Context()
    module.attributes[TARGET] = to_attribute(target)
    for step in passes_of_trees(dtype or text_of(module, DTYPE), carry):
        step.apply(context, module)
    return [read_network(network) for network in networks_of(module)]
