"""Edits of the default pipeline, as people type them in `--pipeline`.

| entry | wherever PASS stands in the default pipeline |
|---|---|
| `+before:PASS:NEW{option=value}` | NEW runs before it |
| `+after:PASS:NEW{option=value}` | NEW runs behind it |
| `-PASS` | nothing runs |
| `=PASS{option=value}` | it runs with these options; others stay as the command line says |

Entries work one after the other, so that PASS may be one that an earlier entry has added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from xdsl.passes import ModulePass

from frustum.backend.pipeline import Choices, Edit, passes_to, stops_after
from frustum.dialects.diagnostic import did_you_mean, render
from frustum.dialects.plug_ins import hint
from frustum.dialects.weights.codec import CODECS
from frustum.runtime.failures import UsageError
from frustum.runtime.pipeline_text import FILE, Passes, PipelineError, parse_passes

SIGNS = "+-="
FORMS = "an edit is +before:PASS:NEW{...}, +after:PASS:NEW{...}, -PASS or =PASS{option=...}"


def is_edit(text: str) -> bool:
    """Whether a pipeline is edits; UsageError where it mixes edits and passes."""
    entries = [entry for _, entry in _entries(text)]
    edits = [entry for entry in entries if entry and entry[0] in SIGNS]
    if edits and len(edits) < len(entries):
        plain = next(entry for entry in entries if entry not in edits)
        raise UsageError(
            "error: --pipeline is a list of passes or edits of the default one, not both:"
            f" '{plain}' beside '{edits[0]}'"
        )
    return bool(edits)


def parse_edits(available: Passes, text: str) -> tuple[Edit, ...]:
    """The edits in their order.  Raises `PipelineError` with every wrong one pointed at."""
    edits, problems = [], []
    for start, entry in _entries(text):
        try:
            edits.append(_edit(available, text, start, entry))
        except PipelineError as problem:
            problems.append(str(problem))
    if problems:
        raise PipelineError("\n".join(problems))
    return tuple(edits)


def check_anchors(edits: Sequence[Edit], choices: Choices, stop: str) -> None:
    """UsageError for an edit of a pass that does not run: not in this network's default pipeline, behind its stop."""
    if choices.if_better:  # which is tried with codecs and without
        choices = replace(choices, compression=CODECS[0], if_better=False)
    names = [step.name for each in stops_after(stop) for step in passes_to(each, choices)]
    for edit in edits:
        if edit.anchor not in names:
            raise UsageError(
                f"error: --pipeline: '{edit.anchor}' does not run behind stop '{stop}' with these options"
                f"{did_you_mean(edit.anchor, names)}"
            )
        if edit.new is not None:
            names.append(edit.new.name)
        if edit.kind == "without":
            names = [name for name in names if name != edit.anchor]


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """Where each entry begins, and its text; commas in braces or quotes separate none."""
    depth, quoted, start = 0, False, 0
    for place, letter in enumerate(f"{text},"):
        if letter == '"':
            quoted = not quoted
        elif not quoted:
            depth += (letter == "{") - (letter == "}")
            if letter == "," and depth <= 0:
                entry = text[start:place]
                yield start + len(entry) - len(entry.lstrip()), entry.strip()
                start = place + 1
    if start <= len(text):
        yield start, text[start:].strip()


def _edit(available: Passes, text: str, start: int, entry: str) -> Edit:
    sign, rest = entry[:1], entry[1:]
    if sign == "-" and rest:
        return Edit("without", _known(available, text, start + 1, rest))
    if sign == "=" and rest:
        anchor = rest.partition("{")[0].strip()
        _known(available, text, start + 1, anchor)
        (step,) = _parsed(available, text, start + 1, rest)
        given = _options(rest)
        if not given:
            raise _problem(text, start, entry, f"'{entry}' gives '{anchor}' no option ({FORMS})")
        return Edit("changed", anchor, None, tuple((name, getattr(step, name)) for name in given))
    place, colon, behind = rest.partition(":")
    anchor, second, new = behind.partition(":")
    if sign != "+" or place not in ("before", "after") or not (colon and second and new):
        raise _problem(text, start, entry, f"'{entry}' is no edit: {FORMS}")
    at = start + 2 + len(place)
    _known(available, text, at, anchor)
    (step,) = _parsed(available, text, at + len(anchor) + 1, new)
    return Edit("before" if place == "before" else "after", anchor, step)


def _options(entry: str) -> list[str]:
    """The names of the options of one entry, as fields are called."""
    from xdsl.utils.arg_spec import parse_pipeline

    (spec,) = parse_pipeline(entry)
    return [name.replace("-", "_") for name in spec.parameters]


def _parsed(available: Passes, text: str, start: int, entry: str) -> Sequence[ModulePass]:
    """The pass of one entry, as it stands in the whole text."""
    return parse_passes(available, entry, text[:start])


def _known(available: Passes, text: str, start: int, name: str) -> str:
    if name not in available:
        raise _problem(text, start, name, f"unknown pass '{name}'{hint('passes', name, list(available))}")
    return name


def _problem(text: str, start: int, word: str, message: str) -> PipelineError:
    line, column = text.count("\n", 0, start) + 1, start - (text.rfind("\n", 0, start) + 1) + 1
    return PipelineError(render(FILE, text, line, column, message, max(1, len(word))))
