"""Networks of `random_families.py`, run with default options in checked mode, beside what onnxruntime says.

    case = random_case("attention", seed)      # case.model, case.inputs, case.expected; size=4: larger
    problems_of(case, machine)                 # wrong outputs and false figures

The expected outputs are onnxruntime's, without its graph optimisations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from attention_models import TRANSFORMER
from onnx import helper
from random_families import FAMILIES, MICROSOFT, Drawing
from random_machine import machine_of_seed
from true_figures import false_figures

import frustum

F16_FAMILIES = ("attention", "norms", "mlp")


@dataclass
class Case:
    """A model, inputs, what onnxruntime makes of them, and how far off a result may be: relative to the largest
    magnitude of its output, and in steps of quantised values."""

    family: str
    seed: int
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    tolerance: float = 1e-4
    step: float = 0.0


def random_case(family: str, seed: int, size: int = 1) -> Case:
    """The case of a family with this seed, its extents `size` times as large."""
    rng = np.random.default_rng((seed, sorted(FAMILIES).index(family)))
    if family == "microsoft" and rng.random() < 0.5:
        drawn = TRANSFORMER[list(TRANSFORMER)[int(rng.integers(len(TRANSFORMER)))]](rng)
        return _case(family, seed, drawn.model(), drawn.inputs)
    g = Drawing(rng, opset=int(rng.choice([21, 23])), size=size)
    if family in F16_FAMILIES and g.often(0.15):
        g.dtype = np.float16
    outputs = FAMILIES[family](g)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in g.inputs.items()
    ]
    ends = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    graph = helper.make_graph(g.nodes, family, infos, ends, g.constants)
    opsets = [helper.make_opsetid("", g.opset), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    case = _case(family, seed, model, g.inputs)
    case.step = g.step
    case.tolerance = 2e-2 if g.dtype is np.float16 else case.tolerance
    return case


def _case(family: str, seed: int, model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> Case:
    """With what onnxruntime says, the types of the outputs too."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [value.name for value in model.graph.output]
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    for value in model.graph.output:
        array = expected[value.name]
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, element, array.shape))
    return Case(family, seed, model, inputs, expected)


def problems_of(case: Case, machine: frustum.Target | str) -> list[str]:
    """What is wrong with the outputs and the report of a run; nothing where all is well.  frustum.Error: refused."""
    compiled = frustum.compile(case.model, machine)
    result = frustum.run(compiled, case.inputs, checked=True)
    wrong = (_difference(case, name, result.outputs[name]) for name in case.expected)
    return [*filter(None, wrong), *false_figures(result.report.data)]


def _difference(case: Case, name: str, found: np.ndarray) -> str:
    expected = case.expected[name]
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"output '{name}' is {found.dtype}{found.shape}, not {expected.dtype}{expected.shape}"
    ours, theirs = found.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
        return f"output '{name}' is not finite where onnxruntime's is, or the other way"
    there = np.isfinite(theirs)
    errors = np.abs(ours - theirs)[there]
    allowed = case.tolerance * max(np.abs(theirs[there]).max(initial=0), 1e-6)
    if errors.max(initial=0) > allowed + 2 * case.step or np.mean(errors > allowed) > (0.05 if case.step else 0):
        return f"output '{name}' is {errors.max():.3g} off, {allowed:.3g} is allowed"
    return ""


def check_cases(family: str, seeds: range) -> None:
    """Every case runs on the machine of its seed as it should, but for a tenth that may be refused by name."""
    refused, wrong = {}, {}
    for seed in seeds:
        case = random_case(family, seed)
        try:
            found = problems_of(case, machine_of_seed(seed))
        except frustum.Error as error:
            refused[seed] = f"{type(error).__name__}: {error}"
        else:
            wrong |= {seed: found} if found else {}
    assert wrong == {}
    assert len(refused) <= len(seeds) / 10, refused
