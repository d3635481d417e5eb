"""The dialect `fisa`: its operations, attributes and types."""

from xdsl.ir import Dialect

from frustum.dialects.isa.attributes import (
    ActAttr,
    AffineAttr,
    BoxAttr,
    BufferType,
    RealAttr,
    RealsAttr,
    ScalesAttr,
    SpanAttr,
    ViewAttr,
    WaitsAttr,
)
from frustum.dialects.isa.line_buffer import LineBufferOp
from frustum.dialects.isa.matrix import ConvOp
from frustum.dialects.isa.sync import AllocOp, BarrierOp, ExternalOp, FetchOp, ProgramOp, RepeatOp, WaitOp
from frustum.dialects.isa.table import TableOp
from frustum.dialects.isa.transfer import CopyOp
from frustum.dialects.isa.vector import BinaryOp, LrnOp, PoolOp, ReduceOp, ResizeOp, SoftmaxOp, UnaryOp

FIsa = Dialect(
    "fisa",
    [
        ProgramOp,
        ExternalOp,
        AllocOp,
        RepeatOp,
        CopyOp,
        LineBufferOp,
        ConvOp,
        PoolOp,
        UnaryOp,
        BinaryOp,
        SoftmaxOp,
        ReduceOp,
        LrnOp,
        ResizeOp,
        FetchOp,
        TableOp,
        BarrierOp,
        WaitOp,
    ],
    [
        BufferType,
        AffineAttr,
        ViewAttr,
        SpanAttr,
        BoxAttr,
        WaitsAttr,
        ActAttr,
        ScalesAttr,
        RealAttr,
        RealsAttr,
    ],
)
