# Tests: test/passes/onnx/test_import_onnx.py
"""What is wrong with a model: errors of the user's input, printed as they are (exit code 2); and why a node is not
imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from frustum.dialects.errors import Error


class ModelError(Error):
    """The model, or what was asked of it, cannot be used; the message is one line per problem."""


@dataclass(frozen=True)
class Problem:
    """One thing that stands in the way, and where it is."""

    file: str
    message: str
    node: str = ""
    operator: str = ""

    def __str__(self) -> str:
        place = f" node '{self.node}' ({self.operator}):" if self.operator else ""
        return f"{self.file}:{place} error: {self.message}"


class Unsupported(ModelError):
    """The model asks for what Frustum cannot do: all of it at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def reword(self, word: Callable[[str], str]) -> None:
        super().reword(word)
        self.problems = tuple(replace(each, message=word(each.message)) for each in self.problems)


class Refused(Exception):
    """This node cannot be imported; the message says why."""


class NotConstant(Refused):
    """It could be imported if `operand` were constant."""

    def __init__(self, what: str, operand: str) -> None:
        super().__init__(f"{what} must be constant, and depends on the network's inputs")
        self.operand = operand


class MixesImages(Refused):
    """With a changed batch this node would give something else than for each image alone, wherever it runs."""
