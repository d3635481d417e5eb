# Tests: test/runtime/tools/test_check_layers.py
"""How far each layer is from onnxruntime, in a module at any stop and in the machine.

A layer is called by the name of its location and, where several have one name, a number.  *Accumulated*: computed from
what the layers before it made.  *Isolated*: every layer's result is replaced, as soon as it is made, by the oracle's
(rounded to its type), so that the next layer computes from right operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from frustum.backend.file.executable import ExecutableError
from frustum.dialects import graph as g
from frustum.dialects import tile
from frustum.passes.analysis.layer import is_work, layer_of
from frustum.passes.errors import ModelError
from frustum.passes.weights import store_of
from frustum.runtime.check.check import RaceError, check
from frustum.runtime.check.observe import WrittenPart, bound_of, damaged_at, finishing, watching
from frustum.runtime.device.expand import Expanded
from frustum.runtime.device.memory import AccessError, execution_name
from frustum.runtime.diagnostics import node_name
from frustum.runtime.host.layer_values import OracleValues
from frustum.runtime.host.oracle import TOLERANCES
from frustum.runtime.kernels import Array, narrow
from frustum.runtime.machine import Machine
from frustum.runtime.reference.graph import ReferenceExecutor
from frustum.runtime.reference.tiles import elements

Key: TypeAlias = tuple[str, int]
"""Name of a layer, and how many before it have that name."""
Index: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class WantedValue:
    """What a layer is to make: the ONNX value, as a tensor and as the map of four dimensions that the device has."""

    value: str
    tensor: Array
    numbers: Array | None
    """Of each position of the map its element in the tensor; None where the layer has no such map."""

    @property
    def map(self) -> Array | None:
        return None if self.numbers is None else self.tensor.reshape(-1)[self.numbers]


@dataclass
class Error:
    """The largest error of a layer, relative to the largest magnitude of what it is to make."""

    layer: str
    value: str
    absolute: float = 0.0
    relative: float = 0.0
    index: Index = ()
    """Of the worst element, in the ONNX value."""
    found: float = 0.0
    expected: float = 0.0
    who: tuple[int, int] | None = None
    """The row and unit that wrote it, on the machine."""
    at: Index = ()
    """Where in what these wrote it is."""
    magnitude: float = 0.0

    def see(self, found: Array, expected: Array, magnitude: float, place: Callable[[Index], Index]) -> bool:
        """Look at a part; whether it has the worst element up to now."""
        found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(found - expected))
        error = np.where(np.isnan(error), np.inf, error)
        if not error.size or not error.max() > self.absolute:
            return False
        at = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        self.absolute, self.found, self.expected = float(error[at]), float(found[at]), float(expected[at])
        self.relative = self.absolute / magnitude if magnitude else float("inf")
        self.index, self.at, self.magnitude = place(at), at, magnitude
        return True


@dataclass
class Errors:
    """Of all layers that can be compared, in the order in which they ran, isolated or accumulated."""

    dtype: str
    layers: dict[Key, Error] = field(default_factory=dict)
    stopped: str = ""
    """Where the machine stopped before its end, and why; the layers are those before that."""

    @property
    def first_wrong(self) -> Error | None:
        return next((e for e in self.layers.values() if e.relative > TOLERANCES[self.dtype]), None)


def keys_of(ops: Iterable[Operation]) -> Iterator[tuple[Key, Operation]]:
    """Layers with their names."""
    seen = Counter[str]()
    for op in ops:
        name = node_name(op.location)
        if name is not None:
            yield (name, seen[name]), op
            seen[name] += 1


def graph_layers(module: ModuleOp) -> list[tuple[Key, Operation]]:
    """The operations of a module of graph operations, in units or not, but those that only name constants."""
    ops = (op for op in module.walk() if op.dialect_name() == "fgraph" and len(op.results) == 1)
    return list(keys_of(op for op in ops if not isinstance(op, g.WeightOp)))


def wanted_of(
    module: ModuleOp, inputs: Mapping[str, Array], oracle: OracleValues, dtype: str
) -> dict[Key, WantedValue]:
    """What each layer of a module of graph operations is to make.

    A layer may have taken in the nodes behind it; of the values that it may have, it has the one that the reference
    executor comes nearest to.  Where it comes near to none, though the outputs are right, it has no counterpart.
    """
    layers = graph_layers(module)
    names, last = {name for (name, _), _ in layers}, dict[str, Key]()
    keys = {op: key for key, op in layers}
    for key, _ in layers:
        last[key[0]] = key
    found: dict[Key, WantedValue] = {}
    far: set[Key] = set()

    def see(op: Operation, array: Array) -> None:
        key = keys.get(op)
        if key is None or last[key[0]] != key:
            return
        close = [(_distance(array, value), name, value) for name, value in oracle.may_be(key[0], names - {key[0]})
                 if value.size == array.size]  # fmt: skip
        if close:
            error, name, value = min(close, key=lambda each: each[0])
            if error > TOLERANCES[dtype] * _magnitude(value):
                far.add(key)
            found[key] = WantedValue(name, value.reshape(array.shape), _numbers(op, array.size))

    outputs = ReferenceExecutor(store_of(module)).run_graph(module, inputs, see)
    known = [(array, oracle.arrays[name]) for name, array in outputs.items() if name in oracle.arrays]
    known = [(array, value) for array, value in known if array.size == value.size]
    if all(_distance(array, value) <= TOLERANCES[dtype] * _magnitude(value) for array, value in known):
        return {key: want for key, want in found.items() if key not in far}
    return found


def _distance(array: Array, value: Array) -> float:
    with np.errstate(all="ignore"):
        error = np.abs(array.reshape(-1).astype(np.float64) - value.reshape(-1))
    return float(np.nan_to_num(error, nan=np.inf, posinf=np.inf).max(initial=0.0))


def _numbers(op: Operation, size: int) -> Array | None:
    """Where the positions of the layer's map lie in its tensor."""
    if not is_work(op):
        return None
    try:
        layer = layer_of(op)
    except ModelError:  # it only moves data
        return None
    return elements(layer.out_view, tuple((0, extent) for extent in layer.out_dims), size)


