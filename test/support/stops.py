"""A module at any stop of the pipeline: brought there, printed and read again, run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from frustum.backend import targets
from frustum.backend.compile import fixed
from frustum.backend.executables import executable_of
from frustum.backend.pipeline import Choices, Run, stop_of
from frustum.dialects.module import TARGET
from frustum.dialects.target import Engine, Target, to_attribute
from frustum.passes.weights import store_of
from frustum.runtime.machine import Machine
from frustum.runtime.reference.graph import ReferenceExecutor

CORES = {1: (1, 1), 2: (1, 2), 4: (1, 4), 16: (4, 4)}
"""Clusters, and cores of each."""
TINY = Path(__file__).parent / "tiny.yaml"


def target(name):
    """A target by its name, or as it is."""
    if isinstance(name, Target):
        return name
    return read(TINY if name == "tiny" else name)


read = cache(targets.load)


def sending(name):
    """A target whose clusters can send each other what they have."""
    whole = target(name)
    cluster = replace(whole.cluster, cdma=Engine(bytes_per_cycle=8))
    return replace(whole, chip=replace(whole.chip, cluster=cluster))


def machine_of(cores):
    """The default target with so many cores."""
    whole = target("default")
    clusters, each = CORES[cores]
    cluster = replace(whole.cluster, cores=each)
    return replace(whole, chip=replace(whole.chip, clusters=clusters, cluster=cluster))


def free_addresses(machine, cycles=0):
    """The target with addresses that cost nothing to compute, for what is not about them, or so many cycles."""
    core = machine.core
    cluster = replace(machine.cluster, core=replace(core, matrix=replace(core.matrix, address_cycles=cycles)))
    return replace(machine, chip=replace(machine.chip, cluster=cluster))


def aimed(module, target_name):
    """A copy of the module for a target."""
    module = module.clone()
    module.attributes[TARGET] = to_attribute(target(target_name))
    return module


def modules_at_stops(module, target_name, choices):
    """The module at every stop after its own, each a copy: {stop: module}."""
    found = {}

    def keep(stop, module):
        found[stop] = module.clone()

    fixed(aimed(module, target_name), choices, Run(keep))  # units are cut smaller where SRAM has holes
    return found


def run_module(module, inputs, *, checked=False):
    """The outputs by name of a module at any stop, as f32."""
    if stop_of(module) not in ("lowered", "fixed"):
        outputs = ReferenceExecutor(store_of(module)).run_graph(module, inputs)
    else:
        outputs = Machine(executable(module)).run(inputs, mode="functional", checked=checked).outputs
    return {name: np.asarray(array, np.float32) for name, array in outputs.items()}


def executable(module, choices=Choices()):  # noqa: B008  # frozen
    """The executable of a module at stop `lowered` or `fixed`."""
    if stop_of(module) == "lowered":
        module = module.clone()
        Run().advance(module, ["fixed"], choices)
    return executable_of(module, choices)


__all__ = ["CORES", "aimed", "executable", "free_addresses", "machine_of", "modules_at_stops", "run_module", "target"]
