# Tests: test/passes/onnx/test_import_onnx.py
"""What converters of operators work with: a node, its operands, and the network that grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from xdsl.dialects.builtin import NameLoc, NoneAttr, StringAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation

from frustum.dialects import graph as g
from frustum.dialects.graph.attributes import ActAttr
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.analysis.module import location_of
from frustum.passes.dequantised import Dequantised, mark_expanded, note
from frustum.passes.errors import NotConstant, Refused
from frustum.passes.onnx.images import Images
from frustum.passes.weights import DEVICE_INTEGERS, Array, WeightStore, most_whole, numpy_of

CHOOSE = ("reshape", "transpose", "slice", "concat", "pad", "interleave", "pool", "resize")
MOST_ELEMENTS = 1 << 33
"""Of a tensor: more bytes than a machine of today has for one."""
MOVES = {f"fgraph.{name}" for name in CHOOSE}
"""Operations whose integers are those of their operands."""

Ints: TypeAlias = tuple[int, ...]
Value: TypeAlias = "Array | SSAValue"
"""An operand: known when importing, or not before running."""
Result: TypeAlias = "Value | Sequence[Value]"
Converter: TypeAlias = "Callable[[Node], Result]"


@dataclass(frozen=True)
class SequenceValue:
    """What stands for a sequence: its members.  No operator of tensors takes it."""

    members: tuple[Value, ...]


def extents_of(value: Value) -> Ints:
    return value.shape if isinstance(value, np.ndarray) else g.shape_of(value)


@dataclass(frozen=True)
class IntegerBound:
    """Of integers of the model in floating point: none is larger than `times` the limit to which these inputs are held,
    and `plus`."""

    times: int
    plus: int = 0
    inputs: frozenset[str] = frozenset()

    def joined(self, *others: IntegerBound) -> IntegerBound:
        """What holds for the numbers of all."""
        every = (self, *others)
        inputs = frozenset().union(*(each.inputs for each in every))
        return IntegerBound(max(each.times for each in every), max(each.plus for each in every), inputs)


@dataclass
class Network:
    """The network under construction."""

    block: Block
    """Where operations are added."""
    store: WeightStore
    element: Attribute
    images: Images | None = None
    """Where the images of a changed batch lie; None where the batch is the model's."""
    weights: dict[int, tuple[Array, SSAValue]] = field(default_factory=dict)  # by id of the array
    unsigned: set[SSAValue] = field(default_factory=set)  # integers that are more by half their range in the model
    whole: set[SSAValue] = field(default_factory=set)  # integers of the model kept in floating point
    boolean: set[SSAValue] = field(default_factory=set)  # truth values of the model: 1 or 0 in floating point
    bounds: dict[SSAValue, IntegerBound] = field(default_factory=dict)
    """Of those integers of the model that were never floating point (`whole_numbers.py`)."""
    held: dict[str, IntegerBound] = field(default_factory=dict)
    """By input of integers: what must be exact, for which it is held to a limit."""
    counts: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By node that counts in floating point: its operator, and the largest integer that it needs exactly."""
    around: Block | None = None
    """Where constants are added, if `block` is the body of an operation."""

    @contextmanager
    def inside(self, body: Block) -> Iterator[None]:
        """Operations are added to the body meanwhile, constants to the block around it."""
        block, around = self.block, self.around
        self.block, self.around = body, around or block
        try:
            yield
        finally:
            self.block, self.around = block, around

    def emit(self, op: IRDLOperation, name: str, operator: str | None = None) -> SSAValue:
        """Appends an operation that stands for the node `name`, an `operator`, or for the constant `name`; returns its
        result."""
        op.location = location_of([(name, operator)]) if operator else NameLoc(StringAttr(name), NoneAttr())
        block = self.around if self.around is not None and isinstance(op, g.WeightOp) else self.block
        block.add_op(op)
        op.verify_()
        if self.images is not None:
            self.images.note(op)
        if op.name in MOVES:
            self.mark(op.results[0], op.operands[0])
        return op.results[0]

    def drop(self, value: SSAValue) -> None:
        """Take back the operations behind a value that nothing reads, as far as they make no elements."""
        if isinstance(value.owner, Operation) and not value.uses and not all(g.shape_of(value)):
            operands = value.owner.operands
            self.weights = {key: known for key, known in self.weights.items() if known[1] is not value}
            value.owner.detach()
            value.owner.erase()
            for operand in operands:
                self.drop(operand)

    def mark(self, result: SSAValue, *sources: SSAValue) -> SSAValue:
        """The result, which is of the model's type of the sources: unsigned, whole, or a truth value."""
        for marked in (self.unsigned, self.whole, self.boolean):
            if not marked.isdisjoint(sources):
                marked.add(result)
        return result

    def keep_whole(self, value: SSAValue, bound: IntegerBound | None) -> None:
        """Note that a value is of integers of the model, and how large they are where that is known."""
        self.whole.add(value)
        if bound is not None:
            self.bounds[value] = bound

    def weight(self, array: Array, key: str) -> SSAValue:
        """A constant in the network's element type; one operation per array."""
        check_size(f"the constant '{key}'", array.shape)
        known = self.weights.get(id(array))
        if known and g.tensor_of(known[1]).element_type == self.element:
            return known[1]
        converted = array.astype(numpy_of(self.element), copy=False)
        value = self._constant(array, converted, self.element, key)
        if array.dtype.kind == "b":
            self.boolean.add(value)
        return value

    def integers(self, array: Array, converted: Array, key: str) -> SSAValue:
        """A constant of integers: `array` as the device has it, `converted`."""
        known = self.weights.get(id(array))
        if known and g.is_integer(known[1]):
            return known[1]
        value = self._constant(array, converted, DEVICE_INTEGERS[converted.dtype], key)
        if array.dtype.kind == "u":
            self.unsigned.add(value)
        return value

    def dequantized(self, found: Dequantised, key: str) -> SSAValue:
        """A constant that knows the integers it came from."""
        dtype = numpy_of(self.element)
        op = g.WeightOp(
            self.store.add(key, lambda: found.values.astype(dtype)), g.tensor_type(self.element, found.integers.shape)
        )
        note(op, self.store, op.key.data, found)
        return self.emit(op, key)

    def _constant(self, array: Array, converted: Array, element: Attribute, key: str) -> SSAValue:
        op = g.WeightOp(self.store.add(key, converted), g.tensor_type(element, array.shape))
        value = self.emit(op, key)
        if self.images is not None and (axis := self.images.axis_of(array)) is not None:
            self.images.axes[value] = axis
        self.weights[id(array)] = (array, value)
        return value


