"""`default` with 1, 2, 4 and 16 cores, every order and border mode: the numbers of onnxruntime, and more cores are
never slower by more than 1 %.

    python -m pytest -n 0 -s test/soak/soak_cores.py        (-s: prints the cycles as a table)
    python -m pytest -n 0 -s test/soak/soak_cores.py -k "slower and squeezenet"
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from stops import CORES, machine_of

import frustum
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.tile.orders import ORDERS
from frustum.passes.zoo import zoo_model
from frustum.runtime.host.oracle import compare, oracle_outputs, random_inputs

ZOO = (
    "squeezenet", "shufflenet", "resnet50", "inception_v1", "alexnet", "zfnet512", "inception_v2", "vgg19",
    "densenet121",
)  # fmt: skip
SMALL = ("squeezenet", "shufflenet")
SLOWER = 1.01


@cache
def expected(name):
    """Random inputs, and what onnxruntime makes of them."""
    model = zoo_model(name)
    inputs = random_inputs(import_onnx(model, name=name), seed=0)
    return inputs, oracle_outputs(model, inputs)


def check(name, **choices):
    inputs, outputs = expected(name)
    found = frustum.run(frustum.compile(f"zoo:{name}", **choices), inputs, mode="functional")
    agreement = compare(found.outputs, outputs, choices["dtype"])
    assert agreement.good, agreement


@pytest.mark.parametrize("name", ZOO)
def test_more_cores_are_not_slower(name):
    cycles = []
    for cores in CORES:
        executable = frustum.compile(f"zoo:{name}", machine_of(cores), "f16")
        cycles.append(frustum.run(executable, {}, mode="timing").report["cycles"]["total"])
    print(f"\n| {name} | {' | '.join(f'{c:,}' for c in cycles)} |")
    assert all(more <= SLOWER * fewer for fewer, more in pairwise(cycles)), cycles


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("name", SMALL)
def test_the_numbers_do_not_depend_on_the_cores(name, cores, dtype):
    check(name, target=machine_of(cores), dtype=dtype)


@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("borders", ["overlap", "exchange"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_numbers_do_not_depend_on_order_and_borders(order, borders, cores):
    check("squeezenet", target=machine_of(cores), dtype="f32", order=order, borders=borders)
