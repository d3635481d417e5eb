"""Operations of other dialects among ours: at every level they keep their order, their text and their values."""

from __future__ import annotations

import pytest
from foreign import POLICIES, assert_programs_write_first, check_all, mixed_modules, unregistered
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net
from stops import target
from xdsl.context import Context
from xdsl.dialects import arith, test
from xdsl.dialects.builtin import IntegerAttr, i32
from xdsl.ir import Block, Region
from xdsl.utils.exceptions import VerifyException

import frustum
from frustum.backend.pipeline import STOPS, Choices, passes_to
from frustum.dialects import isa, tile
from frustum.dialects.foreign import is_foreign
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute
from frustum.passes.lower.lower_tiles import LowerTiles
from frustum.runtime.failures import UsageError
from frustum.runtime.reference.graph import network_of

VARIANTS = (
    Choices(),
    Choices(order="serpentine"),
    Choices(borders="exchange"),
    Choices(compression="huffman"),
)


@pytest.mark.slow
@pytest.mark.parametrize("feeds", [False, True])
@settings(max_examples=settings().max_examples // 6)
@given(data=st.data())
def test_every_pass_keeps_what_is_not_ours(feeds, data):
    """500 in test/soak/soak_foreign.py."""
    mixed = data.draw(mixed_modules(3, feeds))
    for policy in POLICIES:
        check_all(mixed, policy, data.draw(st.sampled_from(VARIANTS)))


def network_with(op):
    """A small network with one more operation in it, and its inputs."""
    net = Net(3)
    pooled = net.pool("max", net.conv(net.input(1, 4, 8, 8), 8, act="relu"))
    return (*net.module(net.unary("sigmoid", pooled), *op(net, pooled)), op)


def constant(net, _):
    net.builder.insert(arith.ConstantOp(IntegerAttr(1, i32)))
    return ()


def look(net, pooled):
    net.builder.insert(unregistered("acme.look", [pooled], []))
    return ()


@pytest.mark.slow
def test_what_nobody_would_notice_does_not_keep_a_network_from_running():
    (plain, inputs, _), (module, _, _) = network_with(lambda net, pooled: ()), network_with(constant)
    found = [frustum.run(frustum.compile(each, "edge"), inputs).outputs for each in (plain, module)]
    assert (found[0]["y0"] == found[1]["y0"]).all()


@pytest.mark.slow
def test_what_the_device_cannot_run_is_named():
    module, _, _ = network_with(look)
    with pytest.raises(UsageError, match=r"module: error: 'acme.look' is no operation of a program, and the device"):
        frustum.compile(module, "edge")


@pytest.mark.slow
def test_a_program_does_not_read_what_others_make_in_between():
    def magic(net, pooled):
        made = net.builder.insert(unregistered("acme.magic", [pooled], [pooled.type]))
        return (net.unary("relu", made.results[0]),)

    module, _, _ = network_with(magic)
    with pytest.raises(UsageError, match=r"'acme.magic': unit u\d reads its result, but a program reads only"):
        frustum.compile(module, "edge")


@pytest.mark.slow
def test_others_stay_behind_the_unit_that_they_stand_behind():
    module, _, _ = network_with(look)
    module.attributes[TARGET] = to_attribute(target("edge"))
    for stop in STOPS[1 : STOPS.index("placed") + 1]:
        for step in passes_to(stop, Choices(policy="none")):
            step.apply(Context(), module)
    block = network_of(module).body.block
    (op,) = (op for op in block.ops if is_foreign(op))
    units = [op for op in block.ops if isinstance(op, tile.UnitOp)]
    assert op.operands[0].owner is units[1]
    op.detach()
    block.insert_op_after(op, units[1])  # conv, pool, look, sigmoid
    LowerTiles().apply(Context(), module)
    (program,) = (op for op in module.ops if isinstance(op, isa.ProgramOp))
    children = list(program.body.block.ops)
    numbers = [
        {inner.unit.value.data for inner in child.walk() if isinstance(inner, isa.CopyOp)} for child in children
    ]
    place = children.index(op)
    assert set().union(*numbers[:place]) == {0, 1}
    assert set().union(*numbers[place:]) == {2}
    assert_programs_write_first(module)


@pytest.mark.slow
def test_an_element_type_is_not_changed_beside_others():
    module, _, _ = network_with(look)
    with pytest.raises(UsageError, match=r"it contains acme.look, whose types are not ours to change"):
        frustum.compile(module, "edge", dtype="f16")


@pytest.mark.slow
def test_the_verifier_finds_a_use_before_its_definition():
    module, _ = network_with(look)[:2]
    block = network_of(module).body.block
    (op,) = (op for op in block.ops if is_foreign(op))
    op.detach()
    block.insert_op_before(op, block.first_op)
    with pytest.raises(VerifyException, match=r"'acme.look': operand 0 is used before it is defined"):
        module.verify()


@pytest.mark.slow
def test_the_verifier_looks_into_regions_of_others():
    net = Net()
    x = net.input(1, 4)
    y = net.unary("relu", x)
    module, _ = net.module(y)
    block = network_of(module).body.block
    own = test.TestOp(result_types=[i32])
    inner = Region(Block([own, test.TestOp([own.results[0], x]), test.TestTermOp()]))
    block.insert_op_before(test.TestOp(regions=[inner]), block.first_op)
    module.verify()
    wrong = Region(Block([test.TestOp([y]), test.TestTermOp()]))
    block.insert_op_before(test.TestOp(regions=[wrong]), block.first_op)
    with pytest.raises(VerifyException, match=r"'test.op': a value is used inside before it is defined"):
        module.verify()
