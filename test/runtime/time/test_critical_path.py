"""The critical path of small queues by hand, of random ones by what must hold, and of programs to the last cycle."""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from timed_queues import Op, operations, random_queues, transfer
from timing_cases import hand_made

import frustum
from frustum.runtime.device.expand import expand
from frustum.runtime.machine import Machine
from frustum.runtime.report.waits import merged, waits
from frustum.runtime.time.critical_path import (
    DESTINATION_PORT,
    LATENCY,
    REASONS,
    SIGNAL,
    SOURCE_PORT,
    WORK,
    critical_path,
)
from frustum.runtime.time.engine import BARRIER, DeadlockError, simulate
from frustum.runtime.time.timeline import simulate as simulate_program

NAMES = {WORK: "work", SOURCE_PORT: "source", DESTINATION_PORT: "destination", LATENCY: "latency", SIGNAL: "signal"}


def path(*queues, depth=0):
    """(operation, state, why, cycles) from the last to the first."""
    ops = operations(queues, depth)
    found = critical_path(ops, simulate(ops, compiled=False))
    columns = (found.operation, found.state, found.reason, found.cycles)
    return [(op, NAMES[state], REASONS[why], cycles) for op, state, why, cycles in np.stack(columns, 1).tolist()]


def test_the_path_goes_through_the_signal_that_came_last():
    first = [Op(cycles=5, latency=2, signals=((0, 0),))]
    second = [Op(cycles=9, latency=4, signals=((1, 20),))]
    third = [Op(cycles=1, waits=(([0], 1), ([1], 1)), latency=3)]
    assert path(first, second, third) == [
        (2, "latency", "end", 3), (2, "work", "end", 1), (1, "signal", "result", 20), (1, "latency", "result", 4),
        (1, "work", "result", 9),
    ]  # fmt: skip


def test_what_stands_behind_another_operation_waits_for_its_turn():
    assert path([Op(cycles=5, latency=50), Op(cycles=60)]) == [(1, "work", "end", 60), (0, "work", "turn", 5)]


def test_a_wait_for_a_port_is_known_by_its_side():
    """Port 3 is the source of both, port 1 the destination of the second alone, and free."""
    assert path([transfer(1, 64, [3], 16)], [transfer(1, 70, [3, 1], 16)]) == [
        (1, "work", "end", 70), (1, "source", "end", 16),
    ]  # fmt: skip
    assert path([transfer(1, 64, [3], 16)], [transfer(1, 70, [1, 3], 16)]) == [
        (1, "work", "end", 70), (1, "destination", "end", 16),
    ]  # fmt: skip


def test_only_so_many_transfers_are_in_flight():
    moves = [transfer(1, 2, [0], 2, latency=100)] * 3
    assert path(moves, depth=2) == [
        (2, "latency", "end", 100), (2, "work", "end", 2), (0, "latency", "room", 100), (0, "work", "room", 2),
    ]  # fmt: skip


def test_a_barrier_leads_to_the_last_effect_or_to_who_came_last():
    late = [Op(cycles=3, latency=50, signals=((0, 7),)), Op(BARRIER), Op(cycles=4)]
    assert path(late, [Op(cycles=9), Op(BARRIER)]) == [
        (2, "work", "end", 4), (0, "signal", "barrier", 7), (0, "latency", "barrier", 50), (0, "work", "barrier", 3),
    ]  # fmt: skip
    busy = [Op(cycles=90), Op(BARRIER), Op(cycles=4)]
    assert path(busy, [Op(cycles=9), Op(BARRIER)]) == [(2, "work", "end", 4), (0, "work", "barrier", 90)]


def test_nothing_has_no_path():
    assert path([], []) == [] and path([Op()]) == []


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("block", range(3))
def test_every_cycle_of_random_queues_is_in_one_piece_of_the_path(block):
    """Each piece ends where the one after it begins, inside the time in which its operation does what it says."""
    finished = 0
    for seed in range(100 * block, 100 * block + 100):
        rng = np.random.default_rng(seed)
        ops = operations(random_queues(rng), depth=int(rng.choice([0, 1, 4])))
        try:
            times = simulate(ops)
        except DeadlockError:
            continue
        finished += 1
        check_path(ops, times)
    assert finished > 40


