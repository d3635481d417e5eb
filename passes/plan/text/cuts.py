# Tests: test/runtime/model/test_plan_units.py
"""Cuts of plans as people write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Operation

from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.plan.check import PlanError
from frustum.passes.analysis.module import node_name
from frustum.passes.plan.tree.wishes import GivenCuts


def cuts_after(networks: Sequence[AxisNetwork], text: str) -> list[GivenCuts]:
    """Of each network the cuts after these of its layers: by their names in plans, or as the model calls the operation,
    of which all layers stay together.  PlanError for names that none has, and for none."""
    known = [names_of(network) for network in networks]
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise PlanError("cuts: no layer is named (for one unit name the last layer, for the best units leave cuts out)")
    every = list(dict.fromkeys(name for names in known for name in names))
    unknown = [word for word in words if word not in every]
    if unknown:
        raise PlanError(
            f"cuts: no layer is called '{unknown[0]}'{did_you_mean(unknown[0], every)}"
            f" (there are {sum(len(network.layers) for network in networks)} layers)"
        )
    return [GivenCuts(frozenset(names[word] for word in words if word in names)) for names in known]


def names_of(network: AxisNetwork) -> Mapping[str, str]:
    """What a layer may be called, and its name; an operation is called for its last layer."""
    ops = {name: layer.name for layer in network.layers if (name := node_name(source_of(layer)))}
    return ops | {layer.name: layer.name for layer in network.layers}


def source_of(layer: Layer) -> Operation:
    """The operation that a layer is of."""
    assert isinstance(layer.source, Operation), f"{layer.name} is of no operation"
    return layer.source
