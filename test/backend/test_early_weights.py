"""What passes that bring weights early know of a program: pieces of weights, times of children, room in memories."""

import pytest
from networks import Net
from stops import machine_of, modules_at_stops
from xdsl.dialects.builtin import ModuleOp

from frustum.backend.early_weights import Pieces, ProgramModel, Refused, outermost, programs_of, read_at
from frustum.backend.memory.packing import usable
from frustum.backend.pipeline import Choices
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Affine
from frustum.passes.lower import weight_slots as ws

MACHINE = machine_of(16)
CHANNELS = (64, 128, 96)


@pytest.fixture(scope="module")
def lowered():
    """Three products in a unit each; the weights of all but the first, which come by the bus, are dealt to cores."""
    net = Net(seed=5)
    x = net.input(1, 32, 16, 16)
    for channels in CHANNELS:
        x = net.conv(x, channels, 1, pads=(0, 0, 0, 0))
    return modules_at_stops(net.module(x)[0], MACHINE, Choices(policy="none", dtype="f16"))["lowered"]


@pytest.fixture
def model(lowered):
    (program,) = programs_of(lowered.clone())
    return ProgramModel(program, MACHINE)


def test_programs_of_a_module():
    assert programs_of(ModuleOp([])) == []


def test_pieces_are_as_many_as_their_fill_has_passes_and_hold_all_weights(model):
    """Each core has its share; elements have 2 bytes."""
    for pieces, outputs, inputs in zip(model.pieces_of(Pieces), CHANNELS[1:], CHANNELS, strict=False):
        assert pieces.bytes * MACHINE.cluster.cores == outputs * inputs * 2
        assert pieces.bytes == pieces.piece_bytes * pieces.counts[0] > pieces.piece_bytes
        assert pieces.users and all(user.weight is pieces.buffer.buffer for user in pieces.users)
    assert len(list(model.pieces_of(Pieces))) == 2


def test_what_others_read_too_is_refused(model):
    first, *_ = model.pieces_of(Pieces)
    again = first.flow.fill.clone()
    again.operands[0] = first.buffer.buffer
    first.flow.fill.parent_block().insert_op_after(again, first.flow.fill)
    flow, *_ = [flow for flow in ws.flows(model.program) if flow and flow.fill is first.flow.fill]
    with pytest.raises(Refused, match="something else than a convolution reads the pieces"):
        Pieces(flow, MACHINE)
    assert len(list(model.pieces_of(Pieces))) == 1


def test_a_buffer_of_another_loop_is_refused(model):
    pieces = next(each for each in model.pieces_of(Pieces) if each.buffer.parent is not model.program.body.block)
    pieces.buffer.detach()
    model.program.body.block.insert_op_before(pieces.buffer, outermost(pieces.flow.fill))
    with pytest.raises(Refused, match="the pieces have a buffer of another loop"):
        Pieces(pieces.flow, MACHINE)


def test_a_convolution_reads_its_weights_further_on(model):
    first, *_ = model.pieces_of(Pieces)
    user, before = first.users[0], first.users[0].weight_view.data
    read_at(user, user.weight, Affine(48))
    assert user.weight_view.data.offset == before.offset + 48
    assert user.weight_view.data.strides == before.strides


def test_children_are_in_order_and_hold_their_operations(model):
    assert model.children == sorted(model.children) and model.ends[-1] == len(model.children)
    for op in model.program.walk():
        if isinstance(op, CopyOp):
            assert outermost(op) is model.code.operations[model.children[model.child_of(op)]]
    needed = [model.child_of(pieces.flow.fill) for pieces in model.pieces_of(Pieces)]
    assert needed == sorted(needed)


def test_times_add_up(model):
    for times, parts in ((model.chain, [c.cycles for c in model.model.children]), (model.loads, loads(model))):
        assert times[-1] == pytest.approx(sum(parts)) and sum(parts) > 0
        assert times == sorted(times)


def loads(model):
    return [transfer.cycles for child in model.model.children for transfer in child.transfers]


@pytest.mark.parametrize("memory", ["sram", "wram"])
def test_a_memory_has_places_up_to_its_last_byte(memory, model):
    """A buffer of the whole program beside none of the others, and beside one."""
    room, ends = model.room[memory], (model.children[0], model.children[-1])
    assert room == usable(MACHINE.memory(memory).capacity_bytes)
    every = set(model.uses(memory))
    assert every and all(model.code.buffers[n].memory == memory for n in every)
    one = next(iter(every))
    own = model.code.buffers[one].total_bytes
    assert model.has_places(memory, every, [(*ends, room)])
    assert not model.has_places(memory, every - {one}, [(*ends, room)])
    assert model.has_places(memory, every - {one}, [(*ends, room - -(-own // 16) * 16)])
    assert not model.has_places(memory, every, [(*ends, room), (ends[0], ends[0], 16)])
    assert model.has_places(memory, every, [(ends[0], ends[0], room), (ends[1], ends[1], room)])
