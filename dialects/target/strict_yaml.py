"""YAML 1.2 text to plain data, keeping where everything stands.

Stricter than a usual reader: a key that is given twice, a key that is not text, a tag of somebody's own and
an alias inside itself are problems.  Only the first syntax error is reported, since nothing after it can be
trusted; everything else is reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from frustum.dialects.diagnostic import render
from frustum.dialects.target.declared import FieldProblem, Path

_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Mark:
    """Line and column, both from 1, and the width of what stands there."""

    line: int
    column: int
    width: int = 1


@dataclass
class Document:
    """What a text says, where each key and value stands, and what is wrong with it."""

    file: str
    text: str
    data: Any = None
    problems: list[FieldProblem] = field(default_factory=list)
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    second_keys: list[tuple[FieldProblem, Mark]] = field(default_factory=list)
    nodes: int = 0
    """Looked at so far."""

    def report(self, problems: list[FieldProblem]) -> str:
        """One diagnostic for each problem, in the order of the text."""
        marked = [(problem, self._mark(problem)) for problem in problems] + self.second_keys
        marked.sort(key=lambda pair: (pair[1].line, pair[1].column))
        return "\n".join(
            render(self.file, self.text, mark.line, mark.column, problem.message, mark.width)
            for problem, mark in marked
        )

    def _mark(self, problem: FieldProblem) -> Mark:
        of_scalar = self.values.get(problem.path)
        of_key = self.keys.get(problem.path)
        if of_key is not None and (problem.on_key or of_scalar is None):
            return of_key
        return of_scalar or Mark(1, 1)


def read(text: str, file: str) -> Document:
    """Read a text; look at `problems` and `second_keys` before trusting `data`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    document = Document(file, text)
    try:
        root = YAML(typ="safe", pure=True).compose(text)
        document.data = _plain(document, root, (), ())
    except RecursionError:
        document.problems.append(FieldProblem((), "not YAML that is read here: sections are nested too deeply"))
    except TooLarge:
        document.problems.append(FieldProblem((), f"not YAML that is read here: more than {MOST_NODES} values"))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        document.values[()] = Mark(mark.line + 1, mark.column + 1) if mark else Mark(1, 1)
        document.problems.append(FieldProblem((), f"not YAML: {_one_line(error.problem or error.context)}"))
    except YAMLError as error:
        document.problems.append(FieldProblem((), f"not YAML: {_one_line(str(error))}"))
    return document


MOST_NODES = 100_000
"""An alias stands for all that it names, so a short text can say more than any memory holds."""


class TooLarge(Exception):
    """There is more in a text than is read."""


def _plain(document: Document, node: Any, path: Path, above: tuple[Any, ...]) -> Any:
    if node is None:
        return None
    document.nodes += 1
    if document.nodes > MOST_NODES:
        raise TooLarge
    if any(node is outer for outer in above):
        document.problems.append(FieldProblem(path, f"{'.'.join(path)} is an alias of what it stands in"))
        return None
    if node.id == "mapping":
        return _plain_mapping(document, node, path, (*above, node))
    if node.id == "sequence":
        return [_plain(document, item, (*path, str(i)), (*above, node)) for i, item in enumerate(node.value)]
    document.values.setdefault(path, _mark_of(node))
    return _plain_scalar(document, node, path)


def _plain_mapping(document: Document, node: Any, path: Path, above: tuple[Any, ...]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in node.value:
        here = (*path, str(key.value))
        if key.id != "scalar" or key.tag != f"{_TAG}str":
            document.second_keys.append(
                (FieldProblem(here, f"a key must be text, found {_shown(key)}"), _mark_of(key))
            )
        elif here[-1] in data:
            first = document.keys[here].line
            message = f"{'.'.join(here)} is given twice, first in line {first}"
            document.second_keys.append((FieldProblem(here, message), _mark_of(key)))
        else:
            document.keys.setdefault(here, _mark_of(key))
            data[here[-1]] = _plain(document, value, here, above)
    return data


def _plain_scalar(document: Document, node: Any, path: Path) -> Any:
    kind, text = node.tag.removeprefix(_TAG), node.value
    try:
        match kind:
            case "str":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text, 0)
            case "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:  # such as 0777, which YAML 1.1 and 1.2 read differently
        document.problems.append(FieldProblem(path, f"{'.'.join(path)}: {text!r} is not a number of YAML 1.2"))
        return None
    document.problems.append(FieldProblem(path, f"{'.'.join(path)}: tag {node.tag} is not allowed here"))
    return None


def _shown(key: Any) -> str:
    return str(key.value) if key.id == "scalar" else f"a {key.id}"


def _mark_of(node: Any) -> Mark:
    start, end = node.start_mark, node.end_mark
    width = end.column - start.column if end.line == start.line else 1
    return Mark(start.line + 1, start.column + 1, max(1, width))


def _one_line(words: str) -> str:
    return " ".join(str(words).split())
