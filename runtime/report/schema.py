# Tests: test/runtime/report/test_report_schema.py
"""The keys of the report, schema 1, with their types; docs/report.md says what they mean.

The one declaration for type checkers; a test holds every report against it.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class DramFigures(TypedDict):
    """Bytes at the DRAM ports."""

    read_bytes: int
    write_bytes: int
    total_bytes: int
    weight_bytes: int
    input_bytes: int
    output_bytes: int
    intermediate_bytes: int
    other_bytes: int
    compulsory_bytes: int
    ratio: float | None
    compressed_compulsory_bytes: int
    ratio_to_compressed: float | None
    bound_bytes: int | None
    bound_by: str | None
    layer_by_layer_bytes: int | None
    maps: int | None
    maps_in_dram: int | None


class CyclesFigures(TypedDict):
    """Of the whole run."""

    total: int
    roofline: float
    ratio: float | None
    bound: float | None
    bound_by: str | None
    bound_terms: dict[str, float] | None
    address: int
    address_without_tables: int


class MacsFigures(TypedDict):
    """Products."""

    useful: int
    recomputed: int
    executed: int


class EngineFigures(TypedDict):
    """Cycles, and bytes moved."""

    busy: int
    stalled: int
    idle: int
    bytes: int


class SramFigures(TypedDict):
    """Bytes at the ports of all SRAMs."""

    read_bytes: int
    write_bytes: int


class OnChipFigures(TypedDict):
    """Bytes of each memory."""

    sram: int
    nram: int
    wram: int


class WaitingFigures(TypedDict):
    """A part of the critical path in words."""

    what: str
    is_wait: bool
    cycles: int
    share: float
    units: list[str]


class LineBufferFigures(TypedDict):
    """Of all line buffers."""

    writes: int
    writes_split: int
    compute_steps: int
    discarded: int


class AddressCacheFigures(TypedDict):
    """Of all caches of addresses."""

    tables: int
    loads: int
    evictions: int


class LayerFigures(TypedDict):
    """One of the model's."""

    name: str
    op: str
    unit: str | None
    where: str
    cycles: int | None
    dram_bytes: int


class ExchangedBytesFigures(TypedDict):
    """What others made, by how far it came."""

    core: int
    cluster: int
    chip: int


WaitFigures = TypedDict("WaitFigures", {"engine": str, "for": str, "on": str, "why": str, "cycles": int})


class UnitFigures(TypedDict):
    """What is fused."""

    name: str
    layers: list[str]
    mode: str
    stopped_by: str | None
    tiles: int
    kept_bytes: int
    owners: str
    predicted_cycles: NotRequired[int]
    own_cycles: NotRequired[int]
    carry: NotRequired[str]
    recomputed_macs: NotRequired[int]
    recomputed_bytes: NotRequired[int]
    exchanged_bytes: NotRequired[ExchangedBytesFigures]
    bound_cycles: int | None
    waits: list[WaitFigures] | None


class SubgraphFigures(TypedDict):
    """One executable."""

    name: str
    executable_bytes: int
    peak_sram_bytes: int
    chip: int
    cycles: int | None
    start_cycle: int | None
    stop_cycle: int | None
    outputs: list[str]


class CheckFigures(TypedDict):
    """How far outputs are from the reference's."""

    max_abs_error: float
    max_rel_error: float
    reference: str
    outputs: dict[str, dict[str, float]]
    nan_in_both: int
    numbers: int  # fmt: skip


SecondsFigures = TypedDict(
    "SecondsFigures",
    {
        "import": float | None, "compile": float | None, "emulate": float | None, "calibrate": float | None,
        "loops": float | None, "passes": dict[str, float], "cached": bool,
    },
)


class HashesFigures(TypedDict):
    """SHA-256 of what the run is made from."""

    target: str | None
    model: str | None
    pipeline: str | None


class ReportData(TypedDict):
    """All of it; what is null where nothing was timed, compared or asked may be None."""

    schema: int
    model: str
    target: str
    target_file: str | None
    target_sha256: str
    hashes: HashesFigures
    dtype: str
    policy: str
    clock_hz: int
    dram: DramFigures
    cycles: CyclesFigures | None
    macs: MacsFigures
    engines: dict[str, EngineFigures] | None
    flows: list[dict[str, Any]]
    sram: SramFigures
    nram_operand_share: float | None
    peak_bytes: OnChipFigures
    waiting: list[WaitingFigures] | None
    energy_pj: dict[str, float]
    line_buffer: LineBufferFigures
    address_cache: AddressCacheFigures
    alternatives: dict[str, dict[str, int]] | None
    layers: list[LayerFigures]
    units: list[UnitFigures]
    subgraphs: list[SubgraphFigures]
    unsplit_peak_bytes: OnChipFigures | None
    moved_between_chips_bytes: int
    host: dict[str, Any] | None
    check: CheckFigures | None
    seconds: SecondsFigures
    stream: dict[str, Any] | None
    weights: NotRequired[dict[str, Any]]
    accuracy: NotRequired[list[dict[str, Any]]]
    output_snr_db: NotRequired[dict[str, float]]
    calibration_inputs: NotRequired[int]
