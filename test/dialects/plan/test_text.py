"""Plans as text: there and back, equal parts once, and what is said of texts that are none."""

import re
from random import Random

import pytest
import random_plans
from axis_networks import SHAPES, mlp, network
from hypothesis import given, settings
from random_plans import PAGE_PLANS

from frustum.dialects.plan.check import PlanError
from frustum.dialects.plan.dialect import plan_op, tree_of
from frustum.dialects.plan.parse import parse_plan
from frustum.dialects.plan.renaming import Renaming, pairs_for
from frustum.dialects.plan.text import plan_text, text_of
from frustum.dialects.plan.tree import Compute, Loop, Resident, Sequence, steps


def there_and_back(tree):
    text = plan_text("net", "edge", tree)
    assert parse_plan(text) == ("net", "edge", tree), text
    op = plan_op("net", "edge", tree)
    op.verify()
    assert tree_of(op) == tree


@given(random_plans.trees())
@settings(max_examples=10, deadline=None)
def test_any_tree_goes_there_and_back(tree):
    there_and_back(tree)


@pytest.mark.slow
@given(random_plans.trees())
@settings(max_examples=400, deadline=None)
def test_many_trees_go_there_and_back(tree):
    there_and_back(tree)


@given(random_plans.planned())
@settings(max_examples=15, deadline=None)
def test_a_plan_goes_there_and_back(planned):
    there_and_back(planned.plan)


def block(k, extra=""):
    p = f"/layer.{k}/"
    attention = Loop(f"{p}heads", steps(12, 2), Sequence((Compute((f"{p}q", f"{p}k")), Compute((f"{p}v",)))))
    hidden = Loop(f"{p}up.c", steps(64, 16), Sequence((Compute((f"{p}up", f"{p}down")),)))
    rows = Loop("x.1", (0, 100, 512), Sequence((hidden, Compute((f"{p}norm",))), (Resident(f"{p}z", 0, 1),)))
    return attention, Sequence((rows,), (Resident(f"w{k * k}{extra}", 0, 0),))


def stack(count):
    """Equal blocks; what one makes lies in SRAM until the next has read it."""
    children = tuple(child for k in range(count) for child in block(k))
    passed = tuple(Resident(f"/layer.{k}/norm", 2 * k + 1, 2 * k + 2) for k in range(count - 1))
    return Sequence(children, passed)


def test_equal_parts_are_printed_once():
    text = plan_text("net", "edge", stack(48))
    there_and_back(stack(48))
    assert text.count(" step ") == 2 + 1, "one block, and the end of the last, which hands nothing on"
    assert len(text.splitlines()) < 48 + 40
    assert '"/layer.2/q" (w0 as w4)' in text


def test_parts_that_differ_in_more_than_names_are_printed():
    a, b = block(0), block(1)
    b = b[0], Sequence(b[1].children, (Resident("w1", 0, 0, memory="wram"),))
    assert "again" not in text_of(Sequence((*a[1:], *b[1:])))
    there_and_back(Sequence((*a, *b)))


def test_computes_alone_are_no_part():
    plan = Sequence(tuple(Compute((f"a{k}", f"b{k}", f"c{k}")) for k in range(40)))
    assert "again" not in text_of(plan)


def test_a_short_part_comes_again_only_where_one_example_gives_its_names():
    def plan(*names):
        loops = (Loop(axis, steps(8, 2), Sequence((Compute((layer,)),))) for layer, axis in names)
        return text_of(Sequence(tuple(loops)))

    assert "again conv1 at conv2, conv7" in plan(("conv1", "conv1.c"), ("conv2", "conv2.c"), ("conv7", "conv7.c"))
    assert "again conv at \"conv#2\"" in plan(("conv", "conv.c"), ("conv#2", "conv#2.c"))
    assert "again" not in plan(("conv1", "conv1.c"), ("conv2", "conv1.c"))
    assert "again" not in plan(("stem", "rows"), ("head.0.final", "rows"))


