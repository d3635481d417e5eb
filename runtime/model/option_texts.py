# Tests: test/runtime/model/test_options.py
"""What texts of options on the command line mean: each function raises ArgumentTypeError for a text of another form."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, extents = text.rpartition("=")
    try:
        found = tuple(int(extent) for extent in extents.split("x"))
    except ValueError:
        found = ()
    if not (name and equals and found) or min(found) < 1:
        raise ArgumentTypeError(f"'{text}' is not of the form INPUT=1x3x160x224")
    return name, found


def bound_value(text: str) -> tuple[str, bool | int | float]:
    name, _, value = text.rpartition("=")
    try:
        found = value == "true" if value in ("true", "false") else float(value)
        found = int(value) if value.lstrip("+-").isdigit() else found
    except ValueError:
        name = ""
    if not name:
        raise ArgumentTypeError(f"'{text}' is not of the form INPUT=16000, INPUT=0.5 or INPUT=true")
    return name, found


def dim(text: str) -> tuple[str, int]:
    name, equals, extent = text.rpartition("=")
    if not (name and equals and extent.isascii() and extent.isdigit()):
        raise ArgumentTypeError(f"'{text}' is not of the form NAME=VALUE, as past_len=128")
    return name, int(extent)


def at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise ArgumentTypeError(f"'{text}' is not an integer of at least {least}")
        return int(text)

    read.__doc__ = f"a whole number, at least {least}"
    return read


def what_to_check(text: str) -> str:
    if text in ("outputs", "layers") or text.endswith(".onnx") or text.startswith("zoo:"):
        return text
    raise ArgumentTypeError(f"'{text}' is none of outputs, layers, FILE.onnx, zoo:NAME")