def check_path(ops, times):
    found = critical_path(ops, times)
    now = times.total
    columns = zip(*(each.tolist() for each in (found.operation, found.state, found.cycles)), strict=True)
    for operation, pieces in groupby(columns, key=lambda piece: piece[0]):
        by_state = {state: cycles for _, state, cycles in pieces}
        start, end, done = (each.item(operation) for each in (times.start, times.end, times.completion))
        after = by_state.get(SIGNAL, 0)
        assert by_state.get(LATENCY, 0) in (0, done - end)
        assert now - after in (end, done), "the effect, or the engine, was there just then"
        now -= sum(by_state.values())
        assert now == start or set(by_state) <= {LATENCY, SIGNAL}
    assert now == 0 and found.cycles.sum() == times.total


@pytest.mark.parametrize("seed", range(40))
def test_without_what_is_not_on_the_path_a_run_takes_as_long(seed):
    """Operations that wait for all signals of counters, and no ports: all else may take no time at all."""
    rng = np.random.default_rng(seed)
    queues, counts = [], {}
    for engine in range(4):
        queue = []
        for number in range(int(rng.integers(1, 8))):
            counter = 10 * engine + number
            counts[counter] = 1
            known = [other for other in counts if other // 10 < engine]
            waits = tuple(([int(rng.choice(known))], 1) for _ in range(2 if known else 0))
            queue.append(
                Op(cycles=int(rng.integers(1, 30)), latency=int(rng.integers(9)), waits=waits, signals=((counter, 3),))
            )
        queues.append(queue)
    ops = operations(queues)
    times = simulate(ops)
    on_path = np.isin(np.arange(len(ops.kind)), critical_path(ops, times).operation)
    busy, latency = ops.cost.busy * on_path[:, None], ops.cost.latency * on_path
    assert not on_path.all() or len(on_path) < 4
    assert simulate(ops._replace(cost=ops.cost._replace(busy=busy, latency=latency))).total == times.total


@pytest.mark.slow
def test_every_cycle_of_hand_made_programs_is_a_wait_of_somebody():
    finished = 0
    for seed in range(40):
        program, target, pages = hand_made(seed)
        try:
            timeline = simulate_program(expand(program, target.chip.clusters, target.chip.cluster.cores), target, pages)
        except DeadlockError:
            continue
        finished += 1
        check_path(timeline.operations, timeline.times)
        assert sum(each.cycles for each in waits(timeline)) == timeline.total_cycles
    assert finished >= 20


@pytest.mark.slow
@pytest.mark.parametrize("target", ["default", "edge"])
def test_every_cycle_of_a_network_belongs_to_a_unit(target):
    executable = frustum.compile("zoo:squeezenet", target, "f16").executable
    timeline = Machine(executable).run({}, mode="timing").timeline
    check_path(timeline.operations, timeline.times)
    found = waits(timeline)
    by_unit = merged(found, "unit")
    assert sum(by_unit.values()) == timeline.total_cycles
    assert {unit for (unit,) in by_unit} <= set(range(len(executable.program.units)))
    engines = set(map(str, timeline.engines))
    busy = dict(zip(map(str, timeline.engines), timeline.times.busy.tolist(), strict=True))
    assert {each.engine for each in found} <= engines
    for (engine,), cycles in merged([each for each in found if each.for_ == "work"], "engine").items():
        assert cycles <= busy[engine]


@pytest.mark.slow
def test_a_faster_port_shortens_the_wait_for_it(squeezenet):
    """What the path says of the DRAM's port is what a machine with more of it saves, at least in part."""
    machine = Machine(squeezenet)
    before = machine.run({}, mode="timing").timeline
    dram = replace(machine.target.chip.dram, port_bytes_per_cycle=1000)
    fast = replace(machine.target, chip=replace(machine.target.chip, dram=dram))
    after = simulate_program(before.expanded, fast, squeezenet.code.page_bytes)
    waited = merged([each for each in waits(before) if each.for_ == "port"], "on")["dram",]
    left = merged([each for each in waits(after) if each.for_ == "port"], "on").get(("dram",), 0)
    assert after.total_cycles < before.total_cycles and left < waited
