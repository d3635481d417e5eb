"""A model as a chain: pieces that run one after the other, each on the device or on the host.

A piece takes values by name and gives values by name; whatever it gives is there for all later pieces and for the
outputs of the whole.  A model that runs on the device as one executable is the chain of that one piece.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from frustum.backend.file.executable import Executable
from frustum.dialects.isa.program import Element, External
from frustum.dialects.target import Target, from_json
from frustum.runtime.device.memory import DTYPES, host_type
from frustum.runtime.failures import UsageError
from frustum.runtime.host.inputs import HostArray, dtype_of, in_types_of, random_array
from frustum.runtime.machine import InputError, check_inputs

if TYPE_CHECKING:
    from frustum.runtime.host.host_model import HostModel

WAYS = "one, each, or the number of a chip for every piece, as in 0,0,1,2"
"""That an executable's chip can be said."""
ELEMENTS: dict[np.dtype[Any], Element] = {dtype: element for element, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Interface:
    """An input: its numpy type (`object` for text, empty for what is no tensor), its shape (None: any)."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    def external(self) -> External | None:
        """The same as an executable would say it; None where its shape or type is open."""
        if self.shape is None or self.dtype in ("", "object"):
            return None
        element = ELEMENTS.get(np.dtype(self.dtype), "f32")
        return External(self.name, "input", 0, 0, self.shape, element, self.dtype)


@dataclass(frozen=True)
class HostedLayer:
    """A layer on the host, and why it is there."""

    name: str
    op: str
    reason: str
    macs: int = 0
    bytes: int = 0
    """Read and written."""


@dataclass(frozen=True)
class DevicePiece:
    """An executable, and the chip that it runs on."""

    name: str
    executable: Executable
    chip: int = 0

    kind = "device"

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(e.name for e in self.executable.program.externals_of("input"))

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(e.name for e in self.executable.program.externals_of("output"))


@dataclass(frozen=True)
class HostPiece:
    """A model for the host's evaluator."""

    name: str
    model: HostModel
    fallbacks: tuple[HostedLayer, ...]

    kind = "host"

    @property
    def macs(self) -> int:
        return sum(each.macs for each in self.fallbacks)

    @property
    def bytes(self) -> int:
        """Read and written."""
        return sum(each.bytes for each in self.fallbacks)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.model.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.model.outputs)


Piece: TypeAlias = DevicePiece | HostPiece


@dataclass(frozen=True, eq=False)
class Chain:
    """Pieces in the order in which they run, and the interface of the whole."""

    name: str
    target: Target
    policy: str
    host: str
    """The mode: never, auto, only."""
    inputs: tuple[Interface, ...]
    outputs: tuple[str, ...]
    pieces: tuple[Piece, ...]
    model: str = ""
    unsplit_peak_bytes: Mapping[str, int] | None = None
    """Of each memory on chip the peak of the network in one piece, where it is cut and would fit uncut."""
    log: tuple[str, ...] = ()
    """What was cut, fused again and refused, and why."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Checksums of `model`, `target` and `pipeline` (`identity.py`); empty where nobody knows what it was made from."""
    target_file: str | None = None
    """Where the machine was read, as it was named; None for a shipped one, and where nobody knows."""
    bound: Mapping[str, HostArray] = field(default_factory=dict)
    """Inputs of the model that were bound to constants."""

    @property
    def executables(self) -> tuple[Executable, ...]:
        return tuple(piece.executable for piece in self.pieces if isinstance(piece, DevicePiece))

    @property
    def single(self) -> Executable | None:
        """The executable that is all of it, if one is."""
        if len(self.pieces) != 1 or not isinstance(self.pieces[0], DevicePiece):
            return None
        piece = self.pieces[0]
        same = {each.name for each in self.inputs} == {*piece.inputs} and {*self.outputs} == {*piece.outputs}
        return piece.executable if same else None

    @property
    def sizes(self) -> dict[str, float]:
        """How much the device has to do, as `share_done.know` takes it."""
        asked = [each.manifest["options"].get("least_work") or {"layers": []} for each in self.executables]
        layers = [layer for each in asked for layer in each["layers"]]
        weights = [e for each in self.executables for e in each.program.externals_of("weight")]
        return {
            "layers": len(layers),
            "megabytes": sum(e.bytes for e in weights) / 10**6,
            "gigamacs": sum(layer.get("macs", 0) for layer in layers) / 10**9,
        }

    @property
    def fallbacks(self) -> list[HostedLayer]:
        return [each for piece in self.pieces if isinstance(piece, HostPiece) for each in piece.fallbacks]

    @property
    def dtype(self) -> str:
        """The type on the device; `host` where nothing runs there."""
        types = Counter(str(executable.program.dtype) for executable in self.executables)
        return types.most_common(1)[0][0] if types else "host"

    @property
    def of_device(self) -> frozenset[str]:
        """The outputs that the device has a part in: the others are the host's alone."""
        known = set[str]()
        for piece in self.pieces:
            known.update(piece.outputs if isinstance(piece, DevicePiece) else piece.model.made_from(known))
        return frozenset(known & {*self.outputs})

    def passed(self, piece: DevicePiece) -> frozenset[str]:
        """The inputs and outputs of a piece that are not the model's: values that pass between pieces, or to and from
        the host.  An output of the model that a later piece reads back is the model's where it is written."""
        given = {each.name for each in self.inputs}
        return frozenset({*piece.inputs} - given) | frozenset({*piece.outputs} - {*self.outputs})


