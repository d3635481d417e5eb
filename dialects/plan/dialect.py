"""Dialect `fplan`: plans of networks as trees, between `fgraph` and `fisa` (docs/ir-plan.md).

Operations: `plan` (the plan of a network for a target), `sequence` (children in order, or on subsets at the same
time), `for` (passes over a class of axes), `resident` (a tensor lies in a memory while children run), `compute`
(layers), `recompute` (a copy of a layer).

The text of a plan is that of its tree: `again`, and which residents stay to the end, are words of the text alone.
"""

from __future__ import annotations

import typing

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DenseArrayBase,
    FlatSymbolRefAttrConstr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Block, Dialect, Operation, OpTraits, Region
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, NoTerminator
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.plan.check import PlanError, check_structure
from frustum.dialects.plan.parse import PlanReader
from frustum.dialects.plan.repeats import stated
from frustum.dialects.plan.text import SRAM, quoted, symbol, text_of
from frustum.dialects.plan.tree import (
    Compute,
    Copy,
    Halo,
    Loop,
    Node,
    Over,
    Part,
    Resident,
    Sequence,
    Sum,
    layers_in,
)


@irdl_op_definition
class PlanOp(IRDLOperation):
    """The plan of the network of the same name: one node."""

    name = "fplan.plan"
    network: SymbolRefAttr = prop_def(FlatSymbolRefAttrConstr)
    target: StringAttr = prop_def(StringAttr)
    body: Region = region_def("single_block")
    traits: typing.ClassVar[OpTraits] = traits_def(NoTerminator())

    @property
    def network_name(self) -> str:
        return self.network.root_reference.data

    @classmethod
    def parse(cls, parser: Parser) -> PlanOp:
        name, target, attributes, node = PlanReader(parser).plan()
        op = plan_op(name, target, node)
        op.attributes.update(attributes)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {symbol(self.network_name)} for {quoted(self.target.data)}")
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        try:
            text = text_of(tree_of(self))
        except PlanError:  # no plan; a message about it shows what there is
            printer.print_region(self.body)
        else:
            printer.print_string(text)

    def verify_(self) -> None:
        try:
            tree_of(self)
        except PlanError as error:
            raise VerifyException(f"{self.name}: {error}") from None


@irdl_op_definition
class SequenceOp(IRDLOperation):
    """Copies, then children, each after the residents that begin with it."""

    name = "fplan.sequence"
    subsets: DenseArrayBase[I64] | None = opt_prop_def(DenseArrayBase.constr(i64))
    over: StringAttr | None = opt_prop_def(StringAttr)
    body: Region = region_def("single_block")
    traits: typing.ClassVar[OpTraits] = traits_def(NoTerminator())


@irdl_op_definition
class ForOp(IRDLOperation):
    """Passes over the class of an axis: its ranges lie between neighbouring `edges`. The region has one sequence."""

    name = "fplan.for"
    axis: StringAttr = prop_def(StringAttr)
    edges: DenseArrayBase[I64] = prop_def(DenseArrayBase.constr(i64))
    halo: StringAttr | None = opt_prop_def(StringAttr)
    over: StringAttr | None = opt_prop_def(StringAttr)
    order: StringAttr | None = opt_prop_def(StringAttr)
    pipelined: UnitAttr | None = opt_prop_def(UnitAttr)
    body: Region = region_def("single_block")
    traits: typing.ClassVar[OpTraits] = traits_def(NoTerminator())


