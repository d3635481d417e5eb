"""A small network that ran, for the tests of what shows a run; and a page's script on a document of stubs."""

import json
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from networks import Net

import frustum
from frustum.runtime.model.execution import execute_chain, report_of_chain

STUBS = Path(__file__).parent / "page_dom.js"


def drawn(page: Path, *ids: str) -> dict:
    """What the elements of a page hold once its script has run; needs node."""
    done = subprocess.run(["node", STUBS, page, *ids], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
