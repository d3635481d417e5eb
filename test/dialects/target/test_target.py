"""Target descriptions: the shipped numbers, what is refused and how, and the forms they travel in."""

import dataclasses
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frustum.backend import targets
from frustum.backend.targets.__main__ import with_tables
from frustum.dialects import target as target_module
from frustum.dialects.target import (
    Target,
    TargetError,
    digest,
    from_attribute,
    from_json,
    read_target,
    to_attribute,
    to_json,
)
from frustum.dialects.target.declared import plain, walk

KIB, MIB, GIB = 1024, 1024**2, 1024**3
EDGE_TEXT = targets.path("edge").read_text()
DOCS = Path(__file__).resolve().parents[3] / "docs" / "targets.md"

# The machine table of the specification, row by row; columns as in SHIPPED.
SHIPPED = ("default", "edge", "units4", "line64", "manycore", "df")
TABLE = {
    "chips": (1, 1, 1, 1, 4, 1),
    "chip.clusters": (4, 1, 1, 1, 16, 1),
    "chip.cluster.cores": (4, 4, 4, 1, 1, 1),
    "chip.cluster.sram.capacity_bytes": (2 * MIB, 512 * KIB, 256 * KIB, MIB, 256 * KIB, 2 * MIB),
    "chip.cluster.core.nram.capacity_bytes": (512 * KIB, 64 * KIB, 128 * KIB, 64 * KIB, 64 * KIB, 64 * KIB),
    "chip.cluster.core.wram.capacity_bytes": (MIB, 64 * KIB, 32 * KIB, 64 * KIB, 64 * KIB, 32 * KIB),
    "chip.cluster.core.matrix.macs_per_step": (4096, 256, 256, 2048, 256, 1024),
    "chip.cluster.core.matrix.lines": (64, 16, 16, 64, 16, 64),
    "chip.cluster.core.matrix.channels": (64, 16, 16, 32, 16, 16),
    "chip.cluster.core.vector.lanes": (64, 16, 16, 64, 16, 32),
    "chip.cluster.core.line_buffer.lines": (64, 16, 16, 64, 16, 64),
    "chip.cluster.core.line_buffer.block_bytes": (64, 32, 32, 32, 32, 64),
    "chip.cluster.core.address_cache_bytes": (16 * KIB, 4 * KIB, 4 * KIB, 8 * KIB, 4 * KIB, 8 * KIB),
    "chip.dram.port_bytes_per_cycle": (102, 8, 16, 16, 25, 8),
    "chip.cluster.core.mvdma.bytes_per_cycle": (64, 16, 16, 32, 16, 128),
    "chip.cluster.core.iodma.bytes_per_cycle": (16, 4, 4, 16, 8, 8),
    "chip.cluster.cdma.bytes_per_cycle": (64, None, None, None, 16, None),
    "chip.cluster.gdma.bytes_per_cycle": (102, 8, 16, 16, 25, 8),
    "chip.cluster.sram.port_bytes_per_cycle": (256, 64, 64, 64, 32, 256),
    "chip.cluster.bus.bytes_per_cycle": (64, 16, 16, 32, 16, 128),
    "chip.cluster.core.nram.port_bytes_per_cycle": (256, 64, 64, 128, 64, 128),
    "chip.cluster.core.wram.port_bytes_per_cycle": (256, 64, 64, 128, 64, 128),
    "host_link_bytes_per_cycle": (16, 4, 4, 4, 8, 4),
    "chip_link_bytes_per_cycle": (None, None, None, None, 8, None),
    "chip.dram.capacity_bytes": (16 * GIB, GIB, GIB, GIB, 4 * GIB, GIB),
    "chip.cluster.instruction_memory_bytes": (64 * KIB, *[32 * KIB] * 5),
    "chip.cluster.event_slots": (256, 64, 64, 64, 64, 64),
    "chip.cluster.core.matrix.address_cycles": (4, 8, 8, 8, 8, 8),
    "clock_hz": (10**9, 500 * 10**6, 500 * 10**6, 500 * 10**6, 800 * 10**6, 200 * 10**6),
    "chip.dram.latency_cycles": (200, 100, 100, 100, 200, 100),
    "chip.cluster.sram.latency_cycles": (20, 10, 10, 10, 10, 4),
    "chip.cluster.core.nram.latency_cycles": (4, 2, 2, 2, 2, 1),
    "chip.cluster.core.wram.latency_cycles": (4, 2, 2, 2, 2, 1),
    "chip.dram.energy_pj_per_byte": (100, 160, 160, 160, 100, 90),
    "chip.cluster.sram.energy_pj_per_byte": (6, 5, 5, 5, 4, 1.6),
    "chip.cluster.core.nram.energy_pj_per_byte": (1, 1, 1, 1, 1, 0.4),
    "chip.cluster.core.wram.energy_pj_per_byte": (1, 1, 1, 1, 1, 0.4),
    "chip.cluster.core.matrix.energy_pj_per_mac.int8": (0.2, 0.2, 0.2, 0.2, 0.2, 0.04),
    "chip.cluster.core.matrix.energy_pj_per_mac.sixteen_bit": (0.8, 0.8, 0.8, 0.8, 0.8, 0.16),
    "chip.cluster.core.matrix.energy_pj_per_mac.f32": (3.0, 3.0, 3.0, 3.0, 3.0, 0.6),
    # The rules of the text, the same for all.
    "alignment_bytes": (16,) * 6,
    "transfers.chunk_bytes": (4096,) * 6,
    "transfers.in_flight": (4,) * 6,
    "chip.dram.minimum_run_bytes": (64,) * 6,
    "chip.cluster.sram.minimum_run_bytes": (16,) * 6,
    "chip.cluster.core.nram.minimum_run_bytes": (16,) * 6,
    "chip.cluster.core.wram.minimum_run_bytes": (16,) * 6,
    "chip.cluster.core.matrix.cycles_per_step.int8": (1,) * 6,
    "chip.cluster.core.matrix.cycles_per_step.sixteen_bit": (2,) * 6,
    "chip.cluster.core.matrix.cycles_per_step.f32": (8,) * 6,
    "chip.cluster.core.vector.cycles_per_element.int8": (1,) * 6,
    "chip.cluster.core.vector.cycles_per_element.sixteen_bit": (1,) * 6,
    "chip.cluster.core.vector.cycles_per_element.f32": (2,) * 6,
    "chip.cluster.core.vector.passes.elementary": (1,) * 6,
    "chip.cluster.core.vector.passes.transcendental": (4,) * 6,
    "chip.cluster.core.vector.passes.pool_per_kernel_element": (1,) * 6,
    "chip.cluster.core.vector.passes.lrn_per_window_element": (1,) * 6,
    "chip.cluster.core.vector.passes.reduction": (1,) * 6,
    "chip.cluster.core.vector.passes.resize_nearest": (1,) * 6,
    "chip.cluster.core.vector.passes.resize_linear": (4,) * 6,
    "host.macs_per_cycle": (10, 20, 20, 20, 12.5, 50),
    "host.bytes_per_cycle": (10, 20, 20, 20, 12.5, 50),
}
ALIASES = {  # rows of the table that are not keys of the file, and keys the table reads through a shortcut
    "chip.cluster.core.matrix.line_buffer.lines",
    "chip.cluster.core.matrix.line_buffer.block_bytes",
    "chip.cluster.core.vector.lanes",
}