@irdl_op_definition
class ResidentOp(IRDLOperation):
    """A tensor lies in a memory from the next child to that of layer `until`, or to the last."""

    name = "fplan.resident"
    tensor: StringAttr = prop_def(StringAttr)
    axis: StringAttr | None = opt_prop_def(StringAttr)
    start: IntegerAttr | None = opt_prop_def(IntegerAttr)
    stop: IntegerAttr | None = opt_prop_def(IntegerAttr)
    storage_of: StringAttr | None = opt_prop_def(StringAttr)
    memory: StringAttr | None = opt_prop_def(StringAttr)
    sharded: StringAttr | None = opt_prop_def(StringAttr)
    until: StringAttr | None = opt_prop_def(StringAttr)
    traits: typing.ClassVar[OpTraits] = traits_def(HasParent(SequenceOp))

    def verify_(self) -> None:
        if len({each is None for each in (self.axis, self.start, self.stop)}) > 1:
            raise VerifyException(f"{self.name}: a part has an axis, a start and a stop")


@irdl_op_definition
class ComputeOp(IRDLOperation):
    """Layers in order. `sums` says of each tensor in which of `elements` its partial sums wait."""

    name = "fplan.compute"
    layers: ArrayAttr[StringAttr] = prop_def(ArrayAttr[StringAttr])
    engine: StringAttr | None = opt_prop_def(StringAttr)
    sums: ArrayAttr[StringAttr] | None = opt_prop_def(ArrayAttr[StringAttr])
    elements: ArrayAttr[StringAttr] | None = opt_prop_def(ArrayAttr[StringAttr])

    def verify_(self) -> None:
        if len(_texts(self.sums)) != len(_texts(self.elements)):
            raise VerifyException(f"{self.name}: as many sums as elements")


@irdl_op_definition
class RecomputeOp(IRDLOperation):
    """Layer `layer` is computed once more as `copy` in a compute of this sequence."""

    name = "fplan.recompute"
    layer: StringAttr = prop_def(StringAttr)
    copy: StringAttr = prop_def(StringAttr)
    traits: typing.ClassVar[OpTraits] = traits_def(HasParent(SequenceOp))


FPlan: Dialect = Dialect("fplan", [PlanOp, SequenceOp, ForOp, ResidentOp, ComputeOp, RecomputeOp], [])


# ------------------------------------------------------------ from trees


def plan_op(name: str, target: str, node: Node) -> PlanOp:
    """The tree as an operation.  Raises PlanError for a tree that is no plan of any network."""
    check_structure(node)
    return PlanOp(
        properties={"network": SymbolRefAttr(name), "target": StringAttr(target)}, regions=[_region([_op(node)])]
    )


def _op(node: Node) -> Operation:
    match node:
        case Compute():
            return ComputeOp(
                properties={
                    "layers": _strings(node.layers),
                    **_given(engine=node.engine),
                    "sums": _strings(each.tensor for each in node.sums) if node.sums else None,
                    "elements": _strings(each.element for each in node.sums) if node.sums else None,
                }
            )
        case Loop():
            properties = {
                "axis": StringAttr(node.axis),
                "edges": DenseArrayBase.from_list(i64, node.edges),
                **_given(halo=node.halo, over=node.over, order=node.order),
                "pipelined": UnitAttr() if node.is_pipelined else None,
            }
            return ForOp(properties=properties, regions=[_region([_op(node.body)])])
        case Sequence():
            ops: list[Operation] = [
                RecomputeOp(properties={"layer": StringAttr(each.layer), "copy": StringAttr(each.name)})
                for each in node.copies
            ]
            for each in stated(node):
                ops += [_resident(resident, until) for resident, until in each.residents]
                ops.append(_op(each.child))
            subsets = DenseArrayBase.from_list(i64, node.subsets) if node.subsets else None
            return SequenceOp(
                properties={"subsets": subsets, **_given(over=node.over)}, regions=[_region(ops)]
            )


def _resident(resident: Resident, until: str) -> ResidentOp:
    part = resident.part
    memory = "" if resident.memory == SRAM else resident.memory
    bounds = {"start": IntegerAttr(part.start, i64), "stop": IntegerAttr(part.stop, i64)} if part else {}
    return ResidentOp(
        properties={
            "tensor": StringAttr(resident.tensor),
            **_given(axis=part.axis if part else "", storage_of=resident.storage_of, memory=memory),
            **_given(sharded=resident.sharded, until=until),
            **bounds,
        }
    )


