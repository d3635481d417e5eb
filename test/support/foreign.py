"""Random networks with operations of other dialects between, inside and around them, and what has to hold behind every
pass: theirs stay in order, as they are, with the values that they had."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from dominance import check_dominance
from hypothesis import strategies as st
from random_network import networks
from stops import target
from xdsl.context import Context
from xdsl.dialects import arith, func, test
from xdsl.dialects.builtin import (
    FunctionType,
    IntegerAttr,
    ModuleOp,
    NameLoc,
    StringAttr,
    UnrealizedConversionCastOp,
    UnregisteredOp,
    i32,
)
from xdsl.ir import Block, Region
from xdsl.utils.exceptions import PassFailedException

from frustum.backend.executables import executable_of
from frustum.backend.pipeline import STOPS, Choices, passes_to
from frustum.dialects import graph, isa
from frustum.dialects.foreign import is_foreign, name_of
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute
from frustum.passes.fuse.fuse_layers import FuseLayers
from frustum.passes.graph.split_outputs import SplitOutputs
from frustum.passes.weights import store_of
from frustum.runtime.machine import Machine
from frustum.runtime.reference.graph import ReferenceExecutor, network_of

PRESETS = ("none", "pyramid", "template", "greedy", "optimal")
POLICIES = (*PRESETS, "cuts")
MAGIC, SOURCE, SINK = "acme.magic", "acme.source", "acme.sink"
NUMBER = "acme.number"
TOLERANCE = 1e-5


class Mixed:
    """A module with operations of others, shown as its IR; `feeds`: whether layers read what others give."""

    def __init__(self, module, inputs, feeds):
        self.module, self.inputs, self.feeds = module, inputs, feeds

    def __repr__(self):
        return f"\n{self.module}\n"


@st.composite
def mixed_modules(draw, layers=4, feeds=None):
    """A network of `random_network`, with others inside; functions of a host program before and behind it."""
    drawn = draw(networks(layers))
    block = network_of(drawn.module).body.block
    feeds = draw(st.booleans()) if feeds is None else feeds
    adding = Adding(block)
    for _ in range(draw(st.integers(1, 4))):
        draw(st.sampled_from((*ALWAYS, *(FEEDING if feeds else ()))))(draw, adding)
    host = [host_function(draw, name) for name in ("before", "behind")]
    drawn.module.body.block.insert_ops_before(host[:1], network_of(drawn.module))
    drawn.module.body.block.add_ops(host[1:])
    drawn.module.verify()
    check_dominance(drawn.module)
    return Mixed(drawn.module, drawn.inputs, feeds)


class Adding:
    """Places in a block, and operations that are put there, each with a number."""

    def __init__(self, block):
        self.block, self.count = block, 0

    def place(self, draw):
        """An operation of the block, before which something is put, and the values that are there."""
        ops = list(self.block.ops)
        anchor = draw(st.sampled_from(ops))
        before = [value for op in ops[: ops.index(anchor)] for value in op.results]
        return anchor, [v for v in (*self.block.args, *before) if "tensor" in str(v.type)]

    def put(self, anchor, op):
        self.count += 1
        op.attributes[NUMBER] = IntegerAttr(self.count, i32)
        self.block.insert_op_before(op, anchor)
        return op


def unregistered(name, operands, types):
    return UnregisteredOp.with_name(name).create(
        operands=operands, result_types=types, attributes={"op_name__": StringAttr(name)}
    )


def alone(draw, adding):
    """Arithmetic of the host program that has nothing to do with the network."""
    anchor, _ = adding.place(draw)
    constant = adding.put(anchor, arith.ConstantOp(IntegerAttr(7, i32)))
    other, _ = adding.place(draw)
    ops = list(adding.block.ops)
    late = other if ops.index(other) > ops.index(constant) else anchor
    adding.put(late, arith.AddiOp(constant.result, constant.result))


def sink(draw, adding):
    """Only reads."""
    anchor, values = adding.place(draw)
    read = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2)) if values else []
    adding.put(anchor, unregistered(SINK, read, []))


def region(draw, adding):
    """Reads a value inside a region, below another operation."""
    anchor, values = adding.place(draw)
    if values:
        inner = test.TestOp([draw(st.sampled_from(values))])
        adding.put(anchor, test.TestOp(regions=[Region(Block([inner, test.TestTermOp()]))]))


def magic(draw, adding):
    """Makes another value of one, which some of those read that read the first."""
    anchor, values = adding.place(draw)
    values = [v for v in values if not isinstance(v.owner, graph.WeightOp)]
    if values:
        value = draw(st.sampled_from(values))
        made = adding.put(anchor, unregistered(MAGIC, [value], [value.type]))
        take_over(draw, adding, made, value)


def source(draw, adding):
    """A value out of nothing, instead of one of ours."""
    anchor, values = adding.place(draw)
    values = [v for v in values if not isinstance(v.owner, graph.WeightOp)]
    if values:
        value = draw(st.sampled_from(values))
        take_over(draw, adding, adding.put(anchor, unregistered(SOURCE, [], [value.type])), value)


def take_over(draw, adding, made, value):
    """Let some readers of a value that stand behind an operation read its result instead."""
    ops = list(adding.block.ops)
    later = {op for op in ops[ops.index(made) + 1 :] if not isinstance(op, graph.OutputOp) and draw(st.booleans())}
    value.replace_uses_with_if(made.results[0], lambda use: use.operation in later)


ALWAYS = (alone, sink, region)
FEEDING = (magic, magic, source)


def host_function(draw, name):
    body = Block(arg_types=[i32])
    last = body.args[0]
    for _ in range(draw(st.integers(0, 2))):
        add = arith.AddiOp(last, body.args[0])
        body.add_op(add)
        last = add.result
    body.add_op(func.ReturnOp(last))
    return func.FuncOp(name, FunctionType.from_lists([i32], [i32]), Region(body))


# ---------------------------------------------------------------- what has to hold


def others(module):
    """Every operation of other dialects in order, with all that is theirs: name, attributes, types, depth."""
    found = []

    def visit(op, depth):
        is_ours = not is_foreign(op) or isinstance(op, ModuleOp | UnrealizedConversionCastOp)
        if not is_ours:
            types = [*map(str, op.operand_types)], [*map(str, op.result_types)]
            attributes = {k: str(v) for k, v in {**op.attributes, **op.properties}.items()}
            found.append((name_of(op), attributes, types, depth))
        for inner in (o for r in op.regions for b in r.blocks for o in b.ops):
            visit(inner, depth + (not is_ours))

    visit(module, 0)
    return found


class WithOthers(ReferenceExecutor):
    """Gives operations of others a meaning, and notes what they are given."""

    def __init__(self, weights):
        super().__init__(weights)
        object.__setattr__(self, "seen", {})

    def execute_op(self, op, operands, watch=None):
        if not is_foreign(op):
            return super().execute_op(op, operands, watch)
        if op.attributes.get(NUMBER) is not None and operands:
            self.seen[op.attributes[NUMBER].value.data] = operands
        if name_of(op) == MAGIC:
            return (0.5 * operands[0],)
        if name_of(op) == SOURCE:
            shape = graph.shape_of(op.results[0])
            return (np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape),)
        return [np.zeros((), np.int32)] * len(op.results)


def values_of(module, inputs):
    """Outputs by name, and what others are given by their number."""
    executor = WithOthers(store_of(module))
    return executor.run_graph(module, inputs), executor.seen


def assert_same(found, expected, where):
    for which in (0, 1):
        assert found[which].keys() == expected[which].keys(), where
    pairs = [(found[0][name], expected[0][name]) for name in expected[0]]
    pairs += [pair for number in expected[1] for pair in zip(found[1][number], expected[1][number], strict=True)]
    for a, b in pairs:
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        assert a.shape == b.shape, where
        limit = TOLERANCE * max(1.0, float(np.abs(b).max(initial=0.0)))
        assert np.abs(a - b).max(initial=0.0) <= limit, where


def assert_programs_write_first(module):
    """What others read of a program's buffers is all written before them in the text."""
    for program in (op for op in module.walk() if isinstance(op, isa.ProgramOp)):
        children = list(program.body.block.ops)
        for number, child in enumerate(children):
            if not isinstance(child, UnrealizedConversionCastOp):
                continue
            (buffer,) = child.operands
            writers = {k for k, c in enumerate(children) for op in c.walk() if getattr(op, "dst", None) is buffer}
            assert all(k < number for k in writers), child
            assert writers or buffer.owner.class_.data in ("input", "weight"), child


