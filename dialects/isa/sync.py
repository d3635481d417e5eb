"""Structure and order: the program, its buffers, loops, events and pages."""

from __future__ import annotations

import typing
from math import prod
from typing import Any, ClassVar

from xdsl.dialects.builtin import I64, DenseArrayBase, IntegerAttr, StringAttr, SymbolNameConstraint
from xdsl.ir import Block, Operation, OpResult, OpTraits, Region
from xdsl.irdl import (
    IRDLOperation,
    eq,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.irdl.declarative_assembly_format import CustomDirective
from xdsl.traits import HasParent, IsolatedFromAbove, NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.extents import ALIGNMENT_BYTES
from frustum.dialects.host_type import MODEL_DTYPE, HostType
from frustum.dialects.isa import program as p
from frustum.dialects.isa.attributes import BUFFER_TYPES, DRAM, BufferType
from frustum.dialects.isa.instruction import (
    COMMON,
    INTEGER,
    INTEGERS,
    Instruction,
    Word,
    check_word,
    integer,
    integers,
    operation,
    word,
)


@irdl_op_definition
class ProgramOp(IRDLOperation):
    """The program text of all clusters and cores of a chip."""

    name = "fisa.program"

    sym_name: StringAttr = prop_def(SymbolNameConstraint())
    body: Region = region_def("single_block")

    traits: typing.ClassVar[OpTraits] = traits_def(NoTerminator(), IsolatedFromAbove(), SymbolOpInterface())
    assembly_format: ClassVar[str] = "$sym_name $body attr-dict"

    def __init__(self, sym_name: str, body: Region | None = None) -> None:
        region = Region(Block()) if body is None else body
        super().__init__(properties={"sym_name": StringAttr(sym_name)}, regions=[region])


@irdl_op_definition
class RepeatOp(IRDLOperation):
    """A loop.  Child c runs in pass t with index i = t - stage(c), while 0 <= i < count."""

    name = "fisa.repeat"

    count: IntegerAttr = prop_def(INTEGER)
    stage: IntegerAttr = prop_def(INTEGER, default_value=integer(0))
    body: Region = region_def("single_block")

    traits: typing.ClassVar[OpTraits] = traits_def(NoTerminator())
    assembly_format: ClassVar[str] = "$count (`stage` $stage^)? $body attr-dict"

    def __init__(self, count: int, body: Region | None = None, *, stage: int = 0) -> None:
        properties = {"count": integer(count), "stage": integer(stage)}
        super().__init__(properties=properties, regions=[Region(Block()) if body is None else body])

    def verify_(self) -> None:
        if self.count.value.data < 1:
            raise VerifyException(f"'{self.name}': count is at least 1, found {self.count.value.data}")
        if self.stage.value.data < 0:
            raise VerifyException(f"'{self.name}': stage is not negative, found {self.stage.value.data}")


def enclosing_loops(op: Operation) -> list[RepeatOp]:
    """The loops around an operation, outermost first."""
    loops: list[RepeatOp] = []
    parent = op.parent_op()
    while parent is not None:
        if isinstance(parent, RepeatOp):
            loops.append(parent)
        parent = parent.parent_op()
    return loops[::-1]


@irdl_op_definition
class ExternalOp(IRDLOperation):
    """A buffer in DRAM that the host knows: weights, inputs, outputs, values between executables.

    `name` is the host's name for it; `model_dtype` is the numpy name of the type the host passes or expects,
    where that is not `element`.
    """

    name = "fisa.external"

    external_name: StringAttr = prop_def(StringAttr, prop_name="name")
    class_: StringAttr = prop_def(StringAttr, prop_name="class")
    bytes: IntegerAttr = prop_def(INTEGER)
    shape: DenseArrayBase[I64] = prop_def(INTEGERS)
    element: StringAttr = prop_def(StringAttr)
    model_dtype: StringAttr | None = opt_prop_def(StringAttr)
    address: IntegerAttr | None = opt_prop_def(INTEGER)
    buffer: OpResult[BufferType] = result_def(eq(DRAM))

    custom_directives: ClassVar[tuple[type[CustomDirective], ...]] = (Word,)
    assembly_format: ClassVar[str] = (
        "custom<Word>($class) $name `bytes` $bytes `shape` $shape custom<Word>($element)"
        " (`model_dtype` $model_dtype^)? (`address` $address^)? attr-dict"
    )

    def __init__(
        self,
        name: str,
        class_: p.ExternalClass,
        bytes: int,
        shape: tuple[int, ...],
        element: p.Element,
        *,
        model_dtype: str | None = None,
        address: int | None = None,
    ) -> None:
        super().__init__(
            properties={
                "name": StringAttr(name),
                "class": word(class_),
                "bytes": integer(bytes),
                "shape": integers(tuple(shape)),
                "element": word(element),
                "model_dtype": None if model_dtype is None else word(model_dtype),
                "address": None if address is None else integer(address),
            },
            result_types=[DRAM],
        )

    def verify_(self) -> None:
        check_word(self.name, "class", self.class_, p.EXTERNAL_CLASSES)
        check_word(self.name, "element", self.element, p.ELEMENTS)
        check_storage(self.name, self.bytes.value.data, self.address)
        self._check_interface()

    def _check_interface(self) -> None:
        """The host passes whole arrays of a type that numpy has."""
        shape, size = tuple(self.shape.get_values()), self.bytes.value.data
        needed = prod(shape) * p.ELEMENT_BYTES[self.element.data]
        if min(shape, default=0) < 0 or (self.class_.data in ("input", "output") and needed != size):
            text = "x".join(map(str, shape))
            raise VerifyException(f"'{self.name}': shape {text} of {self.element.data} in {size} bytes")
        if self.model_dtype is not None and self.model_dtype.data:  # empty: the type of the element
            try:
                host = HostType.parse(self.model_dtype.data)
            except ValueError as error:
                raise VerifyException(f"'{self.name}': {error}") from error
            if not MODEL_DTYPE.fullmatch(host.dtype):
                raise VerifyException(
                    f"'{self.name}': {host.dtype!r} is no type of the host, such as float32"
                )


@irdl_op_definition
class AllocOp(IRDLOperation):
    """A buffer; inside a loop body each pass of that loop gets the next of `depth` copies.

    With `rolling` s there is one copy, whose bytes stay from pass to pass: what pass i writes takes the place of what
    nobody needs after pass i - s.  (Views that wrap move around it.)
    """

    name = "fisa.alloc"

    bytes: IntegerAttr = prop_def(INTEGER)
    depth: IntegerAttr = prop_def(INTEGER, default_value=integer(1))
    rolling: IntegerAttr | None = opt_prop_def(INTEGER)
    address: IntegerAttr | None = opt_prop_def(INTEGER)
    buffer: OpResult[BufferType] = result_def(BufferType)

    assembly_format: ClassVar[str] = (
        "`bytes` $bytes (`depth` $depth^)? (`rolling` $rolling^)? (`address` $address^)? attr-dict"
        " `:` type($buffer)"
    )

    def __init__(
        self,
        memory: p.Memory,
        bytes: int,
        depth: int = 1,
        *,
        rolling: int | None = None,
        address: int | None = None,
    ) -> None:
        super().__init__(
            properties={
                "bytes": integer(bytes),
                "depth": integer(depth),
                "rolling": None if rolling is None else integer(rolling),
                "address": None if address is None else integer(address),
            },
            result_types=[BUFFER_TYPES[memory]],
        )

    @property
    def memory(self) -> p.Memory:
        assert isinstance(self.buffer.type, BufferType)
        return self.buffer.type.memory

    def verify_(self) -> None:
        if self.depth.value.data < 1:
            raise VerifyException(f"'{self.name}': depth is at least 1, found {self.depth.value.data}")
        if self.rolling is not None and (self.rolling.value.data < 1 or self.depth.value.data > 1):
            raise VerifyException(
                f"'{self.name}': a rolling buffer has a slack of at least 1 pass and no copies, "
                f"found rolling {self.rolling.value.data}, depth {self.depth.value.data}"
            )
        check_storage(self.name, self.bytes.value.data, self.address)


@operation(p.Fetch)
class FetchOp(Instruction):
    """Bring a page of the program into the cluster's instruction memory."""

    assembly_format: ClassVar[str] = "$page" + COMMON

    def check(self) -> None:
        if self.page.value.data < 0:
            raise VerifyException(f"'{self.name}': page is not negative, found {self.page.value.data}")


@operation(p.Barrier)
class BarrierOp(Instruction):
    """Every engine of every cluster drains, all counters are reset to 0, and a page ends."""

    traits: typing.ClassVar[OpTraits] = traits_def(HasParent(ProgramOp))
    assembly_format: ClassVar[str] = COMMON.strip()

    def check(self) -> None:
        if self.waits is not None or self.signal is not None:
            raise VerifyException(
                f"'{self.name}': a barrier drains everything: it has no waits and no signal"
            )


@operation(p.Hold)
class WaitOp(Instruction):
    """Only waits: for an instruction with more waits than fit into it, or for an engine that has to stop."""

    assembly_format: ClassVar[str] = "custom<Word>($engine)" + COMMON


STRUCTURE: list[type[Operation]] = [ProgramOp, ExternalOp, AllocOp, RepeatOp]


def check_storage(name: str, bytes: int, address: IntegerAttr[Any] | None) -> None:
    if bytes < 1:
        raise VerifyException(f"'{name}': a buffer has at least one byte, found {bytes}")
    start = 0 if address is None else address.value.data
    if start < 0 or start % ALIGNMENT_BYTES:
        raise VerifyException(f"'{name}': an address is a multiple of {ALIGNMENT_BYTES}, found {start}")
