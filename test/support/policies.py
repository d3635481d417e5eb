"""DRAM bytes of a network under a fusion policy, without program and tables: modelled, and counted by the machine."""

from __future__ import annotations

from stops import executable, modules_at_stops
from traffic import traffic_of

from frustum.backend.pipeline import Choices
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count

PRESETS = ("none", "pyramid", "template", "greedy")


def moved(module, target, policy, dtype=None):
    """(bytes of the tile level's loads and stores, bytes that the machine's instructions move)."""
    choices = Choices(policy=policy, dtype=dtype, optimise="bytes")
    modules = modules_at_stops(module, target, choices)
    traffic = traffic_of(modules["placed"])
    made = executable(modules["fixed"], choices)
    machine = Machine(made)
    counted = count(machine.expanded, machine.target, made.code.page_bytes)
    total = counted.dram_read_bytes + counted.dram_write_bytes - counted.dram_bytes_by_class["other"]
    return traffic.read + traffic.weights + traffic.written, total
