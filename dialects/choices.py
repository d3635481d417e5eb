"""The words that users choose among, on the command line, in the API and in files, said once for all floors.

Imports little, for a fast `--help`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from frustum.dialects.plug_ins import OpenNames

Dtype: TypeAlias = Literal["f32", "f16", "bf16", "int8", "model"]
DTYPES: tuple[str, ...] = get_args(Dtype)
"""Element types on the device; `model`: the file's."""
PRESETS = {
    "pyramid": "S2,1,4,5,8-12,17,19",
    "template": "S2,2-6,8-19",
    "greedy": "S1,1,4,8-10,12-17",
}
"""Fusion policies that are rules (passes/fuse/policy.py reads them)."""
TREE = "tree"
"""The policy whose plan is a tree (docs/ir-plan.md)."""
POLICIES = OpenNames.of("policies", ("none", *PRESETS, "optimal", TREE))
"""Fusion policies that have a name of their own; plug-ins have others."""
AskedBorders: TypeAlias = Literal["overlap", "exchange", "auto"]
"""Of tiles: computed again, kept or sent, or what is cheaper."""
HostMode: TypeAlias = Literal["never", "auto", "only"]
"""What may run on the host: nothing, what the device lacks or is not worth moving, everything."""
Optimise: TypeAlias = Literal["time", "bytes", "energy"]
"""What plans of policy `optimal` have the least of."""
Carry: TypeAlias = Literal["auto", "f32", "element"]
"""The type of sums that lie in SRAM between parts of a reduction; `auto`: f32, unless the element type moves fewer
bytes or takes fewer cycles."""
When: TypeAlias = Literal["auto", "never", "outputs"]
"""Where networks are cut: where they do not fit or it is better, nowhere, at output branches."""
Compression: TypeAlias = Literal["auto", "none", "zero", "huffman"]
"""Of weights up to WRAM: where it is better, never, always by zero runs or by codes."""
WeightCopies: TypeAlias = Literal["replicated", "shared"]
"""Whether what all clusters need lies in each, or once on the chip."""
Method: TypeAlias = Literal["minmax", "percentile"]
"""Of calibration."""
Mode: TypeAlias = Literal["full", "functional", "timing"]
"""Of a run: numbers and time, or one of them."""
