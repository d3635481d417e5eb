"""A pipeline as people type it, `pass-a,pass-b{option=value}`, and what can be wrong with it."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import get_type_hints

from xdsl.passes import ModulePass, get_pass_option_infos
from xdsl.utils.arg_spec import ArgSpec, _convert_arg_to_type, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from frustum.dialects.diagnostic import did_you_mean, render
from frustum.dialects.errors import Error
from frustum.dialects.plug_ins import hint, plug_in, points_of, warn
from frustum.runtime.universe import FRUSTUM

FILE = "pipeline"  # what the text is called in messages
Passes = Mapping[str, Callable[[], type[ModulePass]]]


class AvailablePasses(Mapping[str, Callable[[], type[ModulePass]]]):
    """Known ones by name, and those of plug-ins (`frustum.passes`), of which one is loaded when it is asked for."""

    def __init__(self, known: Passes) -> None:
        self.known = known

    def __getitem__(self, name: str) -> Callable[[], type[ModulePass]]:
        if name in self.known:
            return self.known[name]
        found = plug_in("passes", name)
        if isinstance(found, type) and issubclass(found, ModulePass):
            return lambda: found
        if found is not None:
            warn("passes", name, "it is no class of xDSL's ModulePass")
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.known, *(name for name in points_of("passes") if name not in self.known)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


AVAILABLE = AvailablePasses(FRUSTUM.all_passes)
"""What a pipeline may be of."""


class PipelineError(Error):
    """The text of a pipeline is wrong; ready to print."""


def parse_passes(available: Passes, text: str, before: str = "") -> tuple[ModulePass, ...]:
    """The passes, in order, with their options.  Raises `PipelineError` with every wrong one pointed at.

    `before`: what stands before them in the text that people see.
    """
    passes, problems = [], []
    for spec in _specs(text, before):
        try:
            passes.append(_pass_of(available, spec))
        except _Problem as problem:
            problems.append(_point_at(before + text, problem.word, str(problem), len(before)))
    if problems:
        raise PipelineError("\n".join(problems))
    return tuple(passes)


class _Problem(Exception):
    """One thing wrong, and the word of the text that is to blame."""

    def __init__(self, word: str, message: str) -> None:
        super().__init__(message)
        self.word = word


def _specs(text: str, before: str) -> list[ArgSpec]:
    try:
        return list(parse_pipeline(text))
    except ArgSpecParseError as error:
        # The error keeps no token, only text: "...:\npipeline:LINE:COL\nsource\n  ^^^\n  message".
        _, place, _, carets, message, *_ = str(error).splitlines()
        line, col = map(int, re.findall(r":(\d+)", place))
        if line == 1:
            col += len(before) - (before.rfind("\n") + 1)
        line += before.count("\n")
        raise PipelineError(render(FILE, before + text, line, col, message.strip(), carets.count("^"))) from None


def _pass_of(available: Passes, spec: ArgSpec) -> ModulePass:
    if spec.name not in available:
        raise _Problem(spec.name, f"unknown pass '{spec.name}'{hint('passes', spec.name, list(available))}")
    kind = available[spec.name]()
    if spec.name == "mlir-opt":  # its one option holds MLIR's own pipeline
        return kind.from_pass_spec(spec)
    _check_options(kind, spec)
    try:
        return kind.from_pass_spec(spec)
    except Exception as error:  # a pass may refuse a value in its __post_init__
        raise _Problem(spec.name, f"pass '{spec.name}': {error}") from error


def _check_options(kind: type[ModulePass], spec: ArgSpec) -> None:
    infos = {info.name: info for info in get_pass_option_infos(kind)}
    for option, value in spec.parameters.items():
        field = option.replace("-", "_")
        if field not in infos:
            raise _Problem(option, _unknown_option(spec.name, field, list(infos)))
        if not _fits(kind, field, value):
            given = ",".join(map(_as_typed, value)) or "no value"
            needed = infos[field].expected_type
            raise _Problem(option, f"option '{option}' of pass '{spec.name}' is {needed}, not {given}")
    for field in sorted(kind.required_fields() - {o.replace("-", "_") for o in spec.parameters}):
        raise _Problem(spec.name, f"pass '{spec.name}' needs option '{field}' ({infos[field].expected_type})")


def _unknown_option(name: str, option: str, known: list[str]) -> str:
    have = f"it has {', '.join(known)}" if known else "it has no options"
    return f"pass '{name}' has no option '{option}'{did_you_mean(option, known)} ({have})"


def _fits(kind: type[ModulePass], field: str, value: tuple[str | int | bool | float, ...]) -> bool:
    try:
        _convert_arg_to_type(value, get_type_hints(kind)[field])
    except ValueError:
        return False
    return True


def _as_typed(value: str | int | bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _point_at(text: str, word: str, message: str, first: int) -> str:
    """`first`: where to look for the word from."""
    found = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])").search(text, first)
    start = found.start() if found else 0
    line = text.count("\n", 0, start) + 1
    return render(FILE, text, line, start - (text.rfind("\n", 0, start) + 1) + 1, message, len(word))
