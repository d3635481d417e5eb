# Tests: test/runtime/report/test_report_schema.py
"""The keys of the report, schema 1: their types, units and meanings.

The one declaration for type checkers and readers: docs/report.md has a table of them (`key_table.py`), and a test holds
every report against them.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, NotRequired, TypedDict


class Key(NamedTuple):
    """What a key of the report says."""

    unit: str
    """"" where there is none."""
    says: str
    each: str = ""
    """Of a dictionary, what its own keys are."""


B, CYCLES, NUMBER, SHARE, SECONDS = "bytes", "cycles", "number", "share", "seconds"
"""Units."""


class ThroughDramFigures(TypedDict):
    """A tensor that units write to DRAM and others read; where these units are cut apart, `stopped_by` of those that
    write it says why."""

    name: Annotated[str, Key("", "its name")]
    bytes: Annotated[int, Key(B, "of it that cross the ports; over all tensors they are `intermediate_bytes`")]
    written_by: Annotated[list[str], Key("", "the units that write it")]
    read_by: Annotated[list[str], Key("", "the units that read it")]
    why: Annotated[
        str | None,
        Key("", "whether its readers have a view of the tiles that are made, or why not; and why it is not in SRAM"),
    ]


class DramFigures(TypedDict):
    """Bytes at the DRAM ports."""

    read_bytes: Annotated[int, Key(B, "read at the DRAM ports, of all chips together")]
    write_bytes: Annotated[int, Key(B, "written there")]
    total_bytes: Annotated[int, Key(B, "both")]
    weight_bytes: Annotated[int, Key(B, "of the total, reads of weights")]
    input_bytes: Annotated[int, Key(B, "of the total, reads of the network's inputs")]
    output_bytes: Annotated[int, Key(B, "of the total, writes of the network's outputs")]
    intermediate_bytes: Annotated[
        int, Key(B, "of the total, what passes between layers, pieces, chips, and to and from the host in the run")
    ]
    other_bytes: Annotated[int, Key(B, "of the total, program and address tables")]
    compulsory_bytes: Annotated[
        int, Key(B, "every input as far as results need it, every weight and every output once, in the device's types")
    ]
    ratio: Annotated[float | None, Key("", "total without `other_bytes`, by the compulsory bytes")]
    total_ratio: Annotated[float | None, Key("", "total, program and address tables included, by the compulsory bytes")]
    compressed_compulsory_bytes: Annotated[
        int, Key(B, "the compulsory bytes with each weight in the smallest form that it may be stored in")
    ]
    ratio_to_compressed: Annotated[float | None, Key("", "total without `other_bytes`, by those")]
    bound_bytes: Annotated[int | None, Key(B, 'at least so many cross the ports in any plan ("The bound on bytes")')]
    bound_by: Annotated[str | None, Key("", "the argument that says so")]
    layer_by_layer_bytes: Annotated[
        int | None, Key(B, "what moves if every map is written once, and read once by each layer that reads it")
    ]
    maps: Annotated[int | None, Key(NUMBER, "maps between layers")]
    maps_in_dram: Annotated[int | None, Key(NUMBER, "of these, those that are in DRAM in this run")]
    through_dram: Annotated[
        list[ThroughDramFigures], Key("", "each tensor between units that is in DRAM in this run, most bytes first")
    ]


class CyclesFigures(TypedDict):
    """Of the whole run."""

    total: Annotated[int, Key(CYCLES, "of the run, from the first fetch to the last effect")]
    roofline: Annotated[
        float, Key(CYCLES, "the greater of useful products at peak rate and compulsory bytes at the rate of DRAM")
    ]
    ratio: Annotated[float | None, Key("", "total by roofline")]
    bound: Annotated[float | None, Key(CYCLES, 'the least that any program takes ("The bound")')]
    bound_by: Annotated[str | None, Key("", "the term of the bound that binds")]
    bound_terms: Annotated[dict[str, float] | None, Key(CYCLES, "every term of the bound", "TERM")]
    address: Annotated[int, Key(CYCLES, "in which matrix units find addresses, over all cores, overlapped or not")]
    address_without_tables: Annotated[int, Key(CYCLES, "in which they would, had no instruction named a table")]


class MacsFigures(TypedDict):
    """Products."""

    useful: Annotated[int, Key("MACs", "multiply-accumulates that the network's results need")]
    recomputed: Annotated[int, Key("MACs", "of those executed, the ones beyond each layer's own")]
    executed: Annotated[int, Key("MACs", "what matrix and vector units really did")]


class EngineFigures(TypedDict):
    """Cycles, and bytes moved."""

    busy: Annotated[int, Key(CYCLES, "in which it works")]
    stalled: Annotated[int, Key(CYCLES, "in which it has something to do and waits for data, room or a port")]
    idle: Annotated[int, Key(CYCLES, "in which there is nothing for it to do")]
    bytes: Annotated[int, Key(B, "that it moves; of a compute unit operands and results")]


FlowFigures = TypedDict(
    "FlowFigures",
    {
        "engine": Annotated[str, Key("", "who reads or writes: a kind of engine")],
        "from": Annotated[str | None, Key("", "the memory that is read; null: none")],
        "to": Annotated[str | None, Key("", "the memory that is written; null: none")],
        "read_bytes": Annotated[int, Key(B, "read there")],
        "filled_bytes": Annotated[int, Key(B, "written as padding, and read nowhere")],
        "expanded_bytes": Annotated[int, Key(B, "by which elements are more than the compressed blocks read")],
        "repeated_bytes": Annotated[int, Key(B, "written into further memories by a multicast or broadcast")],
        "written_bytes": Annotated[int, Key(B, "written; of a copy the sum of the four before")],
    },
)
"""Bytes of one way."""


class SramFigures(TypedDict):
    """Bytes at the ports of all SRAMs."""

    read_bytes: Annotated[int, Key(B, "read at the ports of all SRAMs")]
    write_bytes: Annotated[int, Key(B, "written there")]


class NramOperandFigures(TypedDict):
    """Layers that follow another one in their unit."""

    reading: Annotated[int, Key(NUMBER, "layers that read a map of their unit in NRAM")]
    following: Annotated[int, Key(NUMBER, "layers that read a map of their unit")]


class OnChipFigures(TypedDict):
    """Bytes of each memory."""

    sram: Annotated[int, Key(B, "of an SRAM")]
    nram: Annotated[int, Key(B, "of an NRAM")]
    wram: Annotated[int, Key(B, "of a WRAM")]


class WaitingFigures(TypedDict):
    """A part of the critical path in words."""

    what: Annotated[str, Key("", "who works, or waits for what")]
    is_wait: Annotated[bool, Key("", "whether it is a wait, or an engine's own work")]
    cycles: Annotated[int, Key(CYCLES, "of the critical path")]
    share: Annotated[float, Key(SHARE, "of the run")]
    units: Annotated[list[str], Key("", "the units that it is about most")]


class LineBufferFigures(TypedDict):
    """Of all line buffers."""

    writes: Annotated[int, Key(NUMBER, "blocks written into lines")]
    writes_split: Annotated[int, Key(NUMBER, "what mode `split` would have written")]
    compute_steps: Annotated[int, Key(NUMBER, "steps of the matrix units")]
    discarded: Annotated[int, Key(NUMBER, "windows that mix two rows, made and dropped (mode `continuous`)")]


class AddressCacheFigures(TypedDict):
    """Of all caches of addresses."""

    tables: Annotated[int, Key(NUMBER, "different address tables")]
    loads: Annotated[int, Key(NUMBER, "loads of tables")]
    evictions: Annotated[int, Key(NUMBER, "tables that gave way to others")]


class PlanFigures(TypedDict):
    """What the planner's model says of one way, before what is done to its program later; nothing is counted."""

    dram_bytes: Annotated[int, Key(B, "predicted to move, with weights as they are, without code and tables")]
    cycles: Annotated[int, Key(CYCLES, "predicted to take")]
    energy_pj: Annotated[int, Key("pJ", "predicted to cost")]
    predicted: Annotated[bool, Key("", "true: none of it was counted")]


