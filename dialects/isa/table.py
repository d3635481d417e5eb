"""The address cache: tables that tell the matrix unit where its operands are (`tables/address_table.py`)."""

from __future__ import annotations

from typing import ClassVar, Unpack

from xdsl.ir import Operation, SSAValue
from xdsl.irdl import eq, irdl_op_definition, operand_def, opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.isa.attributes import DRAM, ViewAttr
from frustum.dialects.isa.instruction import COMMON, INTEGER, INTEGERS, CommonFields, Instruction, value_of
from frustum.dialects.isa.program import TABLE_ENTRIES, Engine, View


@irdl_op_definition
class TableOp(Instruction):
    """Bring an address table into an entry of all cores' address caches, which give up the entries it evicts."""

    name = "fisa.table"
    ENGINE: ClassVar[Engine | None] = "fetch"
    VIEWS: ClassVar = (("src", "src_view"),)

    src = operand_def(eq(DRAM))
    src_view = prop_def(ViewAttr)
    bytes = prop_def(INTEGER)
    entry = prop_def(INTEGER)
    evicts = opt_prop_def(INTEGERS)

    assembly_format = "$src $src_view `bytes` $bytes `entry` $entry (`evicts` $evicts^)?" + COMMON

    def __init__(
        self,
        src: SSAValue | Operation,
        *,
        src_view: View,
        bytes: int,
        entry: int,
        evicts: tuple[int, ...] = (),
        **common: Unpack[CommonFields],
    ) -> None:
        self.fill_in((src,), common, {"src_view": src_view, "bytes": bytes, "entry": entry, "evicts": evicts})

    def check(self) -> None:
        if self.bytes.value.data < 1:
            raise VerifyException(f"'{self.name}': a table has bytes, found {self.bytes.value.data}")
        evicts = () if self.evicts is None else value_of(self.evicts)
        for entry in (self.entry.value.data, *evicts):
            if not 0 <= entry < TABLE_ENTRIES:
                raise VerifyException(f"'{self.name}': an entry is in [0, {TABLE_ENTRIES}), found {entry}")
