"""A report as one screen of text: what was fused, what it saves, what it waits for, why it was cut there.

`terminal.py` has all figures (`-v`); here is what most people ask.  Empty parts are left out.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from frustum.runtime.report.terminal import WIDTH, bytes_text, nan_text, seconds_parts, seconds_text, share

MOST_UNITS = 6
MOST_WAITS = 3
MOST_REASONS, MOST_NAMED = 8, 4
"""Why layers are on the host, and operators of one reason."""
BOLD, DIM, GREEN, YELLOW, RED, PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[31m", "\033[0m"
CUT = re.compile(r"cut before '(?P<layer>.*)': \d+ DRAM bytes here, \d+ in all")
"""What policy optimal says."""
Data = Mapping[str, Any]


def screen(data: Data, colours: bool = False) -> str:
    """The text; with `colours`, for a terminal that knows ANSI's."""
    paint = _painted if colours else _plain
    parts = [_title(data, paint), _host(data), _dram(data, paint), _time(data, paint), _units(data), _rest(data, paint)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _painted(text: str, colour: str) -> str:
    return f"{colour}{text}{PLAIN}"


def _plain(text: str, colour: str) -> str:
    return text


def _title(data: Data, paint: Any) -> list[str]:
    machine = data.get("target_file") or data["target"]
    title = f"{data['model']} on {machine}, {data['dtype']}, policy {data['policy']}"[:WIDTH]
    layers, units = data["layers"], data["units"]
    host = sum(layer["where"] == "host" for layer in layers)
    fused = [len(unit["layers"]) for unit in units]
    words = [_many(len(layers), "layer")]
    if units:
        largest = f", up to {max(fused)} in one" if max(fused, default=0) > 1 else ""
        words.append(f"{_many(len(units), 'unit')}{largest}")
    if host:
        words.append(f"{host} on the host")
    return [paint(title, BOLD), paint("=" * len(title), DIM), "; ".join(words)]


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _host(data: Data) -> list[str]:
    """How many layers are on the host and why, those of one reason together, before anything else is said."""
    host = data.get("host")
    if not host or not host["layers"]:
        return []
    kinds: dict[str, Counter[str]] = {}
    for layer in host["layers"]:
        kinds.setdefault(kind_of_reason(layer["reason"]), Counter())[layer["op"]] += 1
    ordered = sorted(kinds.items(), key=lambda each: -each[1].total())
    lines = [_paragraph(f"{ops.total()} x {_named(ops)}: {why}") for why, ops in ordered[:MOST_REASONS]]
    if len(ordered) > MOST_REASONS:
        left = sum(ops.total() for _, ops in ordered[MOST_REASONS:])
        lines.append([f"  and {left} for {len(ordered) - MOST_REASONS} more reasons; --report has all"])
    on_device = len(data["layers"]) - len(host["layers"])
    head = "On the host" if on_device else f"All on the host: nothing of {data['model']} runs on the device"
    return [head, *(line for each in lines for line in each)]


QUOTED = re.compile(r"'[^']*' ?|\(node '[^']*' gives it on the host\)")


def kind_of_reason(reason: str) -> str:
    """A reason without the names in it."""
    return " ".join(QUOTED.sub("", reason).split())


def _named(ops: Counter[str]) -> str:
    """`Gather`, or the most frequent of several."""
    names = [name for name, _ in ops.most_common()]
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _paragraph(words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def _dram(data: Data, paint: Any) -> list[str]:
    dram = data["dram"]
    total = dram["total_bytes"]
    if not total:
        return []
    moved = total - dram["other_bytes"]
    line = f"{paint('DRAM', BOLD)}  {bytes_text(total)}"
    if dram["bound_bytes"]:
        times = moved / dram["bound_bytes"]
        colour = GREEN if times < 1.05 else YELLOW if times < 1.5 else RED
        line += f", {paint(f'{times:.3f} times', colour)} the least that any plan moves ({dram['bound_by']})"
    elif dram["ratio"] is not None:
        line += f", {dram['ratio']:.3f} times the compulsory bytes"
    lines = [line]
    alone = dram.get("layer_by_layer_bytes")
    if alone and dram["maps"]:
        kept = dram["maps"] - dram["maps_in_dram"]
        saved = f"{alone / moved:.2f} times as much" if moved else "more"
        lines.append(f"  layer by layer {bytes_text(alone)}, {saved}: {kept} of {dram['maps']} maps stay on chip")
    kinds = (("weights", "weight"), ("inputs", "input"), ("outputs", "output"), ("maps", "intermediate"),
             ("code", "other"))  # fmt: skip
    parts = [f"{name} {bytes_text(dram[f'{key}_bytes'])}" for name, key in kinds if dram[f"{key}_bytes"]]
    return [*lines, f"  {', '.join(parts)}"]


def _time(data: Data, paint: Any) -> list[str]:
    cycles = data["cycles"]
    if not cycles or not cycles["total"]:
        return []
    total, clock = cycles["total"], data["clock_hz"]
    line = f"{paint('Time', BOLD)}  {total:,} cycles, {seconds_text(total / clock)} at {clock / 1e6:,.0f} MHz"
    if cycles["bound"]:
        times = total / cycles["bound"]
        colour = GREEN if times < 1.1 else YELLOW if times < 2 else RED
        line += f", {paint(f'{times:.3f} times', colour)} the bound ({cycles['bound_by']})"
    elif cycles["ratio"]:
        line += f", {cycles['ratio']:.3f} times the roofline"
    lines = [line]
    host = data.get("host")
    if host and host["cycles"]:
        size = bytes_text(host["bytes"])
        lines.append(f"  the host computes for {host['cycles']:,} cycles, {size} read and written; no bound has them")
    found = data.get("waiting") or []
    busy = [each for each in found if not each["is_wait"]]
    waits = [each for each in found if each["is_wait"]][:MOST_WAITS]
    if busy:
        words = (f"{100 * each['share']:.0f} % {each['what']}" for each in busy[:MOST_WAITS])
        lines.append(f"  at work: {'; '.join(words)}"[:WIDTH])
    for each in waits:
        units = f" ({', '.join(each['units'])})" if each["units"] else ""
        lines.append(f"  {100 * each['share']:.0f} % of the time {each['what']}{units}"[:WIDTH])
    return lines


def _units(data: Data) -> list[str]:
    """The units that take most, in the order of the network, and why each ends where it does."""
    units, cycles = data["units"], data["cycles"]
    if len(units) < 2 or not cycles or not cycles["total"]:
        return []
    spent = {unit["name"]: sum(wait["cycles"] for wait in unit["waits"] or ()) for unit in units}
    chosen = set(sorted(spent, key=lambda name: -spent[name])[:MOST_UNITS])
    moved: dict[str, int] = {}
    for layer in data["layers"]:
        moved[layer["unit"]] = moved.get(layer["unit"], 0) + layer["dram_bytes"]
    rows = [("unit", "cycles", "of all", "DRAM", "layers; why it ends")]
    for unit in units:
        if unit["name"] in chosen:
            name, size = unit["name"], bytes_text(moved.get(unit["name"], 0))
            words = f"{_layers_text(unit['layers'])}; {_reason(unit['stopped_by'])}"
            rows.append((name, f"{spent[name]:,}", share(spent[name], cycles["total"]), size, words))
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    lines = []
    for first, *figures, words in rows:
        cells = (cell.rjust(width) for cell, width in zip(figures, widths[1:], strict=True))
        lines.append("  ".join(["", first.ljust(widths[0]), *cells, words]))
    rest = len(units) - len(chosen)
    return ["Units that take most", *(line[:WIDTH] for line in lines), *([f"  and {rest} more"] * (rest > 0))]


def _layers_text(layers: Sequence[str]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]} .. {layers[-1]} ({len(layers)})"


def _reason(stopped_by: str | None) -> str:
    """Why a unit ends."""
    found = CUT.fullmatch(stopped_by or "")
    return f"cut before {found['layer']}" if found else stopped_by or "the network ends"


def _rest(data: Data, paint: Any) -> list[str]:
    lines = []
    peaks = [f"{name.upper()} {bytes_text(size)}" for name, size in data["peak_bytes"].items() if size]
    if peaks:
        lines.append(f"{paint('On chip', BOLD)}  {', '.join(peaks)} at most")
    if data["check"]:
        check = data["check"]
        errors = f"relative error {check['max_rel_error']:.2g}, absolute {check['max_abs_error']:.2g}"
        lines.append(f"{paint('Check', BOLD)}  {errors} against {check['reference']}")
        if check["nan_in_both"]:
            lines.append(f"  {nan_text(check)}")
    seconds = data["seconds"]
    parts = seconds_parts(seconds)
    return [*lines, f"Took {', '.join(parts)}"] if parts else lines