def check_size(where: str, shape: Ints) -> None:
    """DoesNotFit for a tensor that no machine holds, before memory is asked for it."""
    count = math.prod(shape)
    if count > MOST_ELEMENTS:
        raise DoesNotFit(f"a tensor of {'x'.join(map(str, shape))}", where, f"{count} elements", MOST_ELEMENTS)


def is_exact(array: Array, element: Attribute) -> bool:
    """Whether a type of floating point has every number of the array, those included that are none."""
    with np.errstate(all="ignore"):
        converted = array.astype(numpy_of(element)).astype(np.float64)
    return bool(np.all((converted == array) | (converted != converted) & (array != array)))


@dataclass
class Node:
    """One ONNX node with its operands."""

    proto: onnx.NodeProto
    operands: Sequence[Value | None]
    network: Network
    opset: int
    name: str
    read: list[g.WeightOp] = field(default_factory=list)
    """Constants whose numbers its converter has asked for."""

    @property
    def op_type(self) -> str:
        return self.proto.op_type

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute's value, or `default`."""
        for attribute in self.proto.attribute:
            if attribute.name == name:
                value = onnx.helper.get_attribute_value(attribute)
                return value.decode(errors="replace") if isinstance(value, bytes) else value
        return default

    def __len__(self) -> int:
        return len(self.operands)

    def has(self, index: int) -> bool:
        return index < len(self.operands) and self.operands[index] is not None

    def is_constant(self, index: int) -> bool:
        return self.has(index) and isinstance(self.operands[index], np.ndarray)

    def value(self, index: int) -> SSAValue:
        """An operand as a value of the network; a constant becomes a weight."""
        operand = self.operands[index] if index < len(self.operands) else None
        if operand is None:
            raise Refused(f"input {index} is missing")
        if isinstance(operand, SSAValue):
            return operand
        if isinstance(operand, SequenceValue):
            raise Refused(f"input {index} is a sequence")
        if operand.dtype.kind in "OUS":
            raise Refused(f"input {index} holds {operand.dtype}, which is no number")
        if operand.dtype.kind in "iu" and not is_exact(operand, self.network.element):
            raise Refused(f"input {index} holds integers that {self.network.element} does not")
        return self.network.weight(operand, self.proto.input[index] or self.name)

    def values(self) -> Iterator[SSAValue]:
        return (self.value(index) for index in range(len(self.operands)))

    def constant(self, index: int, what: str) -> Array | None:
        """An operand that must be known when importing; None where it is left out."""
        if not self.has(index):
            return None
        operand = self.operands[index]
        if isinstance(operand, np.ndarray):
            return operand
        if isinstance(operand, SSAValue) and isinstance(operand.owner, g.WeightOp):
            self.read.append(operand.owner)
            return self.network.store[operand.owner.key.data]
        raise NotConstant(what, self.proto.input[index])

    def ints(self, name: str, index: int | None = None) -> Ints | None:
        """A list of integers that is an attribute or, in newer opsets, an input."""
        value = self.get(name)
        if value is None and index is not None:
            value = self.constant(index, name)
        if value is None:
            return None
        return tuple(int(number) for number in np.atleast_1d(np.asarray(value)))

    def shape(self, index: int) -> Ints:
        operand = self.operands[index]
        if operand is None:
            raise Refused(f"input {index} is missing")
        return extents_of(operand)

    def axis(self, axis: int, rank: int) -> int:
        """`axis` counted from the front."""
        if not -rank <= axis < rank:
            raise Refused(f"axis {axis} is not inside [{-rank}, {rank})")
        return axis % rank

    def wants(self, output: int) -> bool:
        """Whether anybody may use this output."""
        return output < len(self.proto.output) and bool(self.proto.output[output])

    def emit(self, op: IRDLOperation) -> SSAValue:
        return self.network.emit(op, self.name, self.op_type)

    def weight(self, array: Array, suffix: str) -> SSAValue:
        """A constant made by a converter; one with axes is made from the constants that it has read."""
        made = self.network.weight(array, f"{self.name}/{suffix}")
        if array.ndim > 1:
            mark_expanded(made.owner, self.read, f"are made anew by {self.op_type}")
        return made

    def scalar(self, number: float, suffix: str) -> SSAValue:
        return self.weight(np.full((), number, np.float64), suffix)

    def ones(self, shape: Ints, like: Sequence[SSAValue] = ()) -> SSAValue:
        """Ones to broadcast by; those of extents that are more only for a batch are as the operands `like` them."""
        result = self.weight(np.broadcast_to(np.float32(1), shape), "ones")
        images = self.network.images
        if images is not None:
            axes = {images.axes[x] + len(shape) - len(g.shape_of(x)) for x in like if x in images.axes}
            images.axes.update((result, axis) for axis in axes if shape[axis] != 1)
        return result

    def marked(self, value: SSAValue, is_unsigned: bool) -> SSAValue:
        """The value, known to be unsigned in the model or not."""
        if is_unsigned:
            self.network.unsigned.add(value)
        return value

    def whole(self, x: SSAValue, is_whole: bool) -> SSAValue:
        """A value known to be integers kept in floating point, or known not to be."""
        if (x in self.network.whole) != is_whole:
            x = self.unary("identity", x)
            if is_whole:
                self.network.whole.add(x)
        return x

    def counts_to(self, most: int) -> None:
        """All integers up to here are needed; Refused where the network's type does not have them."""
        own = most_whole(self.network.element)
        if most > own:
            raise Refused(f"it needs integers up to {most}, and {self.network.element} has all up to {own}")
        self.network.counts[self.name] = self.op_type, max(most, self.network.counts.get(self.name, ("", 0))[1])

    def like(self, result: SSAValue, *sources: SSAValue) -> SSAValue:
        """The result, of the model's type of the sources."""
        return self.network.mark(result, *sources)

    def boolean(self, x: SSAValue) -> SSAValue:
        """A truth value of the model."""
        self.network.boolean.add(x)
        return x

    def negated(self, x: SSAValue) -> SSAValue:
        """1 where a truth value is 0, and 0 where it is 1."""
        return self.boolean(self.unary("affine", x, -1.0, 1.0))

    def reshape(self, x: SSAValue, shape: Ints) -> SSAValue:
        return x if g.shape_of(x) == tuple(shape) else self.emit(g.ReshapeOp(x, tuple(shape)))

    def unary(self, kind: str, x: SSAValue, alpha: float = 0.0, beta: float = 0.0) -> SSAValue:
        return self.emit(g.UnaryOp(ActAttr.of(kind, alpha, beta), x))

    def binary(self, kind: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(g.BinaryOp(kind, a, b))
