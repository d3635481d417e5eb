"""Loops over time: every layer of the body has one more axis, which all of them share, and a state is read one position
earlier along it. Operations of the body are read as anywhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from frustum.dialects import graph as g
from frustum.dialects.axes.access import Affine, Guard, Piece, View, beside
from frustum.dialects.axes.axis import Axis, Dim, align, dim, leaves, regroup
from frustum.dialects.axes.network import Layer, Operand
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.dialects.graph.axes.reader import NoAxes, Reader, bits_of, reads


@dataclass(frozen=True)
class _State:
    """A state while its loop is read. `before` stands for the tensor, not known yet, that has it behind every step, and
    whose last dimensions are `dims`; `made` is that tensor, or several side by side, in the step."""

    before: Tensor
    dims: tuple[Dim, ...]
    made: View | None = None


@reads(g.RecurrenceOp)
def recurrence(reader: Reader, op: g.RecurrenceOp) -> View:
    """Sequences are read, and outputs lie, at the step's position, or that position from the end."""
    time = Axis("time", op.steps)
    for sequence, own in zip(op.sequences, op.slices, strict=True):
        reader.views[own] = _slice(reader.view(sequence), op, time)
    states = [_enter(reader, own, start, time) for own, start in zip(op.states, op.state_starts, strict=True)]
    first = len(reader.layers)
    with reader.inside(time):
        for inner in op.body.block.ops:
            if not isinstance(inner, g.WeightOp | g.StepYieldOp):
                reader.read(inner)
        made = [_made(reader, op, *each, time) for each in zip(states, op.end.states, strict=True)]
    known = {state.before: replace(state, made=view) for state, view in zip(states, made, strict=True)}
    for layer in reader.layers[first:]:
        _resolve(layer, known)
    for value, result in zip(op.end.outputs, op.outputs, strict=True):
        view = reader.view(value)
        pieces = tuple(each for piece in view.pieces for each in _carried(piece, known))
        reader.views[result] = _stacked(View(view.dims, pieces), op, time)
    for view, result in zip(made, op.last_states, strict=True):
        at = (Affine(offset=op.steps - 1), *map(Affine.along, view.dims))
        last = View(((time,), *view.dims), view.pieces).at(at, dims=view.dims)
        reader.views[result] = _checked(last, op)
    return reader.views[op.results[0]]


def _checked(view: View | None, op: g.RecurrenceOp) -> View:
    if view is None:
        raise NoAxes(f"{op.name}: error: no position says what a step reads of another one, or of a sequence")
    return view


# ---------------------------------------------------------------- sequences and outputs


def _place(op: g.RecurrenceOp, step: Axis) -> Affine:
    """The place of a step's slice, or the step of a place."""
    return Affine.of(step, -1, op.steps - 1) if op.is_reverse else Affine.of(step)


def _slice(x: View, op: g.RecurrenceOp, time: Axis) -> View:
    """A sequence at the step's position."""
    extent = x.shape[op.dim] // op.steps
    positions, dims = [Affine.along(own) for own in x.dims], list(x.dims)
    split = regroup(x.dims[op.dim], (op.steps, extent))
    if split is None:
        dims[op.dim] = dim("slice", extent)
        positions[op.dim] = _place(op, time).scaled(extent) + Affine.along(dims[op.dim])
        return _checked(x.at(positions, dims=tuple(dims)), op)
    steps, dims[op.dim] = split
    cut = x.with_dims((*x.dims[: op.dim], steps, *dims[op.dim :]))
    positions[op.dim : op.dim + 1] = _place(op, time), Affine.along(dims[op.dim])
    return _checked(cut.at(positions, dims=tuple(dims)), op)


def _stacked(x: View, op: g.RecurrenceOp, time: Axis) -> View:
    """What all steps give, where their slices lie."""
    dims = list(x.dims)
    if not op.is_reverse:
        dims[op.dim] = (time, *x.dims[op.dim])
        return x.with_dims(dims)
    place = Axis("place", op.steps)
    dims[op.dim] = (place, *x.dims[op.dim])
    positions = (_place(op, place), *map(Affine.along, x.dims))
    return _checked(View(((time,), *x.dims), x.pieces).at(positions, dims=tuple(dims)), op)


# ---------------------------------------------------------------- states


def _enter(reader: Reader, own: SSAValue, start: SSAValue | None, time: Axis) -> _State:
    """The view of a state before the step: one position earlier; at the first step what it starts as."""
    dims = tuple(dim(str(k), extent) for k, extent in enumerate(g.shape_of(own)))
    before = Tensor("state", (*reader.loops, (time,), *dims), bits_of(own), Kind.INTERMEDIATE)
    earlier = Affine.of(time, 1, -1)
    index = tuple((axis, earlier if axis is time else Affine.of(axis)) for axis in before.axes)
    guard = Guard(earlier, 0, time.extent, 0.0 if start is None else None)
    pieces: tuple[Piece, ...] = (Piece(before, index, (guard,)),)
    if start is not None:
        given = reader.along(start, dims)
        assert given is not None
        pieces += beside([(given, Guard(Affine.of(time), 0, 1, None))])
    reader.views[own] = View(dims, pieces)
    return _State(before, dims)


def _made(reader: Reader, op: g.RecurrenceOp, state: _State, value: SSAValue, time: Axis) -> View:
    """A state behind the step, in tensors that layers of the body make: what is in none is copied."""
    view = reader.view(value)
    is_aligned = all(align(a, b) is not None for a, b in zip(state.dims, view.dims, strict=True))
    if is_aligned and all(_is_of_step(reader, piece, time) for piece in view.pieces):
        return view
    return reader.copied(view, op, state.dims, value)


def _is_of_step(reader: Reader, piece: Piece, time: Axis) -> bool:
    """Whether it is of a tensor that the step itself makes."""
    return piece.tensor in reader.tensors and dict(piece.index).get(time) == Affine.of(time)


def _resolve(layer: Layer, known: Mapping[Tensor, _State]) -> None:
    """Put the tensors that layers make in the place of those that stood for them."""
    operands: list[Operand] = []
    for k, operand in enumerate(layer.operands):
        pieces = tuple(each for piece in operand.pieces for each in _carried(piece, known))
        if pieces != operand.pieces and layer.storage_of == k:
            layer.storage_of = None  # others may read the state yet
        operands.append(replace(operand, pieces=pieces))
    layer.operands = tuple(operands)


def _carried(piece: Piece, known: Mapping[Tensor, _State]) -> Iterator[Piece]:
    """What stood for a state as pieces of the tensors that have it."""
    state = known.get(piece.tensor)
    if state is None or state.made is None:
        yield piece
        return
    own = set(leaves(axis for each in state.dims for axis in each))
    where = dict(piece.by_leaf)
    places: list[tuple[Dim, Affine | None]] = [((axis,), at) for axis, at in where.items() if axis not in own]
    for mine, theirs in zip(state.dims, state.made.dims, strict=True):
        places += [((there,), where[here]) for here, there in align(mine, theirs) or ()]
    positions = [(each, at) for each, at in places if at is not None]
    found = [other.substituted(positions, piece.guards) for other in state.made.pieces]
    if len(positions) < len(places) or None in found:
        raise NoAxes(f"{state.made.pieces[0].tensor.name}: error: no position says what is read of the step before")
    yield from (each for each in found if each is not None)
