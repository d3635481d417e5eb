# Tests: test/pipeline/test_stops_agree.py
"""What passes read from attributes of the module, types and locations.

And whether the maps of a network have their place in DRAM, before anything works on their elements.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence
from itertools import chain, count
from math import prod

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FixedBitwidthType,
    FusedLoc,
    ModuleOp,
    NameLoc,
    NoneAttr,
    StringAttr,
    TensorType,
    bf16,
    f16,
    f32,
    i8,
    i16,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects.graph import NetworkOp, shape_of, tensor_of
from frustum.dialects.isa.program import ELEMENT_BYTES, Element
from frustum.dialects.module import TARGET
from frustum.dialects.target import Target, from_attribute
from frustum.dialects.target.fit import DoesNotFit

ELEMENTS: dict[Attribute, Element] = {f32: "f32", f16: "f16", bf16: "bf16", i8: "i8", i16: "i16", i32: "i32"}


def target_of(module: ModuleOp) -> Target:
    """The machine that the module is compiled for."""
    attribute = module.attributes.get(TARGET)
    if not isinstance(attribute, DictionaryAttr):
        raise PassFailedException(
            f"the module has no attribute '{TARGET}': run frustum-set-target{{target=NAME}} first"
        )
    return from_attribute(attribute)


def element_of(kind: Attribute) -> Element:
    """The device's name of an element type."""
    if kind not in ELEMENTS:
        raise PassFailedException(f"no engine of the device computes elements of {kind}")
    return ELEMENTS[kind]


def element_in(value: SSAValue) -> Element:
    """The type of a tensor's elements."""
    return element_of(tensor_of(value).element_type)


def sole_reader(value: SSAValue) -> Operation | None:
    """The operation that alone reads a value, as one of its operands or several."""
    users = {use.operation for use in value.uses}
    return users.pop() if len(users) == 1 else None


def readers_in_network(value: SSAValue) -> Iterator[Operation]:
    """Operations that read a value; what a trial of the planner has taken out of the network does not."""
    return (use.operation for use in value.uses if use.operation.parent is not None)


def element_bytes(value: SSAValue) -> int:
    """Bytes of one element of a tensor on the device."""
    return ELEMENT_BYTES[element_in(value)]


def value_bytes(value: SSAValue) -> int:
    """Bytes of all elements of a tensor."""
    return prod(shape_of(value)) * element_bytes(value)


def location_of(nodes: Sequence[tuple[str, str]]) -> NameLoc:
    """The location of an operation that stands for these nodes of the model, pairs of a name and an operator: the name
    of the first, and all of them inside."""
    own = [NameLoc(StringAttr(name), NameLoc(StringAttr(operator), NoneAttr())) for name, operator in nodes]
    return own[0] if len(own) == 1 else NameLoc(own[0].desc, FusedLoc(ArrayAttr(own), NoneAttr()))


def nodes_of(op: Operation) -> tuple[tuple[str, str], ...]:
    """The nodes of the model, with their operators, that an operation stands for; none where nobody noted them."""
    inner = op.location.location if isinstance(op.location, NameLoc) else None
    if isinstance(op.location, NameLoc) and isinstance(inner, NameLoc):
        return ((op.location.desc.data, inner.desc.data),)
    if isinstance(inner, FusedLoc) and isinstance(inner.locations, ArrayAttr):
        return tuple(
            (each.desc.data, each.location.desc.data)
            for each in inner.locations
            if isinstance(each, NameLoc) and isinstance(each.location, NameLoc)
        )
    return ()


def absorb(old: Operation, results: Sequence[SSAValue | None]) -> None:
    """Note that what makes these results stands for the nodes of an operation whose place it takes, too."""
    for owner in {value.owner for value in results if value is not None and isinstance(value.owner, Operation)}:
        own = nodes_of(owner)
        more = [node for node in nodes_of(old) if node not in own]
        if own and more:
            owner.location = location_of([*own, *more])


def absorb_between(last: Operation, sources: Collection[SSAValue], results: Sequence[SSAValue]) -> None:
    """The same of `last` and of all between it and `sources`."""
    known: dict[Operation, bool] = {}

    def is_between(op: Operation) -> bool:
        if op not in known:
            known[op] = False
            makers = [value.owner for value in op.operands if value not in sources]
            behind = [is_between(each) for each in makers if isinstance(each, Operation)]
            known[op] = any(behind) or any(value in sources for value in op.operands)
        return known[op]

    is_between(last)
    for op in [op for op, holds in known.items() if holds]:
        absorb(op, results)


def named_part(like: Operation, name: str) -> NameLoc:
    """The location of a part of an operation, under a name of its own: it stands for the same nodes."""
    inner = like.location.location if isinstance(like.location, NameLoc) else NoneAttr()
    return NameLoc(StringAttr(name), inner)


def node_name(op: Operation) -> str:
    """The name of the model's node that an operation came from; empty where it has none."""
    return op.location.desc.data if isinstance(op.location, NameLoc) else ""


def kind_name(op: Operation) -> str:
    """The operation's own name, without its dialect."""
    return op.name.removeprefix("fgraph.")


def layer_name(op: Operation) -> str:
    """The model's node, or else the kind of operation."""
    return node_name(op) or kind_name(op)


def free_name(stem: str, taken: Container[str]) -> str:
    """`stem`, or the first of `stem.1`, `stem.2`, ... that is not taken."""
    names = chain([stem], (f"{stem}.{number}" for number in count(1)))
    return next(name for name in names if name not in taken)


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
