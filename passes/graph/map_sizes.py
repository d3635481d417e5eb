"""Whether every map of a network has its place in DRAM, before anything works on its elements."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import FixedBitwidthType, ModuleOp, TensorType
from xdsl.ir import SSAValue

from frustum.dialects.fit import DoesNotFit
from frustum.dialects.graph import NetworkOp
from frustum.dialects.target import Target
from frustum.passes.fuse.cuts import node_name


def check_maps_fit(module: ModuleOp, target: Target) -> None:
    """DoesNotFit where an input, or the result of a layer, is larger than a chip's DRAM."""
    for network in module.walk():
        if isinstance(network, NetworkOp):
            for number, argument in enumerate(network.body.block.args):
                _check(argument, f"input {number}", target)
            for op in network.body.walk():
                for result in op.results:
                    _check(result, f"'{node_name(op)}'", target)


def _check(value: SSAValue, where: str, target: Target) -> None:
    if isinstance(value.type, TensorType) and isinstance(value.type.element_type, FixedBitwidthType):
        needed = prod(value.type.get_shape()) * value.type.element_type.size
        available = target.chip.dram.capacity_bytes
        if needed > available:
            raise DoesNotFit("a feature map", where, f"{needed:,} B", f"{available:,} B of DRAM")
