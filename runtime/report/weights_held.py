"""What the report says of weights that are not held as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

SUMS = ("raw_bytes", "stored_bytes", "compressed_tensors", "shared_tensors")


def weights_held(manifests: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`weights` of all executables together, as the compiler noted them in the manifests; empty where it did not.

    `raw_bytes` are those of the tensors, `stored_bytes` those in DRAM; `raw_loads` counts by reason what stays raw.
    """
    noted = [manifest["options"]["weights"] for manifest in manifests if "weights" in manifest["options"]]
    if not noted:
        return {}
    reasons = Counter[str]()
    for each in noted:
        reasons.update(each["raw_loads"])
    sums = {name: sum(each.get(name, 0) for each in noted) for name in SUMS}
    return {"weights": {"codec": noted[0]["codec"], **sums, "raw_loads": dict(sorted(reasons.items()))}}
