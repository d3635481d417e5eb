"""The structure of a network: the same text whatever parts are called, another one for any other difference."""

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import plan_nets
import pytest

from frustum.dialects.axes.access import Guard
from frustum.dialects.axes.axis import Axis
from frustum.dialects.axes.network import Layer
from frustum.dialects.axes.structure import structure_of
from frustum.dialects.axes.tensor import Kind, Tensor

BUILDS = [plan_nets.mlp, plan_nets.attention, plan_nets.conv_stack, plan_nets.unet, plan_nets.norm_alone]


def text_of(network):
    found = structure_of(network)
    assert found is not None
    return found.text


def rename(network):
    """Other names for all that a plan may name, in place; the network itself."""
    axes = {axis for each in (*network.layers, *network.tensors) for axis in each.axes}
    for number, each in enumerate((*network.layers, *network.tensors, *axes)):
        each.name = f"other{number}"
    network.name = "another"
    return network


@pytest.mark.parametrize("build", BUILDS)
def test_names_are_not_in_it(build):
    network = plan_nets.case(build).axes
    before = structure_of(network)
    assert before is not None and " at 0x" not in before.text
    names = {each.name for each in (*network.layers, *network.tensors)}
    assert not any(f"'{name}'" in before.text for name in names)
    after = structure_of(rename(plan_nets.case(build).axes))
    assert after is not None and after.text == before.text
    for one, other in ((before.layers, after.layers), (before.tensors, after.tensors), (before.axes, after.axes)):
        assert not set(one) & set(other) and sorted(one.values()) == sorted(other.values())


def test_networks_of_other_structure_differ():
    texts = {text_of(plan_nets.case(build).axes) for build in BUILDS}
    assert len(texts) == len(BUILDS)


def changed(network, change):
    change(network)
    return text_of(network)


CHANGES = {
    "an extent": lambda net: setattr(net.layers[0].axes[0], "extent", 7),
    "a bound": lambda net: setattr(net.layers[0].axes[0], "is_bound", True),
    "a tap": lambda net: setattr(net.layers[0].axes[0], "is_tap", True),
    "bits": lambda net: setattr(net.tensors[0], "element_bits", 8),
    "a kind": lambda net: setattr(net.tensors[0], "kind", Kind.STATE),
    "an output": lambda net: setattr(net.layers[0].result, "is_output", True),
    "a type of sums": lambda net: setattr(net.layers[0].result, "sums", "i32"),
    "products": lambda net: setattr(net.layers[0], "macs", 3),
    "passes": lambda net: setattr(net.layers[0], "passes", 9),
    "storage": lambda net: setattr(net.layers[0], "storage_of", 0),
    "sums": lambda net: net.layers[0].reduced.clear(),
    "an operand": lambda net: setattr(net.layers[0], "operands", net.layers[0].operands[:1]),
    "all of an operand": lambda net: operand(net, is_all=True),
    "a guard": lambda net: piece(net, guards=(Guard(net.layers[0].operands[0].pieces[0].index[0][1], 0, 1),)),
    "an offset": lambda net: position(net, offset=1),
    "a divisor": lambda net: position(net, divisor=2),
    "a bend": lambda net: position(net, bend="edge"),
    "a domain": lambda net: setattr(net.layers[0], "domain", (net.layers[0].operands[0].pieces[0].index[0][1],)),
    "the order of layers": lambda net: net.layers.reverse(),
    "the order of tensors": lambda net: net.tensors.reverse(),
    "a layer": lambda net: net.layers.pop(),
}


def operand(net, **change):
    layer = net.layers[0]
    layer.operands = (replace(layer.operands[0], **change), *layer.operands[1:])


def piece(net, **change):
    pieces = net.layers[0].operands[0].pieces
    operand(net, pieces=(replace(pieces[0], **change), *pieces[1:]))


def position(net, **change):
    (axis, own), *rest = net.layers[0].operands[0].pieces[0].index
    piece(net, index=((axis, replace(own, **change)), *rest))


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_else_changes_is_in_it(change):
    before = text_of(plan_nets.case(plan_nets.mlp).axes)
    assert changed(plan_nets.case(plan_nets.mlp).axes, CHANGES[change]) != before


def test_all_fields_of_layers_tensors_and_axes_are_names_or_in_it():
    """Who adds a field adds it to the text, or says here that it is a name."""
    kinds = Layer, Tensor, Axis
    found = {kind.__name__: {each.name for each in fields(kind) if each.name[0] != "_"} for kind in kinds}
    assert found == {
        "Layer": {
            "name", "role", "result", "operands", "reduced", "macs", "passes", "storage_of", "domain", "source",
        },
        "Tensor": {"name", "dims", "element_bits", "kind", "is_output", "sums"},
        "Axis": {"name", "extent", "is_bound", "is_tap", "parts", "is_named"},
    }  # fmt: skip


def test_shared_names_tell_nothing():
    network = plan_nets.case(plan_nets.mlp).axes
    network.tensors[1].name = network.tensors[0].name
    assert structure_of(network) is None


@pytest.mark.slow
def test_every_run_writes_it_alike():
    """Whatever Python's hashes are."""
    code = "import plan_nets as p, hashlib\nfrom frustum.dialects.axes.structure import structure_of\n"
    code += "print(hashlib.sha256(structure_of(p.case(p.attention).axes).text.encode()).hexdigest())"
    support = str(Path(plan_nets.__file__).parent)
    found = set()
    for seed in ("1", "2"):
        words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {support!r})\n{code}"]
        run = subprocess.run(words, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        found.add(run.stdout)
    assert len(found) == 1
