"""The machine: loads an executable, takes inputs by name, runs, gives outputs by name.

The host's part is here too: inputs are converted to the device's type before a run, outputs to the model's after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from ml_dtypes import finfo

from frustum.backend.file.executable import Executable, check_program
from frustum.dialects.choices import Mode
from frustum.dialects.errors import Error
from frustum.dialects.isa.program import MEMORIES, Conv, External, Program
from frustum.dialects.target import Target, from_json
from frustum.runtime.check.check import check
from frustum.runtime.device.expand import DRAM, Expanded, expand
from frustum.runtime.device.line_buffer import LineBufferCounts, LineBuffers
from frustum.runtime.device.matrix import convolve_by_address
from frustum.runtime.device.memory import DTYPES, Memories, host_type
from frustum.runtime.device.tables import check_reach, check_tables, with_tables
from frustum.runtime.kernels import Array, integer, narrow
from frustum.runtime.progress import Progress

if TYPE_CHECKING:
    from frustum.runtime.device.functional import ExecutionPlan, Watch


class InputError(Error, ValueError):
    """The inputs of a run are not those of the network; names the input, what was found and what is expected."""


@dataclass(frozen=True)
class RunResult:
    """Outputs by name (none in mode timing), what the simulation of time found (none in mode functional), and what
    the line buffers really did (in a detailed run only)."""

    outputs: dict[str, Array]
    timeline: Any = None
    line_buffer: LineBufferCounts | None = None


class _Decoded:
    """What is worked out once for all runs of an executable: where its instructions run and on what, and the memories
    into which the host has written the weights, which nothing on the device ever changes."""

    def __init__(self, executable: Executable, capacities: tuple[int, ...] | None = None) -> None:
        self._capacities = capacities
        self.program, self._image = executable.program, executable.weights
        self.page_bytes = executable.code.page_bytes
        self.target: Target = from_json(json.loads(self.program.target))
        self.memories: Memories | None = None

    @cached_property
    def expanded(self) -> Expanded:
        check_program(self.program, self.page_bytes)
        expanded = expand(self.program, self.target.chip.clusters, self.target.cluster.cores)
        return with_tables(expanded, self._image)

    @cached_property
    def plan(self) -> ExecutionPlan:
        from frustum.runtime.device.functional import ExecutionPlan  # which imports numba

        return ExecutionPlan(self.expanded, self.capacities)

    @cached_property
    def capacities(self) -> tuple[int, ...]:
        """Bytes of one memory of each kind; of the DRAM only what the program uses."""
        if self._capacities is not None:
            return self._capacities
        ends = [external.address + external.bytes for external in self.program.externals]
        dram = max(self.program.peak_bytes.get("dram", 0), *ends, 0)
        return (dram, *(self.target.memory(name).capacity_bytes for name in MEMORIES[1:]))


_DECODED: WeakKeyDictionary[Executable, _Decoded] = WeakKeyDictionary()
"""As long as the executable is in use."""


class Machine:
    """One chip with an executable in its DRAM."""

    def __init__(self, executable: Executable, capacities: tuple[int, ...] | None = None) -> None:
        """`capacities`: other memories than the target's, in the order of MEMORIES, for a program that needs them."""
        self.executable = executable
        self.program: Program = executable.program
        self._decoded = _DECODED.get(executable) or _Decoded(executable, capacities)
        _DECODED[executable] = self._decoded
        self.target: Target = self._decoded.target

    @property
    def expanded(self) -> Expanded:
        return self._decoded.expanded

    @property
    def plan(self) -> ExecutionPlan:
        return self._decoded.plan

    @property
    def capacities(self) -> tuple[int, ...]:
        """Bytes of one memory of each kind; of the DRAM only what the program uses."""
        return self._decoded.capacities

    @property
    def memories(self) -> Memories:
        """The memories of runs that are not checked, as the last one left them."""
        return self._loaded(poisoned=False)

    def run(
        self, inputs: Mapping[str, Array], mode: Mode = "full", checked: bool = False,
        progress: Progress | None = None, detailed: bool = False, detailed_tables: bool = False,
        watch: Watch | None = None,
    ) -> RunResult:  # fmt: skip
        """Run the program once; `InputError` if the inputs are not the network's.

        A `detailed` run takes convolutions through the line buffer, window by window; with `detailed_tables` it gathers
        their operands address by address, wherever they name a table.  Both are slow, and exclude each other.  `watch`
        as `ExecutionPlan.run` takes it.
        """
        assert not (detailed and detailed_tables), "one way through the matrix unit at a time"
        if checked or mode != "timing":
            check_reach(self.expanded)
        if checked:
            check(self.expanded, self.capacities, progress)
            check_tables(self.expanded, self.target.core.address_cache_bytes)
        if mode == "timing":
            if progress is not None:
                progress("simulate", 0.0)
            return RunResult({}, self._simulate())
        timelines: list[Any] = []
        beside = None if mode == "functional" else lambda: timelines.append(self._simulate())
        line_buffers = LineBuffers(self.target.core.matrix, self.program.body) if detailed else None
        plan = self.plan if line_buffers is None else self.plan.with_effect(Conv, line_buffers.convolve)
        if detailed_tables:
            plan = self.plan.with_effect(Conv, convolve_by_address)
        outputs = self._compute(plan, inputs, checked, progress, beside, watch)
        timeline = timelines[0] if timelines else None
        return RunResult(outputs, timeline, None if line_buffers is None else line_buffers.counts)

    def _compute(
        self, plan: ExecutionPlan, inputs: Mapping[str, Array], poisoned: bool, progress: Progress | None,
        beside: Callable[[], None] | None, watch: Watch | None,
    ) -> dict[str, Array]:  # fmt: skip
        arrays = check_inputs(self.program.externals_of("input"), inputs)
        memories = self._loaded(poisoned)
        for external in self.program.externals_of("input"):
            _device(memories, external)[...] = _device_array(arrays[external.name], external)
        plan.run(memories, progress, beside, watch)
        outputs = self.program.externals_of("output")
        return {o.name: _model_array(_device(memories, o), o) for o in outputs}

    def _loaded(self, poisoned: bool) -> Memories:
        """Memories with the weights in place, which stay as long as the executable does; poisoned ones are new."""
        memories = None if poisoned else self._decoded.memories
        if memories is None:
            memories = Memories(self.expanded.memory_counts, self.capacities)
            if poisoned:
                memories.poison()
            for address, data in self.executable.weights:
                memories.bytes[DRAM][address : address + len(data)] = data
            if not poisoned:
                self._decoded.memories = memories
        return memories

    def _simulate(self) -> Any:
        from frustum.runtime.time.timeline import simulate

        return simulate(self.expanded, self.target, self.executable.code.page_bytes)


