"""The default search of unit maps never moves more DRAM bytes than any other on the zoo: modelled and counted.

python -m pytest -n 0 -s test/soak/soak_searches.py     (-s: prints a table; counted megabytes)
python -m pytest -n 0 -s test/soak/soak_searches.py -k "edge and squeezenet"
"""

from __future__ import annotations

import pytest
from searches import counted, modelled
from stops import target
from xdsl.context import Context

from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.onnx.import_onnx import import_onnx
from frustum.passes.plan.tile_search import SEARCHES
from frustum.passes.zoo import ZOO, zoo_model


@pytest.mark.parametrize("where", ["default", "edge"])
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, where):
    module = import_onnx(zoo_model(name), name=name)
    ConvertType(to="f16").apply(Context(), module)
    searches = ("all", *SEARCHES)
    model = {search: modelled(module, target(where), search) for search in searches}
    assert all(model["all"][unit] <= min(model[s][unit] for s in SEARCHES) for unit in model["all"])
    machine = {search: counted(module, target(where), search) for search in searches}
    print(f"\n| {name} | {where} | {' | '.join(f'{machine[s] / 1e6:.3f}' for s in searches)} |")
    assert machine["all"] <= min(machine[s] for s in SEARCHES), machine
