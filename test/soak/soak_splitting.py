"""Random graphs of several inputs and outputs (skips across cuts, outputs that are read, passed through, constant) cut,
fused again and placed in every way, on machines large and too small: the chain gives the numbers of the network in
checked mode, its bytes add up, no peak on chip is above that of the uncut network, every output is handed out once.

    python -m pytest -n 0 test/soak/soak_splitting.py --hypothesis-profile=soak
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from chains import branching
from hypothesis import given
from hypothesis import strategies as st
from stops import run_module, target

import frustum
from frustum.dialects.target.fit import DoesNotFit

PARTS = ("weight", "input", "output", "intermediate", "other")
REFUSALS = (None, "pairs", "bidirectional", "forward", "conditions{nodes=1..4}")
POLICIES = ("optimal", "greedy", "template", "none", "pyramid")


def machine(name, dram_bytes=None, sram_bytes=None):
    """Four chips of a target, perhaps with less memory."""
    found = target(name)
    chip, cluster = found.chip, found.cluster
    if sram_bytes:
        cluster = replace(cluster, sram=replace(cluster.sram, capacity_bytes=sram_bytes))
    if dram_bytes:
        chip = replace(chip, dram=replace(chip.dram, capacity_bytes=dram_bytes))
    return replace(found, chip=replace(chip, cluster=cluster), chips=4, chip_link_bytes_per_cycle=8)


MACHINES = {
    "default": machine("default"),
    "edge": machine("edge"),
    "tiny": machine("tiny"),
    "edge, 6 KiB of DRAM": machine("edge", dram_bytes=6 << 10),
    "edge, 10 KiB of DRAM": machine("edge", dram_bytes=10 << 10),
    "edge, 2 KiB of SRAM": machine("edge", sram_bytes=2 << 10),
}


@given(
    branching(layers=10), st.sampled_from(sorted(MACHINES)), st.sampled_from(["one", "each"]),
    st.sampled_from(REFUSALS), st.sampled_from(POLICIES), st.sampled_from(["auto", "outputs", "never"]),
)  # fmt: skip
def test_any_chain_is_the_network(drawn, name, placement, refuse, policy, split):
    expected = run_module(drawn.module, drawn.inputs)
    options = {"refuse": refuse, "placement": placement, "policy": policy, "split": split}
    try:
        chain = frustum.compile(drawn.module, MACHINES[name], **options)
    except DoesNotFit as error:
        assert split != "auto" or "node '" in str(error)
        return
    found = frustum.run(chain, drawn.inputs, checked=True)
    assert found.outputs.keys() == expected.keys()
    for key, array in expected.items():
        atol = 1e-5 * max(np.abs(array).max(initial=0), 1e-30)
        np.testing.assert_allclose(
            np.asarray(found.outputs[key], np.float32), array, rtol=0, atol=atol, err_msg=key
        )
    report = found.report
    for memory, peak in (report["unsplit_peak_bytes"] or {}).items():
        assert report["peak_bytes"][memory] <= peak, memory
    assert sum(report["dram"][f"{part}_bytes"] for part in PARTS) == report["dram"]["total_bytes"]
    assert sorted(key for each in report["subgraphs"] for key in each["outputs"]) == sorted(expected)
