"""How a problem in a text file is shown: place, message, the source line and a caret under the culprit."""

from difflib import get_close_matches


def render(
    file: str, text: str, line: int, col: int, message: str, width: int = 1, kind: str = "error"
) -> str:
    """`FILE:LINE:COL: error: message`, the source line, and `^~~` under `width` of its characters.

    Lines and columns count from 1; `text` is the whole file.  Further lines of the message come last.
    """
    first, *rest = message.splitlines() or [""]
    return "\n".join([f"{file}:{line}:{col}: {kind}: {first}", *_excerpt(text, line, col, width), *rest])


def did_you_mean(word: str, known: list[str]) -> str:
    """`; did you mean 'x'?` for the known word nearest to `word`, or nothing."""
    near = get_close_matches(word, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def one_line(message: object) -> str:
    """The lines of a message, or of an error's, as one."""
    return " ".join(line.strip() for line in str(message).splitlines() if line.strip())


def _excerpt(text: str, line: int, col: int, width: int) -> list[str]:
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return []
    source = lines[line - 1].rstrip("\r")
    # Tabs stay tabs, so that the caret stands under its character however wide they are shown.
    indent = "".join("\t" if c == "\t" else " " for c in source[: col - 1].ljust(col - 1))
    tail = min(width - 1, len(source) - col)
    return [source, f"{indent}^{'~' * tail}"]
