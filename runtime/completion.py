# Tests: test/runtime/test_completion.py
"""What completes the words of `frustum` in a shell, made from its parser: `frustum --print-completion SHELL`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.util import find_spec

from frustum.runtime.failures import UsageError

FILES, FOLDERS = ("FILE", "MODEL", "PATH", "DB.sqlite"), ("DIR",)
"""What the name of a value holds where it is a file, or a folder."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The text that a shell reads; UsageError where the package that writes it is not there."""
    if find_spec("shtab") is None:
        raise UsageError(
            "error: --print-completion needs the package shtab: pip install 'frustum[completion]'"
        )
    import shtab

    for action in _actions(parser):
        name = str(action.metavar or "")
        if action.choices is None and any(word in name for word in FOLDERS):
            vars(action)["complete"] = shtab.DIRECTORY
        elif action.choices is None and any(word in name for word in FILES):
            vars(action)["complete"] = shtab.FILE
    text: str = shtab.complete(parser, shell)
    return text if text.endswith("\n") else text + "\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All that can be typed, commands too."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
