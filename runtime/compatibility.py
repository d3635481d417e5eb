# Tests: test/test_packaging.py
"""What differs between the versions of packages that Frustum runs on, and which versions these are.

The ranges are those of `pyproject.toml`: the least and the newest version of each were tried with `make compat`.
xDSL before 0.74 reads text where later ones read bytes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib import metadata
from io import TextIOWrapper
from typing import IO, Any

PACKAGE = "frustum"
Version = tuple[int, ...]
BEYOND_ALL: Version = (1 << 30,)


# --- ranges ------------------------------------------------------------------------------------------------


def warn_outside_range() -> None:
    """Print one line for each package that is not of a version that was tried; nothing where all are."""
    try:
        wanted = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:  # run from its files, not installed: nobody said what is wanted
        return
    for line in outside_range(wanted):
        print(line, file=sys.stderr)


def outside_range(requirements: Iterable[str]) -> list[str]:
    """A line for each installed package whose version is not within its requirement (`name>=1.2,<2`)."""
    lines = []
    for requirement in requirements:
        if ";" in requirement:  # of an extra
            continue
        name, least, beyond = range_of(requirement)
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:  # importing it says more than we could
            continue
        if not least <= version_of(found) < beyond:
            text = requirement[len(name) :].strip(" ()")
            lines.append(f"warning: {name} {found} was not tried with this Frustum, which wants {text}")
    return lines


def range_of(requirement: str) -> tuple[str, Version, Version]:
    """Name, least version, and the version beyond the newest of a requirement such as `xdsl>=0.73,<0.75`.

    An end that is not given, as in the requirements of an older installation, is no limit.
    """
    name = re.split(r"[ (<>=]", requirement, maxsplit=1)[0]
    least, beyond = (re.search(rf"{sign}\s*([\d.]+)", requirement) for sign in (">=", "<"))
    return name, version_of(least[1]) if least else (), version_of(beyond[1]) if beyond else BEYOND_ALL


def version_of(text: str) -> Version:
    """The release's numbers: `0.74.0rc1` is (0, 74, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    assert match is not None, f"{text!r} is no version"
    return tuple(map(int, match[0].split(".")))


# --- xDSL --------------------------------------------------------------------------------------------------

READS_BYTES = version_of(metadata.version("xdsl")) >= (0, 74)
"""Whether xDSL's tools take their input as bytes; earlier ones take text, in which bytes that are none are kept."""
UTF8: tuple[str, str] = ("utf-8", "surrogateescape")


def input_stream(path: str | None) -> IO[Any]:
    """A file, or standard input, as xDSL's tools want it."""
    stream = sys.stdin.buffer if path is None else open(path, "rb")  # noqa: SIM115  (who reads it closes it)
    return stream if READS_BYTES else TextIOWrapper(stream, *UTF8, newline="")


def bytes_of(stream: IO[Any]) -> bytes:
    """All that is left of a stream of either kind."""
    found: bytes | str = stream.read()
    return found.encode(*UTF8) if isinstance(found, str) else found
