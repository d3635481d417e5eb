"""Choices of one part are those of alike ones: keys differ where parts do, and programs are the same without memory."""

import lowered_plans
import plan_nets
import pytest
import random_plans
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frustum.dialects import graph as g
from frustum.dialects.axes.axis import Axis
from frustum.dialects.plan.check import PlanError
from frustum.dialects.target.fit import DoesNotFit
from frustum.passes.lower.tree import walk
from frustum.passes.lower.tree.cores import chains
from frustum.passes.lower.tree.signatures import Signature, keep, known_choices
from frustum.passes.lower.tree.spans import NotLowered
from frustum.passes.lower.tree.streams import streaming

SLOW = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def thrice(net):
    """Alike blocks, one behind the other."""
    x = net.input(1, 12, 18, 18)
    for _ in range(3):
        x = net.unary("tanh", net.conv(x, 12, 3, pads=(1, 1, 1, 1)))
    return x


def keys_of(build):
    axes = lowered_plans.case(build).axes
    return [Signature().key(layer) for layer in axes.layers]


def test_alike_layers_have_equal_keys():
    x_read, first, second, function, third, last = keys_of(thrice)
    assert second == third
    assert x_read != second and first == function and last != first  # an input and the output are others


@pytest.mark.parametrize(
    "other",
    [
        lambda net: net.unary("exp", net.input(6, 8)), lambda net: net.unary("tanh", net.input(6, 9)),
        lambda net: net.binary("add", net.input(6, 8), net.input(6, 8)),
    ],
    ids=["function", "extent", "operands"],
)  # fmt: skip
def test_other_layers_have_other_keys(other):
    assert keys_of(lambda net: net.unary("tanh", net.input(6, 8))) != keys_of(other)


def test_attributes_of_operations_are_part_of_the_key():
    def softmax(axis):
        return keys_of(lambda net: net.layer(g.SoftmaxOp(net.input(1, 8, 8), axis)))

    assert softmax(1) != softmax(2)


def test_things_are_numbered_as_they_come():
    a, b, sign = Axis("a", 3), Axis("b", 3), Signature()
    key = sign.key((a, b, a, frozenset({b, a})))
    assert [sign.number(each) for each in (a, b)] == [0, 1] and sign.things == [a, b]
    assert key == Signature().key((b, a, b, frozenset({a, b})))
    assert key != Signature().key((a, b, b, frozenset({b, a})))


def test_what_has_no_key_is_an_error():
    with pytest.raises(TypeError, match="no key of object"):
        Signature().key([object()])


def test_a_memory_of_choices_has_an_end(monkeypatch):
    monkeypatch.setattr("frustum.passes.lower.tree.signatures.MOST_KNOWN", 2)
    known = {}
    for number in range(3):
        keep(known, number, number)
    assert known == {2: 2}


def code_of(case, target):
    try:
        return lowered_plans.executable_of(case.module, case.plan, target).code.bytes
    except (NotLowered, DoesNotFit, PlanError) as error:
        return str(error)


def check_code(case, target):
    """With choices of all plans before in memory, and with none."""
    warm = code_of(case, target)
    with pytest.MonkeyPatch.context() as patch:
        for module in (walk, chains, streaming):
            patch.setattr(module, "known_choices", lambda target, kind: {})
        assert code_of(case, target) == warm


def test_alike_blocks_are_chosen_for_once():
    target = lowered_plans.machine("edge", 192 * 1024 + 64)  # no other test has this one
    case = lowered_plans.case(thrice, "compute conv_1, unary_2 compute conv_3, unary_4 compute conv_5, unary_6")
    check_code(case, target)
    known = known_choices(target, "chains")
    assert known and known_choices(target, "slices")


@given(random_plans.planned())
@settings(max_examples=8, **SLOW)
def test_programs_are_the_same_without_memory(case):
    check_code(case, lowered_plans.machine("edge"))


@pytest.mark.slow
@given(random_plans.planned(), st.sampled_from([16, 64, 512]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
@settings(max_examples=200, **SLOW)
def test_many_programs_are_the_same_without_memory(case, kib, cores, clusters):
    check_code(case, lowered_plans.machine("edge", kib * 1024, cores, clusters))


def blocks(net):
    """Normalised products and a softmax between them, three times."""
    x = net.input(24, 32)
    for _ in range(3):
        x = plan_nets.product(net, net.layer(g.SoftmaxOp(plan_nets.product(net, x, 40), 1)), 32)
    return x


def test_blocks_of_products_without_memory():
    case = lowered_plans.case(blocks)
    names = [layer.name for layer in case.axes.layers]
    check_code(lowered_plans.case(blocks, f"compute {', '.join(names)}"), lowered_plans.machine("edge"))
