"""Random machines: `edge` with other numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frustum.backend import targets
from frustum.dialects.target import Engine, Target

SHIPPED = ("edge", "default", "line64", "units4", "df", "manycore")
KIB = 1024


def machine_of_seed(seed: int) -> Target:
    """A shipped machine for some seeds, a random one for others."""
    rng = np.random.default_rng((seed, 77))
    if rng.random() < 0.4:
        return targets.load(SHIPPED[int(rng.integers(len(SHIPPED) - 1))])
    return random_machine(rng)


def random_machine(rng: np.random.Generator) -> Target:
    """1 to 4 clusters of 1 to 5 cores; large enough for what `random_onnx` draws."""
    whole = targets.load("edge")

    def memory(found, least, most):
        return replace(found, capacity_bytes=int(rng.integers(least, most)) * 16)

    clusters = int(rng.integers(1, 5))
    core, cluster = whole.core, whole.cluster
    buffer = replace(core.matrix.line_buffer, lines=int(rng.integers(1, 20)))
    matrix = replace(core.matrix, channels=int(rng.integers(1, 20)), line_buffer=buffer)
    core = replace(
        core,
        nram=memory(core.nram, 512, 4096),
        wram=memory(core.wram, 512, 4096),
        matrix=matrix,
        vector=replace(core.vector, lanes=int(rng.integers(1, 40))),
        mvdma=Engine(int(rng.integers(3, 40))),
        iodma=Engine(int(rng.integers(3, 40))),
    )
    cluster = replace(
        cluster,
        cores=int(rng.integers(1, 6)),
        core=core,
        sram=memory(cluster.sram, 4096, 32768),
        gdma=Engine(int(rng.integers(4, 40))),
        cdma=Engine(int(rng.integers(4, 40))) if rng.random() < 0.7 else None,
    )
    return replace(whole, name="drawn", chip=replace(whole.chip, clusters=clusters, cluster=cluster))