class LayerFigures(TypedDict):
    """One of the model's."""

    name: Annotated[str, Key("", "as in the file")]
    op: Annotated[str, Key("", "the model's operator")]
    nodes: NotRequired[Annotated[list[str], Key("", "the model's nodes that it stands for, where not one of its name")]]
    unit: Annotated[str | None, Key("", "the unit that it is in; null on the host")]
    where: Annotated[str, Key("", "`device` or `host`")]
    cycles: Annotated[int | None, Key(CYCLES, "of the run, each cycle given to the layer whose effect comes next")]
    dram_bytes: Annotated[int, Key(B, "at the DRAM ports for it")]


class ExchangedBytesFigures(TypedDict):
    """What others made, by how far it came."""

    core: Annotated[int, Key(B, "that cores take back of what they put into SRAM themselves")]
    cluster: Annotated[int, Key(B, "that they take of what other cores of their cluster put there")]
    chip: Annotated[int, Key(B, "that CDMA writes into other clusters")]


WaitFigures = TypedDict(
    "WaitFigures",
    {
        "engine": Annotated[str, Key("", "which one, with cluster and core")],
        "for": Annotated[str, Key("", '`work`, `port`, `latency` or `move` ("Waits")')],
        "on": Annotated[str, Key("", "the layer, memory or piece")],
        "why": Annotated[str, Key("", "what the next piece of the path needed of it")],
        "cycles": Annotated[int, Key(CYCLES, "of the critical path")],
    },
)


