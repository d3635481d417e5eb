# Tests: test/runtime/report/test_bound.py
"""What a network asks of the machine at least, whatever becomes of it: bytes of DRAM, and work layer by layer.

The facts are those of the network before anything is planned.  They are JSON, and stay with the program to its report
(`runtime/report/compulsory.py`, `bound.py`), which adds up: no figure there that is called compulsory or a bound looks
at the program.
"""

from __future__ import annotations

import json
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue

from frustum.dialects import graph as g
from frustum.dialects.extents import ceil_div
from frustum.dialects.module import LEAST_WORK, WEIGHTS
from frustum.dialects.target import MatrixUnit, Target
from frustum.dialects.target.durations import vector_passes
from frustum.dialects.tile import ConvLayer
from frustum.dialects.weights.least import least_stored_bytes
from frustum.passes.analysis.closures import closures
from frustum.passes.analysis.layer import is_work, layer_of
from frustum.passes.analysis.layer.nest import Layer
from frustum.passes.analysis.module import element_bytes, element_in, layer_name, target_of, value_bytes
from frustum.passes.analysis.needed import NeededElements
from frustum.passes.analysis.product_chains import product_chains
from frustum.passes.dequantised import stored_bytes
from frustum.passes.errors import Unsupported
from frustum.passes.weights import NUMPY_BY_NAME, WeightStore, store_of

COMPUTING = g.ConvOp, g.MatmulOp, g.PoolOp, g.LrnOp, g.SoftmaxOp, g.NormaliseOp, g.ReduceOp, g.AttentionOp
"""Products, and what only the vector unit can do.  Its other work may go along with the way out of a product."""
SAME, BESIDE, PART = "same", "beside", "part"
ALL, GROUPS = "all", "groups"
"""How the channels of a result come from those of the operands: each from the same one of all operands; those of the
operands one beside the other; some of them; each from all; each from those of its group."""
MIXES: dict[type[Operation], str] = {
    g.ConcatOp: BESIDE, g.SliceOp: PART, g.PickOp: PART, g.TransposeOp: PART, g.TurnOp: PART, g.PadOp: SAME,
    g.DepthToSpaceOp: PART, g.SpaceToDepthOp: PART, g.RearrangeOp: PART,
}  # fmt: skip

Facts = dict[str, Any]


def least_work(network: g.NetworkOp, target: Target, store: WeightStore | None = None) -> Facts:
    """`inputs`: names, `input_bytes`: of each, `input_needed_bytes`: as far as results need it; `weights`: of each key
    the bytes as a tensor, of what results need of it, and the fewest in which that can be stored (without `store` the
    same); `output_bytes` by name.
    `layers`: in order, each with its `name`, what it `reads` (numbers of layers, or -1 - number of an input), the
    `weights` that it multiplies or adds, `mix` of channels; of a product how many of what it reads are its `operands`
    (those come first) and its `macs`, as far as results need them, of elements of so many bytes (`element`); the least
    cycles of all `matrix` or `vector` units together (both: either does it alone, or, `together`, each its own);
    `bytes` of its result, where it is no move; what the bound on bytes asks (`product_chains.py`, `closures.py`,
    `attention`); of a recurrence its `chain`: steps, cycles of the products through which each waits for the one
    before, and whether these have groups or rows that need nothing of each other.  `outputs`: pairs of a name and what
    gives it."""
    block, needed = network.body.block, NeededElements(network)
    number: dict[SSAValue, int] = {value: -1 - k for k, value in enumerate(block.args)}
    layers: list[Facts] = []
    placed: dict[Operation, int] = {}
    for op in block.ops:
        if not isinstance(op, g.WeightOp) and op.results:
            for result in op.results:
                number[result] = len(layers)
            placed[op] = len(layers)
            layers.append(_facts(op, number, target, needed))
    for op, facts in product_chains(network, number).items():
        layers[placed[op]] |= facts
    for op, closure in closures(network).items():
        layers[placed[op]]["closure"] = list(closure)
    outputs = list(zip(network.outputs, network.terminator.values, strict=True))
    return {
        "inputs": list(network.inputs),
        "input_bytes": [value_bytes(value) for value in block.args],
        "input_needed_bytes": [needed.count(value) * element_bytes(value) for value in block.args],
        "weights": weights_of(network, needed, store),
        "output_bytes": {name: value_bytes(value) for name, value in outputs},
        "layers": layers,
        "outputs": [[name, number[value]] for name, value in outputs if value in number],
    }


def note_least_work(module: ModuleOp) -> list[Facts]:
    """Of each network of the module; that of the only one stays with its program."""
    networks, target = g.networks_of(module), target_of(module)
    store = store_of(module) if networks and WEIGHTS in module.attributes else None
    found = [least_work(network, target, store) for network in networks]
    if len(found) == 1:
        module.attributes[LEAST_WORK] = StringAttr(json.dumps(found[0], separators=(",", ":")))
    return found


