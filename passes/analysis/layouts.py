"""In which order the elements of maps between units lie in DRAM: noted on the unit that makes the map."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import OpResult, SSAValue

from frustum.dialects.extents import Extents
from frustum.dialects.graph import shape_of
from frustum.dialects.isa.tables import address_table as at
from frustum.dialects.tile import TensorView

LAYOUT = "frustum.layout"
"""Attribute of a unit: the layout of its result, where that is not nchw."""
BLOCK = 16
"""Channels of a block of `nchwc`: with 4 bytes each, the least run of DRAM that costs no more than its bytes."""

LayoutName: TypeAlias = Literal["nchw", "nhwc", "cnhw", "nchwc"]
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)


def view_in(layout: str, shape: Extents) -> TensorView:
    """How a map of four dimensions lies in memory."""
    n, c, h, w = shape
    made = {
        "nchw": lambda: at.nchw(c, h, w),
        "nhwc": lambda: at.nhwc(c, h, w),
        "cnhw": lambda: at.cnhw(n, h, w),
        "nchwc": lambda: at.nchwc(c, h, w, BLOCK),
    }[layout]()
    return TensorView(0, (made.n, made.c, made.h, made.w), max(1, made.block))


def layout_of(value: SSAValue | None) -> str:
    """The layout of a tensor."""
    owner = value.owner if isinstance(value, OpResult) else None
    noted = owner.attributes.get(LAYOUT) if owner is not None else None
    return noted.data if isinstance(noted, StringAttr) else "nchw"


def view_of(value: SSAValue | None, usual: TensorView) -> TensorView:
    """How a tensor lies in memory: as its layout says, `usual` where that is nchw."""
    layout = layout_of(value)
    if layout == "nchw":
        return usual
    assert value is not None
    n, c, h, w = shape_of(value)
    return view_in(layout, (n, c, h, w))
