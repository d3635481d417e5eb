"""Plans as trees lowered to programs, run on the emulator, and held against the network and the plan's count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plan_nets
from stops import run_module
from xdsl.rewriter import InsertPoint, Rewriter

from frustum.backend import targets
from frustum.backend.compile import built
from frustum.backend.pipeline import Choices, Run
from frustum.dialects.graph import networks_of
from frustum.dialects.module import TARGET
from frustum.dialects.plan.count import count
from frustum.dialects.plan.dialect import plan_op
from frustum.dialects.plan.parse import extents_of, read_plan
from frustum.dialects.plan.tree import Compute, Sequence, nodes_in
from frustum.dialects.target import to_attribute
from frustum.runtime.machine import Machine
from frustum.runtime.report.counters import count as counted_of_run


def case(build, text=""):
    """A network of `plan_nets`, with a plan in braces."""
    found = plan_nets.case(build)
    if text:
        found.plan = read_plan(f'plan @net for "edge" {{ {text} }}', lambda _: extents_of(found.axes), "plan").node
    return found


def machine(name="edge", sram_bytes=None, cores=None, clusters=1):
    """A shipped target with another SRAM, other cores, or clusters."""
    target = targets.load(name)
    cluster = target.chip.cluster
    if sram_bytes is not None:
        cluster = replace(cluster, sram=replace(cluster.sram, capacity_bytes=sram_bytes))
    if cores is not None:
        cluster = replace(cluster, cores=cores)
    return replace(target, chip=replace(target.chip, clusters=clusters, cluster=cluster))


def executable_of(module, plan, target, **choices):
    """A module whose element types are the device's, and a plan of its network, as an executable."""
    own = module.clone()
    own.attributes[TARGET] = to_attribute(target)
    (network,) = networks_of(own)
    Rewriter.insert_op(plan_op(network.sym_name.data, target.name, plan), InsertPoint.after(network))
    return built(own, Choices("f32", "tree", **choices), Run(), stop="placed").executable


def check_lowered(case, target, *, rtol=1e-3):
    """`case`: module, inputs, axes, plan.  Values are those of the graph's reference, in checked mode.  The DRAM bytes
    without the program, and those that the plan is counted to move."""
    machine_of_plan = Machine(executable_of(case.module, case.plan, target))
    result = machine_of_plan.run(case.inputs, "functional", checked=True)
    for name, wanted in run_module(case.module, case.inputs).items():
        size = np.abs(wanted[np.isfinite(wanted)].astype(float)).max(initial=1.0)
        np.testing.assert_allclose(result.outputs[name], wanted, rtol=rtol, atol=rtol * size, err_msg=name)
    return dram_bytes(machine_of_plan, target), count(case.axes, case.plan).dram_bytes


def is_plain(case):
    """Whether every layer makes an output or an intermediate as it is, and none is made anew by its reader."""
    made = [layer.source.results[0] for layer in case.axes.layers]
    outputs = list(case.network.terminator.operands)
    return all(map(made.__contains__, outputs)) and len({*outputs}) == len(outputs) and not any(
        layer.role in ("sums", "squares") for layer in case.axes.layers
    )  # fmt: skip


def reads_alike(case):
    """Whether layers of one compute read the same tensor, which may be loaded once for all."""
    layers = {layer.name: layer for layer in case.axes.layers}
    for node in (each for each in nodes_in(case.plan) if isinstance(each, Compute)):
        read = [
            {piece.tensor for operand in layers[name].operands for piece in operand.pieces}
            for name in node.layers if name in layers
        ]  # fmt: skip
        if len(set().union(*read)) < sum(map(len, read)):
            return True
    return False


def keeps_middles(case):
    """Whether the middle of a tensor is resident without its ends: it is stored, and loaded, with the rest."""
    tensors = {tensor.name: tensor for tensor in case.axes.tensors}
    for node in (each for each in nodes_in(case.plan) if isinstance(each, Sequence)):
        for resident in (each for each in node.residents if each.part is not None):
            part, axes = resident.part, tensors[resident.tensor].axes
            if part.start > 0 and part.stop < next(axis.extent for axis in axes if axis.name == part.axis):
                return True
    return False


def link_bytes(executable):
    """Bytes between clusters."""
    own = Machine(executable)
    found = counted_of_run(own.expanded, own.target, executable.code.page_bytes)
    return sum(unit.chip for unit in found.units)


def dram_bytes(machine_of_plan, target):
    """Bytes over the DRAM port, without the program."""
    found = counted_of_run(machine_of_plan.expanded, target, machine_of_plan.executable.code.page_bytes)
    return found.dram_read_bytes + found.dram_write_bytes - found.dram_bytes_by_class["other"]


__all__ = ["case", "check_lowered", "dram_bytes", "executable_of", "is_plain", "keeps_middles", "link_bytes", "machine"]
