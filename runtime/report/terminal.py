# Tests: test/runtime/report/test_report.py
"""A report as text for a terminal: plain, at most 100 columns, a unit in every line."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from math import floor, log10
from typing import Any

from frustum.runtime.failures import UsageError

WIDTH = 100
_INDENT = "  "
_KINDS = ("gdma", "cdma", "bus", "fetch", "iodma", "mvdma", "matrix", "vector")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
COLOUR = re.compile(r"\033\[\d+m")
JOULES = ("J", 1.0), ("mJ", 1e-3), ("uJ", 1e-6), ("nJ", 1e-9)


def show(text: str) -> None:
    """Write to stdout; UsageError where that is full.  A reader that is gone is the caller's."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # Python writes what is left at its end
        raise UsageError(f"error: stdout cannot be written: {error.strerror}") from error


def has_colours() -> bool:
    """Whether stdout is a terminal, and nobody minds colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def render(data: Mapping[str, Any]) -> str:
    """The text of a report of schema 1."""
    sections = [_title(data), _dram(data["dram"])]
    if data.get("weights"):
        sections[-1].append(_weights(data["weights"]))
    if data["cycles"]:
        sections.append(_cycles(data))
    if data["engines"]:
        sections.append(_engines(data["engines"]))
    if data.get("stream"):
        sections.append(_stream(data["stream"], data["clock_hz"]))
    sections += [_computing(data), _energy(data["energy_pj"]), _memory(data), _subgraphs(data)]
    if data.get("host"):
        sections.append(_host(data["host"]))
    if data["check"]:
        sections.append(_check(data["check"]))
    sections.append(_seconds(data["seconds"]))
    lines = [[part for line in section for part in wrapped(line)] for section in sections if section]
    return "\n\n".join("\n".join(section) for section in lines) + "\n"


# --- sections ----------------------------------------------------------------------------------------------


def _title(data: Mapping[str, Any]) -> list[str]:
    machine = data.get("target_file") or data["target"]
    title = f"{data['model']} on {machine}, {data['dtype']}, policy {data['policy']}"
    units, layers = len(data["units"]), len(data["layers"])
    host = sum(layer["where"] == "host" for layer in data["layers"])
    counts = [f"{layers} layers", f"{units} units" if units else "", f"{host} on the host" if host else ""]
    waiting = Counter(unit["carry"] for unit in data["units"] if unit.get("carry"))
    carried = [f"sums wait in {element} in {number} of the units" for element, number in sorted(waiting.items())]
    return [title, "=" * min(len(title), WIDTH), ", ".join(filter(None, [*counts, *carried]))]


def _dram(dram: Mapping[str, Any]) -> list[str]:
    total = dram["total_bytes"]
    rows = [
        (name, f"{dram[key]:,} B", share(dram[key], total))
        for name, key in (
            ("weights", "weight_bytes"),
            ("inputs", "input_bytes"),
            ("outputs", "output_bytes"),
            ("intermediates", "intermediate_bytes"),
            ("code, tables", "other_bytes"),
            ("total", "total_bytes"),
        )
    ]
    lines = ["DRAM traffic", *table(rows)]
    lines.append(f"{_INDENT}read {dram['read_bytes']:,} B, written {dram['write_bytes']:,} B")
    if dram["ratio"] is not None:
        lines += [_INDENT + line for line in _ratios(dram)]
    return lines


def _ratios(dram: Mapping[str, Any]) -> list[str]:
    """The total and what it is without code and tables, as multiples of what is compulsory."""
    moved, least = dram["total_bytes"] - dram["other_bytes"], dram["compulsory_bytes"]
    lines = [
        f"all {dram['total_bytes']:,} B are {dram['total_ratio']:.3f} times the compulsory {least:,} B",
        f"{moved:,} B without code and tables are {dram['ratio']:.3f} times the compulsory {least:,} B",
    ]
    if (stored := dram["compressed_compulsory_bytes"]) != least:
        text = f"the compulsory {stored:,} B with each weight in its smallest form"
        lines.append(f"{moved:,} B without code and tables are {dram['ratio_to_compressed']:.3f} times {text}")
    return lines


def _weights(weights: Mapping[str, Any]) -> str:
    raw, stored = bytes_texts(weights["raw_bytes"], weights["stored_bytes"])
    said = [f"{weights['compressed_tensors']} tensors compressed"]
    others = ("of integers with scales", "packed_tensors"), ("shared", "shared_tensors")
    said += [f"{weights[key]} {word}" for word, key in others if weights[key]]
    reasons = ", ".join(f"{number} {reason}" for reason, number in weights["expanded_loads"].items())
    said += [f"loads of such as numbers: {reasons}"] if reasons else []
    return f"{_INDENT}{raw} of weights take {stored} of DRAM ({weights['codec']}: {', '.join(said)})"


def _cycles(data: Mapping[str, Any]) -> list[str]:
    cycles, clock_hz = data["cycles"], data["clock_hz"]
    total = cycles["total"]
    lines = [
        "Time",
        f"{_INDENT}{total:,} cycles, {seconds_text(total / clock_hz)} at {clock_hz / 1e6:,.0f} MHz",
    ]
    if cycles["ratio"] is not None:
        lines.append(f"{_INDENT}{cycles['ratio']:.3f} times the roofline of {cycles['roofline']:,.2f} cycles")
    if cycles["bound"]:
        bound, by = cycles["bound"], cycles["bound_by"]
        lines.append(f"{_INDENT}{total / bound:.3f} times the bound of {bound:,} cycles ({by})")
    costliest = _costliest(data["units"])
    if costliest:
        lines.append(f"{_INDENT}most of it, as the critical path shows:")
        lines += table([(*words, share(cycles, total)) for words, cycles in costliest])
    if data["nram_operand_share"] is not None:
        part, inside = f"{100 * data['nram_operand_share']:.0f} %", data["nram_operands"]
        text = "layers that follow another in their unit read its map in NRAM"
        lines.append(f"{_INDENT}{inside['reading']} of the {inside['following']} {text} ({part})")
    return lines


def _stream(stream: Mapping[str, Any], clock_hz: float) -> list[str]:
    """Inputs one after the other through the chips; all else in the report is of one of them alone."""
    each, latency = stream["cycles_per_input"], stream["latency_cycles"]
    return [
        f"Stream of {stream['inputs']} inputs",
        f"{_INDENT}{each:,.0f} cycles from result to result, {clock_hz / each:,.1f} results in a second",
        f"{_INDENT}{latency:,} cycles to the first result, {seconds_text(latency / clock_hz)}",
    ]


def _costliest(units: Iterable[Mapping[str, Any]]) -> list[tuple[tuple[str, str], int]]:
    """The three kinds of engines and causes on which most of the critical path lies."""
    totals: Counter[tuple[str, str]] = Counter()
    for unit in units:
        for each in unit["waits"] or ():
            kind = each["engine"].rsplit(".", 1)[-1]
            totals[kind, "at work" if each["for"] == "work" else f"{each['for']}: {each['on']}"] += each[
                "cycles"
            ]
    return totals.most_common(3)


def _host(host: Mapping[str, Any]) -> list[str]:
    """The layers on the host, those with the same reason in one line."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for layer in host["layers"]:
        reasons.setdefault((layer["op"], layer["reason"]), []).append(layer["name"])
    if not reasons:
        return []
    rows = [(f"{len(names)} x {op}", names[0], why) for (op, why), names in reasons.items()]
    moved = (
        f"{host['to_host_bytes']:,} B go to the host during the run, {host['from_host_bytes']:,} B come back"
    )
    lines = [f"{_INDENT}{moved}"]
    if host["link_cycles"] is not None:
        busy = f"{host['link_cycles']:,} cycles on the host link, {host['port_cycles']:,} at the DRAM port"
        lines.append(f"{_INDENT}{busy}")
        work = f"{host['macs']:,} MACs, {host['bytes']:,} B read and written"
        lines.append(f"{_INDENT}{host['cycles']:,} cycles to compute {work}")
    return ["On the host", *table(rows), *lines]


