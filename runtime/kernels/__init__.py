"""The arithmetic of every layer as pure functions of numpy arrays, for the reference and for the machine.

Maps are `[..., C, H, W]`: leading axes (batch, cores) are free.  16-bit floats come in as they are and are
computed in f32, which is what comes out; `narrow` rounds it.
"""

from frustum.runtime.kernels import integer
from frustum.runtime.kernels.attention import attention
from frustum.runtime.kernels.convolution import conv, matmul
from frustum.runtime.kernels.elementwise import BINARY, UNARY, binary, erf, unary
from frustum.runtime.kernels.maps import (
    BFLOAT16,
    Array,
    ResizedAxis,
    average_pool,
    border,
    border_places,
    depth_to_space,
    interleave,
    lrn,
    max_pool,
    narrow,
    normalise,
    output_size,
    pad,
    padded,
    rearrange,
    reduce,
    resize,
    shuffle,
    slice_elements,
    softmax,
    space_to_depth,
    stack,
    widen,
    windows,
)

__all__ = [
    "BFLOAT16", "BINARY", "UNARY", "Array", "ResizedAxis", "attention", "average_pool", "binary", "border",
    "border_places", "conv",
    "depth_to_space", "erf", "integer", "interleave", "lrn", "matmul", "max_pool", "narrow", "normalise", "output_size",
    "pad", "padded", "rearrange", "reduce", "resize", "shuffle", "slice_elements", "softmax", "space_to_depth", "stack",
    "unary", "widen", "windows",
]
