# Tests: test/pipeline/test_stops_agree.py
"""What passes read from attributes of the module, types and locations.

And whether the maps of a network have their place in DRAM, before anything works on their elements.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import chain, count
from math import prod

from xdsl.dialects.builtin import (
    DictionaryAttr,
    FixedBitwidthType,
    ModuleOp,
    NameLoc,
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
