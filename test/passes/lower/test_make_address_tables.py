"""Tables of whole networks: who shares them, when they are loaded, and that the machine can live by them alone."""

import numpy as np
import pytest
from address_tables import convolutions, small_cache
from every_operation import network
from networks import Net
from stops import executable, modules_at_stops
from xdsl.context import Context

from frustum.backend.pipeline import Choices
from frustum.dialects.isa import BarrierOp, ConvOp, ExternalOp, FetchOp, ProgramOp
from frustum.dialects.isa.instruction import value_of
from frustum.dialects.isa.operations import TableOp
from frustum.dialects.isa.program import IMAGE_CLASSES
from frustum.dialects.isa.tables.stored_table import KEY, read_table
from frustum.passes.lower.make_address_tables import MakeAddressTables, forget
from frustum.passes.weights import store_of
from frustum.runtime.machine import Machine
from frustum.runtime.model.execution import execute

NETWORKS = ("inception", "residual", "long_kernel")


def lowered(module, name="tiny", **choices):
    return modules_at_stops(module, name, Choices(**choices))["lowered"]


def ops(module, kind):
    return [op for op in module.walk() if isinstance(op, kind)]


def tables(module):
    return [op for op in ops(module, ExternalOp) if op.external_name.data.startswith(KEY)]


def test_equal_geometries_share_a_table_across_layers():
    module, _ = convolutions((8, 8, 8))
    low = lowered(module, policy="none")
    assert len(ops(low, ConvOp)) == 3 and len(tables(low)) == len(ops(low, TableOp)) == 1


@pytest.mark.slow
def test_tables_are_program_and_lie_beside_the_weights():
    module, _ = convolutions((8, 6))
    low = lowered(module)
    for external in tables(low):
        data = store_of(low)[external.external_name.data]
        assert external.class_.data == "program" and external.class_.data in IMAGE_CLASSES
        assert data.dtype == np.uint8 and len(data) == external.bytes.value.data
        assert read_table(data).element_bytes == 4


def test_every_table_is_loaded_before_the_section_that_uses_it():
    module, _ = network("inception")
    low = lowered(module, policy="none", joined=0.0)
    held, section = set(), 0
    (program,) = ops(low, ProgramOp)
    pending = set()
    for op in program.body.block.ops:
        if isinstance(op, TableOp):
            held -= set(() if op.evicts is None else value_of(op.evicts))
            pending.add(op.entry.value.data)
        elif isinstance(op, BarrierOp):
            held, pending, section = held | pending, set(), section + 1
        for conv in [each for each in op.walk() if isinstance(each, ConvOp)]:
            assert conv.table.value.data in held, section
    assert section > 1


@pytest.mark.slow
def test_a_program_of_one_section_gets_one_for_its_loads():
    module, _ = convolutions((4,))
    low = lowered(module)
    (program,) = ops(low, ProgramOp)
    forget(program)
    for op in ops(low, BarrierOp) + ops(low, FetchOp):
        op.detach()
        op.erase()
    MakeAddressTables().apply(Context(), low)
    low.verify()
    first = next(op for op in program.body.block.ops if not isinstance(op, ExternalOp))
    assert isinstance(first, TableOp) and isinstance(first.next_op, BarrierOp)
    assert not ops(low, FetchOp) and ops(low, ConvOp)


@pytest.mark.slow
def test_running_the_pass_again_changes_nothing():
    module, _ = network("residual")
    low = lowered(module)
    before = str(low)
    MakeAddressTables().apply(Context(), low)
    assert str(low) == before


@pytest.mark.slow
@pytest.mark.parametrize("order", ["fewest", "channel-major", "tap-major", "pixel-major"])
@pytest.mark.parametrize("name", NETWORKS)
def test_convolutions_through_their_tables_give_the_same_numbers(name, order):
    module, inputs = network(name)
    low = lowered(module)
    MakeAddressTables(order=order).apply(Context(), low)
    machine = Machine(executable(low))
    fast = machine.run(inputs, "functional", checked=True).outputs
    detailed = machine.run(inputs, "functional", detailed_tables=True).outputs
    for key, expected in fast.items():
        np.testing.assert_allclose(detailed[key], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_small_parts_are_walked_to_the_same_numbers():
    module, inputs = network("residual")
    low = lowered(module)
    found = []
    for most in (1024, 48):
        MakeAddressTables(most_bytes=most).apply(Context(), low)
        assert ops(low, TableOp) and all(op.bytes.value.data <= most for op in ops(low, TableOp))
        machine = Machine(executable(low))
        found += [machine.run(inputs, "functional", detailed_tables=way).outputs["y0"] for way in (False, True)]
    for each in found[1:]:
        np.testing.assert_allclose(found[0], each, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.soak
def test_a_full_cache_gives_up_the_least_recently_used_and_loads_it_again():
    net = Net()
    x = net.input(1, 8, 12, 12)
    for kernel in (1, 3, 5, 7, 1, 3, 5, 7):
        x = net.conv(x, 8, kernel)
    module, inputs = net.module(x)
    low = small_cache(lowered(module, policy="none", joined=0.0), 128)
    MakeAddressTables().apply(Context(), low)
    program = executable(low)
    ran = execute(program, inputs, "functional", checked=True)
    cache = ran.counters.address_cache
    assert cache["loads"] > cache["tables"] and cache["evictions"] > 0
    again = Machine(program).run(inputs, "functional", detailed_tables=True).outputs["y0"]
    np.testing.assert_allclose(again, ran.outputs["y0"], rtol=1e-4, atol=1e-5)


def test_loads_count_as_other_bytes():
    module, inputs = convolutions((8, 8))
    low = lowered(module)
    loads = [op.bytes.value.data for op in ops(low, TableOp)]
    counted = execute(executable(low), inputs, "functional").counters
    code = sum(executable(low).code.page_bytes)
    assert counted.dram_bytes_by_class["other"] == code + sum(loads)
    assert counted.address_cache == {"tables": len(set(tables(low))), "loads": len(loads), "evictions": 0}


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 64, 128])
def test_a_cache_too_small_for_tables_runs_without(size):
    """No table is longer than half of the cache; what has none computes its addresses."""
    module, inputs = convolutions((4, 4), kernel=5)
    low = lowered(module)
    expected = Machine(executable(low)).run(inputs, "functional").outputs["y0"]
    MakeAddressTables().apply(Context(), small_cache(low, size))
    assert all(op.bytes.value.data <= size // 2 for op in ops(low, TableOp))
    assert bool(ops(low, TableOp)) == (size == 128)
    found = Machine(executable(low)).run(inputs, "functional", checked=True).outputs["y0"]
    np.testing.assert_array_equal(found, expected)