def _engines(engines: Mapping[str, Mapping[str, int]]) -> list[str]:
    """One line for all engines of a kind; kinds that did nothing are left out."""
    rows: list[tuple[str, ...]] = [("", "busy", "stalled", "idle", "moved")]
    for kind in _KINDS:
        alike = [figures for name, figures in engines.items() if name.rsplit(".", 1)[-1] == kind]
        figures = {key: sum(each[key] for each in alike) for key in ("busy", "stalled", "idle", "bytes")}
        if figures["busy"]:
            whole = figures["busy"] + figures["stalled"] + figures["idle"]
            shares = (share(figures[key], whole) for key in ("busy", "stalled", "idle"))
            rows.append((f"{len(alike)} x {kind}", *shares, bytes_text(figures["bytes"])))
    return ["Engines (mean share of the cycles)", *table(rows)] if len(rows) > 1 else []


def _computing(data: Mapping[str, Any]) -> list[str]:
    macs, lines = data["macs"], data["line_buffer"]
    again = f", {macs['recomputed']:,} more computed again" if macs["recomputed"] else ", none computed again"
    text = [
        "Computing",
        f"{_INDENT}{macs['useful']:,} useful MACs{again}",
        f"{_INDENT}line buffer: {lines['writes']:,} writes, {lines['compute_steps']:,} steps,"
        f" {lines['discarded']:,} windows discarded",
    ]
    cycles = data["cycles"]
    if cycles and cycles["address_without_tables"]:
        text.append(
            f"{_INDENT}addresses: {cycles['address']:,} cycles, {cycles['address_without_tables']:,} without tables"
        )
    return text


