"""The network, its outputs, its constants, and how a host program calls it."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects import builtin
from xdsl.dialects.builtin import (
    ArrayAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    TensorType,
)
from xdsl.ir import Attribute, Block, Operation, OpResult, OpTraits, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarOperand,
    VarOpResult,
    irdl_op_definition,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsolatedFromAbove,
    IsTerminator,
    Pure,
    SymbolOpInterface,
    SymbolTable,
    SymbolUserOpInterface,
)
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.foreign import check_dominance


@irdl_op_definition
class NetworkOp(IRDLOperation):
    """A network: the block's arguments are its inputs, the terminator's operands its outputs."""

    name = "fgraph.network"
    sym_name: StringAttr = prop_def(SymbolNameConstraint())
    input_names: ArrayAttr[StringAttr] = prop_def(ArrayAttr[StringAttr])
    output_names: ArrayAttr[StringAttr] = prop_def(ArrayAttr[StringAttr])
    body: Region = region_def("single_block")
    traits: typing.ClassVar[OpTraits] = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    def __init__(
        self,
        name: str,
        inputs: Sequence[tuple[str, Attribute]],
        output_names: Sequence[str],
        block: Block | None = None,
    ) -> None:
        """`block` is taken over where given; else it starts with the inputs as arguments."""
        types = [type for _, type in inputs]
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "input_names": ArrayAttr(StringAttr(input) for input, _ in inputs),
                "output_names": ArrayAttr(StringAttr(output) for output in output_names),
            },
            regions=[Region(block or Block(arg_types=types))],
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(name.data for name in self.input_names)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name.data for name in self.output_names)

    @property
    def terminator(self) -> OutputOp:
        last = self.body.block.last_op
        assert isinstance(last, OutputOp)
        return last

    def verify_(self) -> None:
        block = self.body.block
        if len(block.args) != len(self.inputs):
            raise VerifyException(f"{len(self.inputs)} input names for {len(block.args)} inputs")
        if not all(isinstance(argument.type, TensorType) for argument in block.args):
            raise VerifyException("inputs must be tensors")
        if not isinstance(block.last_op, OutputOp):
            raise VerifyException("a network ends with fgraph.output")
        if len(block.last_op.values) != len(self.outputs):
            raise VerifyException(f"{len(self.outputs)} output names for {len(block.last_op.values)} outputs")
        check_dominance(self)

    @classmethod
    def parse(cls, parser: Parser) -> NetworkOp:
        name = parser.parse_symbol_name()
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        parser.parse_keyword("inputs")
        inputs = _parse_names(parser)
        parser.parse_keyword("outputs")
        outputs = _parse_names(parser)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parser.parse_region(arguments)
        return NetworkOp.create(
            properties={"sym_name": name, "input_names": inputs, "output_names": outputs},
            attributes=attributes.data if attributes else {},
            regions=[region],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string(" ")
        with printer.in_parens():
            printer.print_list(self.body.block.args, lambda argument: _print_argument(printer, argument))
        for keyword, names in (("inputs", self.input_names), ("outputs", self.output_names)):
            printer.print_string(f" {keyword} ")
            printer.print_attribute(names)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)


@irdl_op_definition
class OutputOp(IRDLOperation):
    """Ends a network: its outputs in order."""

    name = "fgraph.output"
    values: VarOperand = var_operand_def(TensorType)
    traits: typing.ClassVar[OpTraits] = traits_def(IsTerminator(), HasParent(NetworkOp), Pure())
    assembly_format: ClassVar[str] = "($values^ `:` type($values))? attr-dict"

    def __init__(self, values: Sequence[SSAValue]) -> None:
        super().__init__(operands=[values])


@irdl_op_definition
class WeightOp(IRDLOperation):
    """A constant: its key in the module's weight store, and its type."""

    name = "fgraph.weight"
    key: StringAttr = prop_def(StringAttr)
    result: OpResult[TensorType] = result_def(TensorType)
    traits: typing.ClassVar[OpTraits] = traits_def(Pure())
    assembly_format: ClassVar[str] = "$key attr-dict `:` type($result)"

    def __init__(self, key: str, type: TensorType[Any]) -> None:
        super().__init__(properties={"key": StringAttr(key)}, result_types=[type])


class _Called(SymbolUserOpInterface):
    """The called network is there, with these types."""

    def verify(self, op: Operation) -> None:
        assert isinstance(op, CallOp)
        found = SymbolTable.lookup_symbol(op, op.callee)
        if isinstance(found, NetworkOp):
            op.check_types(found)
        elif found is None or found.name.startswith("fgraph."):
            raise VerifyException(f"'{op.name}': no network is called @{op.callee.root_reference.data}")


@irdl_op_definition
class CallOp(IRDLOperation):
    """Runs a network of the same module: a value for each of its inputs, a result for each of its outputs."""

    name = "fgraph.call"
    callee: SymbolRefAttr = prop_def(builtin.FlatSymbolRefAttrConstr)
    inputs: VarOperand = var_operand_def(TensorType)
    outputs: VarOpResult[TensorType] = var_result_def(TensorType)
    traits: typing.ClassVar[OpTraits] = traits_def(_Called(), Pure())
    assembly_format: ClassVar[str] = "$callee `(` $inputs `)` attr-dict `:` functional-type($inputs, $outputs)"

    def __init__(self, callee: str, inputs: Sequence[SSAValue], outputs: Sequence[Attribute]) -> None:
        super().__init__(
            operands=[inputs], result_types=[outputs], properties={"callee": SymbolRefAttr(callee)}
        )

    def check_types(self, network: NetworkOp) -> None:
        """Raise `VerifyException` unless the network has inputs and outputs of the types given here."""
        for what, own, wanted in (
            ("operands", self.operand_types, [a.type for a in network.body.block.args]),
            ("results", self.result_types, [v.type for v in network.terminator.values]),
        ):
            if list(own) != wanted:
                raise VerifyException(
                    f"'{self.name}': {what} of types ({', '.join(map(str, own))}), "
                    f"@{network.sym_name.data} has ({', '.join(map(str, wanted))})"
                )


def networks_of(module: Operation) -> list[NetworkOp]:
    """The networks inside an operation, in order."""
    return [op for op in module.walk() if isinstance(op, NetworkOp)]


def _parse_names(parser: Parser) -> ArrayAttr[StringAttr]:
    names = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_str_literal)
    return ArrayAttr(StringAttr(name) for name in names)


def _print_argument(printer: Printer, argument: SSAValue) -> None:
    """Name and type; a location here is something xDSL does not read back."""
    printer.print_ssa_value(argument)
    printer.print_string(" : ")
    printer.print_attribute(argument.type)
