"""`--dtype int8` on a floating-point model: which numbers its values take, in runs of the reference executor on given
inputs, carried through the pieces; their ranges are left in the IR.

    calibrate(module, [{"data": image}, ...], method="percentile")

`minmax` keeps the least and the largest number seen; `percentile` leaves out what is further out than all but a
hundred-thousandth of the numbers, averaged over the inputs: few large numbers make the steps coarse for all.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from frustum.backend.pipeline import STOPS, stop_of
from frustum.dialects import graph as g
from frustum.dialects.choices import Method
from frustum.dialects.graph.attributes import float_array
from frustum.dialects.module import ACCURACY, DTYPE, INPUT_RANGES, RANGE, SCALE
from frustum.passes.graph.canonicalize import Canonicalize
from frustum.passes.graph.composites.unroll_recurrences import UnrollRecurrences
from frustum.passes.graph.convert_type import ConvertType
from frustum.passes.graph.fold_quantisation import FoldQuantisation
from frustum.passes.graph.quantise import QuantiseNetwork, separate_activations, values_to_quantise
from frustum.passes.graph.split_reductions import SplitReductions
from frustum.passes.onnx.import_onnx import INT8
from frustum.passes.weights import store_of
from frustum.runtime.diagnostics import node_name
from frustum.runtime.host.oracle import random_inputs
from frustum.runtime.kernels import Array, integer
from frustum.runtime.kernels.convolution import single_threaded
from frustum.runtime.model.chain import Interface, random_values
from frustum.runtime.model.options import Request
from frustum.runtime.model.request import words_of
from frustum.runtime.progress import Progress
from frustum.runtime.reference.graph import ReferenceExecutor, network_of

if TYPE_CHECKING:
    from frustum.runtime.host.host_model import HostModel

__all__ = [
    "LayerAccuracy", "Samples", "accuracy", "accuracy_of", "calibrate", "calibrate_network", "layer_values", "snr_db",
]  # fmt: skip

Inputs: TypeAlias = Mapping[str, Array]
Ends: TypeAlias = tuple[float, float]
RUNS_AT_ONCE = min(2, os.cpu_count() or 1)
"""Inputs looked at side by side, each on one thread: products whose threads wait for each other take ten times as long
on a busy machine.  More would hold the maps of as many runs."""
CHUNK = 1 << 18
"""Numbers whose squares are summed at once, so that they stay in the second-level cache."""
OUTSIDE = 1e-5
"""The share of numbers beyond each end of a percentile range."""
CALIBRATION_INPUTS = 8
"""So many random inputs are looked at where none are given, or as many as `MOST_MACS` allows."""
MOST_MACS = 20_000_000_000
"""Multiply-accumulates of all those runs together (some seconds), above which one input is enough."""


@dataclass(frozen=True)
class LayerAccuracy:
    """How far a layer of the quantised network is from the same layer in f32."""

    name: str
    snr_db: float


def calibrate(module: ModuleOp, inputs: Sequence[Inputs], method: Method = "minmax") -> None:
    """Runs the network on all inputs, and notes the range of every value that will be integers."""
    network = network_of(module)
    separate_activations(network)
    wanted = set(values_to_quantise(network))
    executor = ReferenceExecutor(store_of(module))

    def ends_in_run(given: Inputs) -> dict[SSAValue, Ends]:
        arguments = zip(network.inputs, network.body.block.args, strict=True)
        found: dict[SSAValue, Ends] = {
            argument: ends_of(given[name], method) for name, argument in arguments if argument in wanted
        }

        def see(op: Operation, array: Array) -> None:
            if op.results[0] in wanted:
                found[op.results[0]] = ends_of(array, method)

        executor.run_graph(module, given, see)
        return found

    with single_threaded(), ThreadPoolExecutor(RUNS_AT_ONCE) as runs:
        found = list(runs.map(ends_in_run, inputs))
    _note(network, {value: joined([each[value] for each in found], method) for value in wanted})


def ends_of(array: Array, method: Method) -> Ends:
    """The range of one array's finite numbers."""
    if method == "minmax" and array.size:
        low, high = float(np.float32(array.min())), float(np.float32(array.max()))
        if math.isfinite(low) and math.isfinite(high):  # so are all: what is no number would have come out
            return low, high
    values = array[np.isfinite(array)].astype(np.float32)
    if not values.size:
        return 0.0, 0.0
    if method == "minmax":
        return float(values.min()), float(values.max())
    low, high = np.quantile(values, [OUTSIDE, 1 - OUTSIDE])
    return float(low), float(high)


def joined(ends: Sequence[Ends], method: Method) -> Ends:
    lows, highs = zip(*ends, strict=True)
    if method == "minmax":
        return min(lows), max(highs)
    return float(np.mean(lows)), float(np.mean(highs))


def _note(network: g.NetworkOp, ranges: Mapping[SSAValue, Ends]) -> None:
    for value, ends in ranges.items():
        if isinstance(value.owner, Operation):
            value.owner.attributes[RANGE] = float_array(ends)
    noted = [float_array(ranges[value]) if value in ranges else float_array(()) for value in network.body.block.args]
    network.attributes[INPUT_RANGES] = ArrayAttr(noted)


def accuracy(
    reference: Mapping[str, Array], module: ModuleOp, inputs: Inputs
) -> tuple[list[LayerAccuracy], dict[str, Array]]:
    """Signal-to-noise of every layer of the quantised module that the f32 run has too, and the module's outputs."""
    found, outputs = layer_values(module, inputs)
    layers = [
        LayerAccuracy(name, snr_db(reference[name], array))
        for name, array in found.items()
        if name in reference and reference[name].shape == array.shape
    ]
    return layers, outputs


