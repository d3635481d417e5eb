"""`frustum-schedule`: the waits of small programs, and what it refuses."""

import time
from dataclasses import replace

import pytest
from processor_time import allowed
from programs import VIEW, conv, copy, machine, module_of, unary
from xdsl.context import Context
from xdsl.ir import Block, Region
from xdsl.utils.exceptions import VerifyException

from frustum.backend.memory.allocation import Allocate
from frustum.backend.waits.schedule import Schedule
from frustum.dialects.isa.instruction import attribute_of
from frustum.dialects.isa.program import Affine
from frustum.dialects.isa.sync import AllocOp, BarrierOp, ExternalOp, RepeatOp, WaitOp
from frustum.dialects.target.fit import DoesNotFit


def scheduled(target, *ops):
    module = module_of(target, *ops)
    Allocate(copies=1).apply(Context(), module)
    Schedule().apply(Context(), module)
    module.verify()
    return module


def waits(op):
    return [] if op.waits is None else [(w.scope, w.slot, str(w.value)) for w in op.waits.data]


def loop(count, *ops, stage=0):
    return RepeatOp(count, Region(Block(list(ops))), stage=stage)


def external():
    return ExternalOp("x", "weight", 64, (16,), "f32")


def test_double_buffering_lets_the_loads_run_two_ahead():
    x, a, b = external(), AllocOp("nram", 64, 2), AllocOp("nram", 64, 2)
    load, work = copy("iodma", x, a), unary(a, b, stage=1)
    scheduled(machine(1, 2), x, loop(8, a, b, load, work))
    assert waits(load) == [("own", 1, "-1 + 1*i0")]
    assert waits(work) == [("own", 0, "1 + 1*i0")]


def test_a_broadcast_waits_for_all_cores_and_all_cores_for_it():
    x, s, w, a, o = (
        external(),
        AllocOp("sram", 64),
        AllocOp("wram", 64, 2),
        AllocOp("nram", 64),
        AllocOp("nram", 64),
    )
    fill, send, work = copy("gdma", x, s), copy("bus", s, w), conv(a, w, o)
    scheduled(machine(2, 2), x, s, a, o, fill, loop(8, w, send, work))
    assert waits(fill) == []
    assert sorted(waits(send)) == [("cores", 0, "-1 + 1*i0"), ("own", 0, "1")]
    assert waits(work) == [("cluster", 1, "1 + 1*i0")]


def test_sends_of_one_map_wait_for_what_is_sent_but_not_for_each_other():
    home, tile = AllocOp("sram", 64), AllocOp("nram", 64)
    put, take = copy("mvdma", tile, home), copy("mvdma", home, tile)
    there, back = (copy("cdma", home, home, peer=Affine(by, cluster=1)) for by in (1, -1))
    scheduled(machine(2, 2), home, tile, put, there, back, take)
    assert waits(there) == waits(back) == [("all_cores", 0, "1")]
    assert waits(take) == [("all_clusters", back.signal.value.data, "1")]


def test_copies_between_two_buffers_of_other_clusters_keep_their_order():
    a, b = AllocOp("sram", 64), AllocOp("sram", 64)
    first, second = (copy("cdma", a, b, peer=Affine(by, cluster=1)) for by in (1, -1))
    scheduled(machine(2, 2), a, b, first, second)
    assert waits(second) == [("all_clusters", first.signal.value.data, "1")]


def test_sends_to_places_of_their_own_do_not_wait_for_each_other():
    """Each cluster's number decides where it sends to."""
    a, b = AllocOp("sram", 64), AllocOp("sram", 128)
    first, second = (copy("cdma", a, b, peer=Affine(by, cluster=1)) for by in (1, -1))
    second.properties["dst_view"] = attribute_of(replace(VIEW, offset=Affine(64)))
    scheduled(machine(2, 2), a, b, first, second)
    assert waits(second) == []