class UnitFigures(TypedDict):
    """What is fused."""

    name: Annotated[str, Key("", "its name in IR and listings")]
    layers: Annotated[list[str], Key("", "its layers")]
    mode: Annotated[str, Key("", "`small`, `large` or `single`; empty where nobody said")]
    stopped_by: Annotated[str | None, Key("", "why it ends where it ends; with bytes that moved in this run")]
    tiles: Annotated[int, Key(NUMBER, "tiles of its output")]
    kept_bytes: Annotated[int, Key(B, "of each SRAM, with rows and columns for later tiles")]
    owners: Annotated[str, Key("", "who makes tiles alone: `clusters` or `cores`")]
    predicted_cycles: NotRequired[
        Annotated[int, Key(CYCLES, "what the planner's model says that it adds to the run, in which units overlap")]
    ]
    own_cycles: NotRequired[Annotated[int, Key(CYCLES, 'what the model says that it takes alone ("A unit alone")')]]
    carry: NotRequired[
        Annotated[str, Key("", "type in which its sums wait in SRAM between parts of a reduction; absent: none wait")]
    ]
    recomputed_macs: NotRequired[Annotated[int, Key("MACs", "that it makes again")]]
    recomputed_bytes: NotRequired[Annotated[int, Key(B, "of maps that it makes again")]]
    exchanged_bytes: NotRequired[Annotated[ExchangedBytesFigures, Key("", "what its tiles hand to each other")]]
    bound_cycles: Annotated[int | None, Key(CYCLES, "the least that its own products, other work and weights allow")]
    waits: Annotated[list[WaitFigures] | None, Key("", "what its cycles went to, the costliest first")]


class SubgraphFigures(TypedDict):
    """One executable."""

    name: Annotated[str, Key("", "of the piece")]
    executable_bytes: Annotated[int, Key(B, "of its file")]
    peak_sram_bytes: Annotated[int, Key(B, "of an SRAM, at most")]
    chip: Annotated[int, Key(NUMBER, "where it runs, from 0")]
    cycles: Annotated[int | None, Key(CYCLES, "that it runs")]
    start_cycle: Annotated[int | None, Key(CYCLES, "from the start of the first to its start")]
    stop_cycle: Annotated[int | None, Key(CYCLES, "from the start of the first to its end")]
    outputs: Annotated[list[str], Key("", "outputs of the network that are there when it ends")]


class HostPieceFigures(TypedDict):
    """A piece of a chain."""

    name: Annotated[str, Key("", "of the piece")]
    where: Annotated[str, Key("", "`device` or `host`")]
    start_cycle: Annotated[int | None, Key(CYCLES, "when it begins")]
    stop_cycle: Annotated[int | None, Key(CYCLES, "when it ends")]


class HostLayerFigures(TypedDict):
    """A layer on the host."""

    name: Annotated[str, Key("", "as in the file")]
    op: Annotated[str, Key("", "its operator")]
    reason: Annotated[str, Key("", "why it is there")]


