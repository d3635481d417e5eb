"""How the host passes a tensor to the device and gets one back: numpy type, what the device's integers stand for.

Text, as networks (`frustum.model_dtypes`), externals and manifests have it: `float32`, or `float32<0.02, -128>` where
the host makes integers of the numbers (and numbers of the integers), `number = scale * (integer - zero)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TEXT = re.compile(r"([a-z][a-z0-9_]*)(?:<([0-9.e+-]+), (-?[0-9]+)>)?")

MODEL_DTYPE = re.compile(r"(u?int|float)(8|16|32|64)|bfloat16|bool")
"""numpy's names of what hosts pass."""


@dataclass(frozen=True, slots=True)
class HostType:
    """numpy's name of the type; `scale` and `zero` of the conversion, scale None where there is none."""

    dtype: str
    scale: float | None = None
    zero: int = 0

    @classmethod
    def parse(cls, text: str) -> HostType:
        """Raises ValueError for other texts than `str` gives."""
        found = TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no type of the host, such as float32 or float32<0.5, -128>")
        dtype, scale, zero = found.groups()
        return cls(dtype) if scale is None else cls(dtype, float(scale), int(zero))

    def __str__(self) -> str:
        return self.dtype if self.scale is None else f"{self.dtype}<{self.scale!r}, {self.zero}>"