def passes(module, policy, variant):
    """(stop, pass) in order, up to `frustum-schedule`; cuts are behind layers that the module has by then."""
    choices = replace(variant, policy=None if policy == "cuts" else policy)
    for stop in STOPS[1:]:
        for step in passes_to(stop, choices):
            if isinstance(step, FuseLayers) and policy == "cuts":
                step = FuseLayers(cuts=",".join(cuts_of(module)))
            yield stop, step
        if stop == "typed":
            yield stop, SplitOutputs()


def check_all(mixed, policy, variant=Choices(), where="tiny"):  # noqa: B008  # frozen
    """Run every pass; the module at the end, or None where the program was refused, by name."""
    module = mixed.module.clone()
    module.attributes[TARGET] = to_attribute(target(where))
    expected, theirs = values_of(module, mixed.inputs), others(module)
    for stop, step in passes(module, policy, variant):
        try:
            step.apply(Context(), module)
        except PassFailedException as error:
            assert step.name == "frustum-lower-tiles" and "reads its result" in str(error), error
            assert reads_of_others(module), "refused without reason"
            return None
        module.verify()
        check_dominance(module)
        assert others(module) == theirs, f"{policy}: {step.name}"
        if stop in STOPS[:5]:
            assert_same(values_of(module, mixed.inputs), expected, f"{policy}: {step.name}")
        else:
            assert_programs_write_first(module)
    assert_same((outputs_of(module, mixed.inputs), {}), (expected[0], {}), policy)
    return module


def cuts_of(module):
    """Some layers, by their names."""
    ops = [op for op in network_of(module).body.block.ops if isinstance(op, graph.UnaryOp | graph.PoolOp)]
    return [op.location.desc.data for op in ops if isinstance(op.location, NameLoc)][::2]


def reads_of_others(module):
    """Whether something of ours in a network reads what others give."""
    made = (r for op in network_of(module).body.block.ops if is_foreign(op) for r in op.results)
    return any(not is_foreign(use.operation) for result in made for use in result.uses)


def outputs_of(module, inputs):
    """The outputs of the program alone, by the machine."""
    (program,) = (op for op in module.walk() if isinstance(op, isa.ProgramOp))
    for op in reversed([op for op in program.body.block.ops if is_foreign(op)]):
        op.detach()
        op.erase(safe_erase=False)
    return Machine(executable_of(module, Choices())).run(inputs, mode="functional").outputs


__all__ = ["POLICIES", "Mixed", "check_all", "mixed_modules", "others", "unregistered"]
