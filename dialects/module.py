"""What stands beside the operations: every discardable attribute `frustum.*`, its type, who writes and who reads it.

| attribute | stands on | type | written by | read by |
|---|---|---|---|---|
| `target` | module | dictionary | `frustum-set-target` | every pass that asks the machine |
| `weights` | module | string: name of the store | importer, passes that change weights | whoever needs their bytes |
| `model`, `dtype` | module | string | importer; `convert-type`, `quantise` | report, program |
| `policy` | module | string | `frustum-fuse-layers` | report, stages run again |
| `alternatives` | module | string of JSON | `frustum-fuse-layers` | report |
| `least_work` | module | string of JSON | `frustum-fuse-layers` | bound of the report |
| `whole_network` | module | string of JSON | `backend/compile.py` | bound of the report: what another plan says of it |
| `tiled` | module | unit | `frustum-tile-partition` | which stop a module is at |
| `accuracy`, `compression` | module | string of JSON | calibration; weight passes | report |
| `chain_inputs`, `chain_outputs` | module | strings | `frustum-graph-split-outputs` | the driver of pieces |
| `model_dtypes` | network | strings, one per input and output | importer | host conversions |
| `counts` | network | string of JSON: operator and largest integer, by node | importer | `frustum-graph-convert-type` |
| `input_ranges` | network | arrays of two floats | calibration | `frustum-graph-quantise` |
| `range` | graph operation | two floats | calibration | `frustum-graph-quantise` |
| `scale` | graph operation | scale | `frustum-graph-fold-quantisation` | calibration |
| `integers` | weight, its buffer in DRAM | dictionary | importer | passes that fold quantisation, store weights |
| `form` | layer | integers: the loop of each axis of its tensors | `frustum-graph-choose-forms` | layers |
| `streamed` | attention | string: type of what waits between blocks | `frustum-graph-expand-attention` | layers |
| `value_parts` | attention | integer: in how many parts its values come | `frustum-graph-expand-attention` | layers |
| `joint` | attention | unit: it reads channels of maps as they were made | policy `optimal` | layers |
| `carry` | product | string: the type in which its sums may wait | `frustum-graph-note-carry` | layers |
| `part_of_sum` | product, tile computation | unit: the next product adds the rest | policy `optimal` | report |
| `carry` | attention | string: the type of its scores | `frustum-graph-expand-attention` | layers |
| `held_bytes` | weight | integer | `frustum-graph-measure-weights` | planner |
| `expanded` | weight, its buffer in DRAM | string: why it is no integers any more | passes on weights | report |
| `held_run` | weight | integers: grain and least of a piece's inputs | `frustum-graph-measure-weights` | planner |
| `place` | concatenation | unit | policy `optimal` | policy `optimal` |
| `maps` | unit | integer | `frustum-fuse-layers` | `frustum-tile-partition` |
| `cost_parts` | unit | integers | planners of units | lowering of units |
| `reserved` | unit | integer: bytes of SRAM beside it | `frustum-tile-leave-room` | `frustum-tile-choose-runs` |
| `map` | layer of a unit | sub-map | planners of pieces | lowering of units |
| `in_core` | layer of a unit | unit | `frustum-tile-choose-runs` | lowering of units |
| `predicted_cycles` | unit | integer | planner | lowering of units |
| `own_cycles` | lowered unit | integer | lowering of units | lowering of tiles |
| `dram_bytes`, `link_bytes`, `sram_bytes` | plan | integers | `frustum-plan-check` | who reads the module |
| `layout` | unit | string | `frustum-graph-choose-layout` | lowering of units |
| `macs`, `own_elements` | tile computation | integer | lowering of units | lowering of tiles |
| `layers`, `layer_kinds`, `layer_units` | program's module | one entry per layer | lowering of tiles | report |
| `layer_nodes` | program's module | strings of JSON, one per layer: nodes | lowering of tiles | report |
| `useful_macs`, `own_elements` | program's module | integers, one per layer | lowering of tiles | report |
| `units`, `unit_modes`, ... (`UNIT_*`) | program's module | one entry per unit | lowering of tiles | report |
| `peak` | program's module | integers by memory and section | `frustum-allocate` | report |
| `why_in_dram` | tensor in DRAM | string: why it is there | lowering of tiles, `frustum-lower-keep-tensors` | report |
| `tensor` | buffer in SRAM | string: its name | `frustum-lower-keep-tensors` | compiling (what does not fit) |
| `turns` | copy to a core | unit | `frustum-weights-ahead` | `frustum-schedule` |
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute, Operation

TARGET = "frustum.target"
WEIGHTS = "frustum.weights"
MODEL = "frustum.model"
DTYPE = "frustum.dtype"
POLICY = "frustum.policy"
ALTERNATIVES = "frustum.alternatives"
LEAST_WORK = "frustum.least_work"
WHOLE_NETWORK = "frustum.whole_network"
TILED = "frustum.tiled"
ACCURACY = "frustum.accuracy"
COMPRESSION = "frustum.compression"
CHAIN_INPUTS = "frustum.chain_inputs"
CHAIN_OUTPUTS = "frustum.chain_outputs"
MODEL_DTYPES = "frustum.model_dtypes"
COUNTS = "frustum.counts"
INPUT_RANGES = "frustum.input_ranges"
RANGE = "frustum.range"
SCALE = "frustum.scale"
INTEGERS = "frustum.integers"
EXPANDED = "frustum.expanded"
HELD_BYTES = "frustum.held_bytes"
HELD_RUN = "frustum.held_run"
STREAMED = "frustum.streamed"
CARRY = "frustum.carry"
PART_OF_SUM = "frustum.part_of_sum"
VALUE_PARTS = "frustum.value_parts"
JOINT = "frustum.joint"
FORM = "frustum.form"
PLACE = "frustum.place"
COST_PARTS = "frustum.cost_parts"
"""What a planner says of a unit, as the fields of `passes/plan/cost.py`, `CostParts`."""
MAPS = "frustum.maps"
MAP = "frustum.map"
IN_CORE = "frustum.in_core"
RESERVED = "frustum.reserved"
LAYOUT = "frustum.layout"
PREDICTED_CYCLES = "frustum.predicted_cycles"
"""What the planner's model says that a unit adds to the run."""
OWN_CYCLES = "frustum.own_cycles"
"""What the model says that a unit takes alone."""
MACS = "frustum.macs"
DRAM_BYTES = "frustum.dram_bytes"
LINK_BYTES = "frustum.link_bytes"
SRAM_BYTES = "frustum.sram_bytes"
OWN_ELEMENTS = "frustum.own_elements"
LAYERS = "frustum.layers"
LAYER_KINDS = "frustum.layer_kinds"
LAYER_NODES = "frustum.layer_nodes"
LAYER_UNITS = "frustum.layer_units"
USEFUL_MACS = "frustum.useful_macs"
UNITS = "frustum.units"
UNIT_MODES = "frustum.unit_modes"
UNIT_STOPPED_BY = "frustum.unit_stopped_by"
UNIT_TILES = "frustum.unit_tiles"
UNIT_KEPT_BYTES = "frustum.unit_kept_bytes"
UNIT_OWNERS = "frustum.unit_owners"
UNIT_CARRY = "frustum.unit_carry"
"""Empty where no sums wait."""
UNIT_PREDICTED_CYCLES = "frustum.unit_predicted_cycles"
"""Negative where nobody predicted."""
UNIT_OWN_CYCLES = "frustum.unit_own_cycles"
"""Negative where nobody predicted."""
PEAK = "frustum.peak"
WHY_IN_DRAM = "frustum.why_in_dram"
"""Of a tensor between units in DRAM: which view of it there is, or why there is none, and why it is not in SRAM."""
TENSOR = "frustum.tensor"
"""Of a buffer in SRAM: the tensor between units that lies there as it would in DRAM."""
TURNS = "frustum.turns"


