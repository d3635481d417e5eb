"""A small network that ran, for the tests of what shows a run."""

from dataclasses import dataclass
from functools import cache

from networks import Net

import frustum
from frustum.runtime.model.execution import execute_chain, report_of_chain


@dataclass(frozen=True)
class Shown:
    chain: object
    ran: object
    report: object

    @property
    def timeline(self):
        (each,) = self.ran.runs.values()
        return each.timeline


@cache
def shown(policy="pyramid"):
    net = Net()
    x = net.input(1, 8, 24, 24)
    for _ in range(3):
        x = net.conv(x, 8, act="relu")
    module, _ = net.module(net.pool("max", x))
    executable = frustum.compile(module, "edge", "f32", policy=policy)
    chain = executable.chain
    ran = execute_chain(chain, {}, "timing")
    return Shown(chain, ran, report_of_chain(chain, ran))