def _energy(energy: Mapping[str, float]) -> list[str]:
    total = energy["total"]
    rows = [
        (_energy_name(name), energy_text(pj), share(pj, total))
        for name, pj in energy.items()
        if name != "total"
    ]
    return ["Energy", *table([*rows, ("total", energy_text(total), share(total, total))])]


def energy_line(energy: Mapping[str, float]) -> str:
    """The total and its parts, all with one prefix."""
    parts = {_energy_name(name): pj for name, pj in energy.items() if name != "total" and pj}
    total, *others = energy_texts(energy["total"], *parts.values())
    return f"{total}: {', '.join(f'{name} {text}' for name, text in zip(parts, others, strict=True))}"


def _energy_name(name: str) -> str:
    return f"MACs {name.removeprefix('mac_')}" if name.startswith("mac_") else name.upper()


def _memory(data: Mapping[str, Any]) -> list[str]:
    """In several pieces beside it what the network in one piece needs, where that fits."""
    uncut = data.get("unsplit_peak_bytes") if len(data["subgraphs"]) > 1 else None
    rows = [
        (name.upper(), f"{size:,} B", f"in one piece {uncut[name]:,} B" if uncut else "")
        for name, size in data["peak_bytes"].items()
    ]
    return ["Peak memory (highest address written)", *table(row if uncut else row[:-1] for row in rows)]


def _subgraphs(data: Mapping[str, Any]) -> list[str]:
    """One line for each piece, if there are several."""
    found = data["subgraphs"]
    if len(found) < 2:
        return []
    rows = [
        (
            each["name"],
            f"chip {each['chip']}",
            "" if each["cycles"] is None else f"{each['cycles']:,} cycles",
            f"SRAM {each['peak_sram_bytes']:,} B",
            f"file {each['executable_bytes']:,} B",
        )
        for each in found
    ]
    moved = data["moved_between_chips_bytes"]
    last = [f"{_INDENT}{moved:,} B moved from chip to chip"] if moved else []
    return ["Sub-graphs", *table(rows), *last]


def _check(check: Mapping[str, Any]) -> list[str]:
    if check["max_abs_error"] is None:
        return ["Check", f"{_INDENT}{check['reference']}"]
    errors = f"max abs error {check['max_abs_error']:.3g}, relative {check['max_rel_error']:.3g}"
    lines = ["Check", f"{_INDENT}{errors} against {check['reference']}"]
    lines += [f"{_INDENT}{text}" for text in judge_texts(check)]
    outputs = check["outputs"]
    if len(outputs) > 1:
        worst = max(outputs, key=lambda name: outputs[name]["max_rel_error"])
        lines.append(f"{_INDENT}{len(outputs)} outputs compared, the worst is {worst}")
    if check["nan_in_both"]:
        lines.append(f"{_INDENT}{nan_text(check)}")
    return lines


