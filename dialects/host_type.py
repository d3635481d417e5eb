"""How the host passes a tensor to the device and gets one back: numpy type, what the device's integers stand for.

Text, as networks (`frustum.model_dtypes`), externals and manifests have it: `float32`, or `float32<0.02, -128>` where
the host makes integers of the numbers (and numbers of the integers), `number = scale * (integer - zero)`; or
`int64<whole 2, 5>` where the device computes with integers in floating point, and its type must have all up to twice
the largest and 5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TEXT = re.compile(r"([a-z][a-z0-9_]*)(?:<(?:([0-9.e+-]+), (-?[0-9]+)|whole ([0-9]{1,19}), ([0-9]{1,19}))>)?")

MODEL_DTYPE = re.compile(r"(u?int|float)(8|16|32|64)|bfloat16|bool")
"""numpy's names of what hosts pass."""


@dataclass(frozen=True, slots=True)
class HostType:
    """numpy's name of the type; `scale` and `zero` of the conversion, scale None where there is none; `times` and
    `plus` of whole numbers in floating point, times 0 where all are good."""

    dtype: str
    scale: float | None = None
    zero: int = 0
    times: int = 0
    plus: int = 0

    @classmethod
    def parse(cls, text: str) -> HostType:
        """Raises ValueError for other texts than `str` gives."""
        found = TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no type of the host, such as float32 or float32<0.5, -128>")
        dtype, scale, zero, times, plus = found.groups()
        if times is not None:
            return cls(dtype, times=int(times), plus=int(plus))
        return cls(dtype) if scale is None else cls(dtype, float(scale), int(zero))

    def limit(self, most_whole: int) -> int | None:
        """The largest integer that may come, for a device's type that has all integers up to `most_whole`; None where
        every one may."""
        return (most_whole - self.plus) // self.times if self.times else None

    def __str__(self) -> str:
        if self.times:
            return f"{self.dtype}<whole {self.times}, {self.plus}>"
        return self.dtype if self.scale is None else f"{self.dtype}<{self.scale!r}, {self.zero}>"
