# Tests: test/passes/lower/tree/test_coarser.py
"""Loops with longer steps, in place of passes that a program would write out one after the other.

Where a step is a part of a position of some layer inside, a pass of the program has to make several of the plan's
(`loop_spans.py`).  With a step that is as long as those together it is one pass, if SRAM has room for its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from frustum.dialects.axes.network import AxisNetwork
from frustum.dialects.plan.count import Counted, count
from frustum.dialects.plan.tree import Loop, Node, Sequence


def coarser_plan(
    network: AxisNetwork, plan: Node, periods: Mapping[int, int], counted: Counted, capacity: int
) -> tuple[Node, Counted] | None:  # fmt: skip
    """The plan in which loops, by `id`, make so many of their passes at once, and its count.  None where it moves more
    bytes or does not fit, or there is no such loop."""
    if not periods:
        return None
    found = _merged(plan, periods)
    own = count(network, found)
    return (found, own) if own.dram_bytes <= counted.dram_bytes and own.sram_bytes <= capacity else None


def _merged(node: Node, periods: Mapping[int, int]) -> Node:
    match node:
        case Sequence():
            return replace(node, children=tuple(_merged(child, periods) for child in node.children))
        case Loop():
            body = _merged(node.body, periods)
            assert isinstance(body, Sequence)
            edges = (*node.edges[: -1 : periods.get(id(node), 1)], node.edges[-1])
            return replace(node, body=body, edges=edges)
    return node
