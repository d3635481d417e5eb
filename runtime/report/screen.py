"""A report as one screen of text: what was fused, what it saves, what it waits for, why it was cut there.

`terminal.py` has all figures (`-v`); here is what most people ask.  Empty parts are left out.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from frustum.runtime.report.terminal import (
    WIDTH,
    bytes_text,
    bytes_texts,
    energy_line,
    nan_text,
    seconds_parts,
    seconds_text,
    share,
    wrapped,
)
from frustum.runtime.report.units import PLANNED

MOST_UNITS = 6
MOST_WAITS = 3
MOST_REASONS, MOST_NAMED = 8, 4
"""Why layers are on the host, and operators of one reason."""
BOLD, DIM, GREEN, YELLOW, RED, PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[31m", "\033[0m"
Data = Mapping[str, Any]


def screen(data: Data, colours: bool = False) -> str:
    """The text; with `colours`, for a terminal that knows ANSI's."""
    paint = _painted if colours else _plain
    parts = [_title(data, paint), _host(data), _dram(data, paint), _time(data, paint), _units(data), _rest(data, paint)]
    lines = [[piece for line in part for piece in wrapped(line)] for part in parts if part]
    return "\n\n".join("\n".join(part) for part in lines) + "\n"


def _painted(text: str, colour: str) -> str:
    return f"{colour}{text}{PLAIN}"


def _plain(text: str, colour: str) -> str:
    return text


def _title(data: Data, paint: Any) -> list[str]:
    machine = data.get("target_file") or data["target"]
    title = f"{data['model']} on {machine}, {data['dtype']}, policy {data['policy']}"
    layers, units = data["layers"], data["units"]
    host = sum(layer["where"] == "host" for layer in layers)
    fused = [len(unit["layers"]) for unit in units]
    words = [_many(len(layers), "layer")]
    if units:
        largest = f", up to {max(fused)} in one" if max(fused, default=0) > 1 else ""
        words.append(f"{_many(len(units), 'unit')}{largest}")
    if host:
        words.append(f"{host} on the host")
    return [paint(title, BOLD), paint("=" * min(len(title), WIDTH), DIM), "; ".join(words)]


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
    """Each line has both figures of its ratio, with one prefix."""
    dram = data["dram"]
    total, least, bound = dram["total_bytes"], dram["compulsory_bytes"], dram["bound_bytes"]
    if not total:
        return []
    moved, alone = total - dram["other_bytes"], dram.get("layer_by_layer_bytes")
    whole, data_, compulsory, bound_, apart = bytes_texts(total, moved, least, bound or 0, alone or 0)
    line = f"{paint('DRAM', BOLD)}  {whole}"
    lines = [f"{line}, {dram['total_ratio']:.3f} times the compulsory {compulsory}" if least else line]
    if least:
        lines.append(f"  without code and tables {data_}, {dram['ratio']:.3f} times the compulsory {compulsory}")
    if bound:
        times = moved / bound
        colour = GREEN if times < 1.05 else YELLOW if times < 1.5 else RED
        words = paint(f"{times:.3f} times", colour)
        text = f"{words} the {bound_} that any plan moves ({dram['bound_by']})"
        lines.append(f"  without code and tables {data_}, {text}")
    if alone and dram["maps"]:
        kept = dram["maps"] - dram["maps_in_dram"]
        saved = f", {alone / moved:.3f} times the {data_}" if moved else ""
        lines.append(f"  layer by layer {apart}{saved}: {kept} of {dram['maps']} maps stay on chip")
    kinds = (("weights", "weight"), ("inputs", "input"), ("outputs", "output"), ("maps", "intermediate"),
             ("code and tables", "other"))  # fmt: skip
    sizes = {name: dram[f"{key}_bytes"] for name, key in kinds if dram[f"{key}_bytes"]}
    parts = (f"{name} {text}" for name, text in zip(sizes, bytes_texts(*sizes.values()), strict=True))
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
        words = paint(f"{times:.3f} times", colour)
        lines = [line, f"  {words} the bound of {cycles['bound']:,} cycles ({cycles['bound_by']})"]
    elif cycles["ratio"]:
        lines = [line, f"  {cycles['ratio']:.3f} times the roofline of {cycles['roofline']:,.2f} cycles"]
    else:
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
        lines.append(f"  at work: {'; '.join(words)}")
    for each in waits:
        units = f" ({', '.join(each['units'])})" if each["units"] else ""
        lines.append(f"  {100 * each['share']:.0f} % of the time {each['what']}{units}")
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
    start = 2 + sum(widths) + 2 * 4
    lines = [part for line in lines for part in wrapped(line, start - 2)]
    return ["Units that take most", *lines, *([f"  and {rest} more"] * (rest > 0))]


def _layers_text(layers: Sequence[str]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]} .. {layers[-1]} ({len(layers)})"


def _reason(stopped_by: str | None) -> str:
    """Why a unit ends; its bytes have a column of their own."""
    found = PLANNED.fullmatch(stopped_by or "")
    why = found["why"] if found else stopped_by or "the network ends"
    return why.replace("cut before '", "cut before ").removesuffix("'") if why.startswith("cut before '") else why


def _rest(data: Data, paint: Any) -> list[str]:
    lines = []
    used = {name.upper(): size for name, size in data["peak_bytes"].items() if size}
    peaks = [f"{name} {text}" for name, text in zip(used, bytes_texts(*used.values()), strict=True)]
    if data["energy_pj"]["total"]:
        lines.append(f"{paint('Energy', BOLD)}  {energy_line(data['energy_pj'])}")
    if peaks:
        lines.append(f"{paint('On chip', BOLD)}  {', '.join(peaks)} at most")
    if data["check"]:
        check = data["check"]
        if check["max_rel_error"] is None:
            text = check["reference"]
        else:
            errors = f"relative error {check['max_rel_error']:.2g}, absolute {check['max_abs_error']:.2g}"
            text = f"{errors} against {check['reference']}"
        lines.append(f"{paint('Check', BOLD)}  {text}")
        if check["nan_in_both"]:
            lines.append(f"  {nan_text(check)}")
    seconds = data["seconds"]
    parts = seconds_parts(seconds)
    return [*lines, f"Took {', '.join(parts)}"] if parts else lines
