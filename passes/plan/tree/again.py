# Tests: test/passes/plan/tree/test_search.py
"""Networks in which a tensor is made again behind a reduction of it.

A normalisation or an excitation needs all of a map before it can use the first element; making the map twice may move
fewer bytes than waiting for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from frustum.dialects.axes.network import AxisNetwork, Layer
from frustum.dialects.axes.tensor import Tensor
from frustum.dialects.plan.check import operands_of, with_copies
from frustum.dialects.plan.tree import AGAIN, Compute, Copy, Sequence

LONGEST = 3
"""Layers that are made again, from the tensor back. 2026-11-28."""

Again = tuple[AxisNetwork, tuple[Copy, ...]]


def alternatives(network: AxisNetwork, least_bytes: float) -> Iterator[Again]:
    """The network with chains of 1, 2 and 3 layers made again, for every tensor of at least so many bytes."""
    seen = set()
    for length in range(1, LONGEST + 1):
        before: dict[Layer, list[Layer]] = {}
        for tensor, reader in _waiting(network, least_bytes):
            known = {layer for chain in before.values() for layer in chain}
            chain = [layer for layer in _chain(network, tensor, length) if layer not in known]
            before.setdefault(reader, []).extend(chain)
        found = tuple((reader.name, tuple(layer.name for layer in chain)) for reader, chain in before.items() if chain)
        if found and found not in seen:
            seen.add(found)
            yield _with(network, {reader: chain for reader, chain in before.items() if chain})


def _waiting(network: AxisNetwork, least_bytes: float) -> Iterator[tuple[Tensor, Layer]]:
    """Tensors, and the first reader of each that waits for a sum or a maximum of it, or of what is made of it, that
    multiplies nothing."""
    behind: dict[Tensor, set[Tensor]] = {tensor: set() for tensor in network.tensors}
    """Of each tensor those of whose sums it knows."""
    made_of: dict[Tensor, set[Tensor]] = {tensor: {tensor} for tensor in network.tensors}
    """Of each tensor those of which it is made without products, and itself."""
    for layer in network.layers:
        for operand in operands_of(layer):
            behind[layer.result] |= behind[operand]
            if not layer.macs:
                own = behind if set(layer.combine) & set(operand.axes) else made_of
                own[layer.result] |= made_of[operand]
    for tensor in network.maker:
        waiting = [
            reader for reader in network.readers.get(tensor, [])
            if any(tensor in behind[operand] for operand in operands_of(reader))
        ]  # fmt: skip
        if waiting and tensor.size_bytes >= least_bytes:
            yield tensor, waiting[0]


def _chain(network: AxisNetwork, tensor: Tensor, length: int) -> list[Layer]:
    """The makers of a tensor, so many layers back, first the first."""
    found, at = list[Layer](), [network.maker[tensor]]
    for _ in range(length):
        found = [layer for layer in at if layer not in found] + found
        at = [network.maker[t] for layer in at for t in operands_of(layer) if t in network.maker]
    order = {layer: k for k, layer in enumerate(network.layers)}
    return sorted(dict.fromkeys(found), key=order.__getitem__)


def _with(network: AxisNetwork, before: dict[Layer, list[Layer]]) -> Again:
    names, copies = list[str](), list[Copy]()
    for layer in network.layers:
        for source in before.get(layer, []):
            copies.append(Copy(source.name, f"{source.name}{AGAIN}"))
            names.append(copies[-1].name)
        names.append(layer.name)
    plan = Sequence((Compute(tuple(names)),), copies=tuple(copies))
    return with_copies(network, plan), tuple(copies)