def figure(target: object, path: str) -> object:
    for name in path.split("."):
        target = None if target is None else getattr(target, name)
    return target


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("path", TABLE)
def test_shipped_figures_are_those_of_the_machine_table(path: str):
    assert tuple(figure(targets.load(name), path) for name in SHIPPED) == TABLE[path]


def test_no_number_is_missing_from_this_table():
    numbers = {".".join(path) for path, field in walk(Target) if field.kind in (int, float)}
    assert numbers <= TABLE.keys() | ALIASES


def test_shipped_names_and_models():
    assert set(targets.names()) == set(SHIPPED)
    assert targets.names()[0] == "default"
    for name in SHIPPED:
        assert targets.load(name).name == name
    assert targets.load("edge").modelled_on == "a small embedded NPU"


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_of_a_shipped_file_has_a_source(name: str):
    section = ""
    for line in targets.path(name).read_text().partition("clock_hz")[2].splitlines():
        if line.rstrip().endswith(":") or ":  #" in line:
            section = line
        elif any(character.isdigit() for character in line.partition("#")[0].partition(":")[2]):
            assert "[T]" in line or "[M]" in line or "[M]" in section, line


def test_shortcuts():
    manycore = targets.load("manycore")
    assert manycore.cores_per_chip == 16
    assert manycore.total_cores == 64
    assert manycore.cluster is manycore.chip.cluster
    assert manycore.core is manycore.chip.cluster.core
    assert manycore.memory("wram") is manycore.core.wram


