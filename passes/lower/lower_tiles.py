"""Tile level to instructions with symbolic buffers: loops, copies, computations; no addresses, no events yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnrealizedConversionCastOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import graph as g
from frustum.dialects import isa
from frustum.dialects import tile as t
from frustum.dialects.foreign import is_foreign, name_of
from frustum.dialects.target import Target
from frustum.passes.analysis.module import target_of
from frustum.passes.lower.unit.homes import find_homes
from frustum.passes.lower.unit.program import Declarations, Names, ProgramBody, Window
from frustum.passes.lower.unit.unit import UnitLowering


@dataclass(frozen=True)
class LowerTiles(ModulePass):
    """Write units as instructions.

    Before: one network of `ftile.unit`, weights and reshapes.  After: one `fisa.program`; a barrier stands between
    units, and the page of the program after next is fetched in each.  Operations of other dialects keep their order and
    stand behind the units that they stood behind.

    `hold`: weights that the plan holds in SRAM are held even where each piece is used once, as `ShareWeights` needs;
    otherwise such weights come piece by piece.
    """

    name = "frustum-lower-tiles"
    hold: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, names = target_of(op), Names()
        for network in g.networks_of(op):
            program = lowered(network, target, names, hold=self.hold)
            op.attributes.update(names.attributes())
            block = network.parent
            assert block is not None
            block.insert_op_before(program, network)
            network.detach()
            network.erase()


def lowered(network: g.NetworkOp, target: Target, names: Names, *, hold: bool) -> isa.ProgramOp:
    """One network to one program; `names` are those of all programs of the module; `hold`: see `LowerTiles`."""
    body = Block()
    declared = Declarations(network, body)
    declared.declare()
    program = ProgramBody(target, names, body, declared, find_homes(network.body.block.ops), hold)
    units = [op for op in network.body.block.ops if isinstance(op, t.UnitOp)]
    others = Others(network, declared.buffers)
    body.add_op(isa.FetchOp(page=0))
    for page in range(len(units) + 1):
        if page < len(units):
            body.add_op(isa.FetchOp(page=page + 1))
        if page:
            UnitLowering(program, units[page - 1]).run()
        body.add_ops(others.behind(page))
        if page < len(units):
            body.add_op(isa.BarrierOp())
    return isa.ProgramOp(network.sym_name.data, Region(body))


class Others:
    """The operations of other dialects of a network, by the unit behind which they stand.

    They are taken over as they are.  Where they read a tensor of the network, they read a conversion of its buffer
    (`builtin.unrealized_conversion_cast`), in front of them: the order of the program is that of a sequential run, so
    the units before have written the buffer.
    """

    def __init__(self, network: g.NetworkOp, buffers: Mapping[SSAValue, Window]) -> None:
        self.buffers = buffers
        self.found: dict[int, list[Operation]] = {}
        units = 0
        for op in network.body.block.ops:
            units += isinstance(op, t.UnitOp)
            if is_foreign(op):
                self.found.setdefault(units, []).append(op)

    def behind(self, units: int) -> Sequence[Operation]:
        """Those that stand behind so many units and before the next, out of the network, with their conversions."""
        return [each for op in self.found.get(units, ()) for each in (*self._conversions(op), self._detached(op))]

    def _detached(self, op: Operation) -> Operation:
        op.detach()
        return op

    def _conversions(self, op: Operation) -> list[Operation]:
        """Conversions of the buffers that the operation reads, itself or inside its regions."""
        read = {operand: None for inner in op.walk() for operand in inner.operands if operand in self.buffers}
        return [self._conversion(op, value) for value in read]

    def _conversion(self, op: Operation, value: SSAValue) -> Operation:
        window = self.buffers[value]
        if window.offset or window.spread:
            raise PassFailedException(f"'{name_of(op)}' reads a tensor that lies inside another one")
        cast = UnrealizedConversionCastOp.get([window.buffer], [value.type])
        cast.location = op.location
        cast.results[0].name_hint = value.name_hint
        inside = set(op.walk())
        value.replace_uses_with_if(cast.results[0], lambda use: use.operation in inside)
        return cast
