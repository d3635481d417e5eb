"""Copies between memories: one operation for all five DMA engines."""

from __future__ import annotations

from typing import ClassVar, Unpack

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException

from frustum.dialects.isa.attributes import AffineAttr, BoxAttr, BufferType, RealAttr, ViewAttr
from frustum.dialects.isa.instruction import (
    COMMON,
    INTEGER,
    CommonFields,
    Instruction,
    Word,
    check_word,
)
from frustum.dialects.isa.program import COPY_ENGINES, Affine, Box, CopyEngine, Engine, Memory, View

LOCAL: tuple[Memory, ...] = ("nram", "wram")
ROUTES: dict[CopyEngine, frozenset[tuple[Memory, Memory]]] = {
    "gdma": frozenset({("dram", "sram"), ("sram", "dram")}),
    "iodma": frozenset({("dram", m) for m in LOCAL} | {(m, "dram") for m in LOCAL}),
    "mvdma": frozenset({("sram", m) for m in LOCAL} | {(m, "sram") for m in LOCAL}),
    "bus": frozenset({("sram", m) for m in LOCAL}),
    "cdma": frozenset({("sram", "sram")}),
}
"""The (source, destination) memories each engine connects."""
SLOT_ALIGNMENT_BYTES = 16
"""Slots of compressed blocks are multiples of this."""


@irdl_op_definition
class CopyOp(Instruction):
    """Copy a box of elements; with `fill`, positions outside [0, bound) are written with that value.

    With `expand` the source is a slot of that many bytes, and the block in it is expanded into the clipped box.
    """

    name = "fisa.copy"
    VIEWS: ClassVar = (("src", "src_view"), ("dst", "dst_view"))
    WRAPS: ClassVar = True

    src = operand_def(BufferType)
    dst = operand_def(BufferType)
    engine = prop_def(StringAttr)
    src_view = prop_def(ViewAttr)
    dst_view = prop_def(ViewAttr)
    box = prop_def(BoxAttr)
    fill = opt_prop_def(RealAttr)
    multicast = opt_prop_def(UnitAttr)
    peer = opt_prop_def(AffineAttr)
    expand = opt_prop_def(INTEGER)

    custom_directives = (Word,)
    assembly_format = (
        "custom<Word>($engine) $src $src_view `->` $dst $dst_view `box` $box (`fill` $fill^)?"
        " (`multicast` $multicast^)? (`peer` $peer^)? (`expand` $expand^)?"
        + COMMON
        + " `:` type($src) `->` type($dst)"
    )

    def __init__(
        self,
        engine: CopyEngine,
        src: SSAValue | Operation,
        dst: SSAValue | Operation,
        *,
        src_view: View,
        dst_view: View,
        box: Box,
        fill: float | None = None,
        multicast: bool = False,
        peer: Affine | None = None,
        expand: int | None = None,
        **common: Unpack[CommonFields],
    ) -> None:
        fields = {
            "engine": engine,
            "src_view": src_view,
            "dst_view": dst_view,
            "box": box,
            "fill": None if fill is None else float(fill),
            "multicast": multicast,
            "peer": peer,
            "expand": expand,
        }
        self.fill_in((src, dst), common, fields)

    def engine_of(self) -> Engine:
        return self.engine.data  # type: ignore[return-value]  # verified

    def check(self) -> None:
        check_word(self.name, "engine", self.engine, COPY_ENGINES)
        engine: CopyEngine = self.engine.data  # type: ignore[assignment]
        route = (_memory(self.src), _memory(self.dst))
        if route not in ROUTES[engine]:
            raise VerifyException(f"'{self.name}': {engine} does not copy from {route[0]} to {route[1]}")
        if self.multicast is not None and (engine != "gdma" or route[0] != "dram"):
            raise VerifyException(f"'{self.name}': only a gdma read is multicast")
        if (self.peer is not None) != (engine == "cdma"):
            raise VerifyException(f"'{self.name}': a peer belongs to cdma and only to cdma")
        if self.src_view.data.element != self.dst_view.data.element:
            raise VerifyException(f"'{self.name}': a copy does not convert its elements")
        for name, view in (("src_view", self.src_view.data), ("dst_view", self.dst_view.data)):
            if view.wrap is not None and self.box.data.extent[view.wrap.dim] > view.wrap.size:
                raise VerifyException(
                    f"'{self.name}': {name} wraps around {view.wrap.size} positions of d{view.wrap.dim}, "
                    f"but the box has {self.box.data.extent[view.wrap.dim]}"
                )
        if self.expand is not None:
            self.check_expansion(self.expand.value.data, route)

    def check_expansion(self, slot_bytes: int, route: tuple[Memory, Memory]) -> None:
        """What `expand` asks of the rest."""
        if route not in {("sram", memory) for memory in LOCAL}:
            raise VerifyException(
                f"'{self.name}': blocks are expanded on the way from sram to nram or wram, "
                f"found {route[0]} to {route[1]}"
            )
        if slot_bytes < SLOT_ALIGNMENT_BYTES or slot_bytes % SLOT_ALIGNMENT_BYTES:
            raise VerifyException(
                f"'{self.name}': a slot is a multiple of {SLOT_ALIGNMENT_BYTES} bytes, found {slot_bytes}"
            )
        if any(self.src_view.data.strides) or self.src_view.data.wrap is not None or self.fill is not None:
            raise VerifyException(
                f"'{self.name}': expand goes with a source without strides and wrap, and without fill"
            )


def _memory(value: SSAValue) -> Memory:
    assert isinstance(value.type, BufferType)
    return value.type.memory