def accuracy_of(reference: ModuleOp, quantised: ModuleOp, inputs: Inputs) -> dict[str, Any]:
    """For the report: `accuracy` of every layer, `output_snr_db` of every output, that of a soft-max before it."""
    with single_threaded():
        expected, outputs = layer_values(reference, inputs)
        layers, found = accuracy(expected, quantised, inputs)
    by_name = {layer.name: layer.snr_db for layer in layers}
    network = network_of(reference)
    named = {
        name: by_name.get(logits_of(value), snr_db(outputs[name], found[name]))
        for name, value in zip(network.outputs, network.terminator.values, strict=True)
    }
    return {"accuracy": [asdict(layer) for layer in layers], "output_snr_db": named}


def logits_of(value: SSAValue) -> str:
    """The name of the layer behind an output, before soft-max and what renames elements."""
    while isinstance(value.owner, g.SoftmaxOp | g.ReshapeOp | g.TransposeOp):
        value = value.owner.operands[0]
    return (node_name(value.owner.location) if isinstance(value.owner, Operation) else None) or ""


def layer_values(module: ModuleOp, inputs: Inputs) -> tuple[dict[str, Array], dict[str, Array]]:
    """The last result of every layer by the name of its node, in the numbers that integers stand for; the outputs."""
    found: dict[str, Array] = {}

    def see(op: Operation, array: Array) -> None:
        name = node_name(op.location)
        if name is None or isinstance(op, g.WeightOp | g.DequantizeOp | g.QuantizeOp):
            return
        scale = _scale_of(op)
        if scale is not None:
            found[name] = integer.dequantize(array, scale.scale, scale.zero)
        elif array.dtype.kind == "f":
            found[name] = array

    outputs = ReferenceExecutor(store_of(module)).run_graph(module, inputs, see)
    return found, outputs


def snr_db(expected: Array, found: Array) -> float:
    """10 log10 of the power of what is expected over that of the difference; equal infinite numbers have neither."""
    signal = noise = 0.0
    ours, theirs = expected.ravel(), found.ravel()
    for start in range(0, ours.size, CHUNK):
        part, other = (each[start : start + CHUNK].astype(np.float64) for each in (ours, theirs))
        if not math.isfinite(part @ part):
            differ = np.isfinite(part) | (part != other)
            part, other = part[differ], other[differ]
        signal += float(part @ part)
        part -= other
        noise += float(part @ part)
    if not noise:
        return float(MOST_DB)
    if not math.isfinite(noise):
        return -float(MOST_DB)
    return float(min(MOST_DB, 10 * np.log10(signal / noise))) if signal else -float(MOST_DB)


MOST_DB = 200
"""Of equal arrays: JSON has no infinity."""


def _scale_of(op: Operation) -> g.ScaleAttr | None:
    """What the integers of an operation's result stand for, where it tells."""
    scales = getattr(op, "scales", None)
    if scales is not None:
        last = scales[-1]
        assert isinstance(last, g.ScaleAttr)
        return last
    noted = op.attributes.get(SCALE)
    return noted if isinstance(noted, g.ScaleAttr) else None


# --- of a chain --------------------------------------------------------------------------------------------


def inputs_within(macs: int) -> int:
    """How many random inputs a network of so many multiply-accumulates is calibrated on."""
    return min(CALIBRATION_INPUTS, max(1, MOST_MACS // max(1, macs)))


def macs_of(module: ModuleOp) -> int:
    """Multiply-accumulates of the convolutions and matrix products of the module's network."""
    return g.macs_in(network_of(module).body.block.ops)


def calibrate_network(module: ModuleOp, request: Request, progress: Progress) -> None:
    """Leave in a floating-point network the ranges by which it becomes one of integers, and how exact that is."""
    if stop_of(module) != STOPS[0] or words_of(module).get(DTYPE) == INT8:
        return
    progress("calibrate", 0.0)
    passes: Sequence[ModulePass] = (UnrollRecurrences(), SplitReductions(), Canonicalize(), ConvertType(to="f32"))
    for each in passes:
        each.apply(Context(), module)
    count = inputs_within(macs_of(module))
    inputs = list(request.calibration) or made_up(request, count, lambda seed: random_inputs(module, seed))
    calibrate(module, inputs, request.calibrate or "minmax")
    quantised = module.clone()
    for step in (QuantiseNetwork(), Canonicalize(), FoldQuantisation()):
        step.apply(Context(), quantised)
    found = accuracy_of(module, quantised, inputs[0]) | {"calibration_inputs": len(inputs)}
    module.attributes[ACCURACY] = StringAttr(json.dumps(found))


def made_up(request: Request, count: int, made: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Random inputs: those of a run with this seed; where none is known every other one has the other sign, so that
    ranges hold inputs of both."""
    if request.calibration_seed is not None:
        return [made(seed) for seed in range(request.calibration_seed, request.calibration_seed + count)]
    both = [made(k // 2) for k in range(max(2, count))]
    return [_negated(found) if k % 2 else found for k, found in enumerate(both)]


def _negated(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: -array if isinstance(array, np.ndarray) and array.dtype.kind == "f" else array
        for name, array in inputs.items()
    }


class Samples:
    """Inputs for calibration, carried through the pieces; nothing to do for other types than int8."""

    def __init__(self, request: Request, inputs: Sequence[Interface]) -> None:
        self.values: list[dict[str, Any]] = []
        self._are_random = not request.calibration
        self._macs = 0
        if request.dtype != INT8:
            return
        given = [dict(sample) for sample in request.calibration]
        self.values = given or made_up(request, CALIBRATION_INPUTS, lambda seed: random_values(inputs, seed))

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
