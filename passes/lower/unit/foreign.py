"""Operations of other dialects in the text of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import UnrealizedConversionCastOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from frustum.dialects import graph as g
from frustum.dialects import tile as t
from frustum.dialects.foreign import is_foreign, name_of
from frustum.passes.lower.unit.declarations import Window

__all__ = ["Others"]


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
