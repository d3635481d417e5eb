"""The text of plans, as docs/ir-plan.md has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby

from frustum.dialects.plan.repeats import Repeat, Stated, with_repeats
from frustum.dialects.plan.tree import Compute, Halo, Loop, Node, Over, Resident, Sequence, steps

Comments = Callable[[Node | Resident], str]
"""What stands behind the line of a node or a resident; nothing where it is empty."""
WIDTH, INDENT, COMMENT_COLUMN = 100, "  ", 60
SRAM = "sram"
"""The memory of residents that name none."""
BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
KEYWORDS = frozenset(
    {
        *("plan", "for", "resident", "compute", "recompute", "again", "subsets", "attributes"),
        *("step", "of", "ranges", "over", "map", "pipelined", *(halo.value for halo in Halo if halo)),
        *("in", "at", "until", "sharded", "sum", "as", "on", "to"),
    }
)
"""Words that are no names unless they stand in quotes."""


def text_of(node: Node, comments: Comments | None = None, before: str = "") -> str:
    """The text of a node: lines without a line end at the last. Residents come in the order of their first children.

    `before` stands on the first line."""
    (first, comment), *rest = _lines(node, "", comments or (lambda _: ""))
    lines = [(before + first, comment), *rest]
    column = min(COMMENT_COLUMN, max((len(line) for line, comment in lines if comment), default=0))
    return "\n".join(f"{line.ljust(column)}  // {comment}" if comment else line for line, comment in lines)


def plan_text(name: str, target: str, node: Node, comments: Comments | None = None) -> str:
    """The text of a plan, as a file has it."""
    return text_of(node, comments, f"plan {symbol(name)} for {quoted(target)} ") + "\n"


def symbol(name: str) -> str:
    return f"@{name}" if BARE.fullmatch(name) else f"@{quoted(name)}"


def word(name: str) -> str:
    """A name, in quotes where it is not a word or is a keyword."""
    return name if BARE.fullmatch(name) and name not in KEYWORDS else quoted(name)


def quoted(text: str) -> str:
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\{byte:02x}" for byte in character.encode())


Lines = Iterator[tuple[str, str]]
"""Lines, each with its comment."""


def _lines(node: Node, indent: str, comments: Comments) -> Lines:
    match node:
        case Compute():
            *layers, last = [word(layer) for layer in node.layers] or [""]
            yield from _statement("compute", [*layers, f"{last}{_modifiers(node)}"], indent, comments(node))
        case Loop():
            body = list(_lines(node.body, indent, comments))
            yield f"{indent}{_head(node)} {_opening(node.body)}", comments(node)
            yield from body[1:]
        case Sequence():
            yield f"{indent}{_opening(node)}", comments(node)
            yield from _children(node, indent + INDENT, comments)
            yield f"{indent}}}", ""


def _children(node: Sequence, indent: str, comments: Comments) -> Lines:
    for copy in node.copies:
        yield f"{indent}recompute {word(copy.layer)} as {word(copy.name)}", ""
    k = 0
    for each in with_repeats(node, _plain):
        if isinstance(each, Repeat):
            yield from _again(each, indent)
            k = each.stop
            continue
        residents = [resident for resident in node.residents if resident.first == k]
        pairs = zip(residents, each.residents, strict=True)
        stays = [(comments(resident), _stay(*stated)) for resident, stated in pairs]
        for comment, group in groupby(stays, key=lambda stay: stay[0]):
            yield from _statement("resident", [text for _, text in group], indent, comment)
        yield from _lines(each.child, indent, comments)
        k += 1


def _plain(each: Stated | Repeat) -> list[str]:
    """The lines of a child or a repeat, without indentation and comments."""
    if isinstance(each, Repeat):
        return [line for line, _ in _again(each, "")]
    stays = [_stay(*stated) for stated in each.residents]
    return [*stays, *(line for line, _ in _lines(each.child, "", lambda _: ""))]


def _statement(keyword: str, items: list[str], indent: str, comment: str) -> Lines:
    """A keyword and a list, on as many lines as it takes; the comment stands on the last."""
    line = f"{indent}{keyword} {items[0]}"
    for item in items[1:]:
        if len(line) + len(item) + 2 > WIDTH:
            yield f"{line},", ""
            line = f"{indent}{INDENT}{INDENT}{item}"
        else:
            line = f"{line}, {item}"
    yield line, comment


def _modifiers(node: Compute) -> str:
    sums = ", ".join(f"{word(each.tensor)} as {each.element}" for each in node.sums)
    return (f" sum {sums}" if sums else "") + (f" on {word(node.engine)}" if node.engine else "")


def _opening(node: Sequence) -> str:
    if not node.subsets and node.over is Over.TIME:
        return "{"
    return f"subsets {node.over} [{', '.join(map(str, node.subsets))}] {{"


def _head(node: Loop) -> str:
    step = node.edges[1] - node.edges[0] if node.passes > 0 else 0
    if step > 0 and node.edges == steps(node.edges[-1], step):
        ranges = f"step {step} of {node.edges[-1]}"
    else:
        ranges = f"ranges [{', '.join(map(str, node.edges))}]"
    words = [f"for {word(node.axis)} {ranges}"]
    words += [f"over {node.over}"] if node.over is not Over.TIME else []
    words += [node.halo.value] if node.halo is not Halo.NONE else []
    words += [f"map {node.order}"] if node.order else []
    words += ["pipelined"] if node.is_pipelined else []
    return " ".join(words)


def _stay(resident: Resident, until: str) -> str:
    part = resident.part
    words = [word(resident.tensor)]
    words += [f"[{word(part.axis)} {part.start}:{part.stop}]"] if part else []
    words += [f"in {word(resident.memory)}"] if resident.memory != SRAM else []
    words += [f"at {word(resident.storage_of)}"] if resident.storage_of else []
    words += [f"until {word(until)}"] if until else []
    words += [f"sharded {word(resident.sharded)}"] if resident.sharded else []
    return " ".join(words)


def _again(again: Repeat, indent: str) -> Lines:
    part = word(again.first) + (f" to {word(again.last)}" if again.last != again.first else "")
    copies = []
    for (_, start), *pairs in again.copies:
        known = [f"{word(old)} as {word(new)}" for old, new in pairs]
        first, *rest = known or [""]
        copies += [f"{word(start)} ({first}", *rest] if known else [word(start)]
        copies[-1] += ")" if known else ""
    return _statement(f"again {part} at", copies, indent, "")