def texts(values: Iterable[str]) -> ArrayAttr[StringAttr]:
    """A list of texts as an attribute."""
    return ArrayAttr([StringAttr(value) for value in values])


def numbers(values: Iterable[int]) -> ArrayAttr[IntegerAttr]:
    """A list of integers as an attribute."""
    return ArrayAttr([IntegerAttr(value, i64) for value in values])


def text_of(op: Operation, name: str) -> str | None:
    """The text that stands on an operation; None where there is none."""
    noted = op.attributes.get(name)
    return noted.data if isinstance(noted, StringAttr) else None


def keep_range(old: Operation, new: Operation) -> None:
    """An operation that computes the same values as another takes the range that a calibration noted of them."""
    if RANGE in old.attributes:
        new.attributes[RANGE] = old.attributes[RANGE]


def texts_of(op: Operation, name: str) -> tuple[str, ...]:
    """The list of texts; empty where there is none."""
    return tuple(each.data for each in _list(op, name) if isinstance(each, StringAttr))


def number_of(op: Operation, name: str, absent: int) -> int:
    """The integer that stands on an operation."""
    noted = op.attributes.get(name)
    return noted.value.data if isinstance(noted, IntegerAttr) else absent


def numbers_of(op: Operation, name: str) -> tuple[int, ...]:
    """The list of integers; empty where there is none."""
    return tuple(each.value.data for each in _list(op, name) if isinstance(each, IntegerAttr))


def _list(op: Operation, name: str) -> Iterable[Attribute]:
    noted = op.attributes.get(name)
    return noted.data if isinstance(noted, ArrayAttr) else ()
