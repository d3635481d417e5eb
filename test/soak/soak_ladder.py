"""More SRAM, from 128 KiB to 8 MiB: never more DRAM bytes, between compulsory and `none`; hardly more cycles, but for
the steps of `SLOWER_STEPS`.

python -m pytest -n 0 -s test/soak/soak_ladder.py                       (-s: prints bytes and cycles as a table)
python -m pytest -n 0 -s test/soak/soak_ladder.py -k "resnet18"
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from stops import target

import frustum
from frustum.passes.zoo import zoo_model
from frustum.runtime.study.published.networks import NETWORKS

SIZES_KIB = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
SLOWER = 1.01
SLOWER_STEPS = {
    # fewer bytes are bought with cycles
    ("vgg5", "df", 768): 1.22,
    ("resnet18", "df", 384): 1.29,
    ("fsrcnn", "df", 192): 1.05,
    ("resnet50", "df", 512): 1.16,
    ("resnet50", "df", 1024): 1.11,
    ("resnet50", "df", 2048): 1.10,
    # equal bytes: what the model does not see, mostly when weights of later units arrive
    ("resnet18", "df", 3072): 1.03,
    ("mobilenetv1", "df", 512): 1.07,
    ("mobilenetv1", "df", 4096): 1.04,
    ("fsrcnn", "df", 8192): 1.02,
    ("squeezenet", "df", 1536): 1.02,
    ("squeezenet", "df", 4096): 1.03,
    ("squeezenet", "edge", 1536): 1.03,
    ("squeezenet", "edge", 4096): 1.035,
}
"""Known steps to so many KiB that cost more than `SLOWER`, and at most how many times the cycles of the step before."""
ZOO = {"squeezenet": ("df", "edge"), "resnet50": ("df",)}


LITERATURE = {name: NETWORKS[name] for name in ("vgg5", "fsrcnn", "resnet18", "mobilenetv1")}
CASES = [(name, "df") for name in LITERATURE] + [(name, aim) for name, aims in ZOO.items() for aim in aims]


def with_sram(name, kib):
    whole = target(name)
    sram = replace(whole.cluster.sram, capacity_bytes=kib * 1024)
    return replace(whole, chip=replace(whole.chip, cluster=replace(whole.cluster, sram=sram)))


class Measured:
    """DRAM bytes without program and tables, cycles, and the least bytes there are."""

    def __init__(self, name, aim, kib, policy):
        where = with_sram(aim, kib)
        if name in LITERATURE:
            model = LITERATURE[name]()
            shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
            random = np.random.default_rng(0)
            images = [{key: random.random(shape, np.float32) for key, shape in shapes.items()}]
            made = frustum.compile(model, where, "int8", policy, calibration=images)
        else:
            made = frustum.compile(zoo_model(name), where, "f16", policy)
        report = frustum.run(made, {}, mode="timing").report
        dram = report["dram"]
        self.bytes = dram["read_bytes"] + dram["write_bytes"] - dram["other_bytes"]
        self.cycles, self.compulsory = report["cycles"]["total"], dram["compulsory_bytes"]
        self.row = f"{kib} KiB: {self.bytes:,} B, {self.cycles:,} cycles"


@pytest.mark.parametrize(("name", "aim"), CASES)
def test_more_sram_costs_no_more(name, aim):
    steps = [Measured(name, aim, kib, "optimal") for kib in SIZES_KIB]
    ends = {kib: Measured(name, aim, kib, "none") for kib in (SIZES_KIB[0], SIZES_KIB[-1])}
    print("\n" + "\n".join(f"{name} on {aim}, {step.row}" for step in steps))
    for less, more in pairwise(steps):
        assert more.compulsory <= more.bytes <= less.bytes, (less.row, more.row)
    for kib, alone in ends.items():
        assert steps[SIZES_KIB.index(kib)].bytes <= alone.bytes, (kib, alone.row)
    most = [SLOWER_STEPS.get((name, aim, kib), SLOWER) for kib in SIZES_KIB[1:]]
    slower = [
        (a.row, b.row) for (a, b), x in zip(pairwise(steps), most, strict=True) if b.cycles > x * a.cycles
    ]
    assert not slower, slower
