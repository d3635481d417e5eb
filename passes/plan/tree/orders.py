# Tests: test/passes/plan/tree/test_orders.py
"""Orders of a network's layers that the search tries: as in the file, branch by branch, level by level.

Units are intervals of the order.  Branch by branch a tensor is read soon after it is made; level by level branches that
read the same tensor lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.recurrence import recurrences_of
from frustum.dialects.plan.check import operands_of


def other_orders(network: AxisNetwork) -> Iterator[AxisNetwork]:
    """The network with its layers in each other order, where that differs.  Steps of a recurrence keep theirs."""
    if recurrences_of(network.layers):
        return
    seen = [network.layers]
    for order in (branch_by_branch(network), level_by_level(network)):
        if order not in seen:
            seen.append(order)
            yield AxisNetwork(network.name, order, network.tensors)


def branch_by_branch(network: AxisNetwork) -> list[Layer]:
    """Each layer right behind all that only it needs of what is missing."""
    found: dict[Layer, None] = {}
    for last in network.layers:
        waiting = [last] if last.result.is_output or not network.readers.get(last.result) else []
        while waiting:
            layer = waiting[-1]
            missing = [made for made in makers_of(network, layer) if made not in found]
            if missing:
                waiting.append(missing[0])
            else:
                found[waiting.pop()] = None
    return list(found)


def level_by_level(network: AxisNetwork) -> list[Layer]:
    """By the most layers between a layer and the inputs."""
    level: dict[Layer, int] = {}
    for layer in network.layers:
        level[layer] = 1 + max((level[made] for made in makers_of(network, layer)), default=0)
    return sorted(network.layers, key=level.__getitem__)


def makers_of(network: AxisNetwork, layer: Layer) -> Sequence[Layer]:
    """The layers that make what a layer reads."""
    return [network.maker[tensor] for tensor in operands_of(layer) if tensor in network.maker]
