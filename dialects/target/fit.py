"""The one error of everything that finds too little room on the machine."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from frustum.dialects.errors import Diagnostic, Error

Resource: TypeAlias = Literal["sram", "wram", "nram", "dram", "acache", "instruction memory", "events"]
"""What there is too little of, for whoever can try again with less of it."""
CODE: Literal["instruction memory"] = "instruction memory"
HOLES = 16
"""Who takes what is left of a memory leaves such a part of it free, since buffers may leave holes. 2026-11-29."""


class DoesNotFit(Error):
    """`what` of `where` needs more than the target has.

    Numbers of `needed` and `available` carry their unit in words: `DoesNotFit("buffers", "unit 3", "70000 B",
    "65536 B of nram", "nram")`; `resource` is None where less of none helps.
    """

    exit_code: ClassVar[int] = 4

    def __init__(
        self, what: str, where: str, needed: int | str, available: int | str, resource: Resource | None = None
    ) -> None:
        super().__init__(what, where, needed, available, resource)
        self.what = what
        self.where = where
        self.needed = needed
        self.available = available
        self.resource = resource

    def __str__(self) -> str:
        return f"{self.where}: {self.what} does not fit: needed {self.needed}, available {self.available}"

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        lever = None if self.resource is None else f"a target with more {self.resource}"
        return (Diagnostic(str(self), mend=lever),)

    def under(self, options: str) -> DoesNotFit:
        """The same error that says first with which options the machine was to do it."""
        return type(self)(self.what, f"{options}: {self.where}", self.needed, self.available, self.resource)


class OrderDoesNotFit(DoesNotFit):
    """An order of traversal that could only be carried out through DRAM: no smaller tile and no cut of the network
    makes it fit, for each of them would move more maps through DRAM."""
