"""The measures of the product's source: sizes, circles of imports, names with several meanings.

    python test/support/house.py [COMMIT ...]     # a column per commit, then the work tree's

`test/test_house.py` holds the limits.  A line of code is one with a token that is neither comment nor
docstring; imports are those of the product from itself; a class is named once per folder of a dialect level
(`dialects/graph`, `dialects/tile`, `dialects/isa`), since one layer has an operation on each.
"""

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dialects", "passes", "backend", "runtime")
LEVELS = ("dialects/axes/", "dialects/plan/", "dialects/graph/", "dialects/tile/", "dialects/isa/", "dialects/unit")
# A room may import those with a smaller number; what is not named stands beside them.
ORDER = {"analysis": 0, "plan": 1, "fuse": 2, "tile": 2, "lower": 2}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
NOT_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


@dataclass(frozen=True)
class Import:
    """`module` needs `target` when it is loaded (`now`), in a function, or for types only."""

    module: str
    target: str
    when: str  # "now", "later" or "types"


class House:
    """The product's files as {path: text}."""

    def __init__(self, files: Mapping[str, str]):
        self.files = dict(sorted(files.items()))
        self.trees = {path: ast.parse(text) for path, text in self.files.items()}
        self.modules = {module_of(path): path for path in self.files}

    @staticmethod
    def of_tree(root: Path = ROOT) -> "House":
        """The files as they lie on disk."""
        paths = [p for folder in FOLDERS for p in (root / folder).rglob("*.py")]
        return House({p.relative_to(root).as_posix(): p.read_text() for p in paths})

    @staticmethod
    def of_commit(commit: str, root: Path = ROOT) -> "House":
        """The files of a commit.  Raises `CalledProcessError` when git does not have it."""
        command = ["git", "-C", str(root), "archive", commit, *FOLDERS]
        packed = subprocess.run(command, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            names = [m.name for m in archive.getmembers() if m.isfile() and m.name.endswith(".py")]
            return House({name: archive.extractfile(name).read().decode() for name in names})

    def nodes(self, *kinds: type) -> Iterator[tuple[str, ast.AST]]:
        """Every node of some kinds, with its file."""
        for path, tree in self.trees.items():
            yield from ((path, node) for node in ast.walk(tree) if isinstance(node, kinds))

    def calls(self, name: str) -> list[tuple[str, int]]:
        """Where a function of that name is called: file and line."""
        found = ((path, node) for path, node in self.nodes(ast.Call))
        return [(path, node.lineno) for path, node in found if called(node) == name]

    def imports(self) -> list[Import]:
        """What the modules need of one another, without repetition."""
        found = dict.fromkeys(use for path in self.files for use in self._imports_of(path))
        return list(found)

    def _imports_of(self, path: str) -> Iterator[Import]:
        module = module_of(path)
        for node, when in visited(self.trees[path]):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                base = absolute(module, path, node)
                names = [f"{base}.{alias.name}" for alias in node.names]
            for name in names:
                target = name if name in self.modules else name.rpartition(".")[0]
                if target in self.modules and target != module:
                    yield Import(module, target, when)


def module_of(path: str) -> str:
    """`frustum.passes.fuse.rules` of `passes/fuse/rules.py`."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(("frustum", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def absolute(module: str, path: str, node: ast.ImportFrom) -> str:
    """The module that a `from ... import` names."""
    if not node.level:
        return node.module or ""
    up = node.level - path.endswith("__init__.py")
    base = module.split(".")[: len(module.split(".")) - up]
    return ".".join(base + ([node.module] if node.module else []))


def visited(tree: ast.AST, when: str = "now") -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Each import of a tree with when it happens."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, when
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from visited(node, "types")
        else:
            inside = "later" if isinstance(node, FUNCTION) and when == "now" else when
            yield from visited(node, inside)


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    target = node.func
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def docstring_lines(tree: ast.AST) -> set[int]:
    """The lines of all docstrings of a module."""
    kinds = (ast.Module, ast.ClassDef, *FUNCTION)
    strings = (n.body[0].value for n in ast.walk(tree) if isinstance(n, kinds) and ast.get_docstring(n))
    return {line for s in strings for line in range(s.lineno, s.end_lineno + 1)}


def code_lines(text: str) -> set[int]:
    """The lines with a token that is neither comment nor docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in NOT_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return lines - docstring_lines(ast.parse(text))


def circles(uses: Iterable[Import]) -> list[list[str]]:
    """The groups of modules that need one another (strongly connected parts of more than one; Tarjan 1972)."""
    after = defaultdict(list)
    for use in uses:
        after[use.module].append(use.target)
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for target in after[module]:
            if target not in number:
                visit(target)
            if target in stack:
                low[module] = min(low[module], low[target])
        if low[module] == number[module]:
            cut = stack.index(module)
            group, stack[cut:] = stack[cut:], []
            if len(group) > 1:
                found.append(sorted(group))

    for module in list(after):
        if module not in number:
            visit(module)
    return found


def against_order(house: House) -> list[Import]:
    """Imports inside `passes/` from a room to a later one, or between rooms that stand side by side."""
    found = []
    for use in house.imports():
        here, there = (name.split(".")[2] if name.count(".") > 2 else "" for name in (use.module, use.target))
        if "frustum.passes" not in use.module or here == there or {here, there} - set(ORDER):
            continue
        if ORDER[there] >= ORDER[here]:
            found.append(use)
    return found


def lengths(house: House, *kinds: type) -> dict[str, int]:
    """Lines of each function or class, the longest first."""
    found = {f"{path}:{n.name}": n.end_lineno - n.lineno + 1 for path, n in house.nodes(*kinds)}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def arguments(house: House) -> dict[str, int]:
    """Parameters of each function (`self` is none), the most first; `frustum.compile` and `run` are excepted."""
    found = {}
    for path, node in house.nodes(*FUNCTION):
        given = node.args
        names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        if not (path.endswith("api.py") and node.name in ("compile", "run")):
            found[f"{path}:{node.lineno}:{node.name}"] = len([n for n in names if n not in ("self", "cls")])
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def several_meanings(house: House) -> dict[str, list[str]]:
    """Class names with more than one place, where the levels of the dialects are one place together."""
    places = defaultdict(list)
    for path, node in house.nodes(ast.ClassDef):
        places[node.name].append("a dialect" if path.startswith(LEVELS) else path)
    return {name: paths for name, paths in sorted(places.items()) if len(set(paths)) > 1}


def look_ups(house: House) -> list[tuple[str, int]]:
    """Where `params` is asked with a string: `params["kernel"]`, `params.get("kernel")`."""
    found = []
    for path, node in house.nodes(ast.Subscript, ast.Call):
        if isinstance(node, ast.Call):
            holder = node.func.value if isinstance(node.func, ast.Attribute) and called(node) == "get" else None
            key = node.args[0] if node.args else None
        else:
            holder, key = node.value, node.slice
        name = getattr(holder, "attr", getattr(holder, "id", None))
        if name == "params" and isinstance(key, ast.Constant) and isinstance(key.value, str):
            found.append((path, node.lineno))
    return found


def per_folder(house: House) -> Counter[str]:
    """Files directly in each folder, without `__init__.py`."""
    paths = (PurePosixPath(path) for path in house.files)
    return Counter(str(path.parent) for path in paths if path.name != "__init__.py")


def all_code(house: House) -> int:
    """Lines of code of the product."""
    return sum(len(code_lines(text)) for text in house.files.values())


def docstrings_per_100(house: House) -> float:
    """Docstring lines per 100 lines of code."""
    return 100 * sum(len(docstring_lines(tree)) for tree in house.trees.values()) / all_code(house)


def line_width(house: House) -> str:
    """Characters of a line of code: mean, the 95th of 100, most."""
    widths = sorted(
        len(text.splitlines()[line - 1]) for text in house.files.values() for line in code_lines(text)
    )
    return f"{sum(widths) / len(widths):.1f}, {widths[len(widths) * 95 // 100]}, {widths[-1]}"


def circles_at(house: House, types: bool) -> int:
    """Circles of imports; with `types`, those that are there for types only."""
    uses = house.imports()
    at_run_time = circles(use for use in uses if use.when != "types")
    return len(circles(uses)) - len(at_run_time) if types else len(at_run_time)


def ignores(house: House) -> int:
    """`# type: ignore` comments."""
    return sum(text.count("# type: ignore") for text in house.files.values())


MEASURES: dict[str, Callable[[House], object]] = {
    "lines of code": all_code,
    "files": lambda house: len(house.files),
    "docstring lines per 100 of code": lambda house: f"{docstrings_per_100(house):.1f}",
    "line width: mean, 95 %, most": line_width,
    "files directly in one folder": lambda house: "{1} ({0})".format(*per_folder(house).most_common(1)[0]),
    "longest file": lambda house: max(text.count("\n") for text in house.files.values()),
    "longest class": lambda house: next(iter(lengths(house, ast.ClassDef).values())),
    "longest function": lambda house: next(iter(lengths(house, *FUNCTION).values())),
    "most arguments": lambda house: next(iter(arguments(house).values())),
    "circles of imports at run time": lambda house: circles_at(house, types=False),
    "circles of imports for types only": lambda house: circles_at(house, types=True),
    "imports against the order in passes": lambda house: len(against_order(house)),
    "string look-ups in params": lambda house: len(look_ups(house)),
    "casts": lambda house: len(house.calls("cast")),
    "type: ignore": ignores,
    "class names with several meanings": lambda house: len(several_meanings(house)),
}


def table(columns: Mapping[str, House]) -> str:
    """The measures as a table of Markdown."""
    lines = [["measure", *columns], ["---"] * (len(columns) + 1)]
    lines += [[name, *(str(measure(h)) for h in columns.values())] for name, measure in MEASURES.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def columns(commits: Iterable[str]) -> Iterator[tuple[str, House]]:
    """The commits that this clone has, and the work tree."""
    for commit in commits:
        try:
            yield commit, House.of_commit(commit)
        except subprocess.CalledProcessError:
            print(f"{commit}: this clone does not have it", file=sys.stderr)
    yield "work tree", House.of_tree()


if __name__ == "__main__":
    print(table(dict(columns(sys.argv[1:]))))
