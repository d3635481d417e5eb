# Tests: test/runtime/tools/test_plan.py
"""Networks as the search over plans takes them: the passes of the graph level that every plan begins with."""

from __future__ import annotations

from typing import Literal, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.graph import networks_of
from frustum.dialects.graph.axes import read_network
from frustum.dialects.module import TARGET
from frustum.dialects.target import Target, to_attribute
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.composites.find_attention import FindAttention
from frustum.passes.graph.composites.find_normalise import FindNormalise
from frustum.passes.graph.composites.part_products import PartProducts
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.graph.fold_quantisation import FoldQuantisation
from frustum.passes.graph.fuse_residual import FuseResidual
from frustum.passes.graph.quantise import QuantiseNetwork
from frustum.passes.graph.split_reductions import SplitReductions
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.onnx.place_host import Placement


def networks_of_model(
    found: ModuleOp | Placement, stem: str, target: Target, dtype: str | None = None
) -> list[AxisNetwork]:
    """The networks of an imported model that have layers: in others all are views, or on the host.

    Of a model in pieces they are called `stem` and a number."""
    modules = [found] if isinstance(found, ModuleOp) else []
    if not isinstance(found, ModuleOp):
        parts = [part for part in found.parts if part.kind != "host"]
        modules = [import_onnx(part.model, network=f"{stem}_{k}", whole=part.whole) for k, part in enumerate(parts)]
    networks = [network for module in modules for network in networks_to_plan(module, target, dtype)]
    return [network for network in networks if network.layers]


def networks_to_plan(module: ModuleOp, target: Target, dtype: str | None = None) -> list[AxisNetwork]:
    """The networks of an imported module, which is changed; `dtype`: the element type on the device (None: its own)."""
    context = Context()
    module.attributes[TARGET] = to_attribute(target)
    steps: list[ModulePass] = [FindAttention(), FindNormalise(), QuantiseNetwork(), SplitReductions(), Canonicalize()]
    steps.append(FoldQuantisation())
    if dtype is not None:
        steps.append(ConvertType(to=cast(Literal["f32", "f16", "bf16"], dtype)))
    for step in (*steps, FuseResidual(), PartProducts(of_any_size=True)):
        step.apply(context, module)
    return [read_network(network) for network in networks_of(module)]
