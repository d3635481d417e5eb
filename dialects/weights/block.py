"""What a block of stored weights stands for, by its method."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from frustum.dialects.weights import codec, scaled
from frustum.dialects.weights.codec import Bytes


def weights_in(block: Bytes, extents: Sequence[int], element: np.dtype[Any]) -> scaled.Array:
    """The weights of a piece; what follows the block is ignored.  CodecError where it is damaged."""
    if len(block) and block[0] == scaled.SCALED:
        return scaled.unpack(block, extents, element)
    found: scaled.Array = codec.expand(block, prod(extents) * element.itemsize).view(element).reshape(tuple(extents))
    return found
