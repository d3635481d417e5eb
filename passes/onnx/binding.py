# Tests: test/passes/onnx/test_import_onnx.py
"""Static shapes for a model's inputs: from the file, from `batch`, from `shapes`; and values for those that are
really constants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from frustum.passes.errors import ModelError, Problem, Unsupported
from frustum.passes.onnx.loading import LoadedModel, element_name
from frustum.passes.weights import Array

Ints = tuple[int, ...]
Dim = int | str | None  # an extent, a name, or nothing
MOST_DIMENSIONS = 6
MOST_LISTED = 3
"""Inputs that a message names."""
EXAMPLE = 128
OPEN_BATCHES = (0, 1)
"""Static batches that `--batch` and `--shape` change: some exporters write 0 for an open one."""


@dataclass(frozen=True)
class BoundInputs:
    """Shapes by input name; `rebatched` is the batch that took the place of a static 1, or 1, and `batched` are the
    inputs that have so many images."""

    shapes: dict[str, Ints]
    rebatched: int = 1
    batched: frozenset[str] = frozenset()


def bind_inputs(
    file: str,
    inputs: Sequence[onnx.ValueInfoProto],
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    on_host: bool = False,
) -> BoundInputs:
    """Unsupported with every open dimension (but leading ones, which are 1 where nothing binds them), and with every
    shape that contradicts the file.

    `on_host`: shapes that only the device cannot have, empty ones and those of many dimensions, are good.
    """
    given = {name: tuple(int(extent) for extent in shape) for name, shape in (shapes or {}).items()}
    problems = _unknown_names(file, inputs, given)
    declared = {value.name: _dims(value) for value in inputs}
    named = _named_extents(declared, given, batch)
    ones = _open_batches(declared, given, named, batch)
    named |= {dim: 1 for dim in ones.values() if isinstance(dim, str)}
    found: dict[str, Ints] = {}
    changed: dict[str, int] = {}
    open_: dict[str, list[str]] = {}
    for name, dims in declared.items():
        shape = _bind(dims, given.get(name), named, 1 if name in ones else batch)
        message = _problem(name, dims, shape, given.get(name), batch, on_host)
        symbols = dict.fromkeys(dim for dim in shape if isinstance(dim, str))
        for symbol in symbols:
            open_.setdefault(symbol, []).append(name)
        if message:
            problems.append(Problem(file, message))
        if message or symbols:
            continue
        found[name] = tuple(extent for extent in shape if isinstance(extent, int))
        if dims and dims[0] == 1 and shape[0] != 1:
            changed[name] = found[name][0]
    if open_:
        problems.append(Problem(file, _open_dimensions(open_)))
    if len(set(changed.values())) > 1:
        each = ", ".join(f"'{name}' {count}" for name, count in changed.items())
        problems.append(Problem(file, f"inputs get other batches in place of 1: {each}; it is one for all of them"))
    if problems:
        raise Unsupported(problems)
    rebatched = max(changed.values(), default=1)
    return BoundInputs(found, rebatched, frozenset(_batched(declared, found, rebatched)) if changed else frozenset())


def open_batches(
    inputs: Sequence[onnx.ValueInfoProto], batch: int | None, shapes: Mapping[str, Sequence[int]]
) -> dict[str, str | None]:
    """The inputs whose open leading dimension `bind_inputs` takes as 1, with that dimension's name, if it has one."""
    declared = {value.name: _dims(value) for value in inputs}
    given = {name: tuple(shape) for name, shape in shapes.items()}
    return _open_batches(declared, given, _named_extents(declared, given, batch), batch)


def _open_batches(
    declared: Mapping[str, tuple[Dim, ...] | None],
    given: Mapping[str, Ints],
    named: Mapping[str, int],
    batch: int | None,
) -> dict[str, str | None]:
    if batch is not None:
        return {}
    leading = {name: dims[0] for name, dims in declared.items() if dims and name not in given}
    return {name: dim for name, dim in leading.items() if not isinstance(dim, int) and dim not in named}


def _batched(
    declared: Mapping[str, tuple[Dim, ...] | None], found: Mapping[str, Ints], count: int
) -> Iterator[str]:
    """The inputs whose first extent was 1 or open, and holds all images now."""
    for name, dims in declared.items():
        is_open = dims is None or (bool(dims) and (not isinstance(dims[0], int) or dims[0] in OPEN_BATCHES))
        if is_open and found[name] and count and found[name][0] % count == 0 and found[name][0] >= count:
            yield name


