# Tests: test/dialects/plan/test_carried.py
"""Loops whose passes hand states to later passes: rule 1 of docs/ir-plan.md for what is read before it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class
from frustum.dialects.axes.network import Combine, Layer
from frustum.dialects.axes.recurrence import AxisRecurrence, earlier_along, is_at_own_position
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.tree import Compute, Halo, Loop, Node, Over, Resident, layers_in, nodes_in
from frustum.dialects.plan.tree import Sequence as InOrder

ClassOf: TypeAlias = Callable[[Loop], tuple[Axis, Class, list[Layer]]]
"""The axis of a loop, its class, and the layers inside."""
RUNNING = ("the maximum", "the sum", "the factor of what was weighed before")
"""Numbers, of f32, that an online reduction hands from pass to pass for each position that stays."""
SUM, FACTOR = 1, 2
"""Places of the last two."""


@dataclass(frozen=True, eq=False)
class Carrying:
    """A loop in whose passes the layers of a recurrence make one position each."""

    loop: Loop
    recurrence: AxisRecurrence

    @property
    def rolls(self) -> bool:
        """Whether rows stay in SRAM from pass to pass."""
        return self.loop.halo is Halo.ROLLING


def loops_around(plan: Node) -> dict[str, tuple[Loop, ...]]:
    """Of every layer the loops that enclose it, outermost first."""
    return dict(_around(plan, ()))


def _around(node: Node, loops: tuple[Loop, ...]) -> Iterator[tuple[str, tuple[Loop, ...]]]:
    match node:
        case Compute():
            yield from ((name, loops) for name in node.layers)
        case Loop():
            yield from _around(node.body, (*loops, node))
        case InOrder():
            for child in node.children:
                yield from _around(child, loops)


def why_not_before(reader: Layer, maker: Layer, loops: Sequence[Loop], class_of: ClassOf) -> str:
    """Why a layer may not read the result of one that stands after it, or its own, inside these common loops; nothing
    where it may."""
    tensor = maker.result
    axis = earlier_along(reader, tensor)
    if axis is None:
        return f"{reader.name} reads {tensor.name}, which is made after it: move its maker before it"
    where = f"{reader.name} reads {tensor.name} of earlier steps along {axis.name}"
    groups = [(loop, class_of(loop)) for loop in loops]
    over = [(loop, named) for loop, (named, group, _) in groups if axis in group]
    one = f"for {axis.name} step 1 of {axis.extent}"
    if not over:
        them = "it" if reader is maker else f"it and {maker.name}"
        return f"{where}: put {them} inside one '{one}'"
    if len(over) > 1:
        return f"{where}: {len(over)} loops over {axis.name} are around it; leave one, '{one}'"
    loop, named = over[0]
    if loop.edges != tuple(range(axis.extent + 1)) or named.extent != axis.extent:
        return f"{where}: the loop around it makes several steps at once; make it '{one}'"
    said = {
        f"over {loop.over}": loop.over is not Over.TIME, f"map {loop.order}": bool(loop.order),
        "pipelined": loop.is_pipelined,
    }  # fmt: skip
    if any(said.values()):
        wrong = next(modifier for modifier, is_said in said.items() if is_said)
        return f"{where}: its steps follow each other; leave out '{wrong}'"
    for other, (_, group, _) in groups:
        if axis not in group and not is_at_own_position(reader, tensor, group):
            return f"{where}, at several positions along {other.axis}: leave out the loop over it"
    return ""


def carrying_of(
    found: Iterable[AxisRecurrence], loops: Mapping[str, tuple[Loop, ...]], class_of: ClassOf
) -> Iterator[Carrying]:
    """The loops that carry recurrences; none for those of a plan that breaks rule 1."""
    for each in found:
        around = loops[each.layers[0].name]
        yield from (Carrying(loop, each) for loop in around if each.axis in class_of(loop)[1])


def running_bytes(positions: int) -> int:
    """Of the numbers of so many positions."""
    return 4 * len(RUNNING) * positions


def hands_on_statistics(layer: Layer, loops: Iterable[Loop], class_of: ClassOf) -> bool:
    """Whether a layer in these loops makes statistics of its reader's operand in several passes, which hand on running
    numbers."""
    if layer.role != "sums":
        return False
    reduced = {axis for axis, rule in layer.combine.items() if axis not in layer.result.axes and rule is Combine.SUM}
    return any(loop.passes > 1 and reduced & class_of(loop)[1] for loop in loops)


def running_axes(
    maker: Layer, makers: Mapping[Tensor, Layer], children: Sequence[Node], class_of: ClassOf
) -> tuple[Axis, ...]:  # fmt: skip
    """Axes of the running numbers of an online reduction that loops in these children cut, beside the sums that
    `maker` has of it; none where there are no such numbers."""
    for tensor in (piece.tensor for operand in maker.operands for piece in operand.pieces):
        before = makers.get(tensor)
        rules = {} if before is None else before.combine
        online = {axis for axis, rule in rules.items() if rule is Combine.ONLINE and axis in maker.combine}
        loops = (node for child in children for node in nodes_in(child) if isinstance(node, Loop))
        if online & {*tensor.axes} and any(
            loop.passes > 1 and online & class_of(loop)[1] and maker.name in layers_in(loop) for loop in loops
        ):
            return tuple(axis for axis in tensor.axes if axis not in online)
    return ()


def lost_state(found: Carrying) -> tuple[Resident, Tensor] | None:
    """A residency that ends in each pass, though later passes read what is made in it."""
    carried = {tensor.name: tensor for tensor in found.recurrence.carried}
    for node in nodes_in(found.loop.body) if not found.rolls else ():
        for resident in node.residents if isinstance(node, InOrder) else ():
            children = node.children[resident.first : resident.last + 1] if isinstance(node, InOrder) else ()
            inside = {name for child in children for name in layers_in(child)}
            makers = (layer for layer in found.recurrence.layers if layer.result.name == resident.tensor)
            if resident.tensor in carried and any(maker.name in inside for maker in makers):
                return resident, carried[resident.tensor]
    return None