def _magnitude(array: Array) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


# --- modules -----------------------------------------------------------------------------------------------


def errors_of_module(
    module: ModuleOp, inputs: Mapping[str, Array], wanted: Mapping[Key, WantedValue], dtype: str, isolated: bool
) -> tuple[Errors, dict[str, Array]]:
    """The layers of a module up to stop `placed` in its reference executor, and the network's outputs."""
    found, keys = Errors(dtype), {op: key for key, op in graph_layers(module)}

    def see(op: Operation, array: Array) -> Array | None:
        want = wanted.get(keys[op]) if op in keys else None
        if want is None or want.tensor.size != array.size or not _is_float(array):
            return None
        expected = want.tensor.reshape(array.shape)
        error = found.layers.setdefault(keys[op], Error(keys[op][0], want.value))
        error.see(array, expected, _magnitude(expected), lambda at: at)
        return narrow(expected, array.dtype) if isolated else None

    tiles = dict((op, key) for key, op in keys_of(op for op in module.walk() if isinstance(op, tile.ComputeOp)))

    def see_tile(op: tile.ComputeOp, ranges: tuple[tuple[int, int], ...], made: Array) -> Array | None:
        want = wanted.get(tiles[op]) if op in tiles else None
        whole = None if want is None else want.map
        if want is None or whole is None or whole.shape != tuple(op.region.data.bound):
            return None
        part = whole[tuple(slice(low, high) for low, high in ranges)]
        error = found.layers.setdefault(tiles[op], Error(tiles[op][0], want.value))
        error.see(made, part, _magnitude(whole), _index_in(want, [low for low, _ in ranges]))
        return part.astype(np.float32) if isolated else None

    outputs = ReferenceExecutor(store_of(module), see_tile).run_graph(module, inputs, see)
    return found, outputs