def test_a_multicast_waits_for_all_clusters_and_each_for_its_own_counter():
    x, s, a = external(), AllocOp("sram", 64, 2), AllocOp("nram", 64)
    load, move = copy("gdma", x, s, multicast=True), copy("mvdma", s, a)
    scheduled(machine(2, 2), x, loop(8, s, a, load, move))
    assert waits(load) == [("all_cores", 0, "-1 + 1*i0")]
    assert waits(move) == [("cluster", 0, "1 + 1*i0")]


def test_a_producer_that_runs_ahead_is_waited_for_in_front():
    x, rows, out = external(), AllocOp("nram", 64), AllocOp("nram", 64)
    load, work = copy("iodma", x, rows), unary(rows, out, stage=1)
    body = loop(8, load, work)
    scheduled(machine(1, 1), x, rows, out, body)
    (hold,) = (op for op in body.body.block.ops if isinstance(op, WaitOp))
    assert hold.engine_of() == "vector"
    assert hold.stage.value.data == 0
    assert waits(hold) == [("own", 0, "1 + 1*i0")]
    assert waits(work) == []


def test_counters_start_anew_after_a_barrier():
    x, a, b = external(), AllocOp("nram", 64), AllocOp("nram", 64)
    first, second = copy("iodma", x, a), copy("iodma", x, a)
    one, two = unary(a, b), unary(a, b)
    scheduled(machine(1, 1), x, a, b, first, one, BarrierOp(), second, two)
    assert waits(one) == waits(two) == [("own", 0, "1")]


def test_slots_are_shared_when_they_are_few():
    def ops():
        x, made = external(), []
        for _ in range(10):
            a, b = AllocOp("nram", 64), AllocOp("nram", 64)
            made += [a, b, copy("iodma", x, a), unary(a, b)]
        return x, *made

    many, few = (scheduled(machine(1, 2, event_slots=slots), *ops()) for slots in (20, 4))
    signals = [{op.signal for op in m.walk() if getattr(op, "signal", None) is not None} for m in (many, few)]
    assert [len(s) for s in signals] == [10, 1]


def test_too_few_slots_are_named():
    x, a, b = external(), AllocOp("nram", 64, 2), AllocOp("nram", 64, 2)
    message = r"events \(2 for each of 4 cores, 0 for the cluster\) does not fit: needed 8 slots, available 7"
    with pytest.raises(DoesNotFit, match=message):
        scheduled(machine(1, 4, event_slots=7), x, loop(4, a, b, copy("iodma", x, a), unary(a, b)))


def test_a_buffer_with_too_few_copies_is_refused():
    x, a, b = external(), AllocOp("nram", 64, 1), AllocOp("nram", 64)
    message = r"64 bytes in nram has depth 1, but vector \(stage 2\) still uses a copy when iodma \(stage 0\) takes it "
    with pytest.raises(VerifyException, match=message + "again: it needs depth 3"):
        scheduled(machine(1, 1), x, loop(8, a, b, copy("iodma", x, a), unary(a, b, stage=2)))


def test_addresses_are_asked_for():
    with pytest.raises(VerifyException, match="run frustum-allocate before frustum-schedule"):
        Schedule().apply(Context(), module_of(machine(1, 1), external()))


@pytest.mark.slow
@pytest.mark.soak
def test_five_thousand_instructions_take_seconds_at_most():
    ops = [x := external()]
    for _ in range(120):
        s, w, o = AllocOp("sram", 512, 2), AllocOp("sram", 512, 2), AllocOp("sram", 512, 2)
        body = [copy("gdma", x, s), copy("gdma", x, w)]
        for _ in range(8):
            a, b, c = AllocOp("nram", 64, 2), AllocOp("wram", 64, 2), AllocOp("nram", 64, 2)
            inner = [
                a,
                b,
                c,
                copy("mvdma", s, a),
                copy("bus", w, b),
                conv(a, b, c),
                copy("mvdma", c, o, stage=1),
            ]
            body.append(loop(4, *inner, stage=1))
        ops += [loop(8, s, w, o, *body, copy("gdma", o, x, stage=2)), BarrierOp()]
    module = module_of(machine(4, 4, event_slots=256), *ops)
    Allocate(copies=1).apply(Context(), module)
    start = time.process_time()
    Schedule().apply(Context(), module)
    assert time.process_time() - start < allowed(6)
