"""One changed byte in each address table of whole networks: is it noticed by a plain run?

    python -m pytest -n 0 -s test/soak/soak_tables.py        (-s: prints how each was noticed)

Of every table one byte of the entries, drawn at random, has one of its bits turned over, checksums as if it had always
been so.  The run must give other outputs, or be stopped at an address outside the buffer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from images import weights_address, weights_image

import frustum
from frustum.backend.file.executable import Executable
from frustum.dialects.isa.tables.stored_table import CHECKSUM, HEAD, RUNNING, read_table
from frustum.runtime.device.memory import AccessError
from frustum.runtime.machine import Machine, host_type


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("target", ["default", "edge"])
@pytest.mark.parametrize("network", ["squeezenet", "resnet50"])
def test_a_changed_byte_of_every_table_is_noticed(network, target, dtype):
    compiled = frustum.compile(f"zoo:{network}", target, dtype)
    assert soak(network, compiled.executables[0], np.random.default_rng(0)) == 0


def soak(network: str, executable: Executable, rng: np.random.Generator) -> int:
    """How many tables change unnoticed."""
    inputs = {
        each.name: rng.standard_normal(each.shape).astype(host_type(each).dtype)
        for each in executable.program.externals if each.class_ == "input"
    }  # fmt: skip
    expected = Machine(executable).run(inputs, "functional").outputs
    image, start = weights_image(executable), weights_address(executable)
    found = {"other outputs": 0, "stopped": 0, "unnoticed": 0}
    for table in [each for each in executable.program.externals if each.class_ == "program"]:
        place = table.address - start
        byte = int(rng.choice(entries(image[place : place + table.bytes])))
        bad = image.copy()
        bad[place + byte] ^= 1 << int(rng.integers(8))
        how = noticed(replace(executable, weights=((start, bad),)), inputs, expected)
        found[how] += 1
        if how == "unnoticed":
            print(f"{network}: {table.name}: byte {byte} is {image[place + byte]}, {bad[place + byte]} is unnoticed")
    print(f"{network}: {sum(found.values())} tables: {found}", flush=True)
    return found["unnoticed"]


def entries(data: np.ndarray) -> range:
    """The bytes of a table that are entries."""
    stored = read_table(data)
    first = HEAD.size + CHECKSUM.size + int(data[18]).bit_count() * int(data[19])
    sizes = (int(data[15]) % RUNNING, int(data[16]) % RUNNING)
    return range(first, first + len(stored.base) * sizes[0] + len(stored.rel) * sizes[1])


def noticed(executable: Executable, inputs: dict, expected: dict) -> str:
    try:
        outputs = Machine(executable).run(inputs, "functional").outputs
    except AccessError:
        return "stopped"
    is_other = any((outputs[name] != array).any() for name, array in expected.items())
    return "other outputs" if is_other else "unnoticed"
