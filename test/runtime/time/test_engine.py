"""The event loop against hand-worked cases, and against a simulator that looks at every single cycle."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from timed_queues import Op, operations, random_queues, transfer

from frustum.runtime.time.engine import BARRIER, TRANSFER, DeadlockError, simulate


def run(*queues, depth=0):
    return simulate(operations(queues, depth), compiled=False)


# --- by hand -----------------------------------------------------------------------------------------------


def test_four_engines_stagger_at_a_port_and_then_run_at_their_own_speed():
    times = run(*([transfer(3, 64, [0], 16)] for _ in range(4)))
    assert times.end.tolist() == [192, 208, 224, 240]
    assert times.stalled.tolist() == [0, 16, 32, 48]
    assert times.busy.tolist() == [192] * 4
    assert times.port_busy.tolist() == [12 * 16]
    assert times.idle.tolist() == [48, 32, 16, 0]


def test_the_earlier_request_is_served_first_whatever_the_engine_number():
    times = run(
        [Op(cycles=5), transfer(1, 10, [0], 10)],
        [Op(cycles=3), transfer(1, 10, [0], 10)],
        [transfer(1, 20, [0], 20)],
    )
    assert times.end.tolist() == [5, 40, 3, 30, 20]


def test_of_two_requests_in_one_cycle_the_lower_engine_goes_first():
    """Engine 0 is woken by a signal of that very cycle, and still is before engine 1."""
    times = run(
        [transfer(1, 10, [0], 10, waits=(([0], 1),))],
        [Op(cycles=7), transfer(1, 10, [0], 10)],
        [Op(cycles=7, signals=((0, 0),))],
    )
    assert times.end.tolist() == [17, 7, 27, 7]


def test_a_request_for_two_ports_keeps_its_place_in_both_lines():
    """Engine 1 asks for both ports first; port 1 is free, but engine 2 must not overtake there."""
    times = run(
        [transfer(1, 30, [0], 30)],
        [Op(cycles=1), transfer(1, 5, [0, 1], 5)],
        [Op(cycles=2), transfer(1, 5, [1], 5)],
    )
    assert times.end.tolist() == [30, 1, 35, 2, 40]


def test_four_transfers_are_in_flight_at_a_time():
    times = run([transfer(1, 2, [0], 2, latency=100)] * 6, depth=4)
    assert times.start.tolist() == [0, 2, 4, 6, 102, 104]
    assert times.completion[-1] == times.total == 206


def test_what_moves_nothing_is_no_transfer_in_flight():
    """A wait behind four transfers holds at once, and is none of the four that keep a fifth from starting."""
    moves = [transfer(1, 2, [0], 2, latency=100)]
    times = run([*moves * 4, Op(), Op(), *moves], depth=4)
    assert times.start.tolist() == [0, 2, 4, 6, 8, 8, 102]
    assert times.stalled.tolist() == [94]


def test_computing_overlaps_the_latency_of_what_came_before():
    times = run([Op(cycles=5, latency=4, signals=((0, 0),)), Op(cycles=5)], [Op(cycles=1, waits=(([0], 1),))])
    assert times.start.tolist() == [0, 5, 9]


def test_a_wait_for_many_counters_holds_when_the_last_has_its_value():
    producers = [[Op(cycles=n, signals=((k, 0),))] * 2 for k, n in enumerate((5, 9, 2))]
    times = run([Op(waits=(([0, 1, 2], 2), ([2], 1)))], *producers)
    assert times.start[0] == 18


def test_a_signal_may_arrive_later_than_the_completion():
    times = run([Op(cycles=5, latency=1, signals=((0, 20),))], [Op(waits=(([0], 1),))])
    assert times.start.tolist() == [0, 26]
    assert times.total == 26


def test_a_barrier_waits_for_what_is_in_flight_and_resets_the_counters():
    times = run(
        [Op(cycles=3, latency=50, signals=((0, 7),)), Op(BARRIER), Op(cycles=4, signals=((0, 0),))],
        [Op(BARRIER), Op(cycles=1, waits=(([0], 1),))],
    )
    assert times.end.tolist() == [3, 60, 64, 60, 65]
    assert times.stalled.tolist() == [0, 4]
    assert times.idle.tolist() == [65 - 7, 60]


def test_a_deadlock_is_an_error_with_all_who_wait():
    queues = [Op(waits=(([0], 1),))], [Op(cycles=1, signals=((1, 0),)), Op(waits=(([1], 2),))], [Op(BARRIER)]
    with pytest.raises(DeadlockError) as caught:
        run(*queues)
    assert str(caught.value) == (
        "deadlock: engine 0, operation 0 waits for counter 0 to reach 1; it is 0;"
        " engine 1, operation 2 waits for counter 1 to reach 2; it is 1; engine 2, operation 3 waits at a barrier"
    )


def test_an_empty_machine_takes_no_time():
    assert run([], []).total == 0


# --- against every cycle -----------------------------------------------------------------------------------


@dataclass
class SlowEngine:
    queue: list
    at: int = 0
    state: str = "free"  # free, running until `until`, asking for ports, at a barrier
    until: int = 0
    chunk: int = 0
    flights: list = field(default_factory=list)  # completions of all operations
    transfers: list = field(default_factory=list)


def slow(queues, depth, limit=100_000):
    """Look at every engine and port in every cycle: start, end and completion of each operation, None if stuck."""
    engines = [SlowEngine(list(queue)) for queue in queues]
    counters, arriving, lines, port_free = {}, [], {}, {}
    result = {}
    for now in range(limit):
        changed = True
        while changed:
            changed = False
            for at, counter in [each for each in arriving if each[0] == now]:
                arriving.remove((at, counter))
                counters[counter] = counters.get(counter, 0) + 1
                changed = True
            for number, engine in enumerate(engines):
                changed |= _step(engine, number, now, counters, arriving, lines, result, depth)
            waiting = [engine for engine in engines if engine.state == "barrier"]
            in_flight = any(at > now for engine in engines for at in engine.flights)
            if len(waiting) == len(engines) and not arriving and not in_flight:
                counters.clear()
                for number, engine in enumerate(engines):
                    result[number, engine.at][1:] = [now, now]
                    engine.state, engine.at = "free", engine.at + 1
                changed = True
        _serve(engines, now, lines, port_free)
        if all(engine.at == len(engine.queue) for engine in engines):
            return [result[key] for key in sorted(result)]
    return None


def _step(engine, number, now, counters, arriving, lines, result, depth):
    if engine.state == "running" and engine.until == now:
        op = engine.queue[engine.at]
        engine.chunk += 1
        if op.kind == TRANSFER and engine.chunk < op.chunks:
            _ask(engine, number, now, lines)
            return True
        done = now + op.latency
        result[number, engine.at][1:] = [now, done]
        engine.flights.append(done)
        if op.kind == TRANSFER:
            engine.transfers.append(done)
        arriving.extend((done + delay, counter) for counter, delay in op.signals)
        engine.state, engine.at = "free", engine.at + 1
        return True
    if engine.state != "free" or engine.at == len(engine.queue):
        return False
    op = engine.queue[engine.at]
    if op.kind == BARRIER:
        result[number, engine.at] = [now, 0, 0]
        engine.state = "barrier"
        return True
    if any(counters.get(counter, 0) < value for group, value in op.waits for counter in group):
        return False
    if op.kind == TRANSFER and depth and sum(at > now for at in engine.transfers) >= depth:
        return False
    result[number, engine.at] = [now, 0, 0]
    engine.chunk = 0
    if op.kind == TRANSFER:
        _ask(engine, number, now, lines)
    else:
        engine.state, engine.until = "running", now + op.cycles
    return True


def _ask(engine, number, now, lines):
    engine.state = "asking"
    for port, _ in engine.queue[engine.at].ports:
        lines.setdefault(port, []).append((now, number))


def _serve(engines, now, lines, port_free):
    """Whoever is first in all its lines, and finds all ports free, starts its chunk."""
    for line in lines.values():
        line.sort()
    for number, engine in enumerate(engines):
        if engine.state != "asking":
            continue
        op = engine.queue[engine.at]
        if all(lines[port][0][1] == number and port_free.get(port, 0) <= now for port, _ in op.ports):
            last = engine.chunk == op.chunks - 1
            for port, side in op.ports:
                lines[port].pop(0)
                port_free[port] = now + op.port_cycles[side][last]
            engine.state, engine.until = "running", now + (op.cycles if last else op.full)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_random_queues_take_the_same_time_when_every_cycle_is_looked_at(block):
    finished = 0
    for seed in range(100 * block, 100 * block + 100):
        rng = np.random.default_rng(seed)
        queues, depth = random_queues(rng), int(rng.choice([0, 1, 4]))
        expected = slow(queues, depth, limit=3000)
        if expected is None:
            with pytest.raises(DeadlockError):
                simulate(operations(queues, depth))
            continue
        finished += 1
        times = simulate(operations(queues, depth))
        assert np.stack([times.start, times.end, times.completion], 1).tolist() == expected, f"seed {seed}"
        assert (times.idle >= 0).all()
    assert finished > 20


def test_the_interpreted_loop_gives_what_the_compiled_one_gives():
    for seed in range(40):
        ops = operations(random_queues(np.random.default_rng(seed)), depth=4)
        found = []
        for compiled in (True, False):
            try:
                times = simulate(ops, compiled=compiled)
                found.append((times.start.tolist(), times.completion.tolist(), times.stalled.tolist()))
            except DeadlockError as error:
                found.append(error.blocked)
        assert found[0] == found[1]