def judge_texts(check: Mapping[str, Any]) -> list[str]:
    """Who judged in place of onnxruntime, and what nobody judged."""
    names = check["not_compared"]
    whole = f"computed on the host alone, and so not compared: {', '.join(names)}" if names else ""
    return [text for text in (check["why"], whole) if text]


def nan_text(check: Mapping[str, Any]) -> str:
    """What to think of a comparison of what is not a number."""
    return f"{check['nan_in_both']:,} of {check['numbers']:,} outputs are NaN in both"


def seconds_parts(seconds: Mapping[str, Any]) -> list[str]:
    """The wall time of each part of the job, in words."""
    return [
        f"{name} {seconds[name]:.2f} s" + (_compiled(seconds) if name == "compile" else "")
        for name in ("import", "compile", "emulate", "loops")
        if seconds[name] is not None
    ]


def _seconds(seconds: Mapping[str, Any]) -> list[str]:
    parts = seconds_parts(seconds)
    return ["Wall time", _INDENT + ", ".join(parts)] if parts else []


def _compiled(seconds: Mapping[str, Any]) -> str:
    if seconds["cached"]:
        return " (was compiled before; --no-cache compiles anew)"
    return f" (calibration {seconds['calibrate']:.2f} s of it)" if seconds["calibrate"] else ""


# --- text --------------------------------------------------------------------------------------------------


def table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Columns side by side: the first to the left, the others to the right."""
    rows = list(rows)
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True))]
        lines.append(_INDENT + "   ".join(cells).rstrip())
    return lines


def wrapped(line: str, indent: int = 4) -> list[str]:
    """A line of at most `WIDTH` columns, and what is left of it on further ones.  A word that is longer stays whole."""
    start, lines, here = len(line) - len(line.lstrip()) + indent, list[str](), ""
    for word in re.findall(r"\s*\S+", line):
        if here.strip() and len(COLOUR.sub("", here + word)) > WIDTH:
            lines.append(here)
            here, word = " " * start, word.lstrip()
        here += word
    return [*lines, here]


def bytes_text(size: int) -> str:
    """`1.50 MiB`; below 1 KiB exact."""
    number = _prefix(size)
    return f"{size} B" if number == 0 else f"{size / 1024**number:.2f} {_BINARY[number]}"


def bytes_texts(*sizes: int) -> list[str]:
    """Sizes that are read beside each other: all with the prefix of the largest, `1.684 MiB` and `0.014 MiB`; exact
    where that is below 1 KiB."""
    number = _prefix(max(sizes, default=0))
    return [f"{size} B" if number == 0 else f"{_digits(size / 1024**number)} {_BINARY[number]}" for size in sizes]


def _prefix(size: int) -> int:
    number = 0
    while size >= 1024 ** (number + 1) and number + 1 < len(_BINARY):
        number += 1
    return number


def _digits(value: float) -> str:
    """Three digits behind the point, or as many as show three of the number."""
    return f"{value:.3f}" if value >= 0.1 or value == 0 else f"{value:.{2 - floor(log10(value))}f}"


def seconds_text(seconds: float) -> str:
    return _scaled(seconds, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)))


def energy_text(picojoule: float) -> str:
    return _scaled(picojoule * 1e-12, JOULES)


def energy_texts(*picojoules: float) -> list[str]:
    """All with the prefix of the largest."""
    most = max(picojoules, default=0.0) * 1e-12
    name, factor = next(((n, f) for n, f in JOULES if most >= f), JOULES[-1])
    return [f"{_digits(each * 1e-12 / factor)} {name}" for each in picojoules]


def _scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    name, factor = next(((n, f) for n, f in units if value >= f), units[-1])
    return f"{value / factor:.3g} {name}" if value / factor < 1000 else f"{value / factor:,.0f} {name}"


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
