"""`frustum-allocate`: places, peaks and what it says when something does not fit."""

import pytest
from programs import copy, machine, module_of, unary
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Block, Region
from xdsl.utils.exceptions import VerifyException

from frustum.backend.memory.allocation import Allocate
from frustum.dialects.isa.sync import AllocOp, BarrierOp, ExternalOp, RepeatOp
from frustum.dialects.target.fit import DoesNotFit


def address(op):
    return op.address.value.data


def allocated(target, *ops):
    module = module_of(target, *ops)
    Allocate().apply(Context(), module)
    return module


def chain(stages=(0, 0, 0), depth=1):
    """In a loop: load a, a -> b, b -> c, each of 128 bytes."""
    x = ExternalOp("x", "input", 64, (16,), "f32")
    a, b, c = (AllocOp("nram", 128, depth) for _ in range(3))
    steps = [copy("iodma", x, a, stage=stages[0]), unary(a, b, stage=stages[1]), unary(b, c, stage=stages[2])]
    last = copy("iodma", c, x, stage=stages[2])
    return (a, b, c), [x, RepeatOp(4, Region(Block([a, b, c, *steps, last])))]


def test_weights_come_first_and_start_at_multiples_of_64():
    classes = ("input", "weight", "output", "weight")
    externals = [ExternalOp(f"x{n}", class_, 65, (1,), "f32") for n, class_ in enumerate(classes)]
    allocated(machine(1, 1), *externals)
    assert [address(op) for op in externals] == [256, 0, 384, 128]


def test_buffers_that_fit_side_by_side_share_nothing():
    buffers, ops = chain()
    allocated(machine(1, 1, capacity=384), *ops)
    assert sorted(map(address, buffers)) == [0, 128, 256]


def test_buffers_share_where_they_must():
    (a, b, c), ops = chain()
    allocated(machine(1, 1, capacity=256), *ops)
    assert address(a) == address(c) != address(b)


def test_buffers_of_different_stages_do_not_share():
    _, ops = chain(stages=(0, 1, 2))
    with pytest.raises(DoesNotFit):
        allocated(machine(1, 1, capacity=256), *ops)


def test_buffers_of_several_copies_do_not_share():
    _, ops = chain(depth=2)
    with pytest.raises(DoesNotFit):
        allocated(machine(1, 1, capacity=512), *ops)


def test_every_section_has_the_memory_to_itself():
    x = ExternalOp("x", "input", 64, (16,), "f32")
    a, b = AllocOp("sram", 200), AllocOp("sram", 72, 1)
    module = allocated(
        machine(1, 1, capacity=256), x, a, copy("gdma", x, a), BarrierOp(), b, copy("gdma", x, b)
    )
    assert address(a) == 0 and address(b) == 256 - 80  # as little as can be of what was in use before
    peaks = module.attributes["frustum.peak"].data
    assert tuple(peaks["sram"].get_values()) == (208, 256)
    assert tuple(peaks["dram"].get_values()) == (64, 64)


def test_a_buffer_used_on_both_sides_of_a_barrier_keeps_its_place():
    x = ExternalOp("x", "input", 64, (16,), "f32")
    a, b = AllocOp("sram", 64), AllocOp("sram", 64)
    allocated(machine(1, 1), x, a, copy("gdma", x, a), BarrierOp(), b, copy("gdma", x, b), copy("gdma", a, x))
    assert address(a) != address(b)


def test_what_does_not_fit_is_named():
    x = ExternalOp("x", "input", 64, (16,), "f32")
    big, small = AllocOp("sram", 300, 2), AllocOp("sram", 64)
    loop = RepeatOp(2, Region(Block([big, small, copy("gdma", x, big, layer=1), copy("gdma", x, small)])))
    module = module_of(machine(1, 1, capacity=512), x, loop)
    module.attributes["frustum.layers"] = ArrayAttr([StringAttr("pool1"), StringAttr("conv2")])
    expected = r"section 0 \(layer '\w+'\): buffers in sram \(largest: 2 x 300 B of 'conv2', 64 B of 'pool1'\) does not"
    with pytest.raises(DoesNotFit, match=expected + " fit: needed 672 B, available 512 B of sram") as caught:
        Allocate().apply(Context(), module)
    assert caught.value.resource == "sram"


def test_too_much_for_dram():
    x = ExternalOp("x", "weight", 1 << 50, (16,), "f32")
    with pytest.raises(DoesNotFit, match="the program's weights, inputs and outputs: buffers in dram"):
        allocated(machine(1, 1), x)


def test_a_module_without_target_is_refused():
    with pytest.raises(VerifyException, match=r"the module has no attribute frustum\.target"):
        Allocate().apply(Context(), ModuleOp([]))


@pytest.mark.parametrize(("capacity", "copies"), [(1280, 4), (1276, 3), (764, 2)])
def test_a_ring_that_loads_fill_gets_copies_in_a_quarter_of_the_free_room(capacity, copies):
    x, ring, near = ExternalOp("x", "weight", 64, (16,), "f32"), AllocOp("sram", 128, 2), AllocOp("nram", 128)
    body = [ring, near, copy("gdma", x, ring), copy("mvdma", ring, near, stage=1)]
    allocated(machine(1, 1, capacity=capacity), x, RepeatOp(8, Region(Block(body))))
    assert ring.depth.value.data == copies


def test_a_ring_gets_no_more_copies_than_its_loop_has_passes():
    x, ring, near = ExternalOp("x", "weight", 64, (16,), "f32"), AllocOp("sram", 128, 2), AllocOp("nram", 128)
    body = [ring, near, copy("gdma", x, ring), copy("mvdma", ring, near, stage=1)]
    allocated(machine(1, 1), x, RepeatOp(3, Region(Block(body))))
    assert ring.depth.value.data == 3
