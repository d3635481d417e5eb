"""The program's own bytes: how many the machine fetches, when.

Code that no instruction fetches is fetched at the start, before anything else; the rest page by page, when its
`fetch` is executed, which cluster 0 does for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frustum.dialects.isa.program import Fetch, Instruction
from frustum.runtime.device.expand import Expanded
from frustum.runtime.device.order import Ints


def start_bytes(instructions: Sequence[Instruction], page_bytes: Sequence[int]) -> int:
    """Bytes of the pages that are fetched at the start."""
    later = {instruction.page for instruction in instructions if isinstance(instruction, Fetch)}
    return sum(size for page, size in enumerate(page_bytes) if page not in later)


def fetched_bytes(expanded: Expanded, page_bytes: Sequence[int]) -> Ints:
    """Of each row of the cluster table: bytes of the page that it fetches, 0 if it is no fetch."""
    sizes = [page_bytes[each.page] if isinstance(each, Fetch) else 0 for each in expanded.instructions]
    return np.array(sizes, np.int64)[expanded.cluster.static]
