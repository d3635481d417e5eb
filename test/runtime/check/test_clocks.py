"""Vector clocks: whatever they hold for certain is so in every order in which the engines may run."""

import random
from dataclasses import dataclass, field, replace

import pytest

from frustum.dialects.isa import program as p
from frustum.runtime.check.clocks import OrderError, clocks, first_engines
from frustum.runtime.device.expand import expand

ENGINES = ("iodma", "mvdma", "vector", "gdma")
CORES, CLUSTERS = 2, 1


def random_program(rng):
    """Instructions that only wait and signal, some of them in a loop."""

    def one(depth):
        engine = rng.choice(ENGINES)
        on_core = engine != "gdma"
        waits = []
        for _ in range(rng.choice((0, 1, 1, 2))):
            scope = rng.choice(("own", "own", "cluster") if on_core else ("own", "cores"))
            waits.append(p.Wait(rng.randrange(2), scope, p.Affine(rng.randint(0, 1), (rng.randint(0, 2),) * depth)))
        signal, stage = rng.choice((None, 0, 1, 0, 1)), rng.choice((0, 0, 1))
        return p.Hold(engine=engine, waits=tuple(waits), signal=signal, stage=stage)

    loop = p.Repeat(3, tuple(one(1) for _ in range(rng.randint(2, 4))))
    return p.Program((one(0), one(0), loop, one(0)))


def satisfiable(program):
    """The program without the waits whose signals come after them, expanded, and its clocks."""
    while True:
        expanded = expand(program, CLUSTERS, CORES)
        try:
            return expanded, clocks(expanded)
        except OrderError as error:
            faulty = expanded.instructions[error.rows.static[error.row]]
            program = p.Program(tuple(without_waits(node, faulty) for node in program.body))


def without_waits(node, faulty):
    if isinstance(node, p.Repeat):
        return replace(node, body=tuple(without_waits(child, faulty) for child in node.body))
    return replace(node, waits=()) if node is faulty else node


@dataclass
class Chip:
    """The engines with their queues, run in a random order."""

    queues: dict
    counters: dict = field(default_factory=dict)
    started: dict = field(default_factory=dict)
    completed: dict = field(default_factory=dict)
    time: int = 0

    def run(self, rng):
        busy = {}
        while True:
            ready = [e for e, q in self.queues.items() if e not in busy and q and self.holds(q[0])]
            if not ready and not busy:
                return
            self.time += 1
            if busy and (not ready or rng.random() < 0.5):
                engine = rng.choice(sorted(busy))
                cell, _, signal = busy.pop(engine)
                self.completed[cell] = self.time
                self.counters[signal] = self.counters.get(signal, 0) + 1
            else:
                engine = rng.choice(ready)
                busy[engine] = self.queues[engine].pop(0)
                self.started[busy[engine][0]] = self.time

    def holds(self, queued):
        return all(self.counters.get(counter, 0) >= value for counter, value in queued[1])


def queues_of(expanded):
    """Engine -> [(cell, [(counter, value)], counter signalled)] in program order."""
    queues, (first, _) = {}, first_engines(CLUSTERS, CORES)
    for rows, row in expanded.in_order():
        hold = expanded.instructions[rows.static[row]]
        on_core = hold.engine != "gdma"
        for unit in range(rows.units):
            waits = []
            for number, wait in enumerate(hold.waits):
                units = {"own": [unit], "cluster": [0], "cores": range(CORES)}[wait.scope]
                of_core = wait.scope == "cores" or (wait.scope == "own" and on_core)
                waits += [((of_core, wait.slot, u), int(rows.wait[number, row, unit])) for u in units]
            cell = (int(rows.seq[row]), unit)
            signal = on_core, hold.signal, unit
            queues.setdefault(first[hold.engine] + unit, []).append((cell, waits, signal))
    return queues


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_what_is_certain_holds_in_every_order(block):
    certain = 0
    for seed in range(40 * block, 40 * block + 40):
        rng = random.Random(seed)
        expanded, tables = satisfiable(random_program(rng))
        chips = [Chip(queues_of(expanded)) for _ in range(15)]
        for chip in chips:
            chip.run(rng)
        certain += assert_holds(expanded, tables, chips)
    assert certain > 50


def assert_holds(expanded, tables, chips):
    """How many pairs of different engines are certain; all pairs were so in every run."""
    where = {}
    for rows, clock in zip((expanded.core, expanded.cluster), tables, strict=True):
        for row in range(len(rows)):
            for unit in range(rows.units):
                cell = (int(rows.seq[row]), unit)
                where[cell] = (int(clock.engine[row, unit]), int(clock.number[row, unit]), clock.start[row, unit])
    certain = [(a, b) for a, (engine, number, _) in where.items() for b, (_, _, start) in where.items()
               if start[engine] >= number]  # fmt: skip
    for a, b in certain:
        for chip in chips:
            assert b not in chip.started or chip.completed.get(a, chip.time + 1) < chip.started[b], (a, b)
    return sum(where[a][0] != where[b][0] for a, b in certain)
