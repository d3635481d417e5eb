"""Orders of axes in buffers: what readers see as one axis lies one behind the other."""


import pytest

from frustum.dialects.axes.access import Affine, Guard, Piece
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer, Operand
from frustum.dialects.axes.tensor import Kind, Tensor
from frustum.passes.lower.tree.layouts import digits_of, order_of, orders_of, runs_of, steps_of
from frustum.passes.lower.tree.spans import NotLowered


def boxes():
    """Rows, columns and boxes of a map (channels outside) as one axis of a reader."""
    channel, rows, columns, box, side = (Axis(n, e) for n, e in zip("crxbs", (2, 5, 4, 3, 70), strict=True))
    tensor = Tensor("map", ((channel,), (box,), (rows,), (columns,)), 16, Kind.INTERMEDIATE)
    at = Affine.of(side, 1, -6)
    index = (
        (channel, Affine.of(channel)),
        (box, Affine(at.terms, at.offset, 1, "wrap", 3)),
        (rows, Affine(at.terms, at.offset, 12)),
        (columns, Affine(at.terms, at.offset, 3, "wrap", 4)),
    )
    return tensor, Piece(tensor, index), (channel, rows, columns, box, side)


def test_digits_of_one_position_are_one_run():
    _, piece, (channel, rows, columns, box, side) = boxes()
    runs = dict(runs_of(piece))
    assert set(runs) == {(channel,), (rows, columns, box)}
    assert runs[rows, columns, box] == Affine.of(side, 1, -6)


def test_runs_are_taken_apart_as_they_were():
    _, piece, (_, rows, columns, box, _) = boxes()
    found = dict(digits_of((rows, columns, box), dict(runs_of(piece))[rows, columns, box]))
    for axis in (rows, columns, box):
        mine, theirs = found[(axis,)], dict(piece.index)[axis]
        for side in range(6, 66):
            assert at(mine, side) == at(theirs, side)


def at(position, place):
    found = (sum(factor * place for _, factor in position.terms) + position.offset) // position.divisor
    return found % position.extent if position.bend == "wrap" else found


def test_the_axes_of_a_run_lie_one_behind_the_other():
    tensor, piece, (channel, rows, columns, box, _) = boxes()
    assert orders_of([piece]) == {tensor: (channel, rows, columns, box)}
    assert orders_of([Piece(tensor, tuple((axis, Affine.of(axis)) for axis in tensor.axes))]) == {}


def test_a_run_that_others_do_not_leave_together_is_left():
    a, b, c = (Axis(name, 4) for name in "abc")
    assert order_of((a, b, c), [(c, a)]) == (b, c, a)
    assert order_of((a, b, c), [(c, a), (b, c)]) == (b, c, a)
    assert order_of((a, b, c), [(c, a), (c, b)]) == (b, c, a)


def test_no_position_is_named():
    own = Axis("y", 8)
    tensor = Tensor("map", ((own,),), 16, Kind.INTERMEDIATE)
    bent = Piece(tensor, ((own, Affine(((own, 1),), 0, 1, "edge", 8)),))
    own.split(4)
    with pytest.raises(NotLowered, match="no position says what is read of map"):
        list(runs_of(bent))


def test_loops_move_rounded_positions_by_whole_ones():
    """Phases: every second row of a map, by loops of two rows; one map alone needs nothing of the kind."""
    rows, read = Axis("y", 8), Axis("r", 4)
    tensor = Tensor("map", ((read,),), 16, Kind.INTERMEDIATE)
    half = Affine(((rows, 1),), 0, 2)
    phase = Guard(Affine(((rows, 1),), 0, 1, "wrap", 2), 1, 2, None)
    result = Tensor("result", ((rows,),), 16, Kind.INTERMEDIATE)
    for index, guards, steps in ((half, (phase,), 2), (half.substituted([]), (), 2), (Affine.of(rows), (), 1)):
        layer = Layer("l", "", result, (Operand((Piece(tensor, ((read, index),), guards),)),), {})
        assert steps_of(layer, lambda own: own.axes) == ({rows: steps} if steps > 1 else {})


def test_what_lies_together_may_move_by_any_step():
    _, piece, (*_, side) = boxes()
    layer = Layer("l", "", Tensor("result", ((side,),), 16, Kind.INTERMEDIATE), (Operand((piece,)),), {})
    orders = orders_of([piece])
    assert steps_of(layer, orders.__getitem__) == {}
    assert steps_of(layer, lambda own: own.axes) == {side: 12}
