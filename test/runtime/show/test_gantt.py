"""The segments of the engines say what the event log says: cycles busy, and idle ones with their causes."""

import numpy as np
from shown import shown

from frustum.runtime.show import gantt as gantt_module
from frustum.runtime.show.gantt import gantt
from frustum.runtime.time.event_log import event_log


def test_segments_add_up_to_the_log(monkeypatch):
    log = event_log(shown().timeline)
    took = shown().timeline.times.busy
    for most in (gantt_module.MOST_SEGMENTS, 12):
        monkeypatch.setattr(gantt_module, "MOST_SEGMENTS", most)
        found = {each["name"]: each for each in gantt(log)}
        assert set(found) == {name for name, cycles in zip(log.engines, took, strict=True) if cycles}
        for number, name in enumerate(log.engines):
            if name not in found:
                continue
            segments = found[name]["segments"]
            assert sum(busy for _, _, busy, _, _ in segments) == found[name]["busy"] == took[number]
            ends = np.cumsum([away + length for away, length, *_ in segments])
            assert all(away >= 0 and busy <= length for away, length, busy, *_ in segments)
            assert ends[-1] <= log.end[log.engine == number].max()
            assert len(segments) <= max(most, len(log.units) + 1)


def test_causes_are_idle_cycles():
    log = event_log(shown().timeline)
    idle = np.bincount(log.engine, log.idle_before, len(log.engines))
    for each in gantt(log):
        spent = sum(cycles for *_, cycles in each["causes"])
        assert 0 <= spent <= idle[log.engines.index(each["name"])]
    assert any(each["causes"] for each in gantt(log))
