"""Why a node is not imported."""

from __future__ import annotations

__all__ = ["MixesImages", "NotConstant", "Refused"]


class Refused(Exception):
    """This node cannot be imported; the message says why."""


class NotConstant(Refused):
    """It could be imported if `operand` were constant."""

    def __init__(self, what: str, operand: str) -> None:
        super().__init__(f"{what} must be constant, and depends on the network's inputs")
        self.operand = operand


class MixesImages(Refused):
    """With a changed batch this node would give something else than for each image alone, wherever it runs."""
