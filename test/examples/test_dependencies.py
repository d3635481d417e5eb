"""The SBOM and the table of licences say what the lock says, the lock what pyproject.toml asks."""

import json
import re
import tomllib
from pathlib import Path

import dependencies
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = tomllib.loads((ROOT / "uv.lock").read_text())


def asked(requirement, extra=None):
    """A requirement as the lock has it."""
    found = Requirement(requirement)
    said = {"name": canonicalize_name(found.name)}
    said |= {"extras": sorted(found.extras)} if found.extras else {}
    said |= {"marker": f"extra == '{extra}'"} if extra else {}
    return said | ({"specifier": frozenset(map(str, found.specifier))} if found.specifier else {})


def locked(entry):
    changed = {"specifier": frozenset(entry["specifier"].split(","))} if "specifier" in entry else {}
    changed |= {"extras": sorted(entry["extras"])} if "extras" in entry else {}
    return entry | changed


def test_the_lock_is_of_what_is_asked():
    """As `uv lock --check` says, which needs a network."""
    (ours,) = (entry for entry in LOCK["package"] if entry["name"] == "frustum")
    extras = PROJECT["optional-dependencies"]
    wanted = [asked(each) for each in PROJECT["dependencies"]]
    wanted += [asked(each, extra) for extra in extras for each in extras[extra]]
    found = [locked(entry) for entry in ours["metadata"]["requires-dist"]]
    assert [each for each in wanted if each not in found] == [], "run `make lock`"
    assert [each for each in found if each not in wanted] == [], "run `make lock`"
    assert LOCK["requires-python"].replace(" ", "") == PROJECT["requires-python"]
    assert ours["version"] == PROJECT["version"]


def test_locked_versions_are_within_the_ranges():
    versions = {entry["name"]: entry["version"] for entry in LOCK["package"] if "version" in entry}
    for text in PROJECT["dependencies"]:
        requirement = Requirement(text)
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, "run `make lock`"


def test_all_is_of_one_registry_and_has_a_hash():
    sources = {next(iter(entry["source"])) for entry in LOCK["package"] if entry["name"] != "frustum"}
    assert sources == {"registry"}
    files = [file for entry in LOCK["package"] for file in [*entry.get("wheels", []), entry.get("sdist")] if file]
    assert len(files) > 100
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", file["hash"]) for file in files)


@pytest.fixture(scope="module")
def packages():
    return dependencies.packages(dependencies.known_licences(DOCS))


def test_the_sbom_and_the_page_are_of_the_lock(packages):
    """Written from the lock and from licences that are known."""
    assert (DOCS / dependencies.SBOM).read_text() == dependencies.sbom(packages), "run `make docs`"
    assert (DOCS / dependencies.PAGE).read_text() == dependencies.page(packages), "run `make docs`"


def test_the_sbom_is_cyclonedx_and_leads_to_all_of_it():
    bom = json.loads((DOCS / dependencies.SBOM).read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    needs = {each["ref"]: each.get("dependsOn", []) for each in bom["dependencies"]}
    reached, todo = set(), ["frustum"]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += needs[name]
    required = {each["bom-ref"] for each in bom["components"] if each["scope"] == "required"}
    assert reached == required | {"frustum"}
    direct = {canonicalize_name(Requirement(each).name) for each in PROJECT["dependencies"]}
    assert {name.rpartition("-")[0] for name in needs["frustum"]} == direct


def test_every_package_has_a_licence_that_is_known(packages):
    assert {each.name for each in packages if not re.search(r"MIT|BSD|Apache|MPL|PSF", each.licence)} == set()


def test_a_package_without_a_known_licence_is_an_error(monkeypatch):
    monkeypatch.setattr(dependencies, "licence_of", lambda name, version: None if name == "xdsl" else "MIT")
    with pytest.raises(dependencies.Unknown, match=r"xdsl 0\.[\d.]+: no licence known; install this version"):
        dependencies.packages({})


def test_an_installed_package_of_another_version_says_nothing():
    assert dependencies.licence_of("pytest", "0.0.1") is None
    assert dependencies.licence_of("nobody-has-this", "1") is None
