# Tests: test/runtime/tools/test_plan.py
"""The passes of the graph level that every plan as a tree begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from xdsl.passes import ModulePass

from frustum.dialects.choices import Carry
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.composites.find_attention import FindAttention
from frustum.passes.graph.composites.find_normalise import FindNormalise
from frustum.passes.graph.composites.join_products import JoinProducts
from frustum.passes.graph.composites.part_products import PartProducts
from frustum.passes.graph.composites.split_sums import SplitSums
from frustum.passes.graph.convert_at_host import ConvertAtHost
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.graph.find_phases import FindPhases
from frustum.passes.graph.fold_quantisation import FoldQuantisation
from frustum.passes.graph.fuse_residual import FuseResidual
from frustum.passes.graph.note_carry import NoteCarry
from frustum.passes.graph.quantise import QuantiseNetwork
from frustum.passes.graph.split_reductions import SplitReductions

FLOATS: dict[str, Literal["f32", "f16", "bf16"]] = {"f32": "f32", "f16": "f16", "bf16": "bf16"}
"""Element types a network can be converted to."""


def passes_of_trees(dtype: str | None, carry: Carry = "auto") -> Sequence[ModulePass]:
    """`dtype`: the element type on the device; of None, and of integers, networks keep their own.  `carry`: the type of
    sums that wait."""
    element = FLOATS.get(dtype or "")
    types: list[ModulePass] = [] if element is None else [ConvertType(to=element)]
    return (
        FindAttention(), FindNormalise(), QuantiseNetwork(), SplitReductions(), Canonicalize(), FoldQuantisation(),
        *types, FuseResidual(), PartProducts(of_any_size=True), FindPhases(of_one=True),
        ConvertAtHost(), JoinProducts(), SplitSums(), NoteCarry(carry),
    )  # fmt: skip
