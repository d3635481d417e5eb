"""A loop over time with a carried state: one body for all steps."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import I64, DenseArrayBase, IntegerAttr, TensorType, UnitAttr, i32, i64
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, OpTraits, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    VarOperand,
    VarOpResult,
    eq,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.graph.attributes import Ints, int_array, shape_of, tensor_of, tensor_type
from frustum.dialects.graph.declaration import like
from frustum.dialects.graph.products import ConvOp, MatmulOp


@irdl_op_definition
class RecurrenceOp(IRDLOperation):
    """Runs its body once for each step. Slice k of a sequence is the k-th of `steps` equal parts along `dim`; with
    `reverse` the last slice is first.

    The block's arguments are the slices of all sequences, then the states; `zeros` lists the states that begin as 0,
    the others begin as `starts`. The body may read any value around it. Results are the outputs of all steps, side by
    side along `dim` as the slices lie, then the states behind the last step.
    """

    name = "fgraph.recurrence"
    steps_attr: IntegerAttr = prop_def(IntegerAttr.constr(type=eq(i64)), prop_name="steps")
    dim_attr: IntegerAttr = prop_def(IntegerAttr.constr(type=eq(i64)), prop_name="dim")
    reverse_attr: UnitAttr | None = opt_prop_def(UnitAttr, prop_name="reverse")
    zeros_attr: DenseArrayBase[I64] = prop_def(DenseArrayBase.constr(i64), prop_name="zeros")
    sequences: VarOperand = var_operand_def(TensorType)
    starts: VarOperand = var_operand_def(TensorType)
    made: VarOpResult[TensorType] = var_result_def(TensorType)
    body: Region = region_def("single_block")
    irdl_options: typing.ClassVar[tuple[Any, ...]] = (AttrSizedOperandSegments(as_property=True),)
    traits: typing.ClassVar[OpTraits] = traits_def(Pure())

    def __init__(
        self, sequences: Sequence[SSAValue], starts: Sequence[SSAValue | None], body: Block, *,
        steps: int, dim: int = 0, reverse: bool = False,
    ) -> None:  # fmt: skip
        """`starts`: of each state, None for 0.  The body ends with its `StepYieldOp`, which says the results."""
        end = body.last_op
        assert isinstance(end, StepYieldOp)
        super().__init__(
            operands=[sequences, [start for start in starts if start is not None]],
            properties={
                "steps": IntegerAttr(steps, i64),
                "dim": IntegerAttr(dim, i64),
                "reverse": UnitAttr() if reverse else None,
                "zeros": int_array(tuple(k for k, start in enumerate(starts) if start is None)),
            },
            result_types=[[*(_stacked(value, steps, dim) for value in end.outputs), *(s.type for s in end.states)]],
            regions=[Region(body)],
        )

    @property
    def steps(self) -> int:
        return self.steps_attr.value.data

    @property
    def dim(self) -> int:
        """The dimension of sequences and outputs that is cut."""
        return self.dim_attr.value.data

    @property
    def is_reverse(self) -> bool:
        return self.reverse_attr is not None

    @property
    def slices(self) -> Sequence[BlockArgument]:
        """The arguments that are the step's parts of the sequences."""
        return self.body.block.args[: len(self.sequences)]

    @property
    def states(self) -> Sequence[BlockArgument]:
        """The arguments that are the states before the step."""
        return self.body.block.args[len(self.sequences) :]

    @property
    def state_starts(self) -> Sequence[SSAValue | None]:
        """What each state is before the first step; None for 0."""
        given, zeros = iter(self.starts), {*self.zeros_attr.get_values()}
        return [None if number in zeros else next(given) for number in range(len(self.states))]

    @property
    def end(self) -> StepYieldOp:
        last = self.body.block.last_op
        assert isinstance(last, StepYieldOp)
        return last

    @property
    def outputs(self) -> Sequence[OpResult]:
        """The results that hold what every step gives."""
        return self.results[: len(self.end.outputs)]

    @property
    def last_states(self) -> Sequence[OpResult]:
        return self.results[len(self.end.outputs) :]

    @property
    def order(self) -> Sequence[int]:
        """The places of the slices in the order of the steps."""
        return range(self.steps)[::-1] if self.is_reverse else range(self.steps)

    def verify_(self) -> None:
        if self.steps < 1:
            raise VerifyException(f"a recurrence has at least one step, found {self.steps}")
        if not isinstance(self.body.block.last_op, StepYieldOp):
            raise VerifyException("the body of a recurrence ends with fgraph.yield")
        self._verify_slices()
        self._verify_states()
        expected = [*(_stacked(x, self.steps, self.dim) for x in self.end.outputs), *(x.type for x in self.end.states)]
        if list(self.result_types) != expected:
            raise VerifyException(f"results of types {_listed(self.result_types)}, expected {_listed(expected)}")

    def _verify_slices(self) -> None:
        if len(self.body.block.args) < len(self.sequences):
            raise VerifyException(f"{len(self.body.block.args)} arguments for {len(self.sequences)} sequences")
        for number, (sequence, own) in enumerate(zip(self.sequences, self.slices, strict=True)):
            shape = shape_of(sequence)
            if not 0 <= self.dim < len(shape):
                raise VerifyException(f"sequence {number} of {len(shape)} dimensions has no dimension {self.dim}")
            if shape[self.dim] % self.steps:
                raise VerifyException(f"sequence {number}: {self.steps} steps do not divide {shape[self.dim]}")
            expected = like(sequence, slice_shape(shape, self.dim, self.steps))
            if own.type != expected:
                raise VerifyException(f"a slice of sequence {number} is {expected}, its argument {own.type}")

    def _verify_states(self) -> None:
        states, end = self.states, self.end
        if len(end.states) != len(states):
            raise VerifyException(f"{len(states)} states, and fgraph.yield hands on {len(end.states)}")
        if len(self.starts) + len(self.zeros_attr.get_values()) != len(states):
            raise VerifyException(f"{len(states)} states, of which {len(self.starts)} are given at the start and "
                                  f"{len(self.zeros_attr.get_values())} are 0")  # fmt: skip
        for number, (own, new, start) in enumerate(zip(states, end.states, self.state_starts, strict=True)):
            if new.type != own.type:
                raise VerifyException(f"state {number} is {own.type}, fgraph.yield hands on {new.type}")
            if start is not None and start.type != own.type:
                raise VerifyException(f"state {number} is {own.type}, and starts as {start.type}")
        for number, output in enumerate(end.outputs):
            if not 0 <= self.dim < len(shape_of(output)):
                raise VerifyException(f"output {number} of {len(shape_of(output))} dimensions has no dimension "
                                      f"{self.dim}")  # fmt: skip

    # --- text

    @classmethod
    def parse(cls, parser: Parser) -> RecurrenceOp:
        reverse = UnitAttr() if parser.parse_optional_keyword("reverse") else None
        parser.parse_keyword("steps")
        steps = parser.parse_integer(allow_negative=False)
        parser.parse_keyword("dim")
        dim = parser.parse_integer(allow_negative=False)
        arguments: list[Any] = []
        sequences, starts, zeros = list[SSAValue](), list[SSAValue](), list[int]()

        def parse_slice() -> None:
            arguments.append(parser.parse_argument())
            parser.parse_keyword("in")
            operand = parser.parse_unresolved_operand()
            parser.parse_punctuation(":")
            sequences.append(parser.resolve_operand(operand, parser.parse_type()))

        def parse_state() -> None:
            arguments.append(parser.parse_argument())
            if parser.parse_optional_keyword("from"):
                starts.append(parser.resolve_operand(parser.parse_unresolved_operand(), arguments[-1].type))
            else:
                zeros.append(len(arguments) - len(sequences) - 1)

        parser.parse_keyword("slices")
        parser.parse_comma_separated_list(parser.Delimiter.PAREN, parse_slice)
        parser.parse_keyword("states")
        parser.parse_comma_separated_list(parser.Delimiter.PAREN, parse_state)
        parser.parse_punctuation("->")
        results = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        sizes = DenseArrayBase.from_list(i32, [len(sequences), len(starts)])
        properties: dict[str, Attribute] = {
            "steps": IntegerAttr(steps, i64), "dim": IntegerAttr(dim, i64), "zeros": int_array(tuple(zeros)),
            "operandSegmentSizes": sizes,
        }  # fmt: skip
        return RecurrenceOp.create(
            operands=[*sequences, *starts],
            result_types=results,
            properties=properties if reverse is None else {**properties, "reverse": reverse},
            attributes=attributes.data if attributes else {},
            regions=[parser.parse_region(arguments)],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(f"{' reverse' if self.is_reverse else ''} steps {self.steps} dim {self.dim} slices ")

        def print_slice(pair: tuple[SSAValue, SSAValue]) -> None:
            _print_typed(printer, pair[0])
            printer.print_string(" in ")
            _print_typed(printer, pair[1])

        def print_state(pair: tuple[SSAValue, SSAValue | None]) -> None:
            _print_typed(printer, pair[0])
            if pair[1] is not None:
                printer.print_string(" from ")
                printer.print_ssa_value(pair[1])

        with printer.in_parens():
            printer.print_list(zip(self.slices, self.sequences, strict=True), print_slice)
        printer.print_string(" states ")
        with printer.in_parens():
            printer.print_list(zip(self.states, self.state_starts, strict=True), print_state)
        printer.print_string(" -> ")
        with printer.in_parens():
            printer.print_list(self.result_types, printer.print_attribute)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)


