"""`--dtype int8` on a floating-point model: which inputs its ranges come from, carried through the pieces."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.passes import ModulePass

from frustum.backend.pipeline import STOPS, stop_of
from frustum.dialects import graph
from frustum.dialects.module import ACCURACY, DTYPE
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.graph.fold_quantisation import FoldQuantisation
from frustum.passes.graph.quantise import QuantiseNetwork
from frustum.passes.graph.split_reductions import SplitReductions
from frustum.passes.onnx.import_onnx import INT8
from frustum.passes.weights import store_of
from frustum.runtime.device.blas import single_threaded
from frustum.runtime.host.oracle import random_inputs
from frustum.runtime.kernels import Array
from frustum.runtime.model.calibration import accuracy_of, calibrate
from frustum.runtime.model.chain import Interface, random_values
from frustum.runtime.model.request import Request
from frustum.runtime.model.source_module import words_of
from frustum.runtime.progress import Progress
from frustum.runtime.reference.graph import ReferenceExecutor, network_of

if TYPE_CHECKING:
    from frustum.runtime.host.host_model import HostModel

CALIBRATION_INPUTS = 8
"""So many random inputs are looked at where none are given, or as many as `MOST_MACS` allows."""
MOST_MACS = 20_000_000_000
"""Multiply-accumulates of all those runs together (some seconds), above which one input is enough."""


def inputs_within(macs: int) -> int:
    """How many random inputs a network of so many multiply-accumulates is calibrated on."""
    return min(CALIBRATION_INPUTS, max(1, MOST_MACS // max(1, macs)))


def macs_of(module: ModuleOp) -> int:
    """Multiply-accumulates of the convolutions and matrix products of the module's network."""
    return sum(_macs(op) for op in network_of(module).walk() if isinstance(op, graph.ConvOp | graph.MatmulOp))


def _macs(op: graph.ConvOp | graph.MatmulOp) -> int:
    outputs, second = math.prod(graph.shape_of(op.results[0])), graph.shape_of(op.operands[1])
    if isinstance(op, graph.ConvOp):
        return outputs * math.prod(second[1:])
    return outputs * second[-1 if op.trans_b else -2]


def calibrate_network(module: ModuleOp, request: Request, progress: Progress) -> None:
    """Leave in a floating-point network the ranges by which it becomes one of integers, and how exact that is."""
    if stop_of(module) != STOPS[0] or words_of(module).get(DTYPE) == INT8:
        return
    progress("calibrate", 0.0)
    passes: Sequence[ModulePass] = (SplitReductions(), Canonicalize(), ConvertType(to="f32"))
    for each in passes:
        each.apply(Context(), module)
    seeds = range(request.calibration_seed, request.calibration_seed + inputs_within(macs_of(module)))
    inputs = list(request.calibration) or [random_inputs(module, seed) for seed in seeds]
    calibrate(module, inputs, request.calibrate or "minmax")
    quantised = module.clone()
    for step in (QuantiseNetwork(), Canonicalize(), FoldQuantisation()):
        step.apply(Context(), quantised)
    found = accuracy_of(module, quantised, inputs[0]) | {"calibration_inputs": len(inputs)}
    module.attributes[ACCURACY] = StringAttr(json.dumps(found))


class Samples:
    """Inputs for calibration, carried through the pieces; nothing to do for other types than int8."""

    def __init__(self, request: Request, inputs: Sequence[Interface]) -> None:
        self.values: list[dict[str, Any]] = []
        self._are_random = not request.calibration
        self._macs = 0
        if request.dtype != INT8:
            return
        first = request.calibration_seed
        given = list(request.calibration)
        self.values = [dict(sample) for sample in given] or [
            random_values(inputs, seed) for seed in range(first, first + CALIBRATION_INPUTS)
        ]

    def of(self, module: ModuleOp) -> list[dict[str, Array]]:
        """Those of a network of the chain, fewer from here on where it is much work."""
        names = network_of(module).inputs
        if self._are_random:
            self._macs += macs_of(module)
            self.values = self.values[: inputs_within(self._macs)]
        return [{name: sample[name] for name in names} for sample in self.values]

    def through_host(self, model: HostModel) -> None:
        for sample in self.values:
            sample.update(model.run({name: sample[name] for name in model.inputs}))

    def through_device(self, module: ModuleOp) -> None:
        executor = ReferenceExecutor(store_of(module))
        with single_threaded():
            for sample, inputs in zip(self.values, self.of(module), strict=True):
                sample.update(executor.run_graph(module, inputs))
