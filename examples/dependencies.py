"""What an installation of Frustum brings along, from uv.lock: `python examples/dependencies.py docs`.

Writes `sbom.cdx.json` (CycloneDX, JSON) and `dependencies.md`, a table of licences.  Both hold what users install: the
dependencies and those of the extras for users.  Tools for development are in uv.lock alone.

Versions are those of the lock.  A licence is what the package of that version says, where it is installed, or what the
file said before: so the same lock gives the same bytes everywhere.  A package of which neither is known is an error.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[1]
USER_EXTRAS = ("completion", "trace", "explore")
SBOM, PAGE = "sbom.cdx.json", "dependencies.md"
HEAD = """# Dependencies and their licences

For those who have to know what an installation brings along. `make docs` writes this page and the same as an SBOM
([{sbom}]({sbom}), CycloneDX 1.6) from `uv.lock`, which `make lock` writes; tools for development are in the lock alone.

| package | version | licence | for |
|---|---|---|---|
"""
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause", "Apache 2.0": "Apache-2.0", "apache-2.0": "Apache-2.0",
    "Apache License v2.0 with LLVM Exceptions": "Apache-2.0 WITH LLVM-exception", "MIT License": "MIT",
}  # fmt: skip
"""What packages say in words of their own; `BSD` alone could be one of several and stays."""


@dataclass(frozen=True)
class Package:
    """A package of the lock."""

    name: str
    version: str
    licence: str
    extras: tuple[str, ...]
    """Whose extras need it; none: all installations do."""
    needs: tuple[str, ...]


class Unknown(Exception):
    """A package whose licence nobody knows."""


def locked() -> dict[str, dict[str, Any]]:
    """The entries of the lock by name."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    return {entry["name"]: entry for entry in lock["package"]}


def packages(known: Mapping[tuple[str, str], str]) -> list[Package]:
    """All that users install, by name; `known`: licences of packages that may not be installed here."""
    entries = locked()
    ours = entries["frustum"]
    roots = {"": ours["dependencies"]} | {extra: ours["optional-dependencies"][extra] for extra in USER_EXTRAS}
    reached = {extra: set(_reached(entries, [each["name"] for each in needs])) for extra, needs in roots.items()}
    found = []
    for name in sorted(set().union(*reached.values())):
        entry = entries[name]
        extras = () if name in reached[""] else tuple(extra for extra in USER_EXTRAS if name in reached[extra])
        version = entry["version"]
        licence = licence_of(name, version) or known.get((name, version))
        if licence is None:
            raise Unknown(f"{name} {version}: no licence known; install this version and try again (`make locked`)")
        needs = tuple(sorted({each["name"] for each in entry.get("dependencies", [])}))
        found.append(Package(name, version, licence, extras, needs))
    return found


def _reached(entries: Mapping[str, dict[str, Any]], names: list[str]) -> Iterator[str]:
    seen = set[str]()
    while names:
        name = names.pop()
        if name not in seen:
            seen.add(name)
            yield name
            names += [each["name"] for each in entries[name].get("dependencies", [])]


def licence_of(name: str, version: str) -> str | None:
    """What the installed package says, in SPDX's words where it has them; None where this version is not installed."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    if about["Version"] != version:
        return None
    if expression := about.get("License-Expression"):
        return SPDX.get(expression, str(expression))
    text = str(about.get("License") or "")
    if text and "\n" not in text and len(text) < 60:
        return SPDX.get(text, text)
    words = [each.split(" :: ")[-1] for each in about.get_all("Classifier") or [] if each.startswith("License")]
    return " AND ".join(SPDX.get(word, word) for word in words) or None


def known_licences(folder: Path) -> dict[tuple[str, str], str]:
    """Licences by name and version, as the SBOM there says."""
    path = folder / SBOM
    if not path.exists():
        return {}
    components = json.loads(path.read_text())["components"]
    return {(each["name"], each["version"]): _said(each["licenses"][0]) for each in components}


def _said(licence: Mapping[str, Any]) -> str:
    return str(licence.get("expression") or licence["license"].get("id") or licence["license"]["name"])


def sbom(found: list[Package]) -> str:
    """The same bytes for the same packages: the serial number is of them, and there is no date."""
    licences = LicenseFactory()
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, repr(found)))
    bom.metadata.timestamp = None  # type: ignore[assignment]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    ours = Component(
        name="frustum", version=version, type=ComponentType.APPLICATION, bom_ref="frustum",
        licenses=[licences.make_from_string("Apache-2.0")],
    )  # fmt: skip
    bom.metadata.component = ours
    components = {}
    for each in found:
        components[each.name] = Component(
            name=each.name, version=each.version, type=ComponentType.LIBRARY, bom_ref=f"{each.name}-{each.version}",
            scope=ComponentScope.OPTIONAL if each.extras else ComponentScope.REQUIRED,
            purl=PackageURL("pypi", None, each.name, each.version),
            licenses=[licences.make_from_string(each.licence)],
        )  # fmt: skip
        bom.components.add(components[each.name])
    for each in found:
        bom.register_dependency(components[each.name], [components[name] for name in each.needs])
    direct = {each["name"] for each in locked()["frustum"]["dependencies"]}
    bom.register_dependency(ours, [components[name] for name in sorted(direct)])
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def page(found: list[Package]) -> str:
    rows = (f"| {each.name} | {each.version} | {each.licence} | {', '.join(each.extras) or 'all'} |" for each in found)
    return HEAD.format(sbom=SBOM) + "\n".join(rows) + "\n"


def main(folder: Path) -> None:
    found = packages(known_licences(folder))
    (folder / SBOM).write_text(sbom(found))
    (folder / PAGE).write_text(page(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