def _dims(value: onnx.ValueInfoProto) -> tuple[Dim, ...] | None:
    """The declared dimensions; None where the file does not even tell how many."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(_dim(dim) for dim in tensor.shape.dim)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    """What is negative in a file is open, as what is not there."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return dim.dim_param or None


def _named_extents(
    declared: Mapping[str, tuple[Dim, ...] | None], given: Mapping[str, Ints], batch: int | None
) -> dict[str, int]:
    """Extents of named dimensions: a name means the same wherever it stands."""
    named: dict[str, int] = {}
    for name, dims in declared.items():
        if dims and batch is not None and isinstance(dims[0], str):
            named[dims[0]] = batch
        for dim, extent in zip(dims or (), given.get(name, ()), strict=False):
            if isinstance(dim, str):
                named[dim] = extent
    return named


def _bind(
    dims: tuple[Dim, ...] | None, given: Ints | None, named: Mapping[str, int], batch: int | None
) -> tuple[Dim, ...]:
    if given is not None:
        return given
    if dims is None:
        return (None,)
    shape = tuple(named.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
    if batch is not None and shape and (shape[0] is None or dims[0] in OPEN_BATCHES):
        shape = (batch, *shape[1:])
    return shape


def _problem(
    name: str, dims: tuple[Dim, ...] | None, shape: tuple[Dim, ...], given: Ints | None, batch: int | None,
    on_host: bool,
) -> str | None:
    """What is wrong with `shape` for this input, and what would mend it."""
    example = "x".join(str(dim) if isinstance(dim, int) else "N" for dim in shape)
    if dims is None and given is None:
        return f"input '{name}' has no shape in the file: give one with --shape {name}=1x3x224x224"
    for axis, dim in enumerate(shape):
        if dim is None:
            return f"input '{name}' has the open dimension {axis} (unnamed): bind it with --shape {name}={example}"
        if isinstance(dim, int) and dim < (0 if on_host else 1):
            return f"input '{name}' has the extent {dim} in dimension {axis}: at least 1 is needed"
    if len(shape) > MOST_DIMENSIONS and not on_host:
        return f"input '{name}' has {len(shape)} dimensions: at most {MOST_DIMENSIONS} are supported"
    if dims is not None and not _agrees(dims, shape):
        fixed = "x".join(str(dim or "?") for dim in dims)
        return f"input '{name}' is {fixed} in the file, which {example} does not fit"
    if batch is not None and shape and dims and isinstance(dims[0], int) and dims[0] not in (*OPEN_BATCHES, batch):
        return f"input '{name}' has a batch of {dims[0]} in the file, which --batch {batch} cannot change"
    return None


def _open_dimensions(symbols: Mapping[str, Sequence[str]]) -> str:
    """What to say of names that stand for no extent yet, and of the inputs that have them."""
    each = "; ".join(f"'{symbol}' of {_listed(inputs)}" for symbol, inputs in symbols.items())
    mended = " ".join(f"--dim {symbol}={EXAMPLE}" for symbol in symbols)
    return f"open dimensions: {each}: bind them, as with {mended}"


def _listed(inputs: Sequence[str]) -> str:
    """The first of the names, and how many more there are."""
    names = ", ".join(f"'{name}'" for name in inputs[:MOST_LISTED])
    more = f" and {len(inputs) - MOST_LISTED} more" if len(inputs) > MOST_LISTED else ""
    return f"input{'s'[: len(inputs) > 1]} {names}{more}"


def _agrees(dims: tuple[Dim, ...], shape: tuple[Dim, ...]) -> bool:
    """A static 1 or 0 in front may become any batch; every other static extent stands."""
    if len(dims) != len(shape):
        return False
    pairs = enumerate(zip(dims, shape, strict=True))
    return all(
        not isinstance(dim, int) or dim == extent or (axis == 0 and dim in OPEN_BATCHES)
        for axis, (dim, extent) in pairs
    )


def _unknown_names(
    file: str, inputs: Sequence[onnx.ValueInfoProto], given: Mapping[str, Ints]
) -> list[Problem]:
    names = [value.name for value in inputs]
    known = ", ".join(f"'{name}'" for name in names)
    return [
        Problem(file, f"there is no input '{name}': the inputs are {known}")
        for name in given
        if name not in names
    ]


def with_dims(
    model: LoadedModel,
    dims: Mapping[str, int],
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> LoadedModel:
    """The model with these extents in place of the names of open dimensions, wherever those stand.

    Unsupported for names that no input has, and where `batch` or `shapes` say another extent.
    """
    if not dims:
        return model
    graph = model.proto.graph
    declared = {value.name: _dims(value) or () for value in graph.input}
    known = dict.fromkeys(dim for own in declared.values() for dim in own if isinstance(dim, str))
    listed = ", ".join(f"'{each}'" for each in known) or "none"
    problems = [
        Problem(model.file, f"there is no open dimension '{name}': the inputs have {listed}")
        for name in dims
        if name not in known
    ]
    problems += [
        Problem(model.file, f"dimension '{name}' is {extent} by --dim: at least 0 is needed")
        for name, extent in dims.items()
        if extent < 0
    ]
    for name, own in declared.items():
        given: Sequence[int | None] = (shapes or {}).get(name, () if batch is None else (batch,))
        flag = "--shape" if name in (shapes or {}) else "--batch"
        problems += [
            Problem(model.file, f"dimension '{dim}' of input '{name}' is {dims[dim]} by --dim and {extent} by {flag}")
            for dim, extent in zip(own, given, strict=False)
            if isinstance(dim, str) and dims.get(dim, extent) != extent
        ]
    if problems:
        raise Unsupported(problems)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for each in value.type.tensor_type.shape.dim:
            if each.dim_param in dims:
                each.dim_value = dims[each.dim_param]
    return replace(model, proto=proto)


def with_constants(model: LoadedModel, arrays: Mapping[str, Array]) -> LoadedModel:
    """The model with initializers in place of these inputs; ModelError where it has no such input.

    An initializer that is an input too, as in old files, gets the value given.
    """
    if not arrays:
        return model
    inputs = {value.name: value for value in model.proto.graph.input}
    for name, array in arrays.items():
        _check(model.file, name, array, inputs)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    for values in (graph.input, graph.initializer):
        kept = [value for value in values if value.name not in arrays]
        del values[:]
        values.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    proto.ir_version = max(proto.ir_version, FREE_INITIALIZERS)
    return LoadedModel(model.file, proto, model.folder, model.maps)


def bound_scalars(model: LoadedModel, given: Mapping[str, bool | int | float]) -> dict[str, Array]:
    """Numbers as the inputs have them; ModelError where one is no scalar, or is of another type."""
    inputs = {value.name: value for value in model.proto.graph.input}
    for name in given:
        if name not in inputs:
            raise ModelError(_no_input(model.file, name, inputs))
    return {name: _scalar(model.file, inputs[name], number) for name, number in given.items()}


def _scalar(file: str, value: onnx.ValueInfoProto, number: bool | int | float) -> Array:
    found, element = f"{file}: error: input '{value.name}'", value.type.tensor_type.elem_type
    dims = _dims(value)
    if not element or any(isinstance(dim, int) and dim != 1 for dim in dims or ()):
        shape = "x".join(str(dim or "?") for dim in dims or ()) if element else "no tensor"
        raise ModelError(f"{found} is {shape}: --bind gives one number to a scalar")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            result = np.asarray(number).astype(dtype)
        fits = bool(result == number) if dtype.kind in "iub" else np.isfinite(result) == np.isfinite(number)
    except (OverflowError, TypeError, ValueError):
        fits = False
    if dtype.kind == "O" or not fits:
        raise ModelError(f"{found} has elements of {element_name(element)}: {number} is none")
    return result.reshape((1,) * len(dims or ()))


FREE_INITIALIZERS = 4
"""The first IR version whose initializers need not be inputs."""


def _check(file: str, name: str, array: Array, inputs: Mapping[str, onnx.ValueInfoProto]) -> None:
    value = inputs.get(name)
    if value is None:
        raise ModelError(_no_input(file, name, inputs))
    expected = value.type.tensor_type.elem_type
    found = onnx.TensorProto.STRING if array.dtype.kind in "OUS" else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    if expected and found != expected:
        own, wanted = element_name(found), element_name(expected)
        raise ModelError(f"{file}: error: input '{name}' is bound to {own}, the model has it as {wanted}")


def _no_input(file: str, name: str, inputs: Iterable[str]) -> str:
    known = ", ".join(f"'{known}'" for known in inputs)
    return f"{file}: error: there is no input '{name}' to bind: the inputs are {known or 'none'}"
