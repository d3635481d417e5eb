"""`frustum-hoist-loads`: before which store loads of weights stand."""

from dataclasses import replace

from programs import copy, machine, module_of, unary
from xdsl.context import Context

from frustum.backend.hoist_loads import CROSSING, HoistLoads
from frustum.backend.load_times import fetched_first
from frustum.backend.memory.allocation import Allocate
from frustum.dialects.isa.instruction import attribute_of
from frustum.dialects.isa.operations import CopyOp
from frustum.dialects.isa.program import Affine, Box, Span
from frustum.dialects.isa.sync import AllocOp, BarrierOp, ExternalOp, FetchOp


def chain(count, size, *, barriers=False):
    """Units that each load a weight and the map of the unit before, and store a map."""
    ops = [ExternalOp("w", "weight", 64, (16,), "f32")]
    maps = [ExternalOp(f"m{n}", "intermediate", 64, (16,), "f32") for n in range(count + 1)]
    ops += maps
    for n in range(count):
        a, w = AllocOp("sram", 64), AllocOp("sram", size)
        if barriers and n:
            ops.append(BarrierOp())
        ops += [a, copy("gdma", maps[n], a, unit=n), w, copy("gdma", ops[0], w, unit=n)]
        ops += [copy("cdma", w, a, unit=n, peer=Affine())]
        ops += [copy("gdma", a, maps[n + 1], unit=n)]
    return ops


def order(ops, capacity, distance=3, memory=None):
    """What stands after the other once loads have moved: (kind, unit); with so much memory for instructions."""
    target = machine(1, 1, capacity=capacity)
    if memory is not None:
        cluster = replace(target.cluster, instruction_memory_bytes=memory)
        target = replace(target, chip=replace(target.chip, cluster=cluster))
    module = module_of(target, *ops)
    Allocate().apply(Context(), module)
    HoistLoads(distance).apply(Context(), module)
    module.verify()
    program = module.body.block.first_op
    found = []
    for op in program.body.block.ops:
        if isinstance(op, BarrierOp):
            found.append("barrier")
        elif isinstance(op, CopyOp):
            found.append((kind(op), op.unit.value.data))
    return found


def kind(op):
    if isinstance(op.dst.owner, ExternalOp):
        return "store"
    if op.engine.data != "gdma":
        return "use"
    return "weight" if op.src.owner.external_name.data == "w" else "map"


def test_weights_stand_before_the_stores_of_the_units_before():
    assert order(chain(4, 64), 1 << 20, distance=2) == [
        ("weight", 0), ("map", 0), ("use", 0), ("weight", 1), ("weight", 2), ("store", 0),
        ("map", 1), ("use", 1), ("weight", 3), ("store", 1),
        ("map", 2), ("use", 2), ("store", 2),
        ("map", 3), ("use", 3), ("store", 3),
    ]  # fmt: skip


def test_where_two_weights_share_their_bytes_a_load_stays_behind_the_use():
    found = order(chain(4, 512), 640 + 512)
    assert found.index(("weight", 2)) > found.index(("use", 0))
    assert all(found.index(("weight", n)) < found.index(("use", n)) for n in range(4))
    assert found.index(("weight", 1)) < found.index(("store", 0))


def behind_a_barrier(loads, before=1):
    """Loads of 64 bytes behind a barrier, and so many units before it."""
    ops = chain(before, 64)
    more = [AllocOp("sram", 64) for _ in range(loads)]
    return [*ops, BarrierOp(), *more, *(copy("gdma", ops[0], each, unit=before) for each in more)]


def crossing(found, unit):
    """How many loads of a unit stand before the barrier, and how many there are."""
    return found[: found.index("barrier")].count(("weight", unit)), found.count(("weight", unit))


def test_loads_cross_a_barrier_as_far_as_there_is_room_for_their_code():
    found = order(chain(4, 64, barriers=True), 1 << 20)
    assert found.index(("weight", 1)) < found.index("barrier")
    many = 2 * CROSSING
    assert crossing(order(behind_a_barrier(many), 1 << 20), 1) == (many, many)
    assert crossing(order(behind_a_barrier(many), 1 << 20, memory=1024), 1) == (CROSSING, many)


def test_code_and_tables_are_fetched_a_few_at_a_time():
    """The latencies of as many as an engine may have on the way are over at the same time."""
    target = machine(1, 1)
    dram, many = target.memory("dram"), target.transfers.in_flight
    pages = [8 * dram.port_bytes_per_cycle] * (many + 1)
    for count, latencies in ((1, 1), (many, 1), (many + 1, 2)):
        children = [*(FetchOp(page=n) for n in range(count)), BarrierOp()]
        assert fetched_first(children, target, pages) == (count, latencies * dram.latency_cycles + 8 * count)


def test_only_a_few_short_loads_cross_a_barrier():
    """Each takes less than a thousandth of the program's time."""
    many = 2 * CROSSING
    ops = behind_a_barrier(many)
    near = AllocOp("nram", 4 << 16)
    long_work = unary(near, near, unit=0)
    long_work.properties["box"] = attribute_of(Box.of(*(Span(Affine(), n, n) for n in (1, 1, 1, 1 << 16))))
    assert crossing(order([*ops[:5], near, long_work, *ops[5:]], 1 << 20), 1) == (CROSSING, many)


def test_what_the_program_writes_is_loaded_where_it_was():
    ops = chain(3, 64)
    late = copy("gdma", ops[5].buffer, ops[0], unit=0)
    ops.insert(next(n for n, op in enumerate(ops) if isinstance(op, CopyOp)) + 1, late)
    found = order(ops, 1 << 20)
    assert [each[1] for each in found] == sorted(each[1] for each in found)
    assert found[:3] == [("map", 0), ("store", 0), ("weight", 0)]


def slow_chain(last_rows):
    """Three units, of which two compute for longer than their weights take to load; the last may have large ones."""
    ops, w = [], ExternalOp("w", "weight", 1 << 20, (1 << 18,), "f32")
    x, y = ExternalOp("x", "input", 64, (16,), "f32"), ExternalOp("y", "output", 64, (16,), "f32")
    a = AllocOp("sram", 64)
    ops += [w, x, y, a, copy("gdma", x, a, unit=0)]
    for n, rows in enumerate((64, 64, last_rows)):
        own = AllocOp("sram", 1 << 10 if n < 2 else 1 << 19)
        load = copy("gdma", w, own, unit=n)
        load.properties["box"] = attribute_of(Box.of(*(Span(Affine(), e, e) for e in (1, rows, 1, 4))))
        use = copy("cdma", own, a, unit=n, peer=Affine())
        use.properties["box"] = attribute_of(Box.of(*(Span(Affine(), e, e) for e in (1, 1 << 12, 1, 4))))
        ops += [own, load, use]
    return [*ops, copy("gdma", a, y, unit=2)]


def test_a_long_load_keeps_no_others_waiting():
    short, long = (order(slow_chain(rows), 1 << 20) for rows in (64, 1 << 15))
    assert short.index(("weight", 2)) < short.index(("weight", 1))
    assert long.index(("weight", 2)) > long.index(("weight", 1))