class HostFigures(TypedDict):
    """What the host did besides feeding the device."""

    mode: Annotated[str, Key("", "`never`, `auto` or `only`")]
    cycles: Annotated[int | None, Key(CYCLES, "that its pieces take by its rates: part of `cycles.total`, of no bound")]
    macs: Annotated[int, Key("MACs", "of its products and convolutions")]
    bytes: Annotated[int, Key(B, "that its layers read and write in its own memory")]
    moved_bytes: Annotated[int, Key(B, "over the host link during the run")]
    to_host_bytes: Annotated[int, Key(B, "of these, to the host")]
    from_host_bytes: Annotated[int, Key(B, "of these, from the host")]
    link_cycles: Annotated[int | None, Key(CYCLES, "in which the link is busy")]
    port_cycles: Annotated[int | None, Key(CYCLES, "in which the DRAM port is held for them")]
    dram_energy_pj: Annotated[float, Key("pJ", "of the DRAM for them")]
    seconds: Annotated[float, Key(SECONDS, "that the host really took")]
    pieces: Annotated[list[HostPieceFigures], Key("", "all pieces, in order")]
    layers: Annotated[list[HostLayerFigures], Key("", "what runs on the host")]


class CheckedOutputFigures(TypedDict):
    """How far one output is from the reference's."""

    max_abs_error: Annotated[float, Key("", "the greatest difference")]
    max_rel_error: Annotated[float, Key("", "that, by the output's largest magnitude")]


class CheckFigures(TypedDict):
    """How far outputs are from the reference's."""

    max_abs_error: Annotated[float | None, Key("", "the greatest difference of all outputs; null: none compared")]
    max_rel_error: Annotated[float | None, Key("", "the greatest of all outputs, each by its largest magnitude")]
    reference: Annotated[str, Key("", "what was compared with")]
    outputs: Annotated[dict[str, CheckedOutputFigures], Key("", "each output", "OUTPUT")]
    nan_in_both: Annotated[int, Key(NUMBER, "elements that are no number in both: they agree, and say nothing")]
    numbers: Annotated[int, Key(NUMBER, "elements of all outputs")]
    why: Annotated[str, Key("", "why that is not onnxruntime alone; empty where it is")]
    not_compared: Annotated[list[str], Key("", "outputs that the host alone computed")]  # fmt: skip


SecondsFigures = TypedDict(
    "SecondsFigures",
    {
        "import": Annotated[float | None, Key(SECONDS, "reading the model")],
        "compile": Annotated[float | None, Key(SECONDS, "compiling, or reading what was compiled before")],
        "emulate": Annotated[float | None, Key(SECONDS, "the run")],
        "calibrate": Annotated[float | None, Key(SECONDS, "of the compiling, calibration")],
        "loops": Annotated[float | None, Key(SECONDS, "machine code of loops, made or loaded; in none of the others")],
        "passes": Annotated[dict[str, float], Key(SECONDS, "of the compiling, each pass", "PASS")],
        "cached": Annotated[bool, Key("", "whether it was compiled before")],
    },
)


class HashesFigures(TypedDict):
    """SHA-256 of what the run is made from."""

    target: Annotated[str | None, Key("SHA-256", "of all that the target says")]
    model: Annotated[str | None, Key("SHA-256", "of the model's bytes with its weights; of `zoo:` name and seed")]
    pipeline: Annotated[str | None, Key("SHA-256", "of all options of compiling that say something")]


class StreamFigures(TypedDict):
    """Many inputs, one after the other."""

    inputs: Annotated[int, Key(NUMBER, "inputs that went through")]
    latency_cycles: Annotated[int, Key(CYCLES, "until all outputs of the first are there")]
    cycles_per_input: Annotated[float, Key(CYCLES, "between results, from the first to the last")]
    total_cycles: Annotated[int, Key(CYCLES, "until those of the last are there")]
    moved_between_chips_bytes: Annotated[int, Key(B, "from chip to chip, for all of them")]


