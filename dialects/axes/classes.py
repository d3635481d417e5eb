"""Classes of axes: what one loop around several layers cuts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from frustum.dialects.axes.access import Link
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Combine, Layer, Operand
from frustum.dialects.axes.tensor import Tensor

Class = frozenset[Axis]


def classes_of(layers: Sequence[Layer]) -> list[Class]:
    """Sets of axes that are linked through tensors, in the order in which layers name them.

    Links between the layers always join. Links to tensors from outside join where no layer then has two axes of one
    class, so that queries and keys of one tensor stay apart.
    """
    groups = _Groups(layers)
    inside = {layer.result for layer in layers}
    late = []
    for layer in layers:
        for tensor, axis, link in links_of(layer):
            if tensor in inside:
                groups.join(axis, link.axis)
            else:
                late.append((axis, link.axis))
    for a, b in late:
        groups.join_where_apart(a, b)
    return groups.found()


def classes_apart(layers: Sequence[Layer]) -> list[Class]:
    """As `classes_of`, but no layer has two axes of one class: where links between layers would join two, such as
    queries and keys, they stay apart.  So do the parts of a concatenation: a range of the whole is not a range of each
    part."""
    groups = _Groups(layers)
    for layer in layers:
        for axis, link in (found for operand in layer.operands for found in _links_alone(operand)):
            groups.join_where_apart(axis, link.axis)
    return groups.found()


def _links_alone(operand: Operand) -> Iterable[tuple[Axis, Link]]:
    """The links of an operand, except those along the axis of a concatenation."""
    for piece, (_, links) in zip(operand.pieces, operand.links(), strict=True):
        beside = [guard.position for guard in piece.guards if guard.fill is None]
        for axis, link in links.items():
            if link is not None and not any(position.moves(link.axis) for position in beside):
                yield axis, link


def links_of(layer: Layer) -> Iterable[tuple[Tensor, Axis, Link]]:
    """Every axis of a tensor that the layer reads along one of its own."""
    for operand in layer.operands:
        for tensor, links in operand.links():
            for axis, link in links.items():
                if link is not None:
                    yield tensor, axis, link


def why_not(group: Class, layers: Sequence[Layer]) -> str:
    """Why no loop over the class may enclose the layers; nothing where one may."""
    makers = {layer.result: layer for layer in layers}
    if not any(group & set(layer.axes) for layer in layers):
        return "no layer has an axis of the class"
    for layer in layers:
        own = group & set(layer.axes)
        if len(own) > 1:
            return f"{layer.name} has {len(own)} axes of the class: {sorted(axis.name for axis in own)}"
        problem = _why_not_read(group, layer, makers) or _why_not_online(group, layer, layers)
        if problem:
            return problem
    return ""


def _why_not_read(group: Class, layer: Layer, makers: dict[Tensor, Layer]) -> str:
    for operand in layer.operands:
        for piece in operand.pieces:
            maker = makers.get(piece.tensor)
            if maker is None or not group & set(maker.axes):
                continue
            (axis,) = group & set(maker.axes)
            if axis not in piece.tensor.axes:
                sum_ = f"{piece.tensor.name}, a sum over {axis.name}"
                return f"{layer.name} reads {sum_} that is whole after the last pass"
            links = [found.get(axis) for tensor, found in operand.links() if tensor is piece.tensor]
            if operand.is_all or any(link is None or link.axis not in group for link in links):
                return f"{layer.name} needs all of {axis.name} of {piece.tensor.name}"
    return ""


def _why_not_online(group: Class, layer: Layer, layers: Sequence[Layer]) -> str:
    """A result that is rescaled later is read only by sums over the same class, inside."""
    online = [axis for axis, rule in layer.combine.items() if rule is Combine.ONLINE and axis in group]
    if not online:
        return ""
    readers = [
        other for other in layers if any(p.tensor is layer.result for o in other.operands for p in o.pieces)
    ]
    for reader in readers:
        if not group & set(reader.combine):
            early = f"{layer.result.name} before its last pass over {online[0].name}"
            return f"{reader.name} reads {early} and does not sum over it"
    return (
        ""
        if readers
        else f"{layer.result.name} is rescaled in later passes over {online[0].name}, but read outside"
    )


class _Groups:
    """Disjoint sets of axes."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.parent: dict[Axis, Axis] = {}
        self.members: dict[Axis, set[Axis]] = {}
        self.layers: dict[Axis, list[frozenset[Axis]]] = {}
        """Of each axis the layers that have it."""
        self.doubled: set[Axis] = set()
        """Roots of sets that contain two axes of one layer."""
        for layer in layers:
            own = frozenset(layer.axes)
            for axis in own:
                self.layers.setdefault(axis, []).append(own)
        for layer in layers:
            for axis in layer.axes:
                if not axis.is_tap:
                    self.root(axis)

    def root(self, axis: Axis) -> Axis:
        if axis not in self.parent:
            self.parent[axis], self.members[axis] = axis, {axis}
        while self.parent[axis] is not axis:
            self.parent[axis] = axis = self.parent[self.parent[axis]]
        return axis

    def join(self, a: Axis, b: Axis) -> None:
        a, b = self.root(a), self.root(b)
        if a is not b:
            if self.would_double(a, b):
                self.doubled.add(b)
            self.parent[a] = b
            self.members[b] |= self.members.pop(a)

    def join_where_apart(self, a: Axis, b: Axis) -> None:
        a, b = self.root(a), self.root(b)
        if a is not b and not self.would_double(a, b):
            self.join(a, b)

    def would_double(self, a: Axis, b: Axis) -> bool:
        """Whether the union of two sets, given by their roots, contains two axes of one layer."""
        few, many = sorted((self.members[a], self.members[b]), key=len)
        near = (axes for axis in few for axes in self.layers.get(axis, ()))
        return bool({a, b} & self.doubled) or any(not many.isdisjoint(axes) for axes in near)

    def found(self) -> list[Class]:
        return [frozenset(members) for members in self.members.values()]