# --- loading -----------------------------------------------------------------------------------------------


def test_a_target_may_be_given_by_its_file(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(EDGE_TEXT.replace("name: edge", "name: mine"))
    assert targets.load(file) == dataclasses.replace(targets.load("edge"), name="mine")
    assert targets.load(str(file)).name == "mine"


def refused(what: object) -> str:
    with pytest.raises(TargetError) as caught:
        targets.load(what) if isinstance(what, Path) else read_target(str(what), "bad.yaml")
    return str(caught.value)


def test_an_unknown_name_lists_the_shipped_ones():
    with pytest.raises(TargetError) as caught:
        targets.load("defualt")
    assert str(caught.value) == (
        "error: no target 'defualt'; did you mean 'default'? "
        "(shipped: default, df, edge, line64, manycore, units4; or a file that ends in .yaml)"
    )
    with pytest.raises(TargetError, match=r"no target 'zzz' \(shipped"):
        targets.load("zzz")


def test_files_that_cannot_be_read(tmp_path: Path):
    assert "none.yaml: error: cannot be read: No such file" in refused(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: \xff\xfe")
    assert "binary.yaml: error: not YAML: byte 6 is not UTF-8" in refused(binary)
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    assert "cannot be read: Is a directory" in refused(folder)


# --- what is refused ---------------------------------------------------------------------------------------


def place(text: str, excerpt: str) -> str:
    """LINE:COL of the first occurrence of an excerpt."""
    before = text[: text.index(excerpt)]
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


@pytest.mark.parametrize(
    ("old", "new", "at", "message"),
    [
        ("cores: 4", "cores: 0", "0 ", "chip.cluster.cores: found 0, allowed a whole number, 1 to 256"),
        ("cores: 4", "cores: 2.5", "2.5", "chip.cluster.cores: found 2.5, allowed a whole number, 1 to 256"),
        ("cores: 4", "cores: four", "four", "chip.cluster.cores: found 'four', allowed a whole number"),
        ("cores: 4", "cores: true", "true", "chip.cluster.cores: found True, allowed a whole number"),
        ("cores: 4", "cores: [4]", "cores: [4]", "chip.cluster.cores: found a list, allowed a whole number"),
        ("cores: 4", "cores: {a: 1}", "cores: {a", "chip.cluster.cores: found a section, allowed a whole"),
        ("cores: 4", "cores: 0777", "0777", "chip.cluster.cores: '0777' is not a number of YAML 1.2"),
        ("cores: 4", "cores: !mine 4", "!mine", "chip.cluster.cores: tag !mine is not allowed here"),
        ("512 KiB", "512 KB", "512 KB", "found '512 KB', allowed a whole number, 256 B to 1024 GiB"),
        ("512 KiB", "512 KB", "512 KB", "256 B to 1024 GiB (with KiB, MiB, GiB)"),
        ("500 MHz", "500 MHZ", "500 MHZ", "1 Hz to 1000 GHz (with kHz, MHz, GHz)"),
        ("512 KiB", f"{'9' * 5000} KiB", "9999", "..., allowed a whole number, 256 B"),
        ("cores: 4", f"cores: 0x{'9' * 5000}", "0x9", "found a number of more than 20 digits, allowed a whole"),
        ("512 KiB", "1 B", "1 B", "sram.capacity_bytes: found '1 B'"),
        ("512 KiB", "100 GHz", "100 GHz", "sram.capacity_bytes: found '100 GHz'"),
        ("500 MHz", "12:30", "12:30", "clock_hz: found '12:30', allowed a whole number, 1 Hz to 1000 GHz"),
        ("500 MHz", "16e9", "16e9", "clock_hz: found 16000000000.0, allowed a whole number"),
        ("500 MHz", "null", "null", "clock_hz: found nothing, allowed a whole number"),
        (
            "f32: 3.0",
            "f32: .nan",
            ".nan",
            "energy_pj_per_mac.f32: found nan, allowed a number, 0 to 1e+06 pJ",
        ),
        ("f32: 3.0", "f32: -.inf", "-.inf", "energy_pj_per_mac.f32: found -inf"),
        ("name: edge", "name: 12", "12", "name: found 12, allowed text that is not empty"),
        ("name: edge", "name: ''", "''", "name: found '', allowed text that is not empty"),
        ("cdma: null", "cdma: 5", "5  ", "chip.cluster.cdma must be a section with keys, found 5"),
        ("lanes:", "lans:", "lans:", "chip.cluster.core.vector has no key 'lans'; did you mean 'lanes'?"),
        ("lanes:", "qqq:", "qqq:", "has no key 'qqq'; known: lanes, cycles_per_element, passes"),
        ("chips: 1", "chips: 1\nchips: 2", "chips: 2", "chips is given twice, first in line 9"),
        ("chips: 1", "chips: 1\n1: 2", "1: 2", "a key must be text, found 1"),
        ("chips: 1", "chips: 1\n? [a]\n: 2", "[a]", "a key must be text, found a sequence"),
        ("cdma: null", "cdma: &a {x: *a}", "x: *a", "chip.cluster.cdma.x is an alias of what it stands in"),
    ],
)
def test_a_wrong_line_is_shown_with_its_place(old: str, new: str, at: str, message: str):
    text = EDGE_TEXT.replace(old, new, 1)
    found = refused(text)
    start = text.index(new) + new.index(at.strip()) if at.strip() in new else text.index(at)
    line = text[:start].count("\n")
    column = start - text.rfind("\n", 0, start)
    assert f"bad.yaml:{line + 1}:{column}: error: " in found
    assert message in found
    assert f"\n{text.splitlines()[line]}\n{' ' * (column - 1)}^" in found


def test_a_missing_key_is_named_with_its_range_and_meaning():
    text = EDGE_TEXT.replace("    event_slots: 64", "    # no slots:  ")
    assert refused(text).splitlines()[0] == (
        f"bad.yaml:{place(text, 'cluster:' + chr(10))}: error: chip.cluster lacks the key 'event_slots' "
        "(a whole number, 1 to 65536): event counters of a cluster"
    )


def test_what_a_target_lacks_must_be_said():
    assert "chip.cluster lacks the key 'cdma' (a section, or null)" in refused(
        EDGE_TEXT.replace("cdma:", "#")
    )


def test_all_problems_at_once_in_the_order_of_the_file():
    text = (
        EDGE_TEXT.replace("cores: 4", "cores: -4")
        .replace("lanes:", "lans:")
        .replace("chips: 1", "chips: 1\nchips: 1")
    )
    errors = [line for line in refused(text).splitlines() if ": error: " in line]
    assert [error.partition(": error: ")[2].split()[0] for error in errors] == [
        "chips",
        "chip.cluster.cores:",
        "chip.cluster.core.vector",
        "chip.cluster.core.vector",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bad.yaml:1:1: error: the description must be a section with keys, found nothing"),
        ("- 1", "bad.yaml:1:1: error: the description must be a section with keys, found a list\n- 1\n^"),
        (
            "a: [",
            "bad.yaml:1:5: error: not YAML: expected the node content, but found '<stream end>'\na: [\n    ^",
        ),
        ("a: 1\n---\nb: 2", "bad.yaml:2:1: error: not YAML: but found another document\n---\n^"),
        ("\0", "bad.yaml:1:1: error: not YAML: unacceptable character #x0000"),
    ],
)
def test_what_is_not_yaml(text: str, message: str):
    assert refused(text).startswith(message)


# --- what is accepted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["524288", "0x80000", "512 KiB", "'512 KiB'", "524288 B"])
def test_sizes_may_be_written_out_or_with_a_suffix(size: str):
    assert read_target(EDGE_TEXT.replace("512 KiB", size), "x").cluster.sram.capacity_bytes == 512 * KIB


def test_an_alias_stands_for_what_it_names():
    text = EDGE_TEXT.replace("gdma: {", "gdma: &same {").replace("cdma: null", "cdma: *same")
    assert read_target(text, "x").cluster.cdma == targets.load("edge").cluster.gdma


def test_options_may_be_left_out():
    assert targets.load("edge").options == target_module.Options(None, None)
    assert read_target(EDGE_TEXT + "options: {dtype: f16}\n", "x").options.dtype == "f16"
    assert "options.dtype: found 'f33', allowed f32, f16, bf16, int8, model, or null" in refused(
        EDGE_TEXT + "options: {dtype: f33}\n"
    )


# --- the forms it travels in -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_a_target_comes_back_the_same(name: str):
    target = targets.load(name)
    assert from_json(json.loads(json.dumps(to_json(target)))) == target
    assert from_attribute(to_attribute(target)) == target
    assert from_attribute(reparsed(to_attribute(target))) == target


@pytest.mark.slow
@given(st.floats(0, 1e6))
def test_energies_come_back_from_ir_text_to_the_last_bit(energy_pj: float):
    data = plain(targets.load("edge"))
    data["chip"]["dram"]["energy_pj_per_byte"] = energy_pj
    assert from_attribute(reparsed(to_attribute(from_json(data)))).chip.dram.energy_pj_per_byte == energy_pj


def reparsed(attribute):
    from xdsl.context import Context
    from xdsl.dialects.builtin import Builtin
    from xdsl.parser import Parser

    context = Context()
    context.load_dialect(Builtin)
    return Parser(context, str(attribute)).parse_attribute()


def test_the_attribute_is_readable():
    text = str(to_attribute(targets.load("edge")))
    assert 'name = "edge"' in text
    assert "gdma = {bytes_per_cycle = 8 : i64}" in text
    assert "cdma" not in text


def test_a_wrong_attribute_or_json_is_refused_with_the_path():
    data = plain(targets.load("edge"))
    data["chip"]["clusters"] = 0
    data["clock"] = 5
    with pytest.raises(
        TargetError, match=r"target: error: .*no key 'clock'; did you mean 'clock_hz'"
    ) as caught:
        from_json(data)
    assert "chip.clusters: found 0, allowed a whole number, 1 to 1024" in str(caught.value)
    attribute = to_attribute(targets.load("edge"))
    wrong = type(attribute)(
        {**attribute.data, "chips": attribute.data["name"], "chip": attribute.data["name"]}
    )
    with pytest.raises(TargetError, match=r"chips: found 'edge'") as caught:
        from_attribute(wrong)
    assert "chip must be a section with keys, found 'edge'" in str(caught.value)


def test_importing_it_loads_nothing_heavy():
    code = (
        "import sys, frustum.dialects.target, frustum.dialects.target.durations, frustum.backend.targets;"
        "print(sorted({'numpy', 'onnx', 'ruamel', 'xdsl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_tables_of_the_documentation_are_up_to_date():
    text = DOCS.read_text(encoding="utf-8")
    assert text == with_tables(text), "run python -m frustum.backend.targets docs/targets.md"


# --- options, and texts that are too much ------------------------------------------------------------------


def test_all_that_is_wrong_with_options_is_shown_in_its_place(tmp_path: Path) -> None:
    from frustum.passes.fuse.policy import problems_of

    options = "options: {policy: gredy, dtype: f8, rules: 'S1,99', thresholds: x}\n"
    file = tmp_path / "bad.yaml"
    file.write_text(EDGE_TEXT.replace("cores: 4", "cores: 0") + options)
    with pytest.raises(TargetError) as caught:
        targets.load(file, problems_of)
    line = (EDGE_TEXT + options).count("\n")
    messages = [text for text in str(caught.value).splitlines() if "error:" in text]
    policies = "none, pyramid, template, greedy, optimal, tree, custom, or null; did you mean 'greedy'?"
    assert messages[1:] == [
        f"{file}:{line}:19: error: options.policy: found 'gredy', allowed {policies}",
        f"{file}:{line}:33: error: options.dtype: found 'f8', allowed f32, f16, bf16, int8, model, or null",
        f"{file}:{line}:44: error: options.rules: unknown rule '99' (rules are S1, S2 and 1 to 19, or their names)",
        f"{file}:{line}:65: error: options.thresholds: threshold 'x' is not of the form 11=75",
    ]
    assert "chip.cluster.cores: found 0" in messages[0]
    assert options + " " * 18 + "^~~~~" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{policy: greedy, rules: 'S1,1'}", "options.rules: policy 'greedy' has its own rules: one of both"),
        ("{policy: optimal, thresholds: '11=75'}", "options.thresholds: there are no rules that they are of"),
        ("{rules: 'S1,1', thresholds: '11=75'}", "the policy does not have that rule"),
    ],
)
def test_options_that_contradict_each_other_are_refused(tmp_path: Path, options: str, message: str) -> None:
    from frustum.passes.fuse.policy import problems_of

    file = tmp_path / "bad.yaml"
    file.write_text(f"{EDGE_TEXT}options: {options}\n")
    with pytest.raises(TargetError, match=re.escape(message)):
        targets.load(file, problems_of)
    file.write_text(f"{EDGE_TEXT}options: {{policy: greedy, thresholds: '10=1'}}\n".replace("'10=1'", "null"))
    assert targets.load(file, problems_of).options.policy == "greedy"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 5000, "bad.yaml:1:1: error: not YAML that is read here: sections are nested too deeply"),
        ("a: " + "{b: " * 5000, "bad.yaml:1:1: error: not YAML that is read here: sections are nested too deeply"),
        (
            "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)),
            "bad.yaml:1:1: error: not YAML that is read here: more than 100000 values",
        ),
    ],
)
def test_a_text_that_is_too_much_is_refused(text: str, message: str) -> None:
    assert message in refused(text)


def test_a_file_that_is_no_description_by_its_size_alone(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    file.write_text(" " * (1 << 20) + " ")
    with pytest.raises(TargetError, match=r"big\.yaml: error: 1048577 bytes long, more than any target"):
        targets.load(file)


def test_the_digest_tells_machines_apart() -> None:
    edge = targets.load("edge")
    assert digest(edge) == digest(targets.load("edge"))
    other = replace(edge, clock_hz=edge.clock_hz + 1)
    assert len({digest(edge), digest(other), digest(targets.load("default"))}) == 3
