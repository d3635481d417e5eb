"""What a core holds for pieces of a layer, counted operand by operand."""

from math import prod

from frustum.dialects.isa.program import ELEMENT_BYTES


def held_bytes(choice, pieces):
    """Bytes of NRAM and WRAM for one piece of every operand and of the result."""
    found = {"nram": 0, "wram": 0}
    layer = choice.layer
    for want in choice.kernel.wants:
        element = choice.elements[layer.operands[want.operand].pieces[0].tensor]
        terms = [each.refined().terms for each in want.dims]
        extents = [1 + sum(abs(factor) * (pieces.extents[axis] - 1) for axis, factor in own) for own in terms]
        found[want.memory] += prod(extents) * ELEMENT_BYTES[element]
    made = prod(pieces.extents[axis] for axis in layer.result.axes)
    found["nram"] += made * ELEMENT_BYTES[choice.elements[layer.result]]
    return found