def chain_of(executable: Executable) -> Chain:
    """The chain of one executable."""
    manifest = executable.manifest
    piece = DevicePiece(executable.program.name, executable)
    return Chain(
        executable.program.name,
        from_json(json.loads(executable.program.target)),
        str(manifest["options"].get("policy", "")),
        "never",
        tuple(Interface(e.name, host_type(e).dtype, e.shape) for e in executable.program.externals_of("input")),
        piece.outputs,
        (piece,),
        str(manifest["options"].get("model", executable.program.name)),
    )


def placed(chain: Chain, placement: str | None) -> Chain:
    """The chain with its executables on chips; as it is where none is said.  UsageError where that cannot be."""
    if placement is None:
        return chain
    chips = iter(chips_of(placement, len(chain.executables), chain.target))
    pieces = (replace(each, chip=next(chips)) if isinstance(each, DevicePiece) else each for each in chain.pieces)
    return replace(chain, pieces=tuple(pieces))


def chips_of(placement: str, pieces: int, target: Target) -> tuple[int, ...]:
    """The chip of each piece: all on chip 0 (`one`), each on the next (`each`), or as listed; else UsageError."""
    if placement == "one":
        return (0,) * pieces
    if placement == "each":
        return tuple(number % target.chips for number in range(pieces))
    check_placement(placement)
    chips = tuple(int(number) for number in placement.split(","))
    if len(chips) != pieces:
        raise UsageError(f"error: --placement {placement} is of {len(chips)} pieces, and there are {pieces}")
    if not all(0 <= chip < target.chips for chip in chips):
        raise UsageError(f"error: --placement {placement}: {target.name} has chips 0 to {target.chips - 1}")
    return chips


def check_placement(placement: str) -> None:
    """UsageError unless it is one of the ways."""
    if placement not in ("one", "each") and not re.fullmatch(r"\d+(,\d+)*", placement):
        raise UsageError(f"error: --placement {placement!r}: it is {WAYS}")


def flattened(values: Mapping[str, HostArray]) -> dict[str, Any]:
    """Arrays alone: the members of a sequence are `name/0`, `name/1`; what is absent is left out."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list | tuple):
            found |= flattened({f"{name}/{index}": item for index, item in enumerate(value)})
        elif isinstance(value, dict):
            found |= flattened({f"{name}/{key}": item for key, item in value.items()})
        elif value is not None:
            found[name] = np.asarray(value)
    return found


def random_values(inputs: Sequence[Interface], seed: int) -> dict[str, HostArray]:
    """An array for every input; UsageError where nobody knows of what shape or type."""
    found = {}
    for index, each in enumerate(inputs):
        external = each.external()
        if external is None:
            is_tensor = each.dtype not in ("", "object")
            why = "the model tells no shape" if is_tensor else "it holds no numbers"
            raise UsageError(
                f"error: input '{each.name}' cannot be made up, {why}: give it with --input"
                + (f", or its shape with --shape {each.name}=1x3" if is_tensor else "")
            )
        try:
            found[each.name] = random_array(seed, index, external.shape, dtype_of(external))
        except (MemoryError, ValueError) as error:  # numpy: of more bytes than there are addresses
            raise UsageError(f"error: input '{each.name}' is too large for this computer: {error}") from error
    return found


def in_types(inputs: Sequence[Interface], given: Mapping[str, HostArray]) -> dict[str, HostArray]:
    """The arrays of a file in the types of the inputs, as far as a file cannot hold them.

    The members of a sequence are `name/0`, `name/1`, as in a file of outputs.
    """
    found = dict(given)
    for each in inputs:
        if each.dtype == "" and each.name not in found:
            members: list[HostArray] = []
            while (member := f"{each.name}/{len(members)}") in found:
                members.append(found.pop(member))
            if members:
                found[each.name] = members
    return in_types_of([external for each in inputs if (external := each.external()) is not None], found)


def without_bound(given: Mapping[str, Any], bound: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs but for bound ones, which may be given with the value that they are bound to; `InputError` for
    others."""
    for name, value in bound.items():
        found = np.asarray(given.get(name, value))
        if not np.array_equal(found, np.broadcast_to(np.asarray(value).reshape(()), found.shape).astype(found.dtype)):
            raise InputError(f"input '{name}': found {found.tolist()}, it is bound to {np.asarray(value).tolist()}")
    return {name: value for name, value in given.items() if name not in bound}


def checked_values(inputs: Sequence[Interface], given: Mapping[str, HostArray]) -> dict[str, HostArray]:
    """The inputs as arrays, if they are exactly those expected; `InputError` otherwise."""
    closed = [external for each in inputs if (external := each.external()) is not None]
    names = {each.name for each in inputs}
    unknown = sorted(set(given) - names)
    if unknown:
        raise InputError(f"input '{unknown[0]}': the network has no such input; it has {', '.join(names)}")
    rest = {each.name: given.get(each.name) for each in inputs if each.external() is None}
    for name, value in rest.items():
        if value is None and name not in given:
            raise InputError(f"input '{name}': missing; given: {', '.join(given) or 'nothing'}")
    known = {external.name for external in closed}
    return rest | check_inputs(closed, {name: value for name, value in given.items() if name in known})