def test_names_follow_from_examples():
    new = Renaming([("l0.q", "l1.q"), ("up", "up#2"), ("w.7", "w.9"), ("odd", "even")])
    assert [new(name) for name in ("l0.q", "l0.k.c", "l4.out", "l", "x.0")] == ["l1.q", "l1.k.c", "l5.out", "l", "x.0"]
    assert [new(name) for name in ("up", "up.c", "upper", "w.8", "w.x")] == ["up#2", "up#2.c", "upper", "w.10", "w.x"]
    assert new("odd.c") == "even.c"
    assert Renaming([("a5", "a3")])("a1") == "a1", "no number below 0"


def test_exceptions_are_named_until_all_names_are_right():
    names = {"l0.a": "l1.a", "l0.b": "l1.b", "l0.c": "other", "l5.d": "l5.d"}
    pairs = pairs_for(names, "l0.a")
    assert pairs == (("l0.a", "l1.a"), ("l0.c", "other"), ("l5.d", "l5.d"))
    assert {old: Renaming(pairs)(old) for old in names} == names


def test_comments_stand_at_ends_of_lines_and_are_not_read():
    inner = Compute(("a", "b"))
    loop = Loop("y", steps(8, 3), Sequence((inner,)))
    plan = Sequence((loop,), (Resident("w", 0, 0), Resident("v", 0, 0)))
    said = {id(inner): "12 B", id(loop): "3 passes", id(plan.residents[1]): "8 B"}
    text = plan_text("net", "edge", plan, lambda node: said.get(id(node), ""))
    assert text.splitlines() == [
        'plan @net for "edge" {',
        "  resident w",
        "  resident v           // 8 B",
        "  for y step 3 of 8 {  // 3 passes",
        "    compute a, b       // 12 B",
        "  }",
        "}",
    ]
    assert parse_plan(text)[2] == plan


def test_a_plan_is_any_node():
    there_and_back(Compute(("a",)))
    there_and_back(Loop("x", (0, 1), Sequence((Compute(("a",)),))))
    assert plan_text("n", "edge", Compute(("a", "step"))) == 'plan @n for "edge" compute a, "step"\n'


def test_long_lists_go_on_in_the_next_line():
    plan = Compute(tuple(f"/block/layer{k}/MatMul" for k in range(30)))
    assert max(map(len, text_of(plan).splitlines())) <= 101
    there_and_back(plan)