def _is_float(array: Array) -> bool:
    return array.dtype.kind not in "iub"


def _index_in(want: WantedValue, lower: Iterable[int]) -> Callable[[Index], Index]:
    """The index in the ONNX value of a position in a part of the map that begins at `lower`."""
    first, numbers = tuple(lower), want.numbers
    assert numbers is not None

    def place(at: Index) -> Index:
        number = int(numbers[tuple(low + i for low, i in zip(first, at, strict=True))])
        return tuple(int(i) for i in np.unravel_index(number, want.tensor.shape))

    return place


# --- the machine -------------------------------------------------------------------------------------------


def machine_keys(expanded: Expanded) -> list[Key]:
    """The layers of a program by their numbers."""
    seen, found = Counter[str](), []
    for name in expanded.program.layers:
        found.append((name, seen[name]))
        seen[name] += 1
    return found


def errors_of_machine(
    machine: Machine, inputs: Mapping[str, Array], wanted: Mapping[Key, WantedValue], dtype: str, isolated: bool,
    at: Callable[[Any, int], None] = lambda memories, place: None,
) -> tuple[Errors, dict[str, Array]]:  # fmt: skip
    """The layers of an executable in a functional run, and its outputs (none where it stops); `at` also watches it."""
    found = Errors(dtype)
    try:
        expanded = machine.expanded
    except (AccessError, ExecutableError) as error:
        found.stopped = f"the machine does not start: {error}"
        return found, {}
    keys = machine_keys(expanded)
    maps = _maps_of(expanded, keys, wanted)

    def see(written: WrittenPart) -> None:
        if written.layer not in maps or written.values.dtype.kind in "iu":
            return
        (whole, magnitude), key = maps[written.layer], keys[written.layer]
        part = whole[written.place]
        error = found.layers.setdefault(key, Error(key[0], wanted[key].value))
        error.who = error.who or (written.row, written.unit)
        if error.see(written.values, part, magnitude, _index_in(wanted[key], written.lower)):
            error.who = written.row, written.unit
        if isolated:
            written.values[...] = narrow(part.astype(np.float32), written.values.dtype)

    seeing, places = watching(expanded, see), [-1]

    def watch(memories: Any, place: int) -> None:
        seeing(memories, place)
        at(memories, place)
        places.append(place)

    try:
        return found, machine.run(inputs, mode="functional", watch=watch).outputs
    except AccessError as error:
        found.stopped = f"the machine does not start: {_first_outside(machine) or error}"
    except ExecutableError as error:
        where = damaged_at(expanded, machine.memories, places[-1])
        found.stopped = f"the machine stops: {error}" + (f", in {where}" if where else "")
    return found, {}


def _maps_of(
    expanded: Expanded, keys: Sequence[Key], wanted: Mapping[Key, WantedValue]
) -> dict[int, tuple[Array, float]]:
    """What layers are to make, and its magnitude, by their numbers in the program."""
    bounds = {each.layer: bound_of(each) for number in finishing(expanded)
              for each in [expanded.instructions[number]]}  # fmt: skip
    maps = {}
    for number, key in enumerate(keys):
        whole = wanted[key].map if key in wanted else None
        if whole is not None and whole.shape == tuple(bounds.get(number, ())):
            maps[number] = whole, _magnitude(whole)
    return maps


def _first_outside(machine: Machine) -> str | None:
    """The first execution that reaches out of a memory; None where none does."""
    try:
        check(machine.expanded, machine.capacities)
    except AccessError as error:
        return str(error)
    except RaceError:
        pass
    return None


def who_wrote(machine: Machine, error: Error) -> str:
    """The instruction, tile and core that wrote the worst element."""
    if error.who is None:
        return ""
    row, unit = error.who
    return execution_name(machine.expanded, machine.expanded.core, row, unit)
