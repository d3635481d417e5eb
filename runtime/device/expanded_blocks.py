"""Compressed blocks that were expanded already: a copy in a loop brings the same ones again and again."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from frustum.backend.file.executable import ExecutableError
from frustum.dialects.weights.codec import CodecError, expand

MOST_BYTES = 256 << 20
"""Kept at most, blocks and what they stand for together: all weights of ResNet-50 in 16 bits are 51 MB."""


class _Blocks:
    """By their own bytes, the least recently used given up first."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.kept_bytes = 0
        self._kept: OrderedDict[tuple[bytes, int], NDArray[np.uint8]] = OrderedDict()
        self._lock = Lock()

    def expanded(self, block: bytes, size_bytes: int) -> NDArray[np.uint8]:
        """What the block stands for, not to be written to; ExecutableError where it is damaged."""
        key = block, size_bytes
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        try:
            found = expand(np.frombuffer(block, np.uint8), size_bytes)
        except CodecError as error:
            raise ExecutableError(f"damaged weights: {error}") from error
        found.setflags(write=False)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = found
                self.kept_bytes += len(block) + size_bytes
            while self.kept_bytes > self.most_bytes:
                (old, size), _ = self._kept.popitem(last=False)
                self.kept_bytes -= len(old) + size
        return found


expanded_block = _Blocks(MOST_BYTES).expanded
