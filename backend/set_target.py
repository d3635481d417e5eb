# Tests: test/backend/waits/test_rolling.py
"""Tell a module which machine it is compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from frustum.backend import targets
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute


@dataclass(frozen=True)
class SetTarget(ModulePass):
    """Write the description of a machine (a shipped name or a YAML file) into the module's attribute."""

    name = "frustum-set-target"
    target: str = "default"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        op.attributes[TARGET] = to_attribute(targets.load(self.target))
