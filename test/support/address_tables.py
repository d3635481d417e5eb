"""Networks of convolutions, and machines with address caches of any size."""

from __future__ import annotations

from dataclasses import replace

from networks import Net
from stops import target

from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute


def convolutions(outputs, kernel=3, **rest):
    """A chain of equal convolutions."""
    net = Net()
    x = net.input(1, outputs[0], 12, 12)
    for count in outputs:
        x = net.conv(x, count, kernel, **rest)
    return net.module(x)


def small_cache(module, size):
    """The module for a machine with this address cache."""
    machine = target("tiny")
    core = replace(machine.core, address_cache_bytes=size)
    cluster = replace(machine.cluster, core=core)
    module.attributes[TARGET] = to_attribute(replace(machine, chip=replace(machine.chip, cluster=cluster)))
    return module