WRONG = {
    "plan net": "1:6: error: expected the name of a network, as in @net, found 'net'",
    'net @n for "e" { compute a }': "1:1: error: expected 'plan', found 'net'",
    "plan @n for edge { compute a }": '1:13: error: expected the name of a target in quotes, as in "edge", found',
    'plan @n for "e" x': "1:17: error: expected a node: for, compute, subsets or {, found 'x'",
    "{ {} }": "1:3: error: a sequence: it has no children; remove it",
    "{ for step 2 of 3 { compute a } }": "1:7: .*an axis, found 'step'; a name that is a keyword stands in quotes",
    "{ for x step 2 { compute a } }": "1:16: error: expected 'of EXTENT', found '{'; no network here says the extent",
    "{ for x step 0 of 2 { compute a } }": "1:14: error: a step has at least one position, found 0",
    "{ for x step 1 of 2147483647 { compute a } }": "1:14: error: step 1 of 2147483647: at most 1048576 passes; take a",
    "{ for x step 1 of 2147483648 { compute a } }": "1:19: error: the extent of the axis: at most 2147483647, found",
    "{ for x of 2 { compute a } }": "1:9: error: expected 'step N of EXTENT' or 'ranges ",
    "{ for x ranges [0, 3, 2] { compute a } }": "1:3: error: for x: ranges rise from 0 to the extent of the axis",
    "{ for x ranges [1, 3] { compute a } }": "ranges rise from 0",
    "{ for x step 2 of 4 roling { compute a } }": "1:21: .*found 'roling'; did you mean 'rolling'",
    "{ for x step 2 of 4 over cluster { compute a } }": "a level of the machine .*did you mean 'clusters'",
    "{ for x step 2 of 4 map spiral { compute a } }": "1:25: .*expected an order of passes .backward, .*found 'spiral'",
    "{ for x step 2 of 4 map zorder 2 { compute a } }": "1:32: error: map zorder takes 2 extents with x between",
    "{ for x step 2 of 4 map interleaved { compute a } }": "expected 1 extents, as in 2",
    "{ resident x compute a resident y }": "1:33: error: a resident begins with the child after it, and none is",
    "{ resident x until b compute a }": "1:12: error: resident x until b: no such child",
    "{ compute a resident x until a compute b }": "no such child; that child is before it",
    "{ resident x [r 3] compute a }": "1:18: error: expected ':' between the first position",
    "{ resident x [r 3:3] compute a }": "1:12: error: resident x: positions 3:3 of r",
    "{ resident x in ram compute a }": "1:17: .*a memory .sram, nram, wram., found 'ram'; did you mean",
    "{ compute a, a }": "1:3: error: compute a, a: a is computed twice; recompute it under another name",
    "{ compue a }": "1:3: .*found 'compue'; did you mean 'compute'",
    "{ compute conv#2 }": "1:15: .*found '#2'; a name that is no word stands in quotes",
    "{ compute /l/q }": "1:11: error: expected the name of a layer, found '/'; a name that is no word stands",
    '{ compute "a quote that nothing closes }': "1:11: error: End of file reached before closing string literal",
    "{ compute a": "1:12: .*found the end of the text",
    "{ compute a on vectr }": "1:16: .*found 'vectr'; did you mean 'vector'",
    "{ compute a sum y as f8 }": "1:22: error: expected a type of sums .f16, bf16, f32, i32, i64., found 'f8'",
    "{ compute a } x": "1:15: error: expected the end after the plan's closing brace, found 'x'",
    "{ subsets clusters [2] { compute a compute b } }": "2 children on subsets .2.: one number, at least 1, for each",
    "{ subsets racks [2] { compute a } }": "found 'racks'",
    "{ again b at c }": "1:9: error: no child of these braces that stands before begins with layer b",
    "{ compute a again a to b at c }": "begins with layer b",
    "{ compute a resident x again a at c }": "a resident begins with the child after it, found 'again'",
    "{ compute a again a at c (d e) }": "expected 'as', found 'e'",
    "{ recompute a as b recompute c as b compute b }": "2 copies are called b",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said_with_its_place(text):
    start = "" if text.startswith(("plan", "net")) else 'plan @n for "e"\n'
    said = WRONG[text] if not start else WRONG[text].replace("1:", "2:", 1)
    with pytest.raises(PlanError, match=said):
        parse_plan(start + text)


TOKENS = re.compile(r'"[^"]*"|[\w.]+|\s+|.')
ODD = ['"\\ff"', '"\\zz"', '"', "0x1F", "-3", "9" * 20, "//", "\0", "é", "@", "%x", "#a", "1.5", "true", "map", "2x"]


def test_edited_texts_are_read_or_refused_with_their_place():
    random, words = Random(1), [*ODD, *(word for plan in PAGE_PLANS for word in TOKENS.findall(plan))]
    for _ in range(400):
        text = TOKENS.findall(random.choice(PAGE_PLANS))
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(text))
            text[at : at + random.randint(0, 1)] = random.choice([[], [random.choice(words)]])
        try:
            plan = parse_plan("".join(text))
        except PlanError as error:
            assert re.match(r"plan:\d+:\d+: error: ", str(error))
        else:
            assert parse_plan(plan_text(*plan)) == plan


def test_deep_nests_are_refused_in_words():
    with pytest.raises(PlanError, match="nested too deeply"):
        parse_plan('plan @n for "e" ' + "{" * 20_000)


def test_the_network_says_extents():
    net = network(mlp, *SHAPES)
    up, act, down = (layer.name for layer in net.layers)
    axis = net.layers[0].result.axes[1]
    text = f'plan @n for "e" for {axis.name} step 7 {{ compute {up}, {act}, "{down}" }}'
    assert parse_plan(text, net)[2].edges == (0, 7, 14, 20)
    with pytest.raises(PlanError, match=f"says the extent of {axis.name}x; did you mean '{axis.name}'"):
        parse_plan(text.replace(f"{axis.name} ", f"{axis.name}x "), net)
