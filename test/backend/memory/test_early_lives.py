"""From when on buffers live whose loads come as early as the port and SRAM let them."""

from dataclasses import replace

from programs import copy, machine, module_of, unary
from xdsl.context import Context
from xdsl.ir import Block, Region

from frustum.backend.memory.allocation import Allocate
from frustum.backend.memory.cost_model import CostModel
from frustum.backend.memory.early_lives import EarlyLives
from frustum.backend.waits.read_code import read_code
from frustum.dialects.isa.attributes import BoxAttr
from frustum.dialects.isa.program import Affine, Box, Span
from frustum.dialects.isa.sync import AllocOp, BarrierOp, ExternalOp, RepeatOp

WORDS = 1 << 12
"""Of each load, 4 bytes each."""
SIZE = 4 * WORDS
PORT = 8
"""Bytes of DRAM a cycle: a load takes longer than a core's copies of it."""
LONG = 1 << 19
"""Elements of a computation during which several loads come."""


def sized(op, words=WORDS):
    """The same over so many words."""
    op.properties["box"] = BoxAttr(Box.of(*(Span(Affine(), n, n) for n in (1, 1, 1, words))))
    return op


class Program:
    """Layers that each load a weight, move it to a core and compute for long there."""

    def __init__(self, layers, capacity=1 << 20, barrier=None, in_loop=None, is_read_again=False):
        target = machine(1, 1, capacity=capacity)
        dram = replace(target.chip.dram, port_bytes_per_cycle=PORT)
        self.target = replace(target, chip=replace(target.chip, dram=dram))
        self.weights = []
        w, near = ExternalOp("w", "weight", SIZE, (WORDS,), "f32"), AllocOp("nram", SIZE)
        ops = [w, near]
        for n in range(layers):
            held = AllocOp("sram", SIZE)
            load = sized(copy("gdma", w, held, unit=n))
            ops += [BarrierOp()] if n == barrier else []
            ops += [RepeatOp(1, Region(Block([held, load])))] if n == in_loop else [held, load]
            ops += [] if n == in_loop else [sized(copy("mvdma", held, near, unit=n))]
            ops.append(sized(unary(near, near, unit=n), WORDS if n and is_read_again else LONG))
            ops += [sized(copy("mvdma", held, near, unit=n))] if is_read_again else []
            self.weights.append(held)
        self.module = module_of(self.target, *ops)
        self.code = read_code(self.module.body.block.first_op)

    def starts(self, capacity):
        """Of each layer the position from which on its weight lives; None: from its load on."""
        model, numbers = (
            CostModel(self.code, self.target),
            [self.code.numbers[w.buffer] for w in self.weights],
        )
        found = EarlyLives(model, dict.fromkeys(numbers, SIZE), frozenset(numbers), capacity).starts()
        return [found.get(n) for n in numbers]

    def computation(self, layer):
        """The position of a layer's first instruction behind its load."""
        operations = self.code.operations
        return next(
            n for n, op in enumerate(operations) if getattr(op, "src", None) is self.weights[layer].buffer
        )


def test_weights_are_there_while_the_first_layer_computes_where_there_is_room():
    """The port brings all of them before the first layer is done."""
    program = Program(4)
    starts = program.starts(4 * SIZE)
    assert starts[0] is None
    behind = program.computation(1)
    assert all(start is not None and start < behind for start in starts[1:])


def test_without_room_a_weight_lives_from_when_one_before_is_used_no_more():
    program = Program(4)
    starts = program.starts(2 * SIZE)
    assert starts[1] is not None and starts[1] < program.computation(1)
    assert starts[2] > program.computation(0) and starts[3] > program.computation(1)


def test_what_is_loaded_in_a_loop_behind_a_barrier_takes_no_time_from_loads_that_cross_it():
    """A stream stands before the last load, but cannot begin before the barrier; with no barrier it comes first."""
    apart, plain = Program(4, barrier=1, in_loop=2), Program(4, in_loop=2)
    in_layers = [p.starts(8 * SIZE)[3] for p in (apart, plain)]
    assert None not in in_layers
    streamed = [CostModel(p.code, p.target) for p in (apart, plain)]
    assert len(streamed[0].children) == len(streamed[1].children)
    number = [[c.position for c in m.children].index(at) for m, at in zip(streamed, in_layers, strict=True)]
    assert number[0] <= number[1]


def test_places_let_loads_come_early_where_sram_has_room():
    """SRAM has room for all weights: none takes the bytes of the first, which is needed until its long layer is done,
    though five units are between them."""
    layers = 9
    program = Program(layers, capacity=layers * SIZE, is_read_again=True)
    Allocate().apply(Context(), program.module)
    places = [weight.address.value.data for weight in program.weights]
    assert len(set(places)) == layers
