"""A bound on the bytes of DRAM that any plan for a network moves on a machine, and the argument that gives it.

The greatest of

- `compulsory`: every input, weight and output once;
- `matrix product`: a product of m x k by k x n whose operands come from DRAM and whose result goes there moves
  2 m n k / sqrt(M) - 2 M words or more, with M words of memory on chip (Smith, Lowery, Langou, van de Geijn,
  arXiv 1702.02017, theorem 3); all entries of a batch together, since each segment of M transfers makes no more
  products if they are of several entries;
- `attention`: where each pair of a query and a key is finished while both rows, the value's and the result's row are on
  chip, M + X words see at most ((M + X) / 2 (d + dv))^2 pairs, so that P pairs move P (d + dv)^2 / M - M words or more.
  It holds for every plan that keeps scores on chip, which all of ours do.

Both products' arguments leave out what else the network moves: that is added as compulsory.
Source: docs/report.md, "The bound on bytes".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor, sqrt
from typing import Any, NamedTuple

from frustum.dialects.target import Target
from frustum.runtime.report.bound import on_chip_bytes

COMPULSORY, PRODUCT, ATTENTION = "compulsory", "matrix product", "attention"


class DramBound(NamedTuple):
    """At least so many bytes, and the argument, with the layer where it is one of a single layer."""

    bytes: int
    by: str


def dram_bound(target: Target, compulsory_bytes: int, facts: Iterable[Mapping[str, Any]]) -> DramBound:
    """Of a network; `facts` as `passes/analysis/least_work.py` writes them, of each of its pieces."""
    memory_bytes = on_chip_bytes(target)
    best = DramBound(compulsory_bytes, COMPULSORY)
    for piece in facts:
        for layer in piece["layers"]:
            for argument, words_of in ((PRODUCT, product_words), (ATTENTION, attention_words)):
                numbers = layer.get(argument)
                if numbers is None:
                    continue
                *sizes, element_bytes, own_bytes = numbers
                words = words_of(memory_bytes / element_bytes, *sizes)
                found = compulsory_bytes - own_bytes + floor(words * element_bytes)
                if found > best.bytes:
                    best = DramBound(found, f"{argument} '{layer['name']}'")
    return best


def product_words(memory: float, batch: int, m: int, n: int, k: int) -> float:
    """Words that products of m x k by k x n move with so many words of memory."""
    return 2 * batch * m * n * k / sqrt(memory) - 2 * memory


def attention_words(memory: float, pairs: int, size: int, value_size: int) -> float:
    """Words that attention over so many pairs of rows moves with so many words of memory."""
    return pairs * (size + value_size) ** 2 / memory - memory
