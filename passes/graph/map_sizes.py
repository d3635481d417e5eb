"""Whether the maps of a network have their place in DRAM, before anything works on their elements."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import FixedBitwidthType, TensorType

from frustum.dialects.graph import NetworkOp, shape_of
from frustum.dialects.target import Target
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.analysis.module import node_name


def check_dram(network: NetworkOp, target: Target) -> None:
    """DoesNotFit where inputs and outputs alone, of a byte for each element at least, are more than DRAM holds, or the
    result of a layer is: no plan of maps of 2^60 elements is worth the time."""
    given = (argument for argument in network.body.block.args if argument.uses)
    values = dict.fromkeys((*given, *network.terminator.values))
    needed, capacity = sum(prod(shape_of(value)) for value in values), target.chip.dram.capacity_bytes
    if needed > capacity:
        largest = max(values, key=lambda value: prod(shape_of(value)))
        what = f"the sum of inputs and outputs, the largest {'x'.join(map(str, shape_of(largest)))},"
        raise DoesNotFit(what, f"network '{network.sym_name.data}'", f"{needed} B", f"{capacity} B of dram")
    for op in network.body.walk():
        for result in op.results:
            if isinstance(result.type, TensorType) and isinstance(result.type.element_type, FixedBitwidthType):
                needed = prod(result.type.get_shape()) * result.type.element_type.size
                if needed > capacity:
                    where = f"'{node_name(op)}' ({op.name})"
                    raise DoesNotFit("the map that it gives", where, f"{needed} B", f"{capacity} B of dram")
