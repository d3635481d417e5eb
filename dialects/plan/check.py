"""Whether a tree is a plan: of any network (`check_structure`), and of one (`check_plan`; rules of docs/ir-plan.md)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from frustum.dialects.axes.access import Piece
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.classes import Class, classes_of, why_not
from frustum.dialects.axes.network import AxisNetwork, Layer, Operand
from frustum.dialects.axes.recurrence import recurrences_of
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.diagnostic import did_you_mean
from frustum.dialects.errors import Error
from frustum.dialects.plan.carried import Carrying, carrying_of, loops_around, lost_state, why_not_before
from frustum.dialects.plan.tree import (
    Compute,
    Loop,
    Node,
    Over,
    Resident,
    Sequence,
    copies_in,
    layers_in,
    nodes_in,
)

MEMORIES = ("sram", "nram", "wram")
ENGINES = ("matrix", "vector", "scalar", "host")
ELEMENTS = {"f16": 16, "bf16": 16, "f32": 32, "i32": 32, "i64": 64}
"""Types in which partial sums may wait, and their bits."""
ORDERS = {"backward": 0, "mirrored": 0, "checkerboard": 0, "interleaved": 1, "zorder": 2}
"""Orders of passes, each with how many extents it takes: `interleaved 4`, `zorder 2x2`."""


class PlanError(Error):
    """A tree that is no plan of the network: names the node, what is wrong, and what to change."""

    def __init__(self, message: str, node: Node | Resident | None = None) -> None:
        super().__init__(message)
        self.node = node


# ------------------------------------------------------------ the tree alone


def sum_bits_of(plan: Node) -> dict[str, int]:
    """Of tensors whose partial sums wait as elements of another type (`sum T as f32`), the bits of that type."""
    sums = (each for node in nodes_in(plan) if isinstance(node, Compute) for each in node.sums)
    return {each.tensor: ELEMENTS[each.element] for each in sums}


def check_structure(plan: Node) -> None:
    """PlanError where the tree is none of any network.  The plan of a network without layers is an empty sequence."""
    for node in nodes_in(plan):
        problem = "" if node is plan and node == Sequence(()) else _why_none(node)
        if problem:
            raise PlanError(f"{title(node)}: {problem}", node)
    copies = Counter(copy.name for copy in copies_in(plan))
    for name, count in copies.items():
        if count > 1:
            raise PlanError(f"recompute: {count} copies are called {name}; each has a name of its own", plan)
    seen: set[str] = set()
    for node in nodes_in(plan):
        for layer in node.layers if isinstance(node, Compute) else ():
            if layer in seen:
                raise PlanError(f"{title(node)}: {layer} is computed twice; recompute it under another name", node)
            seen.add(layer)


def title(node: Node | Resident) -> str:
    """How messages name a node."""
    match node:
        case Compute():
            return f"compute {', '.join(node.layers)}"
        case Loop():
            return f"for {node.axis}"
        case Resident():
            return f"resident {node.tensor}"
        case Sequence():
            first = next(layers_in(node), "")
            return f"the sequence that begins with {first}" if first else "a sequence"


def _why_no_compute(node: Compute) -> str:
    for each in node.sums:
        if each.element not in ELEMENTS:
            return f"sum {each.tensor} as {each.element}: sums wait as {_listed(ELEMENTS)}"
    if node.engine and node.engine not in ENGINES:
        return f"no engine is called {node.engine}{did_you_mean(node.engine, list(ENGINES))} ({_listed(ENGINES)})"
    return "" if node.layers and all(node.layers) else "a compute has at least one layer, and each has a name"


def _why_no_loop(node: Loop) -> str:
    edges = node.edges
    if len(edges) < 2 or edges[0] or any(a >= b for a, b in pairwise(edges)):
        return f"ranges rise from 0 to the extent of the axis, found {list(edges)}"
    kind, _, extents = node.order.partition(" ")
    if not node.order:
        return ""
    if kind not in ORDERS:
        return f"no order of passes is called {kind}{did_you_mean(kind, list(ORDERS))} ({_listed(ORDERS)})"
    found = extents.split("x") if extents else []
    if len(found) != ORDERS[kind] or not all(re.fullmatch("[1-9][0-9]*", extent) for extent in found):
        return f"map {kind} takes {ORDERS[kind]} extents, found '{extents}'"
    return ""


def _why_no_sequence(node: Sequence) -> str:
    count = len(node.children)
    if not count:
        return "it has no children; remove it"
    if (node.over is Over.TIME) != (not node.subsets):
        return "subsets are of clusters, cores or chips, and say how many each child has"
    if node.subsets and (len(node.subsets) != count or min(node.subsets) < 1):
        return f"{count} children on subsets {list(node.subsets)}: one number, at least 1, for each child"
    idle = [copy for copy in node.copies if copy.name not in layers_in(node)]
    if idle:
        return f"recompute {idle[0].layer} as {idle[0].name}: no compute inside has {idle[0].name}"
    for each in node.residents:
        problem = _why_no_resident(each, count)
        if problem:
            raise PlanError(f"{title(each)}: {problem}", each)
    return ""


def _why_no_resident(resident: Resident, count: int) -> str:
    part = resident.part
    if not 0 <= resident.first <= resident.last < count:
        return f"from child {resident.first} to child {resident.last}, the sequence has {count}"
    if part and not 0 <= part.start < part.stop:
        return f"positions {part.start}:{part.stop} of {part.axis}: the first number is the smaller one"
    if resident.memory not in MEMORIES:
        memory = resident.memory
        return f"no memory is called {memory}{did_you_mean(memory, list(MEMORIES))} ({_listed(MEMORIES)})"
    return "" if resident.tensor else "the tensor has no name"


def _why_none(node: Node) -> str:
    match node:
        case Compute():
            return _why_no_compute(node)
        case Loop():
            return _why_no_loop(node)
        case Sequence():
            return _why_no_sequence(node)


# ------------------------------------------------------------ of a network


def check_plan(network: AxisNetwork, plan: Node) -> None:
    """PlanError where the tree is no plan of the network, whatever the machine."""
    check_structure(plan)
    check_copies(network, plan)
    known = Named(with_copies(network, plan), plan)
    known.check_layers()
    known.check_node(plan, Around())
    known.check_carried()


def check_copies(network: AxisNetwork, plan: Node) -> None:
    names = [layer.name for layer in network.layers]
    for copy in copies_in(plan):
        if copy.layer not in names:
            raise PlanError(f"recompute {copy.layer}: {_unknown('layer', copy.layer, names)}", plan)
        if copy.name in names:
            raise PlanError(
                f"recompute {copy.layer} as {copy.name}: the network has a layer of that name; take another", plan
            )


def with_copies(network: AxisNetwork, plan: Node) -> AxisNetwork:
    """The network with the layers that the plan computes again, which readers after them read; itself if none is."""
    copies = {copy.name: copy.layer for copy in copies_in(plan)}
    if not copies:
        return network
    layers, latest, made, tensors = {each.name: each for each in network.layers}, dict[Tensor, Tensor](), [], []
    for name in layers_in(plan):
        source = layers.get(copies.get(name, name))
        if source is None:
            continue  # check_layers says so
        result, own = source.result, tuple(_reading(operand, latest) for operand in source.operands)
        if name in copies:
            result = replace(source.result, name=name, is_output=False)
            latest[source.result] = result
            tensors.append(result)
        else:
            latest.pop(result, None)
        is_same = result is source.result and own == source.operands
        made.append(source if is_same else replace(source, name=name, result=result, operands=own))
    rest = [each for each in network.layers if all(each.name != layer.name for layer in made)]
    return AxisNetwork(network.name, made + rest, [*network.tensors, *tensors])


def _reading(operand: Operand, latest: Mapping[Tensor, Tensor]) -> Operand:
    pieces: list[Piece] = [
        replace(piece, tensor=latest[piece.tensor]) if piece.tensor in latest else piece for piece in operand.pieces
    ]
    return replace(operand, pieces=tuple(pieces))


def operands_of(layer: Layer) -> list[Tensor]:
    return list(dict.fromkeys(piece.tensor for operand in layer.operands for piece in operand.pieces))


@dataclass(frozen=True)
class Around:
    """What encloses a node: residents; levels that loops are distributed over; whether anything is distributed, and
    whether a pipelined loop has it as body."""

    residents: tuple[Resident, ...] = ()
    over: frozenset[Over] = frozenset()
    is_distributed: bool = False
    is_pipelined: bool = False


class Named:
    """Layers, tensors and axes of a network by name, and a plan that names them."""

    network: AxisNetwork
    plan: Node
    order: list[str]
    layers: dict[str, Layer]
    tensors: dict[str, Tensor]
    shared: set[str]

    def __init__(self, network: AxisNetwork, plan: Node) -> None:
        self.network, self.plan = network, plan
        self.order = list(layers_in(plan))
        self.layers = {layer.name: layer for layer in network.layers}
        self.tensors = {tensor.name: tensor for tensor in network.tensors}
        names = Counter(tensor.name for tensor in network.tensors)
        self.shared = {name for name, count in names.items() if count > 1}
        """Names of several tensors."""
        self.axes: dict[str, list[Axis]] = {}
        for axis in dict.fromkeys(axis for layer in network.layers for axis in layer.axes):
            self.axes.setdefault(axis.name, []).append(axis)

    # ------------------------------------------------------------ rule 1

    def check_layers(self) -> None:
        """Every layer once, after those that it reads."""
        names, plan = self.order, self.plan
        for node in nodes_in(plan):
            for name in node.layers if isinstance(node, Compute) else ():
                if name not in self.layers:
                    raise PlanError(f"{title(node)}: {_unknown('layer', name, list(self.layers))}", node)
        missing = [name for name in self.layers if name not in names]
        if missing:
            raise PlanError(f"layers that no compute has: {_listed(missing)}; add them to one", plan)
        done: set[Tensor] = set()
        for name in names:
            for tensor in operands_of(self.layers[name]):
                if tensor in self.network.maker and tensor not in done:
                    self.check_before(self.layers[name], self.network.maker[tensor])
            done.add(self.layers[name].result)
        for each in recurrences_of([self.layers[name] for name in names]):
            if each.axis is None:
                names = [layer.name for layer in each.layers]
                raise PlanError(f"{_listed(names)}: their states are carried along several axes; split them", plan)

    def check_before(self, reader: Layer, maker: Layer) -> None:
        """What is read before it is made is of earlier passes of one loop."""
        around, others = (self.loops_around[layer.name] for layer in (reader, maker))
        common = [loop for loop, other in zip(around, others, strict=False) if loop is other]
        problem = why_not_before(reader, maker, common, self.class_of)
        if problem:
            raise PlanError(problem, _compute_of(self.plan, reader.name))

    def check_carried(self) -> None:
        """States of recurrences lie somewhere until they are read."""
        for each in self.carrying:
            lost = lost_state(each)
            if lost is not None:
                resident, tensor = lost
                raise PlanError(
                    f"{title(resident)}: the next pass over {each.loop.axis} reads {tensor.name}: state it around the "
                    f"loop, or make that rolling",
                    resident,
                )

    @cached_property
    def loops_around(self) -> dict[str, tuple[Loop, ...]]:
        """Of every layer the loops that enclose it."""
        return loops_around(self.plan)

    @cached_property
    def carrying(self) -> list[Carrying]:
        """The loops that carry recurrences, in the order of the plan."""
        found = recurrences_of([self.layers[name] for name in self.order])
        return list(carrying_of(found, self.loops_around, self.class_of))

    # ------------------------------------------------------------ rule 2

    def class_of(self, loop: Loop) -> tuple[Axis, Class, list[Layer]]:
        """The axis of a loop, its class, and the layers inside."""
        inside = [self.layers[name] for name in layers_in(loop)]
        axis, *others = self.axes.get(loop.axis, [None])
        if axis is None:
            near = did_you_mean(loop.axis, [each.name for layer in inside for each in layer.axes])
            raise PlanError(f"no axis is called {loop.axis}{near}", loop)
        if others:
            extents = _listed(str(each.extent) for each in (axis, *others))
            raise PlanError(f"for {loop.axis}: axes of extents {extents} are called so; loop over another axis", loop)
        group = next((each for each in classes_of(inside) if axis in each), frozenset())
        problem = why_not(group, inside) if group else "no layer inside has it"
        if problem:
            raise PlanError(f"for {loop.axis}: {problem}", loop)
        return axis, group, inside

    def check_loop(self, loop: Loop) -> None:
        axis, _, _ = self.class_of(loop)
        if loop.edges[-1] != axis.extent:
            raise PlanError(
                f"for {loop.axis}: its ranges end at {loop.edges[-1]}, the extent of the axis is {axis.extent}", loop
            )

    # ------------------------------------------------------------ nodes, rule 3

    def check_node(self, node: Node, around: Around) -> None:
        match node:
            case Compute():
                self.check_sums(node)
            case Loop():
                self.check_loop(node)
                is_distributed = node.over is not Over.TIME
                if is_distributed and node.over in around.over:
                    raise PlanError(
                        f"for {node.axis} over {node.over}: a loop around it is over {node.over} too; distribute one",
                        node,
                    )
                over, is_distributed = around.over | {node.over}, around.is_distributed or is_distributed
                self.check_node(node.body, Around(around.residents, over, is_distributed, node.is_pipelined))
            case Sequence():
                if node.subsets and not around.is_pipelined:
                    self.check_apart(node)
                is_distributed = around.is_distributed or bool(node.subsets)
                for each in node.residents:
                    self.check_resident(each, node, replace(around, is_distributed=is_distributed))
                for k, child in enumerate(node.children):
                    here = tuple(each for each in node.residents if each.first <= k <= each.last)
                    self.check_node(child, Around((*around.residents, *here), around.over, is_distributed))

    def check_apart(self, node: Sequence) -> None:
        """Children that run at the same time read nothing of each other."""
        makers = {name: child for child in node.children for name in layers_in(child)}
        for name, child in makers.items():
            for tensor in operands_of(self.layers[name]):
                maker = self.network.maker.get(tensor)
                if maker is not None and makers.get(maker.name, child) is not child:
                    raise PlanError(
                        f"{name} reads {tensor.name}, which another subset makes at the same time: "
                        "make it before them, or pipeline the loop around them",
                        node,
                    )

    def check_sums(self, node: Compute) -> None:
        made = {self.layers[name].result.name: self.layers[name] for name in node.layers}
        for each in node.sums:
            if each.tensor not in made:
                raise PlanError(
                    f"sum {each.tensor}: {title(node)} does not make it{did_you_mean(each.tensor, list(made))}", node
                )
            if not made[each.tensor].combine:
                raise PlanError(f"sum {each.tensor}: {made[each.tensor].name} sums over no axis", node)

    def check_resident(self, resident: Resident, node: Sequence, around: Around) -> None:
        where, tensor = title(resident), self.tensor(resident.tensor, resident)
        axes = {axis.name: axis for axis in tensor.axes}
        part = resident.part
        if part is not None:
            if part.axis not in axes:
                raise PlanError(f"{where}: {_unknown('axis of it', part.axis, list(axes))}", resident)
            if part.stop > axes[part.axis].extent:
                extent = axes[part.axis].extent
                raise PlanError(f"{where}: {part.axis} ends at {extent}, found {part.start}:{part.stop}", resident)
        if resident.sharded and resident.sharded not in axes:
            raise PlanError(f"{where}: {_unknown('axis of it', resident.sharded, list(axes))}", resident)
        if resident.sharded and not (around.is_distributed or any(map(_distributes, _spanned(node, resident)))):
            raise PlanError(f"{where}: sharded {resident.sharded}, but no loop or subset is distributed here", resident)
        self.check_use(resident, tensor, node)
        if resident.storage_of:
            self.check_storage(resident, tensor, node, around)

    def tensor(self, name: str, resident: Resident) -> Tensor:
        if name not in self.tensors:
            raise PlanError(f"{title(resident)}: {_unknown('tensor', name, list(self.tensors))}", resident)
        if name in self.shared:
            raise PlanError(f"{title(resident)}: several tensors are called {name}; leave it in DRAM", resident)
        return self.tensors[name]

    def check_use(self, resident: Resident, tensor: Tensor, node: Sequence) -> None:
        """Layers from the first to the last child use the tensor, and none makes it after others have begun."""
        spanned = [[self.layers[name] for name in layers_in(child)] for child in _spanned(node, resident)]
        where, maker = title(resident), self.network.maker.get(tensor)
        inside = [layer for layers in spanned for layer in layers]
        if not any(layer is maker or tensor in operands_of(layer) for layer in inside):
            raise PlanError(f"{where}: no layer there makes or reads it: remove it", resident)
        if maker in inside and maker not in spanned[0]:
            assert maker is not None
            is_carried = any(tensor in operands_of(layer) for layer in spanned[0])
            what = "around the loop over its steps" if is_carried else "before that"
            raise PlanError(f"{where}: {maker.name} makes it in a later child: state it {what}", resident)

    def check_storage(self, resident: Resident, tensor: Tensor, node: Sequence, around: Around) -> None:
        """The maker of the tensor is the last reader of the one whose bytes it takes, which lie there until then."""
        where, other = title(resident), self.tensor(resident.storage_of, resident)
        maker = self.network.maker.get(tensor)
        if maker is None or other not in operands_of(maker):
            found = "nothing makes it" if maker is None else f"{maker.name} does not read {other.name}"
            raise PlanError(f"{where} at {other.name}: {found}; leave out 'at'", resident)
        here = [each for each in node.residents if each.first <= resident.first <= each.last]
        there = [each for each in (*around.residents, *here) if each.tensor == other.name]
        if not there:
            raise PlanError(f"{where} at {other.name}: {other.name} is not resident there", resident)
        if bool(there[-1].sharded) != bool(resident.sharded):
            raise PlanError(f"{where} at {other.name}: one of them is sharded; shard both, or none", resident)
        last = self.order.index(maker.name)
        later = [
            each.name for each in self.network.readers.get(other, []) if self.order.index(each.name) > last
        ]
        later += ["the next pass" for each in self.carrying if other in each.recurrence.carried]
        if later or other.is_output:
            reader = later[0] if later else "the network's output"
            raise PlanError(f"{where} at {other.name}: {reader} reads {other.name} later; leave out 'at'", resident)
        if tensor.size_bytes > other.size_bytes:
            raise PlanError(
                f"{where} at {other.name}: {tensor.size_bytes} B in the {other.size_bytes} B of {other.name}", resident
            )
        if not maker.may_overwrite(other):
            raise PlanError(
                f"{where} at {other.name}: to make one position, {maker.name} reads several of {other.name}, or one "
                "that others need; leave out 'at'",
                resident,
            )


def _distributes(node: Node) -> bool:
    """Whether something inside is distributed."""
    return any(not isinstance(each, Compute) and each.over is not Over.TIME for each in nodes_in(node))


def _spanned(node: Sequence, resident: Resident) -> tuple[Node, ...]:
    """The children in which a tensor is resident."""
    return node.children[resident.first : resident.last + 1]


def _compute_of(plan: Node, layer: str) -> Node:
    return next(node for node in nodes_in(plan) if isinstance(node, Compute) and layer in node.layers)


def _unknown(what: str, name: str, known: list[str]) -> str:
    return f"no {what} is called {name}{did_you_mean(name, known)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
