"""Boxes against sets of their elements."""

import random
from itertools import product

from frustum.dialects.plan.boxes import add, do_meet, elements, subtract


def random_box(rng):
    return {axis: tuple(sorted((rng.randrange(5), rng.randrange(5)))) for axis in "yx"}


def points(*boxes):
    return {point for box in boxes for point in product(*(range(*box[axis]) for axis in "yx"))}


def test_boxes_are_sets_of_elements():
    rng = random.Random(4)
    for _ in range(300):
        box, *others = (random_box(rng) for _ in range(rng.randrange(1, 5)))
        rest = subtract(box, others)
        assert points(*rest) == points(box) - points(*others)
        assert sum(map(elements, rest)) == len(points(*rest)), "pieces do not meet"
        assert elements(box) == len(points(box))
        for other in others:
            assert do_meet(box, other) == bool(points(box) & points(other))
        joined = []
        for other in filter(elements, others):
            add(joined, other)
        assert points(*joined) == points(*others)


def test_neighbours_are_joined_in_any_order():
    rows = [{"y": (y, y + 1), "x": (x, x + 2)} for y in range(4) for x in (0, 2)]
    for seed in range(20):
        boxes = []
        for box in random.Random(seed).sample(rows, len(rows)):
            add(boxes, box)
        assert points(*boxes) == points(*rows) and len(boxes) <= 3
    boxes = []
    for box in rows:
        add(boxes, box)
    assert boxes == [{"y": (0, 4), "x": (0, 4)}]


def test_a_number_is_one_element():
    boxes = []
    add(boxes, {})
    add(boxes, {})
    assert boxes == [{}] and elements({}) == 1 and subtract({}, [{}]) == [] and subtract({}, []) == [{}]
