"""The planner knows axes, trees and a number of bytes: no operation, no machine, and few numbers of its own."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
FOLDERS = "passes/plan/tree", "dialects/plan", "dialects/axes"
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).glob("*.py"))
OPERATIONS = "frustum.dialects.graph"
MACHINE = {"clusters", "cores", "chips", "rank", "ndim"}
"""Numbers of a machine or of a tensor that no plan is made for in particular."""
TEXT = {"dialect.py", "parse.py", "renaming.py", "repeats.py", "text.py"}
"""Of dialects/plan those that read and print plans: their limits decide nothing about a plan."""
MOST_NUMBERS = 21
"""Of planner and evaluator together, by issue 11 of the plan trees."""
COMPARED = {"dialects/plan/clusters.py": ["clusters > 1"]}
"""What is left of comparisons with literals: the plural of a message; by file."""
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
WIDTHS = 7
"""Numbers that the fields of classes have by default: how wide the search is.  With them there are more than 21."""


def imports_of_operations(tree):
    """Modules and names of the graph level that a file imports; the types of operations are all there."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names]
    return [name for name in found if name == OPERATIONS or name.startswith(f"{OPERATIONS}.")]


def comparisons_with_literals(tree):
    """Comparisons of clusters, cores, chips, or of the number of a tensor's axes, with a number."""
    found = []
    for node in ast.walk(tree):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if isinstance(node, ast.Match):
            numbers = [each.pattern for each in node.cases if isinstance(each.pattern, ast.MatchValue)]
            sides = [node.subject, *(each.value for each in numbers)]
        if any(map(is_number, sides)) and any(map(is_of_machine, sides)):
            found.append(ast.unparse(node))
    return found


def is_number(node):
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(is_number, node.elts))
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def is_of_machine(node):
    """`x.clusters`, `cores`, `len(x.axes)`, `len(x.dims)`, and what is computed of them."""
    words = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    words |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    lengths = [each for each in ast.walk(node) if isinstance(each, ast.Call) and ast.unparse(each.func) == "len"]
    counted = {ast.unparse(each.args[0]).rpartition(".")[2] for each in lengths if each.args}
    return bool(words & MACHINE or counted & {"dims", "shape"} or ("axes" in counted and "tensor" in words))


def numbers(tree):
    """Constants of a module that are numbers or hold numbers, each with its docstring."""
    found = {}
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign):
            (target, *_) = node.targets
        if isinstance(target, ast.Name) and target.id.lstrip("_").isupper() and has_number(node.value):
            is_said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            found[target.id] = str(after.value.value) if is_said else ""
    return found


def has_number(node):
    """Whether the value is a number or some: not a call, and not a table that says what names mean (bits of types)."""
    if isinstance(node, ast.Call | ast.Subscript | ast.Attribute | ast.Name | ast.Dict) or node is None:
        return False
    if type(getattr(node, "value", None)) in (int, float):
        return True
    inside = node.elts if isinstance(node, ast.Tuple | ast.List) else ast.iter_child_nodes(node)
    return any(has_number(each) or isinstance(each, ast.Dict) for each in inside if isinstance(each, ast.expr))


def widths(tree):
    """Fields of classes with numbers by default, but for none and one, which set no limit."""
    fields = [
        node for owner in ast.walk(tree) if isinstance(owner, ast.ClassDef) for node in owner.body
        if isinstance(node, ast.AnnAssign) and has_number(node.value)
    ]  # fmt: skip
    return [node.target.id for node in fields if ast.unparse(node.value) not in ("0", "0.0", "1", "1.0")]


def of_planner():
    return [file for file in FILES if file.name not in TEXT and "axes" not in file.parts]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_no_file_names_an_operation_or_a_machine(file):
    tree = ast.parse(file.read_text())
    assert imports_of_operations(tree) == []
    assert comparisons_with_literals(tree) == COMPARED.get(file.relative_to(ROOT).as_posix(), [])


def test_numbers_are_few_and_each_has_a_reason_and_a_date():
    found = {}
    for file in of_planner():
        found |= {(file.name, name): words for name, words in numbers(ast.parse(file.read_text())).items()}
    assert 0 < len(found) <= MOST_NUMBERS, sorted(found)
    assert not [name for (_, name), words in found.items() if not DATE.search(words)]


def test_widths_of_the_search_are_as_many_as_they_were():
    found = [(file.name, name) for file in of_planner() for name in widths(ast.parse(file.read_text()))]
    assert len(found) == WIDTHS, found


PLANTED = """
from frustum.dialects.graph.products import ConvOp
import frustum.dialects.graph as g
if target.clusters == 1: pass
if 4 < len(tensor.axes) <= 5: pass
if machine.cores in (1, 2): pass
match cluster.cores:
    case 4: pass
if a.axes == b.axes or len(layers) > 2 or cores > limit: pass
DATED = 3
"Because of this. 2026-11-28."
BARE: tuple[int, ...] = (1, 2)
NAMES = ("a", "b")
MADE = frozenset(range(3))
BITS = {"f16": 16}
STEPS = {"wide": 3}, {"wide": 4}
SCALED = 1 + 1e-9
class Limits:
    wide: int = 24
    off: float = 0.0
"""


def test_a_planted_name_or_number_is_found():
    tree = ast.parse(PLANTED)
    assert len(imports_of_operations(tree)) == 2
    found = comparisons_with_literals(tree)
    assert len(found) == 4 and not any("limit" in each or "layers" in each for each in found), found
    said = numbers(tree)
    assert {name: bool(DATE.search(words)) for name, words in said.items()} == {
        "DATED": True, "BARE": False, "STEPS": False, "SCALED": False,
    }  # fmt: skip
    assert widths(tree) == ["wide"]