def weights_of(network: g.NetworkOp, needed: NeededElements, store: WeightStore | None) -> dict[str, list[int]]:
    """Of each weight in use its bytes, those of the elements that results need, and the fewest in which these can be
    stored.  Bytes are those of the device's type, or of the integers and scales that the file has."""
    found: dict[str, list[int]] = {}
    for op in network.body.block.ops:
        if not isinstance(op, g.WeightOp) or not (count := needed.count(op.result)):
            continue
        raw, own = value_bytes(op.result), count * element_bytes(op.result)
        least = own
        if store is not None:
            array = np.asarray(store[op.key.data], NUMPY_BY_NAME[element_in(op.result)])
            mask = needed.mask(op.result)
            raw, own = min(raw, stored_bytes(op, store) or raw), min(own, stored_bytes(op, store, mask) or own)
            least = min(own, least_stored_bytes(array if mask is None else array[mask]))
        known = found.get(op.key.data, [0, 0, 0])
        found[op.key.data] = [max(pair) for pair in zip(known, (raw, own, least), strict=True)]
    return found


def _facts(op: Operation, number: dict[SSAValue, int], target: Target, needed: NeededElements) -> Facts:
    owners = [operand.owner for operand in op.operands]
    weights = [owner.key.data for owner in owners if isinstance(owner, g.WeightOp)]
    reads = list(dict.fromkeys(number[operand] for operand in op.operands if operand in number))
    facts: Facts = {"name": layer_name(op), "reads": reads, "mix": MIXES.get(type(op), SAME)}
    if is_work(op):
        facts["bytes"] = sum(value_bytes(result) for result in op.results)
    if isinstance(op, g.RecurrenceOp):
        return facts | _steps(op, number, target, needed)
    try:
        layer = layer_of(op) if is_work(op) and isinstance(op, COMPUTING) else None
    except Unsupported:
        layer = None
    if layer is None:
        return facts | ({"weights": weights} if weights else {})
    share = Fraction(needed.count(op.results[0]), prod(g.shape_of(op.results[0])))
    if isinstance(op, g.AttentionOp):
        steps, highest = _products(op, target.core.matrix), _highest(op, target)
        facts |= {"matrix": _rounded(steps * share), "vector": _rounded(highest * share), "together": True}
        facts |= {"macs": _rounded(_pairs(op) * sum(op.sizes) * share), "element": element_bytes(op.q)}
        return facts | {"attention": _attention(op)} if is_apart(op) else facts
    if not isinstance(layer.kind, ConvLayer):
        return facts | {"vector": _rounded(_vector(op, layer, target) * share)}
    facts |= {"weights": weights, "macs": _rounded(layer.macs * share)}
    facts["mix"] = ALL if layer.kind.groups == 1 else GROUPS
    facts["element"] = layer.maps[0].element_bytes
    facts["operands"] = len({number[operand] for operand in op.operands[:2] if operand in number})
    facts["matrix"] = _rounded(_matrix(layer, layer.kind, target.core.matrix) * share)
    if layer.kind.groups > 1 and layer.kind.channels == 1:
        element = element_bytes(op.operands[0])
        vector = target.core.vector
        passes = prod(layer.kind.kernel) * vector.cycles_per_element.of(element)
        facts["vector"] = _rounded(Fraction(prod(layer.out_dims) * passes, vector.lanes) * share)
    return facts


def _steps(op: g.RecurrenceOp, number: dict[SSAValue, int], target: Target, needed: NeededElements) -> Facts:
    """Of a recurrence as one layer: what its body takes, as often as there are steps; the first may need none of it
    where a state begins as 0.  It takes both units; which weights an element of its results needs is not said."""
    found: Facts = {"matrix": 0, "vector": 0, "macs": 0}
    steps, chain, are_apart, dependent = op.steps - (None in op.state_starts), 0, False, dependent_layers(op)
    for inner in op.body.block.ops:
        own = {} if isinstance(inner, g.WeightOp) or not inner.results else _facts(inner, number, target, needed)
        either = "matrix" if own.get("matrix") else "vector"  # depthwise layers may be done by either unit
        if inner in dependent and "matrix" in own and "vector" not in own:
            chain += own["matrix"]
            images, _, height, width = layer_of(inner).out_dims
            are_apart |= own["mix"] != ALL or images * height * width > 1
        for name in {either, *(("macs",) if "macs" in own else ())}:
            found[name] += own.get(name, 0) * steps
        found["element"] = max(found.get("element", 0), own.get("element", 0))
    if not found["macs"]:
        return {"vector": found["vector"], "mix": ALL}
    return found | {"mix": ALL, "together": True} | ({"chain": [steps, chain, are_apart]} if chain else {})


def dependent_layers(op: g.RecurrenceOp) -> set[Operation]:
    """Layers of a step that need what the step before gives, and give what the next one needs."""
    layers = [inner for inner in op.body.block.ops if inner.results]
    behind: set[SSAValue] = set(op.states)
    for inner in layers:
        if not behind.isdisjoint(inner.operands):
            behind.update(inner.results)
    before: set[SSAValue] = set(op.end.states)
    for inner in reversed(layers):
        if not before.isdisjoint(inner.results):
            before.update(inner.operands)
    return {inner for inner in layers if not behind.isdisjoint(inner.results) and not before.isdisjoint(inner.results)}


