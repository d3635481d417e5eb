"""Policy optimal never moves more DRAM bytes than a preset: modelled and counted, on the zoo and on published models.

python -m pytest -n 0 -s test/soak/soak_policies.py     (-s: prints a table; modelled / counted megabytes)
python -m pytest -n 0 -s test/soak/soak_policies.py -k "edge and squeezenet"
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from policies import PRESETS, moved
from stops import target

from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.zoo import ZOO, zoo_model

MODELS = Path(os.environ.get("FRUSTUM_MODELS", Path(__file__).parents[3] / "shared/models"))
PUBLISHED = (
    "micro-kws-fp32",
    "mnist-8",
    "espcn-float-subpixel",
    "ultraface-rfb-320",
    "xfeat-256",
    "squeezenet-fp16",
)
TARGETS = ("default", "edge")


def check(module, where, name):
    bytes_ = {policy: moved(module, target(where), policy, "f16") for policy in ("optimal", *PRESETS)}
    cells = (f"{m / 1e6:.3f} / {c / 1e6:.3f}" for m, c in bytes_.values())
    print(f"\n| {name} | {where} | {' | '.join(cells)} |")
    for kind in (0, 1):
        assert bytes_["optimal"][kind] <= min(b[kind] for b in bytes_.values()), bytes_


@pytest.mark.parametrize("where", TARGETS)
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, where):
    check(import_onnx(zoo_model(name), name=name), where, name)


@pytest.mark.parametrize("where", TARGETS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models(name, where):
    path = MODELS / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"no {path}; FRUSTUM_MODELS says where published models are")
    check(import_onnx(str(path), name=name), where, name)
