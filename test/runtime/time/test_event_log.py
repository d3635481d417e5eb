"""The log of a run says what the simulation's tables say, and is read back as it was written."""

import numpy as np
import pytest
from timing_cases import hand_made

from frustum.dialects.isa.program import Barrier
from frustum.runtime.device.expand import expand
from frustum.runtime.machine import Machine
from frustum.runtime.time.critical_path import REASONS
from frustum.runtime.time.engine import DeadlockError
from frustum.runtime.time.event_log import LogError, event_log, load, reason
from frustum.runtime.time.timeline import simulate


def timelines(seeds):
    for seed in seeds:
        program, target, pages = hand_made(seed)
        try:
            yield simulate(expand(program, target.chip.clusters, target.chip.cluster.cores), target, pages)
        except DeadlockError:
            continue


@pytest.fixture(scope="module")
def timeline(squeezenet):
    return Machine(squeezenet).run({}, mode="timing").timeline


def check_log(timeline):
    log = event_log(timeline)
    barrier = np.array([isinstance(each, Barrier) for each in timeline.expanded.instructions] + [False], bool)
    works = ~barrier[log.instruction]
    took = (log.end - log.start - log.source_wait - log.destination_wait)[works]
    engines = len(log.engines)
    assert (np.bincount(log.engine[works], took, engines) == timeline.times.busy).all()
    assert (np.bincount(log.engine, log.bytes, engines) == timeline.engine_bytes).all()
    assert log.done.max(initial=0) <= log.total_cycles == timeline.total_cycles
    assert (log.idle_before >= 0).all() and (log.start <= log.end).all() and (log.end <= log.done).all()
    held = log.held_by >= 0
    earlier = log.held_by[held]
    opened = np.where(barrier[log.instruction[held]], log.end[held], log.start[held])
    assert (log.end[earlier] <= opened).all(), "what held it up was over"
    turn = log.why[held] == REASONS.index("turn")
    assert (log.end[earlier][turn] == opened[turn]).all()
    assert (log.engine[earlier][turn] == log.engine[held][turn]).all()
    # whoever waited for nobody began at once
    assert (log.start[works & ~held] == 0).all()
    return log


@pytest.mark.slow
def test_entries_add_up_to_what_the_engines_did():
    assert sum(len(check_log(timeline)) > 0 for timeline in timelines(range(30))) >= 15


def test_a_networks_log_names_units_layers_and_tiles(timeline):
    log = check_log(timeline)
    assert {log.units[number] for number in set(log.unit.tolist()) - {-1}} == set(log.units)
    assert {"copy", "conv", "pool"} <= set(log.instructions)
    rows = np.stack([log.engine, log.instruction, log.tile], axis=1)[log.instruction >= 0]
    assert len(np.unique(rows, axis=0)) == len(rows), "one entry for each pass of an instruction on an engine"


def test_a_saved_log_is_the_same(timeline, tmp_path):
    log, path = event_log(timeline), tmp_path / "run.events"
    log.save(path)
    again = load(path)
    assert vars(log).keys() == vars(again).keys()
    for name, value in vars(log).items():
        assert np.array_equal(value, vars(again)[name]), name
    assert path.stat().st_size < 12 * len(log)


@pytest.mark.parametrize("content", [b"", b"no log", b"PK\x03\x04 broken"])
def test_what_is_no_log_is_refused(tmp_path, content):
    path = tmp_path / "x.events"
    path.write_bytes(content)
    with pytest.raises(LogError, match=f"{path}: not an event log"):
        load(path)


def test_a_log_that_cannot_be_written_leaves_nothing(timeline, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        event_log(timeline).save(tmp_path / "folder")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_reasons_have_words():
    assert [reason(number) for number in (-1, 0, 1)] == ["", *REASONS[:2]]