def is_apart(op: Operation) -> bool:
    """Every map that it reads is an input or a constant, its result an output, perhaps moved in between."""
    return all(_is_given(value) for value in op.operands) and _is_left(op.results[0])


MOVES = g.ReshapeOp | g.TransposeOp | g.SliceOp | g.TurnOp | g.PickOp | g.PhasesOp | g.RearrangeOp


def _is_given(value: SSAValue) -> bool:
    while isinstance(value.owner, MOVES):
        value = value.owner.x
    return not isinstance(value.owner, Operation) or isinstance(value.owner, g.WeightOp)


def _is_left(value: SSAValue) -> bool:
    users = [use.operation for use in value.uses]
    return any(isinstance(user, g.OutputOp) for user in users) or (
        bool(users) and all(isinstance(user, MOVES) and _is_left(user.result) for user in users)
    )


def _pairs(op: g.AttentionOp) -> int:
    """Queries and keys that see each other, of all heads and images."""
    batch, rows, keys = op.extents
    ahead = op.causal_from
    seen = rows * keys if ahead is None else sum(min(keys, max(0, row + ahead + 1)) for row in range(rows))
    return batch * op.heads[0] * seen


def _attention(op: g.AttentionOp) -> list[int]:
    """Pairs of a query and a key, sizes of a head; bytes of an element, and of what is read and made."""
    (queries, groups), (size, value_size), element = op.heads, op.sizes, element_bytes(op.q)
    batch, rows, keys = op.extents
    own = batch * (queries * rows + groups * keys) * (size + value_size) * element
    return [_pairs(op), size, value_size, element, own]


def _products(op: g.AttentionOp, unit: MatrixUnit) -> Fraction:
    """Steps of both products, with rows of queries as windows, or as channels, whichever are fewer.  Heads do not share
    a pass: what one weight is multiplied with has one channel."""
    (size, value_size), step = op.sizes, unit.cycles_per_step.of(element_bytes(op.q))
    scores = Fraction(size, unit.lines * unit.channels)
    ways = (unit.lines, unit.channels), (unit.channels, unit.lines)
    return _pairs(op) * step * (scores + min(Fraction(ceil_div(value_size, own), rows) for rows, own in ways))


def _highest(op: g.AttentionOp, target: Target) -> Fraction:
    """Every score is compared with the highest.  It may become a power of e on its way out of a product, and a column
    of ones beside the values sums these up."""
    vector = target.core.vector
    cycles = vector.cycles_per_element.of(element_bytes(op.q))
    return Fraction(_pairs(op) * vector_passes(vector, "reduce") * cycles, vector.lanes)


def _rounded(cycles: Fraction | int) -> int:
    """Down: it is a bound."""
    return int(cycles)


def _vector(op: Operation, layer: Layer, target: Target) -> Fraction:
    vector = target.core.vector
    ((name, window), *_) = layer.kind.vector_steps()
    elements = prod(layer.work_dims)
    cycles = vector.cycles_per_element.of(element_bytes(op.operands[0]))
    return Fraction(elements * vector_passes(vector, name, window) * cycles, vector.lanes)


def _matrix(layer: Layer, conv: ConvLayer, unit: MatrixUnit) -> Fraction:
    """The greater of steps and line-buffer writes, each the fewest of any way to cut the layer.

    Pieces of w windows x c channels take ceil(w / P) x ceil(c / Q) passes.  Whatever they are, each window is in pieces
    of ceil(channels / Q) slices or more, and each channel in ceil(windows / P) fills or more.
    """
    images, outputs, height, width = layer.out_dims
    windows, channels = images * height * width, outputs // conv.groups
    lines, slices = ceil_div(windows, unit.lines), ceil_div(channels, unit.channels)
    passes = max(ceil_div(channels * lines, unit.channels), ceil_div(windows * slices, unit.lines)) * conv.groups
    element = layer.maps[0].element_bytes
    steps = Fraction(passes * conv.channel_weights * unit.cycles_per_step.of(element))
    return max(steps, _writes(conv, unit, windows * slices * conv.groups, element))


def _writes(conv: ConvLayer, unit: MatrixUnit, windows: int, element: int) -> Fraction:
    """Fewest writes of any mode for so many windows; a kernel of one column may read a map without its stride."""
    block = unit.line_buffer.block_bytes // element
    taps, stride, dilation = conv.kernel[1], conv.strides[1], conv.dilations[1]
    if taps == 1:
        stride = 1
    most = (block - 1) // dilation + 1
    pieces = [most] * (taps // most) + [taps % most] * (taps % most > 0)
    fills = ((block - (n - 1) * dilation - 1) // stride + 1 for n in pieces)
    by_rows = sum((Fraction(1, fill) for fill in fills), Fraction(0)) * conv.channels
    by_channels = Fraction(min(stride, taps) * conv.channels, block)
    return windows * conv.kernel[0] * min(by_rows, by_channels)