class WeightsFigures(TypedDict):
    """How weights lie in DRAM."""

    codec: Annotated[str, Key("", "`none`, `zero`, `huffman` or `auto`")]
    raw_bytes: Annotated[int, Key(B, "of the tensors")]
    stored_bytes: Annotated[int, Key(B, "of the same in DRAM")]
    compressed_tensors: Annotated[int, Key(NUMBER, "tensors that are compressed")]
    packed_tensors: Annotated[int, Key(NUMBER, "tensors that are integers with scales, as in the model")]
    shared_tensors: Annotated[int, Key(NUMBER, "tensors that lie once on the chip")]
    raw_loads: Annotated[dict[str, int], Key(NUMBER, "loads that stay as they are, by the reason", "REASON")]
    expanded_loads: Annotated[
        dict[str, int], Key(NUMBER, "loads of what the model has as integers with scales, by the reason", "REASON")
    ]


class LayerAccuracyFigures(TypedDict):
    """A layer in integers."""

    name: Annotated[str, Key("", "of the layer")]
    snr_db: Annotated[float, Key("dB", "signal to noise against the same layer in f32")]


class ReportData(TypedDict):
    """All of it; what is null where nothing was timed, compared or asked may be None."""

    schema: Annotated[int, Key("", "1: keys may be added, never renamed")]
    model: Annotated[str, Key("", "what was run")]
    target: Annotated[str, Key("", "the machine's name")]
    target_file: Annotated[str | None, Key("", "where it was read; null for a shipped one")]
    target_sha256: Annotated[str, Key("SHA-256", "of the machine, whatever it is called")]
    hashes: Annotated[HashesFigures, Key("", "what the run is made from; null where an executable alone is run")]
    dtype: Annotated[str, Key("", "element type on the device")]
    policy: Annotated[str, Key("", "how layers were fused")]
    clock_hz: Annotated[int, Key("Hz", "of the machine")]
    dram: Annotated[DramFigures, Key("", "the DRAM ports")]
    cycles: Annotated[CyclesFigures | None, Key("", "time; null where nothing was timed")]
    macs: Annotated[MacsFigures, Key("", "products")]
    engines: Annotated[dict[str, EngineFigures] | None, Key("", "each engine, of all chips together", "ENGINE")]
    flows: Annotated[list[FlowFigures], Key("", "each way of bytes; energy and DRAM bytes are sums over it")]
    sram: Annotated[SramFigures, Key("", "the SRAM ports")]
    nram_operand_share: Annotated[
        float | None, Key(SHARE, "of layers that read a map of their unit: those that read it in NRAM")
    ]
    nram_operands: Annotated[NramOperandFigures | None, Key("", "what `nram_operand_share` is the quotient of")]
    peak_bytes: Annotated[OnChipFigures, Key("", "the highest address that is written in each kind of memory")]
    waiting: Annotated[list[WaitingFigures] | None, Key("", "the critical path in words, at most ten")]
    energy_pj: Annotated[dict[str, float], Key("pJ", "`total`, each memory, and products by type", "PART")]
    line_buffer: Annotated[LineBufferFigures, Key("", "all line buffers")]
    address_cache: Annotated[AddressCacheFigures, Key("", "all address caches")]
    alternatives: Annotated[
        dict[str, PlanFigures] | None, Key("", "plans for `time`, `bytes` and `energy`, as predicted", "PLAN")
    ]
    layers: Annotated[list[LayerFigures], Key("", "each layer")]
    units: Annotated[list[UnitFigures], Key("", "each unit")]
    subgraphs: Annotated[list[SubgraphFigures], Key("", "each executable")]
    unsplit_peak_bytes: Annotated[
        OnChipFigures | None, Key("", "`peak_bytes` of the network in one piece; null where nobody knows")
    ]
    moved_between_chips_bytes: Annotated[int, Key(B, "from the DRAM of one chip to that of another")]
    host: Annotated[HostFigures | None, Key("", "what the host did in the run")]
    check: Annotated[CheckFigures | None, Key("", "the comparison; null: none was asked")]
    seconds: Annotated[SecondsFigures, Key("", "wall time")]
    stream: Annotated[StreamFigures | None, Key("", "a stream of inputs; null: one input")]
    weights: NotRequired[Annotated[WeightsFigures, Key("", "compressed or shared weights")]]
    accuracy: NotRequired[Annotated[list[LayerAccuracyFigures], Key("", "each layer of a quantised network")]]
    output_snr_db: NotRequired[Annotated[dict[str, float], Key("dB", "signal to noise of each output", "OUTPUT")]]
    calibration_inputs: NotRequired[Annotated[int, Key(NUMBER, "inputs that calibration looked at")]]