def _region(ops: list[Operation]) -> Region:
    return Region(Block(ops))


def _strings(texts: typing.Iterable[str]) -> ArrayAttr[StringAttr]:
    return ArrayAttr(StringAttr(text) for text in texts)


def _given(**texts: str) -> dict[str, Attribute]:
    """The texts that are not empty."""
    return {name: StringAttr(str(text)) for name, text in texts.items() if text}


# ------------------------------------------------------------ to trees


def tree_of(op: PlanOp) -> Node:
    """The tree.  Raises PlanError where the operation is none."""
    ops = list(op.body.block.ops)
    if len(ops) != 1:
        raise PlanError(f"a plan has one node, found {len(ops)}; put them in fplan.sequence")
    node = _node(ops[0])
    check_structure(node)
    return node


def _node(op: Operation) -> Node:
    if op.attributes:
        raise PlanError(f"{op.name} has no attributes, found {', '.join(op.attributes)}; put them on fplan.plan")
    match op:
        case ComputeOp():
            sums = zip(_texts(op.sums), _texts(op.elements), strict=True)
            return Compute(_texts(op.layers), _text(op.engine), tuple(Sum(*each) for each in sums))
        case ForOp():
            return _loop(op)
        case SequenceOp():
            return _sequence(op)
        case _:
            raise PlanError(f"a node is fplan.sequence, fplan.for or fplan.compute, found {op.name}")


def _loop(op: ForOp) -> Loop:
    ops = list(op.body.block.ops)
    if len(ops) != 1 or not isinstance(ops[0], SequenceOp):
        raise PlanError(f"for {op.axis.data}: its region has one fplan.sequence and nothing else")
    halo, over = _word(Halo, op.halo), _word(Over, op.over)
    order, is_pipelined = _text(op.order), op.pipelined is not None
    edges = tuple(map(int, op.edges.get_values()))
    return Loop(op.axis.data, edges, _sequence(ops[0]), halo, over, order, is_pipelined)


def _sequence(op: SequenceOp) -> Sequence:
    copies, children, begun = list[Copy](), list[Node](), list[tuple[int, ResidentOp]]()
    for each in op.body.block.ops:
        match each:
            case RecomputeOp():
                copies.append(Copy(each.layer.data, each.copy.data))
            case ResidentOp():
                begun.append((len(children), each))
            case _:
                children.append(_node(each))
    at = {name: k for k, child in enumerate(children) for name in layers_in(child)}
    residents = []
    for first, each in begun:
        until = _text(each.until)
        if until and until not in at:
            raise PlanError(f"resident {each.tensor.data} until {until}: no child of its sequence has that layer")
        last = at[until] if until else len(children) - 1
        residents.append(_stay(each, first, last))
    subsets = () if op.subsets is None else tuple(map(int, op.subsets.get_values()))
    return Sequence(tuple(children), tuple(residents), subsets, _word(Over, op.over), tuple(copies))


def _stay(op: ResidentOp, first: int, last: int) -> Resident:
    part = None
    if op.axis is not None and op.start is not None and op.stop is not None:
        part = Part(op.axis.data, op.start.value.data, op.stop.value.data)
    memory = _text(op.memory) or SRAM
    return Resident(op.tensor.data, first, last, part, _text(op.storage_of), memory, _text(op.sharded))


W = typing.TypeVar("W", Halo, Over)


def _word(words: type[W], found: StringAttr | None) -> W:
    text = _text(found)
    if text not in [word.value for word in words]:
        allowed = ", ".join(word.value for word in words if word.value)
        raise PlanError(f"'{text}' is none of {allowed}")
    return words(text)


def _text(found: StringAttr | None) -> str:
    return "" if found is None else found.data


def _texts(found: ArrayAttr[StringAttr] | None) -> tuple[str, ...]:
    return () if found is None else tuple(each.data for each in found)
