"""Outlined functions compute what they did; what is not ours stays; calls fit their networks."""

from __future__ import annotations

import pytest
from dominance import check_dominance
from foreign import WithOthers, mixed_modules, others, unregistered
from hypothesis import given, settings
from networks import Net
from stops import target
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.ir import Region
from xdsl.utils.exceptions import VerifyException

from frustum.backend.pipeline import STOPS, Choices, passes_to
from frustum.dialects import graph, isa
from frustum.dialects.foreign import is_foreign
from frustum.dialects.module import TARGET
from frustum.dialects.target import to_attribute
from frustum.passes.graph.outline import OutlineNetworks, layers_outside
from frustum.passes.weights import attach, store_of
from frustum.runtime.reference.graph import network_of


def as_function(module):
    """The module with the body of its network as a function's."""
    store, network = store_of(module), network_of(module)
    block = network.body.detach_block(0)
    outputs = block.last_op
    kinds = FunctionType.from_lists([a.type for a in block.args], [v.type for v in outputs.operands])
    block.insert_op_before(func.ReturnOp(*outputs.operands), outputs)
    outputs.detach()
    outputs.erase()
    module.body.block.insert_op_before(func.FuncOp("main", kinds, Region(block)), network)
    network.detach()
    network.erase()
    attach(module, store)
    module.verify()
    return module


def evaluated(module, inputs):
    """What the function returns, and what others are given, with calls run as networks."""
    executor = WithOthers(store_of(module))
    (main,) = (op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main")
    networks = {op.sym_name.data: op for op in module.ops if isinstance(op, graph.NetworkOp)}
    values = dict(zip(main.body.block.args, inputs.values(), strict=True))
    for op in main.body.block.ops:
        operands = [values[operand] for operand in op.operands]
        if isinstance(op, func.ReturnOp):
            return operands, executor.seen
        if isinstance(op, graph.CallOp):
            called = networks[op.callee.root_reference.data]
            whole = ModuleOp([called.clone()])
            found = executor.run_graph(whole, dict(zip(called.inputs, operands, strict=True)))
            results = [found[name] for name in called.outputs]
        else:
            results = executor.execute_op(op, operands)
        values.update(zip(op.results, results, strict=True))
    raise AssertionError("no return")


@pytest.mark.slow
@settings(max_examples=25)
@given(mixed_modules(5, True))
def test_an_outlined_function_computes_the_same(mixed):
    module = as_function(mixed.module.clone())
    attach(module, store_of(mixed.module))
    expected, theirs = evaluated(module, mixed.inputs), others(module)
    read = [op for op in layers_outside(module) if any(result.uses for result in op.results)]
    OutlineNetworks().apply(Context(), module)
    module.verify()
    check_dominance(module)
    assert others(module) == theirs
    assert not any(set(layers_outside(module)) & set(read)), "a layer that is read stands outside"
    feeders = sum(is_foreign(op) and any(r.uses for r in op.results) for op in module.walk())
    assert sum(isinstance(op, graph.NetworkOp) for op in module.ops) <= feeders + 1
    found = evaluated(module, mixed.inputs)
    assert found[1].keys() == expected[1].keys()
    pairs = list(zip(found[0], expected[0], strict=True))
    pairs += [pair for n in expected[1] for pair in zip(found[1][n], expected[1][n], strict=True)]
    assert all((a == b).all() for a, b in pairs), "the same layers on the same values"


@pytest.mark.slow
def test_every_outlined_network_becomes_a_program():
    net = Net()
    x = net.conv(net.input(1, 3, 12, 12), 8, act="relu")
    y = net.builder.insert(unregistered("acme.magic", [x], [x.type])).results[0]
    z = net.builder.insert(unregistered("acme.magic", [net.pool("max", net.unary("exp", y))], [])).operands[0]
    module = as_function(net.module(net.conv(z, 4))[0])
    attach(module, net.store)
    module.attributes[TARGET] = to_attribute(target("edge"))
    theirs = others(module)
    OutlineNetworks().apply(Context(), module)
    for stop in STOPS[1:]:
        for step in passes_to(stop, Choices()):
            step.apply(Context(), module)
            module.verify()
            assert others(module) == theirs, step.name
    programs = [op for op in module.walk() if isinstance(op, isa.ProgramOp)]
    assert [op.sym_name.data for op in programs] == ["main_0", "main_1"]
    names = [name.data for name in module.attributes["frustum.layers"]]
    assert names == ["conv_1", "unary_2", "pool_3", "conv_4"], "layers of all programs are numbered together"
    numbers = [{op.layer.value.data for op in p.walk() if isinstance(op, isa.ConvOp)} for p in programs]
    assert numbers == [{0}, {3}]


def called(*types):
    net = Net()
    x = net.input(1, 4)
    module, _ = net.module(net.unary("relu", x))
    argument = func.FuncOp("main", ((x.type,), ()))
    block = argument.body.block
    block.add_ops([graph.CallOp("net", block.args, types or [x.type]), func.ReturnOp()])
    module.body.block.add_op(argument)
    return module, block.first_op


def test_a_call_has_the_types_of_its_network():
    module, call = called()
    module.verify()
    kind = graph.tensor_type(call.inputs[0].type.element_type, (2, 2))
    module, call = called(kind)
    message = r"'fgraph.call': results of types \(tensor<2x2xf32>\), @net has \(tensor<1x4xf32>\)"
    with pytest.raises(VerifyException, match=message):
        module.verify()


def test_a_call_needs_its_network():
    module, _ = called()
    network = network_of(module)
    network.detach()
    with pytest.raises(VerifyException, match=r"'fgraph.call': no network is called @net"):
        module.verify()