@irdl_op_definition
class StepYieldOp(IRDLOperation):
    """Ends a step: the states after it, and its outputs."""

    name = "fgraph.yield"
    states: VarOperand = var_operand_def(TensorType)
    outputs: VarOperand = var_operand_def(TensorType)
    irdl_options: typing.ClassVar[tuple[Any, ...]] = (AttrSizedOperandSegments(as_property=True),)
    traits: typing.ClassVar[OpTraits] = traits_def(IsTerminator(), HasParent(RecurrenceOp), Pure())
    assembly_format: ClassVar[str] = (
        "(`states` $states^ `:` type($states))? (`outputs` $outputs^ `:` type($outputs))? attr-dict"
    )

    def __init__(self, states: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> None:
        super().__init__(operands=[states, outputs])


def slice_shape(shape: Ints, dim: int, steps: int) -> Ints:
    """The shape of one of `steps` equal parts along a dimension."""
    return (*shape[:dim], shape[dim] // steps, *shape[dim + 1 :])


def captured_by(op: Operation) -> list[SSAValue]:
    """The values that an operation's regions read from around it, in order."""
    inner = [each for each in op.walk() if each is not op]
    own = {result for each in inner for result in each.results}
    own.update(a for each in (op, *inner) for region in each.regions for block in region.blocks for a in block.args)
    return list(dict.fromkeys(operand for each in inner for operand in each.operands if operand not in own))


def macs_in(ops: Iterable[Operation]) -> int:
    """Multiply-accumulates of the convolutions and matrix products among operations of one block, all steps of a
    recurrence included."""
    found = 0
    for op in ops:
        if isinstance(op, ConvOp | MatmulOp):
            found += op.macs
        elif isinstance(op, RecurrenceOp):
            found += op.steps * macs_in(op.body.block.ops)
    return found


def _stacked(value: SSAValue, steps: int, dim: int) -> TensorType[Any]:
    """The type of what all steps give."""
    shape = shape_of(value)
    extents = (*shape[:dim], steps * shape[dim], *shape[dim + 1 :]) if 0 <= dim < len(shape) else shape
    return tensor_type(tensor_of(value).element_type, extents)


def _listed(types: Iterable[Attribute]) -> str:
    return f"({', '.join(map(str, types))})"


def _print_typed(printer: Printer, value: SSAValue) -> None:
    printer.print_ssa_value(value)
    printer.print_string(" : ")
    printer.print_attribute(value.type)
