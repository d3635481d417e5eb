# Tests: test/runtime/study/test_explain.py
"""What `frustum explain` found, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

Data = Mapping[str, Any]


class Explanation(dict[str, Any]):
    """What was found, by the keys of `frustum explain --json`."""

    def text(self) -> str:
        """What the command prints."""
        return "\n".join(lines_of(self)) + "\n"

    def json(self) -> str:
        return json.dumps(self, indent=1) + "\n"

    def __repr__(self) -> str:
        return f"<frustum.Explanation: {lines_of(self)[0]}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text())}</pre>"


def lines_of(found: Data) -> list[str]:
    """The explanation of a plan, a unit, a layer, or a layer on the host."""
    if found["what"] == "host":
        return [f"{each['layer']} ({each['op']}) is on the host: {each['reason']}" for each in found["layers"]]
    counted = f"{found['cycles']:,} cycles, {found['dram_bytes']:,} DRAM bytes (counted)"
    head = f"{found['model']} on {found['target']}: {counted}"
    return [head, "", *(_plan_lines(found) if found["what"] == "plan" else _part_lines(found))]


def _plan_lines(found: Data) -> list[str]:
    lines = [*_tree_lines(found), *(line for unit in found["units"] for line in _unit_lines(unit))]
    if found["same"] is not None:
        lines += ["", *_way_lines(found, found["same"])]
    if found["cuts"]:
        base = found if "problem" in found["same"] else found["same"]
        lines += ["", "each of these cuts left out, the others kept: two whole plans, of which other units differ, too"]
        lines += [line for cut in found["cuts"] for line in _cut_lines(base, cut)]
    return [*lines, *_left_lines(found["left_out"], "cuts")]


def _tree_lines(found: Data) -> list[str]:
    """What a search over trees of plans reaches beside what the plan moves."""
    if "tree" not in found:
        return []
    tree, what = found["tree"], "a plan as a tree (frustum plan), weights uncompressed"
    if "problem" in tree:
        return [f"{what}: none: {tree['problem']}", ""]
    lines = [f"{what}:"]
    for each in tree["networks"]:
        least = f"every plan moves {each['compulsory_bytes']:,}"
        size = f"none: {each['problem']}" if "problem" in each else f"{each['dram_bytes']:,} DRAM bytes"
        lines.append(f"  @{each['network']}: {size}; {least}")
    if tree["dram_bytes"] is not None:
        own, stored = tree["plan_bytes"], " with compressed weights" if tree["is_compressed"] else ""
        change, ratio = tree["dram_bytes"] - own, tree["dram_bytes"] / max(1, own)
        lines.append(f"  {change:+,} bytes, {ratio:.2f} x: of tensors the plan below moves {own:,}{stored}")
    return [*lines, ""]


def _cut_lines(base: Data, cut: Data) -> list[str]:
    """The whole plan without the cut, and how much of the difference is of the units that the cut separates."""
    first, *others = _way_lines(base, cut["without"])
    if "here" not in cut:
        return [first, *others]
    parts = ((cut["here"], "the units beside this cut"), (cut["elsewhere"], "other units"))
    words = (f"{part['cycles']:+,} cycles and {part['dram_bytes']:+,} bytes in {where}" for part, where in parts)
    return [first, f"      {'; '.join(words)}", *others]


def _part_lines(found: Data) -> list[str]:
    lines = _unit_lines(found["unit"])
    if "layer" in found:
        layer = found["layer"]
        lines.append(
            f"  {layer['name']} ({layer['op']}): {layer['cycles']:,} cycles, {layer['dram_bytes']:,} DRAM bytes"
        )
    lines += ["", "next best:" if found["ways"] else "no other way was found among those counted"]
    lines += [line for way in found["ways"] for line in _way_lines(found, way)]
    if found["others"]:
        lines += ["also counted:", *(_way_lines(found, way)[0] for way in found["others"])]
    lines += _left_lines(found["left_out"], "ways")
    for flip in found.get("flips", ()):
        tried = ", ".join(f"{each['value']:,}" for each in flip["tried"]) or "none"
        at = "no tried value makes the first of them better" if flip["flips_at"] is None else (
            f"at {flip['flips_at']:,} the first of them is better or is the plan")  # fmt: skip
        lines.append(f"  {flip['number']} (now {flip['now']:,}): {at}; tried {tried}")
    return lines


def _unit_lines(unit: Data) -> list[str]:
    layers = ", ".join(unit["layers"][:6]) + (
        f" and {len(unit['layers']) - 6} more" if len(unit["layers"]) > 6 else ""
    )
    mode = f", mode {unit['mode']}" if unit["mode"] else ""
    predicted = f" ({unit['predicted_cycles']:,} predicted)" if unit["predicted_cycles"] is not None else ""
    return [
        f"{unit['name']}: {layers}",
        f"  {unit['cycles']:,} cycles{predicted}, {unit['dram_bytes']:,} DRAM bytes, {unit['tiles']} tiles by"
        f" {unit['owners']}{mode}; ends: {unit['stopped_by'] or 'the network ends'}",
    ]


def _way_lines(found: Data, way: Data) -> list[str]:
    if "problem" in way:
        return [f"  {way['way']}: cannot be: {way['problem']}"]
    cycles, size = way["cycles"] - found["cycles"], way["dram_bytes"] - found["dram_bytes"]
    lines = [
        f"  {way['way']}: {way['cycles']:,} cycles ({cycles:+,}), {way['dram_bytes']:,} DRAM bytes ({size:+,})"
    ]
    lines += [f"      {n:+,} bytes of class {name}" for name, n in way["bytes_by_class"].items()]
    lines += [f"      {each['cycles']:+,} cycles: {each['cause']}" for each in way["causes"]]
    return [*lines, *(f"      {n:+,} cycles: {what}" for what, n in way["waits"].items())]


def _left_lines(left: list[str], what: str) -> list[str]:
    return [f"not counted (--most): {len(left)} {what}: {', '.join(left)}"] if left else []