def _device_array(array: Array, external: External) -> Array:
    """The model's numbers in the device's type, whose integers are signed, and may stand for numbers."""
    dtype, host = DTYPES[external.element], host_type(external)
    if host.scale is not None:
        return integer.quantize(array, host.scale, host.zero, dtype)
    return narrow(integer.signed(array) if dtype.kind == "i" else array, dtype)


def _model_array(array: Array, external: External) -> Array:
    """A copy in the model's type; what the model calls unsigned is signed on the device."""
    host = host_type(external)
    dtype = np.dtype(host.dtype)
    if host.scale is not None:
        return integer.dequantize(array, host.scale, host.zero).astype(dtype, copy=False)
    if dtype.kind == "u" and array.dtype.kind == "i":
        return integer.unsigned(array)
    with np.errstate(over="ignore"):  # infinity is what the model's type has
        return array.astype(dtype)


def check_inputs(expected: Sequence[External], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs as arrays, if they are exactly the expected ones."""
    names = [external.name for external in expected]
    unknown = sorted(set(inputs) - set(names))
    if unknown:
        raise InputError(f"input '{unknown[0]}': the network has no such input; it has {', '.join(names)}")
    arrays = {}
    for external in expected:
        if external.name not in inputs:
            given = ", ".join(inputs) or "nothing"
            raise InputError(f"input '{external.name}': missing; given: {given}")
        array = np.asarray(inputs[external.name])
        dtype = np.dtype(host_type(external).dtype)
        if array.shape != external.shape or array.dtype != dtype:
            raise InputError(
                f"input '{external.name}': found {_type(array.dtype, array.shape)},"
                f" expected {_type(dtype, external.shape)}"
            )
        _check_whole(array, external)
        arrays[external.name] = array
    return arrays


def _check_whole(array: Array, external: External) -> None:
    """Integers with which the device computes in floating point are small enough to be exact."""
    host, element = host_type(external), DTYPES[external.element]
    limit = host.limit(1 << finfo(element).nmant + 1) if host.times else None
    if limit is None or not array.size:
        return
    largest = max(int(array.max()), -int(array.min()))
    if largest > limit:
        raise InputError(
            f"input '{external.name}': found {largest}, allowed up to {limit}: the device computes with its integers in"
            f" {external.element}, which has not all larger ones (--host only computes them as {host.dtype})"
        )


def _type(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    return f"{dtype.name} {'x'.join(map(str, shape)) or 'scalar'}"


def _device(memories: Memories, external: External) -> Array:
    """The buffer in DRAM as an array of the device's type."""
    dtype = DTYPES[external.element]
    part = memories.bytes[DRAM][external.address : external.address + external.bytes]
    return part.view(dtype).reshape(external.shape)
