# Tests: test/runtime/tools/test_check_layers.py
"""Which pass changed the numbers: the compiler runs again, and what each pass leaves is executed until one is wrong.

| from | executed by |
|---|---|
| `imported` to `tiled` | the reference executor of graphs |
| `placed` | that of tiles |
| `frustum-lower-tiles` up to `frustum-allocate` | the machine, with a place of its own for every buffer |
| then up to `fixed` | the machine, with the program's addresses; what nothing orders is looked for as in `--checked` |
| encoded | the bytes are decoded and compared with the program |

Where lowered code is wrong at once, its worst element is computed again from the operands that its instruction had
(`plain.py`): if that gives another number, the emulator's kernel is wrong and no pass is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass

from frustum.backend.compile import built
from frustum.backend.cost import CountRun
from frustum.backend.executables import weights_of
from frustum.backend.file.decoder import CodeError, decode
from frustum.backend.file.encoder import Code
from frustum.backend.file.executable import Executable, ExecutableError
from frustum.backend.file.read_program import read_program
from frustum.backend.pipeline import LOWERED, STOPS, Choices, Run, raw_passes, stop_of
from frustum.dialects.extents import aligned
from frustum.dialects.isa.program import MEMORIES, instructions
from frustum.dialects.isa.sync import AllocOp, ExternalOp
from frustum.passes.weights import store_of
from frustum.runtime.check.check import RaceError, check
from frustum.runtime.device.memory import AccessError
from frustum.runtime.machine import Machine

IMPORT = "import"
"""Who makes the first stop."""
APART_BYTES = 64
"""Buffers that lie apart begin at multiples of this."""
PAGES = (64,) * (1 << 16)
"""As many as `fetch` can name, of code that was never encoded."""


@dataclass(frozen=True)
class Snapshot:
    """A module, which pass left it so (none: it is at its first stop), and the module before."""

    stop: str
    step: ModulePass | None
    module: ModuleOp
    before: ModuleOp | None = None
    later: tuple[ModulePass, ...] = ()
    """The passes behind it, to stop `fixed`."""

    @property
    def name(self) -> str:
        return self.step.name if self.step is not None else self.stop


@dataclass
class _Kept(Run):
    """A run that keeps what every pass leaves; attempts that fail are left out."""

    found: list[Snapshot] = field(default_factory=list)
    now: list[Snapshot] = field(default_factory=list)
    by_stop: dict[str, list[Snapshot]] = field(default_factory=dict)

    def apply(self, step: ModulePass, context: Context, module: ModuleOp) -> None:
        before = module.clone()
        try:
            super().apply(step, context, module)
        except Exception:
            self.now = []
            raise
        self.now.append(Snapshot("", step, module.clone(), before))

    def reached(self, stop: str, module: ModuleOp) -> None:
        super().reached(stop, module)
        made = [Snapshot(stop, each.step, each.module, each.before) for each in self.now]
        if stop == LOWERED and made and made[0].name not in RAW:  # weights are held in another way than before
            earlier = self.by_stop.get(stop, [])
            made = [each for each in earlier if each.name in RAW] + made
        self.by_stop[stop], self.now = made, []


RAW = tuple(step.name for step in raw_passes(Choices()))
"""The names of the passes to `lowered` before weights are held."""


@dataclass(frozen=True)
class Culprit:
    """The first moment at which something is wrong, and what."""

    stop: str
    culprit: str
    """The name of a pass, or of a part of the emulator."""
    what: str
    moment: Snapshot | None = None


Judge = Callable[[ModuleOp | Machine], str | None]
"""What is wrong with the numbers of a module, or of a machine; None where nothing is."""


def find_pass(module: ModuleOp, choices: Choices, count_run: CountRun | None, judge: Judge) -> Culprit | None:
    """The first pass after which `judge` finds something wrong; None where none does.

    `module` is left as it is; DoesNotFit where it does not run as one executable.
    """
    start, run = module.clone(), _Kept()
    wrong = judge(start)
    if wrong is not None:
        return Culprit(stop_of(start), IMPORT if stop_of(start) == STOPS[0] else "the stage itself", wrong)
    executable = built(module.clone(), choices, run, count_run=count_run).executable
    moments = [each for stop in STOPS for each in run.by_stop.get(stop, [])]
    steps = tuple(each.step for each in moments if each.step is not None)
    numbers = {id(each): number for number, each in enumerate(moments)}
    for stop in STOPS:  # stops first: most passes need not be executed
        made = run.by_stop.get(stop, [])
        if made and (wrong := _wrong_at(made[-1], judge)) is not None:
            found = _first(made, judge, stop) or Culprit(stop, made[-1].name, wrong, made[-1])
            assert found.moment is not None
            return replace(found, moment=replace(found.moment, later=steps[numbers[id(found.moment)] + 1 :]))
    last = moments[-1] if moments else None
    return _unordered(Machine(executable), last) or _encoded_wrong(executable) or _differently(executable, judge, last)


def wrong_in_code(executable: Executable) -> Culprit | None:
    """What is wrong with an executable whatever its numbers are: accesses that nothing orders, other bytes than its
    program."""
    return _unordered(Machine(executable), None) or _encoded_wrong(executable)


def _first(made: Sequence[Snapshot], judge: Judge, stop: str) -> Culprit | None:
    for each in made:
        if (wrong := _wrong_at(each, judge)) is not None:
            return Culprit(stop, each.name, wrong, each)
    return None


def _wrong_at(moment: Snapshot, judge: Judge) -> str | None:
    """What is wrong with what a pass left; None too where it cannot be executed in the midst of its stop."""
    module = moment.module
    try:
        return judge(module if stop_of(module) not in ("lowered", "fixed") else machine_of(module))
    except (AssertionError, IndexError, KeyError, AccessError) as error:  # of the reference executors
        return f"it cannot be executed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def machine_of(module: ModuleOp) -> Machine:
    """A machine with the program of a module at stop `lowered` or behind; buffers without address lie apart, in
    memories as large as that needs."""
    is_placed = _has_addresses(module)
    module = module if is_placed else _placed_apart(module)
    program = read_program(module)
    found = sorted(weights_of(program, store_of(module)), key=lambda pair: pair[0])
    data = tuple((address, np.ascontiguousarray(array).reshape(-1).view(np.uint8)) for address, array in found)
    executable = Executable(program, Code(b"", PAGES, (), ()), {}, data)
    own = Machine(executable).capacities
    needed = tuple(program.peak_bytes.get(name, 0) for name in MEMORIES)
    if is_placed or all(have >= need for have, need in zip(own, needed, strict=True)):
        return Machine(executable)
    executable = replace(executable)  # another, whose memories are larger
    return Machine(executable, tuple(map(max, own, needed)))


def _has_addresses(module: ModuleOp) -> bool:
    return all(op.address is not None for op in module.walk() if isinstance(op, AllocOp | ExternalOp))


def _placed_apart(module: ModuleOp) -> ModuleOp:
    """A copy in which no two buffers share a byte."""
    module, ends = module.clone(), dict.fromkeys(MEMORIES, 0)
    for op in module.walk():
        if isinstance(op, AllocOp | ExternalOp):
            memory = op.memory if isinstance(op, AllocOp) else "dram"
            copies = op.depth.value.data if isinstance(op, AllocOp) and op.rolling is None else 1
            op.properties["address"] = IntegerAttr(ends[memory], i64)
            ends[memory] = aligned(ends[memory] + op.bytes.value.data * copies, APART_BYTES)
    return module


# --- behind the last pass ----------------------------------------------------------------------------------


def _unordered(machine: Machine, last: Snapshot | None) -> Culprit | None:
    """Two accesses that nothing orders: who sets waits has left one out."""
    try:
        check(machine.expanded, machine.capacities)
    except (RaceError, AccessError, ExecutableError) as error:
        return Culprit("fixed", last.name if last else "frustum-schedule", str(error), last)
    return None


def _encoded_wrong(executable: Executable) -> Culprit | None:
    """The first instruction that its bytes do not say."""
    code = executable.code
    if not code.bytes:
        return None
    try:
        decoded = decode(code.bytes, code.layers, code.units)
    except CodeError as error:
        return Culprit("encoded", "encoder", str(error))
    if decoded == executable.program.body:
        return None
    for number, pair in enumerate(zip(instructions(executable.program.body), instructions(decoded), strict=False)):
        own, other = pair
        if own != other:
            names = executable.program.layers
            layer = f" of layer '{names[own.layer]}'" if own.layer < len(names) else ""
            return Culprit("encoded", "encoder", f"instruction {number} ({own.NAME}{layer}): {_difference(own, other)}")
    return Culprit("encoded", "encoder", "the loops of the code are not those of the program")


def _difference(own: Any, other: Any) -> str:
    """The first field that is not the same."""
    if type(own) is not type(other):
        return f"its bytes are those of a '{other.NAME}'"
    name = next(each.name for each in fields(own) if getattr(own, each.name) != getattr(other, each.name))
    return f"{name} is {getattr(own, name)}, its bytes say {getattr(other, name)}"


def _differently(executable: Executable, judge: Judge, last: Snapshot | None) -> Culprit | None:
    wrong = judge(Machine(executable))
    return None if wrong is None else Culprit("fixed", last.name if last else "the executable", wrong, last)
