"""Units given by hand: the layers behind which a network is cut.  For groupings that others published."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation

from frustum.dialects import graph as g
from frustum.dialects.diagnostic import did_you_mean
from frustum.passes.fuse.grow import Grown, LayerGraph
from frustum.passes.fuse.join import can_join
from frustum.passes.fuse.policy import PolicyError


def cut_units(network: g.NetworkOp, cuts: str) -> list[Grown]:
    """The layers up to each named one, from the one before it on, as a unit.

    A layer that shares units with no other is one of its own, and a unit also ends before a layer that reads it
    through a reshape.  Raises `PolicyError` for names that no layer has.
    """
    graph = LayerGraph(network)
    named = [word.strip() for word in cuts.split(",") if word.strip()]
    names = {name: i for i in graph.layers if (name := node_name(graph.op(i)))}
    unknown = [name for name in named if name not in names]
    if unknown:
        raise PolicyError(
            f"cuts: no layer is called '{unknown[0]}'{did_you_mean(unknown[0], list(names))} "
            f"(there are {len(names)} layers with names)"
        )
    last = {names[name] for name in named}
    found: list[Grown] = []
    unit: list[int] = []

    def close(reason: str) -> None:
        if unit:
            found.append(Grown(tuple(graph.ops(unit)), reason))
            unit.clear()

    for i in graph.layers:
        op = graph.op(i)
        if not can_join(op):
            close(f"{op.name.removeprefix('fgraph.')} follows")
            found.append(Grown((op,), "joins no other layer"))
            continue
        if unit and graph.section_of[graph.op(unit[-1])] != graph.section_of[op]:
            close("operations of other dialects follow")
        if reads_behind(graph, unit, i):
            close("the next layer reads it in another form")
        unit.append(i)
        if i in last:
            close(f"cut behind '{node_name(op)}'")
    close("end of the network")
    return found


def reads_behind(graph: LayerGraph, unit: Sequence[int], layer: int) -> bool:
    """The layer reads something that is no layer of the unit, but depends on it."""
    inside = set(unit)
    behind: set[int] = set()
    for i in range(unit[0] if unit else layer, layer):
        if i not in inside and any(read in inside or read in behind for read in graph.flow.reads_of[i]):
            behind.add(i)
    return any(read in behind for read in graph.flow.reads_of[layer])


def node_name(op: Operation) -> str:
    return op.location.desc.data if isinstance(op.location, NameLoc) else ""
