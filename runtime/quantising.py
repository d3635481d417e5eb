"""`--dtype int8` on a floating-point model: which inputs its ranges come from, carried through the pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from frustum.backend.compile import ACCURACY
from frustum.backend.pipeline import STOPS, stop_of
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.graph.fold_quantisation import FoldQuantisation
from frustum.passes.graph.quantise import QuantiseNetwork
from frustum.passes.graph.split_reductions import SplitReductions
from frustum.passes.import_onnx import DTYPE, INT8
from frustum.passes.weights import store_of
from frustum.runtime.calibrate import accuracy_of, calibrate
from frustum.runtime.chain import Interface, random_values
from frustum.runtime.kernels import Array
from frustum.runtime.loading import words_of
from frustum.runtime.oracle import random_inputs
from frustum.runtime.progress import Progress
from frustum.runtime.reference import ReferenceExecutor, network_of
from frustum.runtime.request import Request

if TYPE_CHECKING:
    from frustum.runtime.host import HostModel

CALIBRATION_INPUTS = 8
"""So many random inputs are looked at where none are given."""


def calibrate_network(module: ModuleOp, request: Request, progress: Progress) -> None:
    """Leave in a floating-point network the ranges by which it becomes one of integers, and how exact that is."""
    if stop_of(module) != STOPS[0] or words_of(module).get(DTYPE) == INT8:
        return
    progress("calibrate", 0.0)
    passes: Sequence[ModulePass] = (SplitReductions(), Canonicalize(), ConvertType(to="f32"))
    for each in passes:
        each.apply(Context(), module)
    seeds = range(request.calibration_seed, request.calibration_seed + CALIBRATION_INPUTS)
    inputs = list(request.calibration) or [random_inputs(module, seed) for seed in seeds]
    calibrate(module, inputs, request.calibrate or "minmax")
    quantised = module.clone()
    for step in (QuantiseNetwork(), Canonicalize(), FoldQuantisation()):
        step.apply(Context(), quantised)
    module.attributes[ACCURACY] = StringAttr(json.dumps(accuracy_of(module, quantised, inputs[0])))


class Samples:
    """Inputs for calibration, carried through the pieces; nothing to do for other types than int8."""

    def __init__(self, request: Request, inputs: Sequence[Interface]) -> None:
        self.values: list[dict[str, Any]] = []
        if request.dtype != INT8:
            return
        first = request.calibration_seed
        given = list(request.calibration)
        self.values = [dict(sample) for sample in given] or [
            random_values(inputs, seed) for seed in range(first, first + CALIBRATION_INPUTS)
        ]

    def of(self, module: ModuleOp) -> list[dict[str, Array]]:
        names = network_of(module).inputs
        return [{name: sample[name] for name in names} for sample in self.values]

    def through_host(self, model: HostModel) -> None:
        for sample in self.values:
            sample.update(model.run({name: sample[name] for name in model.inputs}))

    def through_device(self, module: ModuleOp) -> None:
        executor = ReferenceExecutor(store_of(module))
        for sample, inputs in zip(self.values, self.of(module), strict=True):
            sample.update(executor.run_graph(module, inputs))
